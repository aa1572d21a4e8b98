"""An engine that misbehaves in one of its replicas."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.extension import REPLICA_NUMBER, Dataset, Engine, Sink

WORD = "the last that it said"


class OneFails(Engine):
    """All replicas are sound but `where`, which does what `how` says once it is measured."""

    def __init__(
        self, dataset: Dataset, model: str | None, precision: str, *, how: str, where: int = 1
    ) -> None:
        self.number = int(os.environ[REPLICA_NUMBER])
        self.how = how if self.number == where else ""
        self.loads = 0

    def __enter__(self) -> OneFails:
        if self.how == "loading":
            raise RuntimeError("this GPU is broken")
        if self.how == "loads for ever":
            time.sleep(600)
        if self.how == "loads long":
            for part in range(28):
                print(f"shard {part} of 28", flush=True)
                time.sleep(0.25)
        return self

    def describe(self) -> Mapping[str, str]:
        return {"library": "2.0" if self.how == "differs" else "1.0"}

    def metrics_pages(self) -> Sequence[str]:
        return ["http://h/all", f"http://h/{self.number}"]

    def accepted_drafts(self) -> int | None:
        return self.number + 1

    def load_samples(self, indices: Sequence[int]) -> None:
        self.loads += 1

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        how = self.how if self.loads > 1 else ""
        self.fail(how)
        if how == "is silent":
            return
        # A process that answers everything at once would leave nothing for the others.
        time.sleep(1e-4 * len(ids))
        outputs = [index.to_bytes(8, "little") for index in indices] if sink.wants_output else None
        if sink.wants_output:
            sink.attach(ids, [{"index": b"%d" % index} for index in indices])
        sink.done(ids, outputs, self.tokens(ids, sink))
        if how == "answers twice":
            sink.done(ids, outputs)
        if how == "answers nonsense":
            sink.done([("nobody", "asked")])  # type: ignore[list-item]

    def fail(self, how: str) -> None:
        if how == "dies":
            print(f"and before\n{WORD}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "raises":
            raise RuntimeError("out of memory")
        if how == "writes to any descriptor":
            for file in Path("/proc/self/fd").iterdir():
                if file.is_socket():
                    os.write(int(file.name), struct.pack("=Q", 5) + b"hello")
        while how == "prints on":
            print("0.0 tokens/s", flush=True)
            time.sleep(0.5)

    def tokens(self, ids: Sequence[int], sink: Sink) -> list[int] | None:
        if not sink.times_tokens:
            return None
        for _ in range(2):
            (sink.first_tokens if _ == 0 else sink.next_tokens)(ids)
        return [2] * len(ids)


class Counts(OneFails):
    def __init__(self, dataset: Dataset, model: str | None, precision: str, **_: Any) -> None:
        super().__init__(dataset, model, precision, how="")

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if self.loads > 1:
            print(*ids, flush=True)
        super().submit(ids, indices, sink)
