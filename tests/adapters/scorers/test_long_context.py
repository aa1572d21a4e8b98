"""Llama 3.1 405B's three metrics, with the flaws that MLPerf's script has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.long_context import LongContextScorer, niah_em, qa_em
from pytest_mlperf.adapters.scorers.rouge.punkt import PUNKT_FILES
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers import originals
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.tokenizers_made_here import byte_level

Build = Callable[..., LongContextScorer]

ONE = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = "fedcba98-7654-3210-fedc-ba9876543210"
ALL_A = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


UUIDS = {
    (ONE, ONE): 100.0,
    (ONE, OTHER): 100.0,  # every character of it is somewhere in the other
    (ONE, ONE.upper()): 100.0,
    (ONE, ALL_A): 16.67,
    (ONE, f"{ONE} {ALL_A}"): 50.0,
    (f"{ONE}, {ALL_A}", ONE): 100.0,  # what is not answered is not asked for
    (f"{ONE}, {ALL_A}", f"{ALL_A} {ONE}"): 58.33,
    (ONE, ""): 0.0,
    (ONE, ONE[:-1]): 0.0,  # an answer that was cut
    (ONE, ONE.replace("-", "_")): 0.0,
    (ONE, f"x{ONE}y"): 100.0,
    ("no UUID", ONE): 0.0,
    (ONE, "×" * 8 + ONE[8:]): 0.0,
    (ONE, "é" * 8 + ONE[8:]): 100.0,  # a letter of any alphabet
}
"""Compared by the characters that both have."""

ANSWERS = {
    ("Paris", "Paris"): True,
    ("Paris", ""): True,
    ("Paris", "ari"): True,
    ("Paris", "Answer: Paris, in France"): True,
    ("Yes", "Answer: No, not Yes"): True,
    ("Yes", "Answer: Yes. Answer: No"): False,
    ("Yes", "Yes. Answer: No"): False,
    ("New York|NYC", "Answer: it is  NEW\nyork"): True,
    ("New York|NYC", "Answer: nyc"): True,
    ("New York|NYC", "York|N"): True,
    ("New York|NYC", "Boston"): False,
    ("Paris|", "Boston"): True,  # an empty entry is in every answer
    ("Paris", "Answer:Boston"): False,
    ("Paris", "Answer: "): True,
}
"""They match by containment in either direction."""


def test_uuids_and_answers_are_compared_as_in_the_reference() -> None:
    assert {pair: niah_em(*pair) for pair in UUIDS} == UUIDS
    assert {pair: qa_em(*pair) == 100 for pair in ANSWERS} == ANSWERS


@given(st.text("0aF-é \n", max_size=120), st.text("0aF-é \n", max_size=120))
def test_every_answer_has_a_score_from_0_to_100(target: str, text: str) -> None:
    assert 0 <= niah_em(target, text) <= 100
    assert qa_em(target, text) in {0.0, 100.0}


def test_hostile_text_is_read_once() -> None:
    """A pattern that went back over it would never come to an end."""
    for text in ("a" * 300_000, "aaaaaaaa-" * 40_000, "Answer: x|" * 40_000):
        assert niah_em(ONE, text) == 0
        assert qa_em("Paris", text) == 0


def reference(metric: str, target: str) -> dict[str, str]:
    return {"metric": metric, "target": target}


SAMPLES = [
    ("  The cats were running happily.\n", reference("rouge", "A cat ran. They were happy.")),
    (f"It is {ALL_A}.", reference("niah_em", ONE)),
    ("", reference("qa_em", "Paris")),
    ("Answer: Boston", reference("qa_em", "Paris")),
    ("", reference("rouge", "an answer nobody gave")),
    ("the cat sat", reference("rouge", "  the cat sat on the mat\n")),
]
TEXTS = [text for text, _ in SAMPLES]
REFERENCES = [one for _, one in SAMPLES]


@pytest.fixture(scope="module")
def build(model: Path) -> Build:
    def with_options(**options: Any) -> LongContextScorer:
        return LongContextScorer(**{"model": str(model), **options})

    return with_options


def tokens(texts: list[str], dtype: str = "<i8") -> list[bytes]:
    return [np.array([*one.ids, 2], dtype).tobytes() for one in byte_level().encode_batch(texts)]


@pytest.mark.slow
def test_each_key_is_the_mean_of_the_samples_that_have_it(build: Build) -> None:
    """As pandas gives it in MLPerf's script."""
    pandas = pytest.importorskip("pandas")
    rouge = originals.rouge("rougeL")
    rng = np.random.default_rng(5)
    words = ["the", "cats", "were", "running", "over", "Paris", "and", "roofs"]
    texts = [" ".join(rng.choice(words, rng.integers(12))) for _ in range(150)]
    references = [
        reference("rouge", " ".join(rng.choice(words, 9)))
        if n % 3
        else reference("qa_em", str(rng.choice(words)))
        for n in range(150)
    ]
    table = pandas.DataFrame(
        [
            {"rougeL": 100 * rouge.score(one["target"], text)["rougeL"].fmeasure}
            if one["metric"] == "rouge"
            else {"exact_match": qa_em(one["target"], text)}
            for text, one in zip(texts, references, strict=True)
        ]
    )
    outputs = tokens(texts)

    scores = build().score(outputs, references)

    assert scores.aggregate == {
        **table.describe().loc["mean"].to_dict(),
        "tokens_per_sample": round(sum(map(len, outputs)) / 8 / 150, 1),
    }
    assert 0 < scores.aggregate["exact_match"] < 100


def test_a_sample_has_the_score_of_its_metric_alone(build: Build) -> None:
    scores = build().score(tokens(TEXTS), REFERENCES)

    assert scores.per_sample["exact_match"] == [None, 16.67, 100.0, 0.0, None, None]
    assert [one is None for one in scores.per_sample["rougeL"]] == [
        False,
        *[True] * 3,
        *[False] * 2,
    ]
    assert scores.per_sample["tokens_per_sample"] == [len(one) / 8 for one in tokens(TEXTS)]
    assert {type(value) for value in scores.aggregate.values()} == {float}


def test_a_key_that_no_sample_has_is_left_out(build: Build) -> None:
    for metric, key in (("rouge", "rougeL"), ("niah_em", "exact_match")):
        scores = build().score(tokens([ONE]), [reference(metric, ONE)])
        assert scores.aggregate == {key: 100.0, "tokens_per_sample": len(tokens([ONE])[0]) / 8}


def test_with_a_punkt_model_sentences_end_in_line_breaks_as_in_the_reference(
    build: Build, tmp_path: Path
) -> None:
    """Then white space between the sentences of an answer no longer matters."""
    for name in PUNKT_FILES:
        (tmp_path / name).touch()
    sample = tokens(["Yes.  He"]), [reference("qa_em", "Oh yes!\nYes. He did.|none")]

    assert build().score(*sample).aggregate["exact_match"] == 0
    assert build(punkt=str(tmp_path)).score(*sample).aggregate["exact_match"] == 100


def test_wrong_tokens_references_and_options_are_refused(build: Build) -> None:
    at = "scorer long_context: the reference of sample 1"
    rows: list[tuple[bytes, Any, str]] = [
        (bytes(12), REFERENCES[0], "set the scorer's dtype to the type"),
        (b"", "Paris", f"{at} is a str; it must be a table of texts; use data set graded"),
        (b"", {"metric": "rouge"}, f"{at} has no text 'target'; use data set graded"),
        (
            b"",
            reference("rougeL", ""),
            "has an invalid reference (ValueError: metric is 'rougeL'); it must be a table whose",
        ),
    ]
    options: list[tuple[dict[str, Any], str]] = [
        ({"processes": 0}, "long_context: processes = 0 is not a whole number of at least 1"),
        ({"dtype": "float"}, "scorer long_context: dtype = 'float' is not one of"),
    ]
    score = build().score

    assert (
        differences(lambda output, two: score([b"", output], [REFERENCES[0], two]), RunError, rows)
        == []
    )
    assert differences(lambda options: build(**options), SuiteError, options) == []
    with pytest.raises(UnavailableError, match="context: the Punkt model in /nowhere lacks"):
        build(punkt="/nowhere")
    narrow = build(dtype="int32").score(tokens(TEXTS, "<i4"), REFERENCES)
    assert narrow == score(tokens(TEXTS), REFERENCES)


@pytest.mark.process
def test_the_scorer_keeps_the_contract(model: Path) -> None:
    check_scorer(LongContextScorer, tokens(TEXTS), REFERENCES, model=str(model))
