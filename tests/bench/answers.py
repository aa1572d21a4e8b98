"""The engine of the recorded sessions: it answers right but in its first samples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pytest_mlperf import Engine, Sink


class Answers(Engine):
    """Answers each sample with its index, the first `wrong` ones with the next index."""

    def __init__(self, dataset: Any, model: str | None, precision: str, *, wrong: int = 0) -> None:
        self._wrong = wrong

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        time.sleep(0.002 * len(ids))
        sink.done(ids, [(i + (i < self._wrong)).to_bytes(8, "little") for i in indices])
