"""A small version of MLPerf's 3D U-Net: 43 volumes, and an engine that knows them and sleeps.

Samples, seconds, seeds and scores are those of MLPerf's rules.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.core.extension import Sink

SHAPE = (2, 4, 4)

SUITE = """\
schema = 1
round = "{round}"
profile = "{profile}"

[workload]
name = "3d-unet-99"
dataset = {{ use = "{module}:Volumes" }}

[[engines]]
use = "{module}:{engine}"
name = "standin"
accelerators = ["cpu"]

[[scenarios]]
name = "Offline"
target_qps = {rate}
{more}
"""


class Volumes:
    """43 labels, which are their own volumes."""

    digest = "43 volumes"

    def __len__(self) -> int:
        return 43

    def input(self, index: int) -> np.ndarray[Any, Any]:
        return self.label(index)

    def label(self, index: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(index).integers(0, 3, SHAPE).astype(np.uint8)

    def reference(self, index: int) -> dict[str, Any]:
        return {"case": f"case_{index:05d}", "label": self.label(index)}


class Segmenter(NullEngine):
    """Answers with the labels, one volume in the time that the environment says."""

    def __init__(self, dataset: Any, model: Any = None, precision: str = "") -> None:
        self.latency_s = float(os.environ.get("VOLUME_S", "0.002"))
        super().__init__(dataset, latency_s=self.latency_s)
        self.dataset = dataset

    def _complete_batch(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        _take(self.latency_s * len(ids))
        outputs = None
        if sink.wants_output:
            outputs = [self.answer(index, timed=sink.times_tokens) for index in indices]
        sink.done(ids, outputs)

    def answer(self, index: int, *, timed: bool) -> bytes:
        del timed
        return bytes(self.dataset.label(index).tobytes())


def _take(seconds: float) -> None:
    import time

    time.sleep(seconds)
