"""The mix of MLPerf's Mixtral 8x7B benchmark: each sample by the metrics of its part."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.code.programs import defect_of
from pytest_mlperf.adapters.scorers.mixtral import MixtralScorer
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from tests.adapters.scorers import originals
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import AutoTokenizer, byte_level

Build = Callable[..., MixtralScorer]
Reference = dict[str, str]

ROUGE = ("rouge1", "rouge2", "rougeL")

SENTENCE = "the cats were running over 12 roofs , and 1,080 dogs ; is n't that"
WORDS = [*SENTENCE.split(), "The answer is"]


def orca(target: str) -> Reference:
    return {"dataset": "OpenOrca", "target": target}


def gsm8k(target: str) -> Reference:
    return {"dataset": "GSM8K", "target": target}


CHECK = "def check(candidate):\n    assert candidate() == 1"


def mbxp(language: str = "python", test: str = CHECK, name: str = "f") -> Reference:
    return {
        "dataset": "MBXP",
        "id": f"{language}_{name}",
        "language": language,
        "entry_point": name,
        "prompt": "Write f.",
        "target": test,
    }


SAMPLES: list[tuple[str, Reference]] = [
    ("  The cats were running happily, weren't they?\n", orca("A cat ran. They were happy.")),
    ("5 + 3 = 8. The answer is 8.", gsm8k("8")),
    ("def f():\n    return 1\n```\nwhat follows", mbxp()),
    ("", orca("an answer nobody gave")),
    ("It is 7\nQ: 8?", gsm8k("8")),
    ("the cat sat on the mat the cat sat", orca("the cat sat on the mat")),
    ("It is 1,000", gsm8k("1000")),
    ("The number 8 is no word", gsm8k("8")),
]
TEXTS = [text for text, _ in SAMPLES]
REFERENCES = [reference for _, reference in SAMPLES]


@pytest.fixture(scope="module")
def build(model: Path) -> Build:
    def with_options(**options: Any) -> MixtralScorer:
        return MixtralScorer(**{"model": str(model), **options})

    return with_options


def tokens(texts: list[str], dtype: str = "<i8") -> list[bytes]:
    """Return an engine's outputs: the tokens of each text."""
    return [np.array(one.ids, dtype).tobytes() for one in byte_level().encode_batch(texts)]


def reference_script(
    model: Path, outputs: list[bytes], references: list[Reference]
) -> dict[str, float]:
    """Score as language/mixtral-8x7b/evaluate-accuracy.py of MLPerf does, without MBXP.

    Sentences are left whole: where a line breaks, no ROUGE but rougeLsum changes.
    """
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", use_fast=False)
    ids = [np.frombuffer(output, np.int64).tolist() for output in outputs]
    decoded = tokenizer.batch_decode(ids, skip_special_tokens=True)
    pairs = list(zip(decoded, references, strict=True))
    scorer = originals.rouge(*ROUGE)
    rouge = [
        scorer.score(one["target"].strip(), text.strip())
        for text, one in pairs
        if one["dataset"] == "OpenOrca"
    ]
    sums = [(text, one["target"]) for text, one in pairs if one["dataset"] == "GSM8K"]
    result = {
        name: float(round(np.mean([one[name].fmeasure for one in rouge]) * 100, 4))
        for name in ROUGE
        if rouge
    }
    if sums:
        result["gsm8k"] = 100.0 * sum(number(text) == float(t) for text, t in sums) / len(sums)
    result["tokens_per_sample"] = round(sum(len(one) for one in ids) / len(ids), 1)
    return result


def number(text: str) -> float | None:
    """Return the number that an answer made of WORDS gives."""
    values = {"12": 12.0, "1,080": 1080.0}
    _, delimiter, after = text.rpartition("The answer is")
    first = [values[word] for word in after.split() if delimiter and word in values]
    last = [values[word] for word in text.split() if word in values]
    return first[0] if first else last[-1] if last else None


@pytest.mark.process
@pytest.mark.nightly
def test_aggregates_are_the_figures_that_the_reference_script_prints(
    build: Build, model: Path
) -> None:
    """To the digit, on 150 seeded answers of all three parts."""
    rng = random.Random(8)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(0, 30))) for _ in range(150)]
    references = [
        (orca(" ".join(rng.choices(WORDS, k=20))), gsm8k(rng.choice(["12", "1080"])), mbxp())[n % 3]
        for n in range(150)
    ]
    outputs = tokens(texts)

    scores = build(processes=2).score(outputs, references)

    assert scores.aggregate == reference_script(model, outputs, references)
    assert 0 < scores.aggregate["gsm8k"] < 100
    assert 0 < scores.aggregate["rouge2"] < 100


def test_each_sample_is_scored_by_the_metrics_of_its_part_only(build: Build) -> None:
    """None stands where a metric does not apply; tokens count everywhere."""
    scores = build().score(tokens(TEXTS), REFERENCES)

    original = originals.rouge(*ROUGE)
    for name in ROUGE:
        assert scores.per_sample[name] == [
            100 * original.score(one["target"], text)[name].fmeasure
            if one["dataset"] == "OpenOrca"
            else None
            for text, one in SAMPLES
        ]
    assert scores.per_sample["gsm8k"] == [None, 100.0, None, None, 0.0, None, 100.0, 100.0]
    assert scores.per_sample["tokens_per_sample"] == [len(one) / 8 for one in tokens(TEXTS)]
    assert set(scores.per_sample) == {*ROUGE, "gsm8k", "tokens_per_sample"}
    assert json.loads(json.dumps(dict(scores.per_sample))) == scores.per_sample
    assert {type(value) for value in scores.aggregate.values()} == {float}
    assert build(dtype="int32").score(tokens(TEXTS, "<i4"), REFERENCES) == scores


def test_programs_are_not_run_unless_that_is_asked_for(build: Build, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w')"

    scores = build().score(tokens([code]), [mbxp(test=code)])

    assert not canary.exists()
    assert set(scores.aggregate) == set(scores.per_sample) == {"tokens_per_sample"}


@pytest.mark.process
def test_programs_that_count_are_run_each_with_its_own_test(build: Build) -> None:
    """Run in the sandbox: 100 if a test passes, None if no program applies."""
    if reason := defect_of("python"):
        pytest.skip(f"programs in Python cannot run here: {reason}")
    samples = [
        ("def f():\n    return 1\n```\nwhat follows", mbxp()),
        ("It is 8", gsm8k("8")),
        ("def f():\n    return 2", mbxp()),
        ("def add\\_one():\n    return 1", mbxp(name="add_one")),
        ("func f() int { return 1 }", mbxp("go")),
    ]
    outputs, references = tokens([text for text, _ in samples]), [one for _, one in samples]

    scores = build(run_generated_code=True).score(outputs, references)

    assert scores.per_sample["mbxp"] == [100.0, None, 0.0, 100.0, None]
    assert scores.aggregate["mbxp"] == 100.0 * 2 / 3
    without = build().score(outputs, references)
    assert {**without.per_sample, "mbxp": scores.per_sample["mbxp"]} == scores.per_sample


def test_a_metric_that_applies_to_no_sample_is_left_out(build: Build) -> None:
    """The reference leaves out languages that it does not run: they are not wrong, but absent."""
    for kept, metrics in (("OpenOrca", {*ROUGE}), ("GSM8K", {"gsm8k"}), ("MBXP", set())):
        some = [(text, one) for text, one in SAMPLES if one["dataset"] == kept]

        scores = build().score(tokens([text for text, _ in some]), [one for _, one in some])

        assert set(scores.aggregate) == set(scores.per_sample) == {*metrics, "tokens_per_sample"}
    for reference in (gsm8k("8"), mbxp("go"), mbxp("Python")):
        scores = build(run_generated_code=True).score(tokens(["It is 8"]), [reference])
        assert "mbxp" not in {*scores.aggregate, *scores.per_sample}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None
)
@given(order=st.permutations(range(len(SAMPLES))), size=st.integers(1, len(SAMPLES)))
def test_a_mean_is_of_the_samples_that_have_a_score(
    build: Build, order: list[int], size: int
) -> None:
    """In any order and of any subset; a sample's own scores do not depend on the others."""
    whole = build().score(tokens(TEXTS), REFERENCES)
    chosen = order[:size]

    scores = build().score(tokens([TEXTS[n] for n in chosen]), [REFERENCES[n] for n in chosen])

    for name, row in whole.per_sample.items():
        values = [row[n] for n in chosen]
        there = [value for value in values if value is not None]
        assert scores.per_sample.get(name, [None] * size) == values
        if there:
            off = 0.0500001 if name == "tokens_per_sample" else 5.1e-5
            assert scores.aggregate[name] == pytest.approx(np.mean(there), abs=off)
        else:
            assert name not in scores.aggregate


def test_references_of_something_else_and_wrong_options_are_refused(
    build: Build, tmp_path: Path
) -> None:
    references: list[tuple[Any, str]] = [
        ("8", "is a str; it must be a table of texts"),
        ({"target": "8"}, "has the dataset None, which is not one of OpenOrca, GSM8K, MBXP"),
        ({"dataset": "gsm8k"}, "has the dataset 'gsm8k', which is not one of .*"),
        ({"dataset": ["GSM8K"]}, r"has the dataset \['GSM8K'\], which is not one of .*"),
        ({"dataset": "GSM8K"}, "has no text 'target'"),
        ({"dataset": "GSM8K", "target": 8}, "has no text 'target'"),
        (
            {"dataset": "MBXP", "target": "", "id": "python_f"},
            "has no text 'language' and no text 'entry_point' and no text 'prompt'",
        ),
    ]
    rows = [
        (one, f"reference of sample 1 {text}; use data set mixtral") for one, text in references
    ]
    options: list[tuple[dict[str, Any], str]] = [
        ({"processes": 0}, "processes = 0 is not a whole number of at least 1"),
        ({"processes": True}, "processes = True is not a whole number of at least 1"),
        ({"processes": "2"}, "processes = '2' is not a whole number of at least 1"),
        ({"run_generated_code": "yes"}, "run_generated_code = 'yes' is not true or false"),
        ({"run_generated_code": 1}, "run_generated_code = 1 is not true or false"),
        ({"dtype": "float"}, "dtype = 'float' is not one of"),
        ({"clean_up": "x"}, "clean_up = 'x' is not true or false"),
        ({"model": None}, "neither its option tokenizer nor the workload's model is set"),
    ]

    assert (
        differences(
            lambda reference: build().score([b"", b""], [gsm8k("1"), reference]), RunError, rows
        )
        == []
    )
    assert differences(lambda options: build(**options), SuiteError, options) == []
    with pytest.raises(UnavailableError, match="scorer mixtral: the folder"):
        build(tokenizer=str(tmp_path))
