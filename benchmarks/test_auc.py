"""How fast AUC and its pseudo-values are found beside scikit-learn, which finds AUC alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_mlperf.adapters.scorers.auc import AucScorer

SAMPLES = 10_000
"""Of MLPerf's 330,067; 2.7 million pairs."""

ROUNDS = 3
QUANTILES = [100] * 2 + [200] * 12 + [300] * 2 + [400, 500, 600, 700]
"""Pairs of a sample, as MLPerf draws them."""


def clicks() -> tuple[list[bytes], list[NDArray[np.float32]]]:
    """Return predictions and labels of which about 3 in 100 are clicks."""
    rng = np.random.default_rng(1)
    outputs, labels = [], []
    for size in rng.choice(QUANTILES, SAMPLES):
        chance = 1 / (1 + np.exp(3.9 - 1.1 * rng.normal(size=size)))
        outputs.append(chance.astype(np.float32).tobytes())
        labels.append((rng.random(size) < chance).astype(np.float32))
    return outputs, labels


def best(work: Callable[[], object]) -> float:
    """Return the shortest processor time of a few."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark(group="auc")
def test_auc_with_its_pseudo_values_is_as_fast_as_auc_alone(benchmark: Any) -> None:
    """Target: 0.5 x, wished 1.5 x; scikit-learn's is given all pairs in one array."""
    metrics = pytest.importorskip("sklearn.metrics")
    outputs, labels = clicks()
    truth = np.concatenate(labels)
    predictions = np.frombuffer(b"".join(outputs), "<f4")
    scorer = AucScorer()

    theirs = best(lambda: metrics.roc_auc_score(truth, predictions))
    ours = best(lambda: scorer.score(outputs, labels))
    benchmark.pedantic(lambda: scorer.score(outputs, labels), rounds=1)

    ratio = theirs / ours
    print(
        f"\nAUC of {len(truth):,} pairs: {ours:.2f} s, scikit-learn {theirs:.2f} s, {ratio:.1f} x"
    )
    benchmark.extra_info.update({"ours_s": ours, "sklearn_s": theirs, "ratio": ratio})
    found = scorer.score(outputs, labels).aggregate["auc"]
    assert found == pytest.approx(100 * metrics.roc_auc_score(truth, predictions), abs=1e-10)
    assert ratio >= 0.5
