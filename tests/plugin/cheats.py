"""Engines that cheat in ways that an audit detects, and honest ones."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.core.extension import Sink

BATCH, SAMPLE_S = 16, 0.003

PICTURES = """\
schema = 1
round = "v4.1"

[workload]
name = "pictures"
twin_of = "resnet50"
dataset = { use = "synthetic", samples = 64 }
reference = { top1 = 100.0 }

[[engines]]
use = "cheats:Honest"
accelerators = ["cpu"]

[[engines]]
use = "cheats:Keeper"
accelerators = ["cpu"]

[[engines]]
use = "cheats:Guesser"
accelerators = ["cpu"]

[[scenarios]]
name = "Offline"
target_qps = 300
min_duration = "800ms"
"""

TEXTS = """\
schema = 1
round = "v4.1"

[workload]
name = "texts"
twin_of = "llama2-70b-99"
dataset = { use = "synthetic", samples = 64 }
scorer = { use = "top1" }

[[engines]]
use = "cheats:Writer"
accelerators = ["cpu"]

[[engines]]
use = "cheats:Cutter"
accelerators = ["cpu"]

[[scenarios]]
name = "Offline"
target_qps = 300
min_duration = "300ms"
"""


class Honest(NullEngine):
    """Takes its time for each sample, sixteen at a time."""

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        last = -1
        for start in range(0, len(ids), BATCH):
            part = indices[start : start + BATCH]
            time.sleep(SAMPLE_S * sum(map(self.costs, [last, *part], part)))
            last = part[-1]
            outputs = [self.answer(index, sink) for index in part] if sink.wants_output else None
            sink.done(ids[start : start + BATCH], outputs)

    def costs(self, last_index: int, index: int) -> bool:
        return True

    def answer(self, index: int, sink: Sink) -> bytes:
        return index.to_bytes(8, "little")


class Keeper(Honest):
    """Keeps the last answer: the same sample again costs nothing."""

    def costs(self, last_index: int, index: int) -> bool:
        return last_index != index


class Guesser(Honest):
    """Guess in timed runs, when answers are not checked."""

    def answer(self, index: int, sink: Sink) -> bytes:
        right = type(sink).__name__ == "OutputSink"
        return (index if right else index + 1).to_bytes(8, "little")


class Writer(NullEngine):
    """Writes eight tokens."""

    written = 8

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        outputs = [array("q", range(5, 5 + self.written)).tobytes()] * len(ids)
        time.sleep(SAMPLE_S * len(ids))
        sink.done(ids, outputs if sink.wants_output else None, [8] * len(ids))


class Cutter(Writer):
    """Counts eight tokens, and writes five."""

    written = 5
