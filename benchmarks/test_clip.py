"""How fast images are scored by CLIP in batches beside one by one, as MLPerf's reference does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.scorers.images._clip import ClipScores
from tests.adapters.scorers.clip_made_here import write_clip

IMAGES, SIDE, BATCH = 64, 64, 8
ROUNDS = 3


def best(work: Callable[[], object]) -> float:
    """Return the shortest processor time of a few."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark(group="clip")
def test_batches_are_at_least_as_fast_as_single_images(benchmark: Any, tmp_path: Path) -> None:
    """Target: 0.9 x with a network of two thin layers, where batches win least."""
    write_clip(tmp_path)
    images = np.random.default_rng(5).integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    captions = [f"a red {number}" for number in range(IMAGES)]
    scores = ClipScores(tmp_path, device="cpu")

    def run(batch: int) -> list[float]:
        found: list[float] = []
        for start in range(0, IMAGES, batch):
            part = slice(start, start + batch)
            found += scores(images[part], captions[part]).tolist()
        return found

    theirs, ours = best(lambda: run(1)), best(lambda: run(BATCH))
    benchmark.pedantic(lambda: run(BATCH), rounds=1)

    ratio = theirs / ours
    print(
        f"\nCLIP of {IMAGES} images: {1e3 * ours:.0f} ms in batches, {1e3 * theirs:.0f} ms singly"
    )
    benchmark.extra_info.update({"batches_s": ours, "single_s": theirs, "ratio": ratio})
    assert run(BATCH) == pytest.approx(run(1), abs=1e-3)
    assert ratio >= 0.9
