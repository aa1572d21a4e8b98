"""Test AUC over all pairs, its pseudo-values by sample, and refused inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.scorers import auc as module
from pytest_mlperf.adapters.scorers.auc import AucScorer
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.scorers.inputs import Once
from tests.adapters.scorers.refusals import differences

Sample = list[tuple[float, int]]
"""Prediction and label of each pair."""

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
few = st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0])
pairs = st.tuples(st.one_of(few, finite), st.integers(0, 1))
data_sets = st.lists(st.lists(pairs, min_size=1, max_size=6), min_size=1, max_size=8).filter(
    lambda samples: {label for sample in samples for _, label in sample} == {0, 1}
)


def outputs(samples: list[Sample]) -> list[bytes]:
    return [np.array([one for one, _ in sample], "<f4").tobytes() for sample in samples]


def labels(samples: list[Sample]) -> list[NDArray[np.float32]]:
    return [np.array([label for _, label in sample], np.float32) for sample in samples]


def wins(score: float, other: float) -> float:
    return 1.0 if score > other else 0.5 if score == other else 0.0


def by_hand(samples: list[Sample]) -> tuple[float, list[float]]:
    """Return AUC and pseudo-values as they are defined: every clicked pair against every other."""
    clicked = [one for sample in samples for one, label in sample if label]
    others = [one for sample in samples for one, label in sample if not label]
    area = math.fsum(wins(one, other) for one in clicked for other in others)
    area /= len(clicked) * len(others)
    pseudo = []
    for sample in samples:
        influence = 0.0
        for score, label in sample:
            if label:
                share = math.fsum(wins(score, other) for other in others) / len(others)
                influence += (share - area) / len(clicked)
            else:
                share = math.fsum(wins(other, score) for other in clicked) / len(clicked)
                influence += (share - area) / len(others)
        pseudo.append(100 * (area + len(samples) * influence))
    return 100 * area, pseudo


@pytest.mark.slow
@given(data_sets)
def test_auc_and_pseudo_values_are_those_of_every_pair_against_every_other(
    samples: list[Sample],
) -> None:
    scores = AucScorer().score(outputs(samples), labels(samples))

    area, pseudo = by_hand(samples)
    assert scores.aggregate["auc"] == pytest.approx(area, abs=1e-10)
    assert scores.per_sample["auc"] == pytest.approx(pseudo, abs=1e-8)
    mean = math.fsum(value or 0 for value in scores.per_sample["auc"]) / len(samples)
    assert mean == pytest.approx(scores.aggregate["auc"], abs=1e-9)
    assert scores.whole == {"auc"}
    assert scores.lower == frozenset()


def test_how_samples_are_cut_into_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = drawn(np.random.default_rng(3), [1, 4, 9, 4, 2, 2, 1, 5])
    whole = AucScorer().score(outputs(samples), labels(samples))
    monkeypatch.setattr(module, "PIECE_PAIRS", 4)

    assert AucScorer().score(outputs(samples), labels(samples)) == whole


def test_auc_counted_by_hand() -> None:
    rows: list[tuple[list[Sample], float]] = [
        ([[(0.1, 0), (0.9, 1)]], 100.0),
        ([[(0.9, 0)], [(0.1, 1)]], 0.0),
        ([[(0.5, 0), (0.5, 1)]], 50.0),
        ([[(0.1, 0), (0.4, 0)], [(0.35, 1), (0.8, 1)]], 75.0),
        ([[(0.3, 1), (0.3, 0), (0.1, 0)]], 75.0),
        ([[(-7.0, 0), (-5.0, 1), (-5.0, 0), (0.0, 1)]], 87.5),
    ]
    for samples, expected in rows:
        assert AucScorer().score(outputs(samples), labels(samples)).aggregate == {"auc": expected}


def drawn(rng: np.random.Generator, sizes: list[int], *, digits: int = 9) -> list[Sample]:
    """Return samples whose clicks follow their predictions, and differ from sample to sample."""
    samples = []
    for size in sizes:
        chance = 1 / (1 + np.exp(1.5 - 1.2 * rng.normal(size=size) - rng.normal()))
        clicks = rng.random(size) < chance
        rough = np.round(chance * np.exp(0.3 * rng.normal()), digits).astype(np.float32)
        samples.append(list(zip(rough.tolist(), clicks.astype(int).tolist(), strict=True)))
    return samples


@pytest.mark.slow
def test_auc_has_the_digits_of_scikit_learn() -> None:
    """MLPerf's script prints three decimals of its roc_auc_score; ours agree in all."""
    metrics = pytest.importorskip("sklearn.metrics")
    for digits in (9, 3, 1):
        samples = drawn(np.random.default_rng(digits), [40] * 200, digits=digits)

        auc = AucScorer().score(outputs(samples), labels(samples)).aggregate["auc"]

        predictions = np.concatenate([np.frombuffer(output, "<f4") for output in outputs(samples)])
        expected = 100.0 * metrics.roc_auc_score(np.concatenate(labels(samples)), predictions)
        assert auc == pytest.approx(expected, abs=1e-10)
        assert f"AUC={auc:.3f}%" == f"AUC={expected:.3f}%"


def test_with_one_pair_per_sample_the_standard_error_is_that_of_delong() -> None:
    """Its variance is var(V10) / clicked + var(V01) / others."""
    samples = [[pair] for pair in drawn(np.random.default_rng(5), [4000], digits=2)[0]]
    pseudo: Any = AucScorer().score(outputs(samples), labels(samples)).per_sample["auc"]

    predictions, clicked = np.array([sample[0] for sample in samples]).T
    ours, others = predictions[clicked == 1], predictions[clicked == 0]
    won = (ours[:, None] > others) + (ours[:, None] == others) / 2
    variance = np.var(won.mean(1), ddof=1) / len(ours) + np.var(won.mean(0), ddof=1) / len(others)
    error = np.std(pseudo, ddof=1) / math.sqrt(len(pseudo))
    assert error == pytest.approx(100 * math.sqrt(variance), rel=0.01)


def weighted(samples: list[Sample], weights: NDArray[np.float64]) -> float:
    """Return AUC by its definition, in percent, where each pair counts as its sample does."""
    predictions, clicked = np.array([pair for sample in samples for pair in sample]).T
    weight_of_row = np.repeat(weights, [len(sample) for sample in samples])
    ours, others = clicked == 1, clicked == 0
    gaps = predictions[ours][:, None] - predictions[others]
    won = weight_of_row[ours] @ ((np.sign(gaps) + 1) / 2) @ weight_of_row[others]
    return float(100 * won / weight_of_row[ours].sum() / weight_of_row[others].sum())


def test_the_influence_of_a_sample_is_the_derivative_by_its_weight() -> None:
    """Pairs of one sample belong together."""
    samples = drawn(np.random.default_rng(11), [1, 30, 4, 9, 2, 17], digits=1)
    scores = AucScorer().score(outputs(samples), labels(samples))

    pseudo: Any = scores.per_sample["auc"]
    steps = 1e-5 * np.eye(len(samples))
    slopes = [(weighted(samples, 1 + step) - weighted(samples, 1 - step)) / 2e-5 for step in steps]
    influences = (np.array(pseudo) - scores.aggregate["auc"]) / len(samples)
    np.testing.assert_allclose(influences, slopes, atol=1e-6)


def test_labels_may_follow_each_prediction() -> None:
    """The layout that MLPerf's reference implementation writes."""
    samples = drawn(np.random.default_rng(2), [5, 9, 30])
    mixed = [np.array(sample, "<f4").tobytes() for sample in samples]

    assert AucScorer(interleaved=True).score(mixed, labels(samples)) == AucScorer().score(
        outputs(samples), labels(samples)
    )


def test_labels_may_have_any_type_and_a_second_dimension() -> None:
    samples = [[(0.1, 0), (0.4, 0)], [(0.35, 1), (0.8, 1)]]

    for kind in (np.float32, np.float64, np.int32, np.uint8, np.bool_):
        typed = [label.astype(kind)[:, None] for label in labels(samples)]
        assert AucScorer().score(outputs(samples), typed).aggregate == {"auc": 75.0}


GOOD: Sample = [(0.25, 0), (0.5, 1)]
"""Any sample beside the wrong one."""


def test_wrong_inputs_and_options_are_refused() -> None:
    one_sample, two, mixed = outputs([GOOD]), outputs([GOOD, GOOD]), [(0.25, 1), (0.5, 0)]
    per_pair = "sample 0 has 2 user-item pairs, but its output has"
    rows: list[tuple[bool, list[bytes], list[Any], str]] = [
        *(
            (False, [bytes(n)], labels([GOOD]), f"{per_pair} {n} bytes instead of 8; give one pred")
            for n in (4, 12, 7, 0)
        ),
        (
            True,
            [bytes(8)],
            labels([GOOD]),
            f"{per_pair} 8 bytes instead of 16; give a prediction and a label per",
        ),
        (
            True,
            [np.array(mixed, "<f4").tobytes()],
            labels([GOOD]),
            "sample 0 has other labels in its output than in the data",
        ),
        *(
            (False, two, [[0, 1], [0, label]], "sample 1 has a label that is neither 0 nor 1")
            for label in (2.0, -1.0, 0.5, math.nan)
        ),
        (
            False,
            [*one_sample, b""],
            [*labels([GOOD]), []],
            "sample 1 has no user-item pairs; correct the data set",
        ),
    ]
    for value in (math.nan, math.inf, -math.inf):
        samples: list[Sample] = [GOOD, GOOD, [(0.1, 0), (value, 1), (0.2, 0)], GOOD]
        text = (
            f"^scorer auc: sample 2 has the prediction {value} for its pair 1, which is not "
            "finite; correct the engine$"
        )
        rows.append((False, outputs(samples), labels(samples), text))
    for label in (0, 1):
        text = (
            f"^scorer auc: all 5 labels are {label}; AUC compares pairs that were clicked with "
            "pairs that were not, so score more samples, or correct the data set$"
        )
        rows.append((False, [bytes(12), bytes(8)], [[label] * 3, [label] * 2], text))

    def score(interleaved: bool, logs: list[bytes], references: list[Any]) -> None:
        AucScorer(interleaved=interleaved).score(logs, references)

    assert differences(score, RunError, rows) == []
    text = r"scorer auc: interleaved = .* is not true or false"
    options = [(value, text) for value in ("yes", 1, None)]
    assert differences(lambda value: AucScorer(interleaved=value), SuiteError, options) == []


def test_outputs_and_references_are_each_read_once_in_order() -> None:
    samples = drawn(np.random.default_rng(4), [3, 8, 40])
    given_outputs, references = Once(outputs(samples)), Once(labels(samples))

    AucScorer().score(given_outputs, references)

    assert given_outputs.reads == references.reads == [0, 1, 2]
