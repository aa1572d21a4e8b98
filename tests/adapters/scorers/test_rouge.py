from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.scorers.rouge.punkt import PUNKT_FILES
from pytest_mlperf.adapters.scorers.rouge.scorer import RougeScorer
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from tests.adapters.scorers import originals
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import AutoTokenizer, byte_level

Build = Callable[..., RougeScorer]

METRICS = ("rouge1", "rouge2", "rougeL")

PREDICTED = [
    "  The cats were running happily over the roof, weren't they?\n",
    "Nothing in common",
    "",
    "the cat sat on the mat the cat sat",
    "naïve café 42 foo_bar",
    "seven words , which is n't an even share",
]
TARGETS = [
    "A cat ran over the roofs. They were happy.",
    "entirely other words here",
    "an answer nobody gave",
    "the cat sat on the mat",
    "Naïve cafés: 42, foo bar!",
    "It isn't even seven words.",
]


@pytest.fixture
def build(model: Path) -> Build:
    def with_options(**options: Any) -> RougeScorer:
        return RougeScorer(**{"model": str(model), **options})

    return with_options


def tokens(texts: list[str], end: int = 2, dtype: str = "<i8") -> list[bytes]:
    """Return an engine's outputs: the tokens of each text and the end of sequence."""
    return [np.array([*one.ids, end], dtype).tobytes() for one in byte_level().encode_batch(texts)]


def reference_script(model: Path, outputs: list[bytes], targets: list[str]) -> dict[str, float]:
    """Score as language/llama2-70b/evaluate-accuracy.py of MLPerf does, sentences left whole."""
    tokenizer = AutoTokenizer.from_pretrained(
        model, model_max_length=2048, padding_side="left", use_fast=False
    )
    ids = [np.frombuffer(output, np.int64).tolist() for output in outputs]
    texts = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    scorer = originals.rouge(*METRICS)
    scores = [
        scorer.score(target.strip(), text) for target, text in zip(targets, texts, strict=True)
    ]
    return {
        **{
            name: float(round(np.mean([one[name].fmeasure for one in scores]) * 100, 4))
            for name in METRICS
        },
        "gen_len": float(np.sum([len(text) for text in texts])),
        "tokens_per_sample": round(sum(len(one) for one in ids) / len(ids), 1),
    }


@pytest.mark.nightly
def test_aggregates_are_the_figures_that_the_reference_script_prints(
    build: Build, model: Path
) -> None:
    outputs = tokens(PREDICTED)

    scores = build().score(outputs, TARGETS)

    assert scores.aggregate == reference_script(model, outputs, TARGETS)


def test_each_sample_is_scored_from_0_to_100_and_lengths_are_counted(build: Build) -> None:
    """All tokens count, and the characters of the stripped text."""
    outputs = tokens(PREDICTED)

    scores = build().score(outputs, TARGETS)

    original = originals.rouge(*METRICS)
    pairs = list(zip(TARGETS, PREDICTED, strict=True))
    for name in METRICS:
        expected = [100 * original.score(*pair)[name].fmeasure for pair in pairs]
        assert scores.per_sample[name] == expected
        assert scores.aggregate[name] == pytest.approx(np.mean(expected), abs=5.1e-5)
    assert scores.per_sample["tokens_per_sample"] == [len(output) / 8 for output in outputs]
    assert scores.per_sample["gen_len"] == [len(text.strip()) for text in PREDICTED]
    assert scores.aggregate["gen_len"] == sum(len(text.strip()) for text in PREDICTED)
    assert {type(value) for value in scores.aggregate.values()} == {float}
    assert {type(value) for row in scores.per_sample.values() for value in row} == {float}
    assert build(dtype="int32").score(tokens(PREDICTED, dtype="<i4"), TARGETS) == scores


def test_a_model_that_says_nothing_scores_0(build: Build) -> None:
    ids = [[], [2], [3, 3, 2, 2]]

    scores = build().score([np.array(row, "<i8").tobytes() for row in ids], ["some words"] * 3)

    nothing = dict.fromkeys((*METRICS, "gen_len"), [0.0] * 3)
    assert scores.per_sample == {**nothing, "tokens_per_sample": [0, 1, 4]}


@pytest.mark.process
def test_the_number_of_processes_changes_nothing(build: Build) -> None:
    assert build(processes=None)._processes == len(os.sched_getaffinity(0))

    assert build(processes=2).score(tokens(PREDICTED), TARGETS) == build().score(
        tokens(PREDICTED), TARGETS
    )


@pytest.fixture
def punkt(tmp_path: Path) -> Path:
    """A Punkt model that knows two abbreviations."""
    for name in PUNKT_FILES:
        (tmp_path / name).touch()
    (tmp_path / "abbrev_types.txt").write_text("mr\nu.s", "utf-8")
    return tmp_path


def test_with_a_punkt_model_rouge_lsum_and_lengths_are_those_of_the_reference(
    build: Build, punkt: Path
) -> None:
    predicted = ["Mr. Cat ran.  He sat.\n\nHe slept. ", "", "The U.S. won. They did."]
    targets = ["He sat .\nMr. Cat slept .", "nothing", "They won.  The U.S. did."]
    split = {
        predicted[0]: "Mr. Cat ran.\nHe sat.\nHe slept.",
        predicted[1]: "",
        predicted[2]: "The U.S. won.\nThey did.",
        targets[0]: "He sat .\nMr. Cat slept .",
        targets[1]: "nothing",
        targets[2]: "They won.\nThe U.S. did.",
    }
    original = originals.rouge("rougeLsum")
    expected = [
        original.score(split[target], split[text])["rougeLsum"].fmeasure
        for target, text in zip(targets, predicted, strict=True)
    ]

    scores = build(punkt=str(punkt)).score(tokens(predicted), targets)

    assert scores.per_sample["rougeLsum"] == [100 * one for one in expected]
    assert scores.aggregate["rougeLsum"] == float(round(np.mean(expected) * 100, 4)) > 0
    assert scores.per_sample["gen_len"] == [len(split[text]) for text in predicted]
    assert scores.aggregate["gen_len"] == sum(len(split[text]) for text in predicted)
    without = build().score(tokens(predicted), targets)
    assert {**scores.per_sample, **without.per_sample} == {
        **scores.per_sample,
        "gen_len": [len(text.strip()) for text in predicted],
    }
    assert set(scores.aggregate) - set(without.aggregate) == {"rougeLsum"}


def test_wrong_options_and_references_are_refused(build: Build, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the Punkt model in .* lacks abbrev_types\.txt"):
        build(punkt=str(tmp_path))
    counts = [(n, f"processes = {n} is not a whole number of at least 1") for n in (0, -1, True)]
    assert differences(lambda n: build(processes=n), SuiteError, counts) == []
    kinds = [(7, "int"), (None, "NoneType"), (["a"], "list")]
    assert (
        differences(
            lambda reference: build().score([b"", b""], ["text", reference]),
            RunError,
            [(value, f"of sample 1 is a {kind}, but must be a text") for value, kind in kinds],
        )
        == []
    )
