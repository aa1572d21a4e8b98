"""Scorer perplexity: e to the mean negative log-probability of tokens, and who may be compared."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.conventions import pack_logprobs
from pytest_mlperf.adapters.scorers.perplexity import PerplexityScorer
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences

Row = Sequence[float]
"""Log-probabilities of a sample's tokens but the first."""


def ids_of(row: Row) -> list[int]:
    return [1, *range(10, 10 + len(row))]


def output(row: Row) -> bytes:
    return pack_logprobs(ids_of(row), [math.nan, *row])


def reference(row: Row, scored: int | None = None) -> dict[str, Any]:
    return {"tokens": ids_of(row), "scored": len(row) if scored is None else scored}


def score(*rows: Row) -> Scores:
    return PerplexityScorer().score([*map(output, rows)], [*map(reference, rows)])


def test_the_form_of_an_output_is_the_one_in_the_docs() -> None:
    assert pack_logprobs([7, 300], [math.nan, -0.5]) == struct.pack("<ifif", 7, math.nan, 300, -0.5)


def test_each_scored_token_counts_alike() -> None:
    """Not each sample: one of 3 tokens at 1/2 and one of 1 token at 1/16 are 2^(7/4)."""
    half = -math.log(2)

    assert score([half] * 3, [4 * half]).aggregate["perplexity"] == pytest.approx(2 ** (7 / 4))
    last = PerplexityScorer().score([output([-9.0, half])], [reference([-9.0, half], 1)])
    assert last.aggregate["perplexity"] == pytest.approx(2)
    assert last.lower == last.whole == {"perplexity"}


rows = st.lists(
    st.lists(st.floats(-12, 0, width=32), min_size=1, max_size=9), min_size=2, max_size=12
)


@given(rows)
def test_pseudo_values_are_what_a_sample_more_changes(samples: list[list[float]]) -> None:
    """Their mean is the figure, and each is the derivative by the weight of its sample."""
    scores = score(*samples)
    figure, values = scores.aggregate["perplexity"], scores.per_sample["perplexity"]
    total = sum(map(len, samples))
    nats = -math.fsum(map(math.fsum, samples))

    assert math.fsum(value or 0.0 for value in values) / len(values) == pytest.approx(figure)
    step = 1e-6
    for value, row in zip(values, samples, strict=True):
        more = math.exp((nats - step * math.fsum(row)) / (total + step * len(row)))
        influence = (float(value or 0.0) - figure) / len(samples)
        assert (more - figure) / step == pytest.approx(influence, rel=1e-3, abs=1e-3 * figure)


def test_incomparable_inputs_and_non_numbers_are_refused() -> None:
    right, table = output([-1.0, -2.0]), reference([-1.0, -2.0])
    other = {**table, "tokens": [1, 10, 12]}
    generated = struct.pack("<3q", 1, 10, 11)
    defects: list[tuple[Any, Any, str]] = [
        (
            b"",
            table,
            "is not a list of log-probabilities of a prompt's tokens: set prompt_logprobs",
        ),
        (b"123", table, "output of sample 1, 3 bytes, is not a list of log-probabilities"),
        (generated, table, "set prompt_logprobs = true in the options of engine torch, vllm or"),
        (right, other, r"has token ids other than the data set's \(11 instead of 12 at"),
        (
            right,
            reference([-1.0]),
            r"\(3 tokens instead of 2\); perplexities of different tokens cannot be",
        ),
        (output([-1.0, math.nan]), table, "a log-probability that is not a finite number; check"),
        (output([-math.inf, -1.0]), table, "a log-probability that is not a finite number; check"),
        (output([-1e6, -1e6]), table, "the mean negative log-probability of a token is"),
        (right, None, "sample 1 has an invalid reference (TypeError"),
        (right, {**table, "scored": 0}, "the number of last tokens to score"),
        (right, {**table, "scored": 3}, "as data set windows gives it"),
        (right, {**table, "tokens": ["a"]}, "must be a table with"),
        (right, {**table, "tokens": [[1]]}, "must be a table with"),
    ]

    def call(second: Any, truth: Any) -> None:
        PerplexityScorer().score([right, second], [table, truth])

    assert differences(call, RunError, defects) == []


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers() -> None:
    samples = [[-1.0, -2.0], [-0.5], [-3.0] * 4]

    check_scorer(PerplexityScorer, [*map(output, samples)], [*map(reference, samples)])
