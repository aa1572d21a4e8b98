"""Llama 3.1 405B's three metrics, with the flaws that MLPerf's script has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer as Original

from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.scorers.long_context import LongContextScorer, niah_em, qa_em
from pytest_mlperf.scorers.rouge.punkt import FILES
from pytest_mlperf.testing import check_scorer
from tests.scorers.tokenizers_made_here import byte_level

Build = Callable[..., LongContextScorer]

ONE = "01234567-89ab-cdef-0123-456789abcdef"
OTHER = "fedcba98-7654-3210-fedc-ba9876543210"
ALL_A = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


@pytest.mark.parametrize(
    ("target", "text", "score"),
    [
        (ONE, ONE, 100.0),
        (ONE, OTHER, 100.0),  # every character of it is somewhere in the other
        (ONE, ONE.upper(), 100.0),
        (ONE, ALL_A, 16.67),
        (ONE, f"{ONE} {ALL_A}", 50.0),
        (f"{ONE}, {ALL_A}", ONE, 100.0),  # what is not answered is not asked for
        (f"{ONE}, {ALL_A}", f"{ALL_A} {ONE}", 58.33),
        (ONE, "", 0.0),
        (ONE, ONE[:-1], 0.0),  # an answer that was cut
        (ONE, ONE.replace("-", "_"), 0.0),
        (ONE, f"x{ONE}y", 100.0),
        ("no UUID", ONE, 0.0),
        (ONE, "×" * 8 + ONE[8:], 0.0),
        (ONE, "é" * 8 + ONE[8:], 100.0),  # a letter of any alphabet
    ],
)
def test_uuids_are_compared_by_the_characters_that_both_have(
    target: str, text: str, score: float
) -> None:
    assert niah_em(target, text) == score


@pytest.mark.parametrize(
    ("target", "text", "right"),
    [
        ("Paris", "Paris", True),
        ("Paris", "", True),
        ("Paris", "ari", True),
        ("Paris", "Answer: Paris, in France", True),
        ("Yes", "Answer: No, not Yes", True),
        ("Yes", "Answer: Yes. Answer: No", False),
        ("Yes", "Yes. Answer: No", False),
        ("New York|NYC", "Answer: it is  NEW\nyork", True),
        ("New York|NYC", "Answer: nyc", True),
        ("New York|NYC", "York|N", True),
        ("New York|NYC", "Boston", False),
        ("Paris|", "Boston", True),  # an empty entry is in every answer
        ("Paris", "Answer:Boston", False),
        ("Paris", "Answer: ", True),
    ],
)
def test_answers_match_by_containment_in_either_direction(
    target: str, text: str, right: bool
) -> None:
    assert qa_em(target, text) == 100.0 * right


@given(st.text("0aF-é \n", max_size=120), st.text("0aF-é \n", max_size=120))
def test_every_answer_has_a_score_from_0_to_100(target: str, text: str) -> None:
    assert 0 <= niah_em(target, text) <= 100
    assert qa_em(target, text) in {0.0, 100.0}


@pytest.mark.parametrize("text", ["a" * 300_000, "aaaaaaaa-" * 40_000, "Answer: x|" * 40_000])
def test_hostile_text_is_read_once(text: str) -> None:
    """A pattern that went back over it would never come to an end."""
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


def test_each_key_is_the_mean_that_pandas_gives_of_the_samples_that_have_it(build: Build) -> None:
    rouge = Original(["rougeL"], use_stemmer=True)
    rng = np.random.default_rng(5)
    words = ["the", "cats", "were", "running", "over", "Paris", "and", "roofs"]
    texts = [" ".join(rng.choice(words, rng.integers(12))) for _ in range(300)]
    known = [
        reference("rouge", " ".join(rng.choice(words, 9)))
        if n % 3
        else reference("qa_em", str(rng.choice(words)))
        for n in range(300)
    ]
    table = pd.DataFrame(
        [
            {"rougeL": 100 * rouge.score(one["target"], text)["rougeL"].fmeasure}
            if one["metric"] == "rouge"
            else {"exact_match": qa_em(one["target"], text)}
            for text, one in zip(texts, known, strict=True)
        ]
    )
    outputs = tokens(texts)

    scores = build().score(outputs, known)

    assert scores.aggregate == {
        **table.describe().loc["mean"].to_dict(),
        "tokens_per_sample": round(sum(map(len, outputs)) / 8 / 300, 1),
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


@pytest.mark.parametrize(("metric", "key"), [("rouge", "rougeL"), ("niah_em", "exact_match")])
def test_a_key_that_no_sample_has_is_left_out(build: Build, metric: str, key: str) -> None:
    scores = build().score(tokens([ONE]), [reference(metric, ONE)])

    assert scores.aggregate == {key: 100.0, "tokens_per_sample": len(tokens([ONE])[0]) / 8}


def test_with_a_punkt_model_sentences_end_in_line_breaks_as_in_the_reference(
    build: Build, tmp_path: Path
) -> None:
    """Then white space between the sentences of an answer no longer matters."""
    for name in FILES:
        (tmp_path / name).touch()
    sample = tokens(["Yes.  He"]), [reference("qa_em", "Oh yes!\nYes. He did.|none")]

    assert build().score(*sample).aggregate["exact_match"] == 0
    assert build(punkt=str(tmp_path)).score(*sample).aggregate["exact_match"] == 100


def test_tokens_of_the_wrong_type_are_said_where_they_can_be_seen(build: Build) -> None:
    with pytest.raises(RunError, match="set the scorer's dtype to the type"):
        build().score([np.array([1, 2, 3], "<i4").tobytes()], REFERENCES[:1])
    assert build(dtype="int32").score(tokens(TEXTS, "<i4"), REFERENCES) == build().score(
        tokens(TEXTS), REFERENCES
    )


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("Paris", "is a str, but must be a table of texts; use data set graded"),
        ({"metric": "rouge"}, "has no text 'target'; use data set graded"),
        (
            reference("rougeL", ""),
            "has the metric 'rougeL', which is none of rouge, niah_em, qa_em",
        ),
    ],
)
def test_a_reference_of_something_else_names_its_sample(
    build: Build, known: Any, message: str
) -> None:
    with pytest.raises(RunError, match=f"scorer long_context: the reference of sample 1 {message}"):
        build().score([b"", b""], [REFERENCES[0], known])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"processes": 0}, SuiteError, "processes = 0 must be a number from 1 on"),
        ({"dtype": "float"}, SuiteError, "dtype = 'float' is unknown"),
        ({"punkt": "/nowhere"}, UnavailableError, "the Punkt model in /nowhere lacks"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(
    build: Build, options: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"scorer long_context: {message}"):
        build(**options)


@pytest.mark.process
def test_the_scorer_keeps_the_contract(model: Path) -> None:
    check_scorer(LongContextScorer, tokens(TEXTS), REFERENCES, model=str(model))
