"""Scorer ranking is MLPerf's script for DLRM v3, which calls torchrec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.ranking import RankingScorer
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences


def row(
    predictions: Sequence[float], labels: Sequence[float], weights: Sequence[float] | None = None
) -> bytes:
    ones = [1.0] * len(labels) if weights is None else weights
    return np.array([90, 7, *predictions, *labels, *ones, len(labels)], "<f4").tobytes()


def score(*outputs: bytes, references: Sequence[Any] | None = None) -> Scores:
    return RankingScorer().score(outputs, references or [None] * len(outputs))


FIRST = row([0.9, 0.2, 0.2, 0.6], [1, 0, 1, 0])
TIED = row([0.5, 0.5], [1, 0])
WEIGHED = row([0.1, 0.8, 0.3], [0, 1, 0], [1, 2, 1])
FIRST_OR_0 = row([0.7, 0, 0.7], [1, 0, 0])
ONE_LABEL = row([0.3, 0.4], [1, 1])
SURE_AND_WRONG = row([1, 0], [0, 1])
MANY = [FIRST, TIED, WEIGHED, FIRST_OR_0, ONE_LABEL, SURE_AND_WRONG]


def test_figures_are_torchrecs() -> None:
    """The figures on the right come from torchrec 1.3.0's own functions.

    A tie counts by its order, no AUC is 0.5, one label has no entropy.
    """
    for outputs, expected in (
        (MANY, (5.452733151927205, 0.5294117647058824, 0.874999999625)),
        ([FIRST], (1.0294468715483647, 0.5, 0.7499999995000001)),
        ([TIED], (1.0, 0.5, 0.5)),
        ([ONE_LABEL], (1060155193237.1906, 0.0, 0.5)),
    ):
        figures = tuple(score(*outputs).aggregate.values())
        assert figures == pytest.approx(expected, rel=1e-14)


def test_a_request_without_a_curve_has_no_auc() -> None:
    areas = score(*MANY).per_sample["gauc"]

    assert [area is None for area in areas] == [False, True, False, True, True, True]


labels = st.lists(st.integers(0, 1), min_size=2, max_size=9)
requests = st.lists(labels, min_size=1, max_size=8)


@given(requests, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_gauc_without_ties_is_the_share_of_pairs_in_order(lists: list[Any], random: Any) -> None:
    outputs, shares = [], []
    for labels in lists:
        places = random.sample(range(1, 100), len(labels))
        outputs.append(row([place / 100 for place in places], labels))
        pairs = [
            high > low
            for high, yes in zip(places, labels, strict=True)
            for low, no in zip(places, labels, strict=True)
            if yes and not no
        ]
        shares += [sum(pairs) / len(pairs)] if pairs else []

    expected = sum(shares) / len(shares) if shares else 0.5
    assert score(*outputs).aggregate["gauc"] == pytest.approx(expected, rel=1e-6, abs=1e-8)


@given(requests.filter(lambda lists: {0, 1} <= {*chain(*lists)}))
@settings(deadline=None, max_examples=50)
def test_pseudo_values_follow_the_change_of_one_sample(lists: list[Any]) -> None:
    outputs = [row(np.linspace(0.2, 0.7, len(one)).tolist(), one) for one in lists]
    many, step = len(outputs), 2**-12
    scores = score(*outputs)

    for name in ("normalized_entropy", "accuracy"):
        values = [value for value in scores.per_sample[name] if value is not None]
        base = scores.aggregate[name]
        assert math.fsum(values) / many == pytest.approx(base)
        for sample, labels in enumerate(lists):
            heavier = row(
                np.linspace(0.2, 0.7, len(labels)).tolist(), labels, [1 + step] * len(labels)
            )
            moved = score(*outputs[:sample], heavier, *outputs[sample + 1 :]).aggregate[name] - base
            influence = (values[sample] - base) / many
            assert moved / step == pytest.approx(influence, rel=5e-3, abs=5e-3)


def test_labels_step_and_query_are_those_of_the_data_set() -> None:
    table = {"step": 90, "query": 7, "labels": [1, 0, 1, 0]}

    assert score(FIRST, references=[table]) == score(FIRST)
    for name, other in {"step": 91, "query": 8, "labels": [1, 0, 0, 0]}.items():
        with pytest.raises(RunError, match=f"sample 0 has a different {name} than the data set"):
            score(FIRST, references=[{**table, name: other}])
    with pytest.raises(RunError, match="the reference of sample 0 is a int"):
        score(FIRST, references=[3])


@pytest.mark.process
def test_it_keeps_the_contract_of_scorers() -> None:
    scores = check_scorer(RankingScorer, MANY, [None] * len(MANY))

    assert scores.lower == {"normalized_entropy"}
    assert scores.whole == {"normalized_entropy", "accuracy"}


def test_an_output_that_is_no_row_names_its_sample() -> None:
    defects = [
        (b"", "has 0 bytes"),
        (FIRST[:-1], "has 59 bytes"),
        (FIRST[:-4], "has 14 numbers, which does not fit its last one, N = 1;"),
        (np.frombuffer(FIRST, "<f4").astype("<f8").tobytes(), "has|is 30 numbers"),
        (row([], []), "has 3 numbers, which does not fit its last one, N = 0;"),
        (row([math.nan, 0.5], [0, 1]), "has nan at position 2 of its row"),
        (row([0.5, math.inf], [0, 1]), "has inf at position 3"),
        (np.array([90, 7, 0.5, 1, 1, 1e9], "<f4").tobytes(), r"has 6 numbers, .*N = 1e\+09"),
        (row([0.5, 0.6], [0, 0.5]), "has a label that is neither 0 nor 1"),
        (row([0.5, 0.6], [0, 1], [1, -1]), "has a weight below 0"),
    ]
    rows = [(output, f"output of sample 1 (?:{defect})") for output, defect in defects]

    assert differences(lambda output: score(FIRST, output), RunError, rows) == []
    with pytest.raises(RunError, match="all 1 samples have weight 0"):
        score(row([0.5, 0.6], [0, 1], [0, 0]))
