from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer as Original

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers.rouge.punkt import FILES
from pytest_mlperf.scorers.rouge.scorer import RougeScorer
from tests.scorers.tokenizers_made_here import AutoTokenizer, byte_level

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
    """Return what an engine answers: the tokens of each text and the end of sequence."""
    return [np.array([*one.ids, end], dtype).tobytes() for one in byte_level().encode_batch(texts)]


def reference_script(model: Path, outputs: list[bytes], targets: list[str]) -> dict[str, float]:
    """Score as language/llama2-70b/evaluate-accuracy.py of MLPerf does, sentences left whole."""
    tokenizer = AutoTokenizer.from_pretrained(
        model, model_max_length=2048, padding_side="left", use_fast=False
    )
    ids = [np.frombuffer(output, np.int64).tolist() for output in outputs]
    texts = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    scorer = Original(METRICS, use_stemmer=True)
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


def test_aggregates_are_the_figures_that_the_reference_script_prints(
    build: Build, model: Path
) -> None:
    outputs = tokens(PREDICTED)

    scores = build().score(outputs, TARGETS)

    assert scores.aggregate == reference_script(model, outputs, TARGETS)


def test_each_sample_is_scored_from_0_to_100(build: Build) -> None:
    scores = build().score(tokens(PREDICTED), TARGETS)

    original = Original(METRICS, use_stemmer=True)
    pairs = list(zip(TARGETS, PREDICTED, strict=True))
    for name in METRICS:
        expected = [100 * original.score(*pair)[name].fmeasure for pair in pairs]
        assert scores.per_sample[name] == expected
        assert scores.aggregate[name] == pytest.approx(np.mean(expected), abs=5.1e-5)


def test_lengths_count_all_tokens_and_the_characters_of_the_stripped_text(build: Build) -> None:
    outputs = tokens(PREDICTED)

    scores = build().score(outputs, TARGETS)

    assert scores.per_sample["tokens_per_sample"] == [len(output) / 8 for output in outputs]
    assert scores.per_sample["gen_len"] == [len(text.strip()) for text in PREDICTED]
    assert scores.aggregate["gen_len"] == sum(len(text.strip()) for text in PREDICTED)


@pytest.mark.parametrize(("ids", "count"), [([], 0), ([2], 1), ([3, 3, 2, 2], 4)])
def test_a_model_that_says_nothing_scores_0(build: Build, ids: list[int], count: int) -> None:
    scores = build().score([np.array(ids, "<i8").tobytes()], ["some words"])

    assert scores.per_sample == {
        "rouge1": [0.0],
        "rouge2": [0.0],
        "rougeL": [0.0],
        "tokens_per_sample": [count],
        "gen_len": [0.0],
    }


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2, 9, None])
def test_the_number_of_processes_changes_nothing(build: Build, processes: int | None) -> None:
    scores = build(processes=processes).score(tokens(PREDICTED), TARGETS)

    assert scores == build().score(tokens(PREDICTED), TARGETS)


def test_no_number_of_processes_means_one_per_core(build: Build) -> None:
    assert build(processes=None)._processes == len(os.sched_getaffinity(0))


def test_the_same_tokens_in_32_bits_score_the_same(build: Build) -> None:
    scores = build(dtype="int32").score(tokens(PREDICTED, dtype="<i4"), TARGETS)

    assert scores == build().score(tokens(PREDICTED), TARGETS)


def test_scores_are_plain_numbers_that_json_can_hold(build: Build) -> None:
    scores: Scores = build().score(tokens(PREDICTED), TARGETS)

    assert {type(value) for value in scores.aggregate.values()} == {float}
    assert {type(value) for row in scores.per_sample.values() for value in row} == {float}


@pytest.fixture
def punkt(tmp_path: Path) -> Path:
    """A Punkt model that knows two abbreviations."""
    for name in FILES:
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
    original = Original(["rougeLsum"], use_stemmer=True)
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


def test_a_punkt_model_that_is_not_here_is_unavailable(build: Build, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the Punkt model in .* lacks abbrev_types\.txt"):
        build(punkt=str(tmp_path))


@pytest.mark.parametrize(("reference", "kind"), [(7, "int"), (None, "NoneType"), (["a"], "list")])
def test_a_reference_that_is_no_text_names_its_sample(
    build: Build, reference: object, kind: str
) -> None:
    with pytest.raises(RunError, match=f"reference of sample 1 is a {kind}, but must be a text"):
        build().score([b"", b""], ["text", reference])  # type: ignore[list-item]


@pytest.mark.parametrize("processes", [0, -1, True])
def test_a_number_of_processes_starts_from_1(build: Build, processes: int) -> None:
    with pytest.raises(SuiteError, match=f"processes = {processes} must be a number from 1 on"):
        build(processes=processes)
