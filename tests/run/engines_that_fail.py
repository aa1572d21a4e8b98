"""Engines that misbehave, each in one way that users' engines were seen to."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.run.work_queue import WorkQueue

EXAMPLE = "example failure"


class Sound(Engine):
    """Completes inline and correctly; the others break one thing."""

    def __init__(self, dataset: Dataset, model: str | None, precision: str) -> None:
        self.dataset = dataset
        self.runs = 0

    def load_samples(self, indices: Sequence[int]) -> None:
        # Warm-up loads first, so the second time is LoadGen's.
        self.runs += 1

    @property
    def measured(self) -> bool:
        return self.runs > 1

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if self.measured or sink.wants_output:
            self.misbehave(ids, indices, sink)
        else:
            sink.done(ids)

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        sink.done(ids, answers(indices) if sink.wants_output else None)


def answers(indices: Sequence[int]) -> list[bytes]:
    """Return outputs of different lengths, some empty."""
    return [bytes([index % 256]) * (index % 5) for index in indices]


class RaisesInConstructor(Sound):
    def __init__(self, dataset: Dataset, model: str | None, precision: str) -> None:
        raise RuntimeError(EXAMPLE)


class RaisesOnEnter(Sound):
    def __enter__(self) -> Self:
        raise RuntimeError(EXAMPLE)


class LoadsForLongAndSaysSo(Sound):
    def __enter__(self) -> Self:
        for shard in range(8):
            print("shard", shard, flush=True)
            time.sleep(0.6)
        return self


class PrintsForEver(Sound):
    def __enter__(self) -> Self:
        while True:
            print("still waiting", flush=True)
            time.sleep(0.6)


class RaisesOnExit(Sound):
    def __exit__(self, *_: object) -> None:
        raise RuntimeError(EXAMPLE)


class CrashesOnExit(Sound):
    def __exit__(self, *_: object) -> None:
        ctypes.string_at(8)


class LeavesOnExit(Sound):
    def __exit__(self, *_: object) -> None:
        os._exit(3)


class HangsOnExit(Sound):
    def __exit__(self, *_: object) -> None:
        threading.Event().wait()


class LeavesAProcess(Sound):
    """Leaves a process that holds all its descriptors, the events' among them."""

    def __exit__(self, *_: object) -> None:
        if os.fork() == 0:
            signal.pause()


class LeavesADaemonAndEnds(Sound):
    """Its daemon is in a session of its own, and holds the descriptor of events."""

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if os.fork() == 0:
            os.setsid()
            let_go = select.poll()
            let_go.register(int(sys.argv[sys.argv.index("--events") + 1]), 0)
            let_go.poll()  # until nobody reads events any more
        os._exit(3)


class ExitsSlowly(Sound):
    def __exit__(self, *_: object) -> None:
        time.sleep(0.2)
        print("engine has exited")


class ExitsVerySlowly(Sound):
    """As one that stops a server, for longer than the guard waits."""

    def __exit__(self, *_: object) -> None:
        time.sleep(2.5)
        print("engine has exited")


class RaisesInDescribe(Sound):
    def describe(self) -> NoReturn:
        raise RuntimeError(EXAMPLE)


class RaisesInLoadSamples(Sound):
    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        if self.measured:
            raise RuntimeError(EXAMPLE)


class RaisesInUnloadSamples(Sound):
    def unload_samples(self, indices: Sequence[int]) -> None:
        if self.measured:
            raise RuntimeError(EXAMPLE)


class RaisesInWarmUp(Sound):
    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        raise RuntimeError(EXAMPLE)


class RaisesInSubmit(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        raise RuntimeError(EXAMPLE)


class ExitsInSubmit(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        sys.exit(EXAMPLE)


class InterruptsInSubmit(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        raise KeyboardInterrupt(EXAMPLE)


class RaisesInThread(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        threading.Thread(target=self.work).start()

    def work(self) -> None:
        raise RuntimeError(EXAMPLE)


class ExitsInThread(RaisesInThread):
    def work(self) -> None:
        sys.exit(EXAMPLE)


class RaisesInQueue(Sound):
    def __enter__(self) -> Self:
        self.queue = WorkQueue(self.work)
        return self

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.queue.put(ids, indices, sink)

    def work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        raise RuntimeError(EXAMPLE)


class ReportsFailure(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        sink.failed(RuntimeError(EXAMPLE))


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise ValueError(EXAMPLE)


class RaisesUnprintable(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        raise Unprintable


class ReportsNothing(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        nothing: Any = None
        sink.failed(nothing)


class ReportsFromARecursion(Sound):
    """Reports at the very end of its stack that it is there."""

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        try:
            self.misbehave(ids, indices, sink)
        except RecursionError as error:
            sink.failed(error)


class RunsOutOfMemory(Sound):
    """Fill the allowed memory, held by its frame, before LoadGen runs, which would die of it."""

    def __enter__(self) -> NoReturn:
        used = 4096 * int(Path("/proc/self/statm").read_text("ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
        hog = [b""]
        while True:
            hog.append(bytes(1000))


class CompletesTwice(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        super().misbehave(ids, indices, sink)
        super().misbehave(ids[:1], indices[:1], sink)


class RepeatsWithinACall(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        super().misbehave([ids[0], *ids], [indices[0], *indices], sink)


class CompletesUnknown(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        super().misbehave([1, *ids], [0, *indices], sink)


class CompletesInTwoThreads(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        gate = threading.Barrier(2)

        def race() -> None:
            gate.wait()
            for sample, index in zip(ids, indices, strict=True):
                Sound.misbehave(self, [sample], [index], sink)
            gate.wait()

        def race_and_stay() -> None:
            race()
            signal.pause()

        threading.Thread(target=race_and_stay, daemon=True).start()
        race()


class CompletesAfterTheEnd(Sound):
    """Completes its last samples once more when LoadGen has unloaded them, in a later call."""

    last: tuple[Sequence[int], Sequence[int], Sink]

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.last = ids, indices, sink
        super().misbehave(ids, indices, sink)

    def unload_samples(self, indices: Sequence[int]) -> None:
        if self.measured:
            sink = self.last[2]
            threading.Thread(target=self.complete_late, args=(sink,)).start()

    def complete_late(self, sink: Sink) -> None:
        late = os.environ["MLPERF_TEST_LATE_FILE"]
        while not os.path.exists(late):  # noqa: PTH110
            time.sleep(0.005)
        super().misbehave(*self.last)
        with open(late, "a") as file:  # noqa: PTH123
            file.write("completed")


class CompletesOnlyUnknown(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        super().misbehave([-1 - position for position in range(len(ids))], indices, sink)


class NeverCompletes(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        super().misbehave(ids[1:], indices[1:], sink)


class HangsOnEnter(Sound):
    """Hangs with the interpreter lock held, so that no Python code in the process runs again."""

    def __enter__(self) -> Self:
        ctypes.PyDLL(None).pause()
        return self


class HangsInWarmUp(Sound):
    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Lose the samples."""


class StopsItself(Sound):
    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class LacksItsModel(Sound):
    def __enter__(self) -> Self:
        raise UnavailableError("the example model is not here; set MODELS")


class StartsAServer(Sound):
    """Starts a process that would outlive it."""

    def __enter__(self) -> Self:
        self.server = subprocess.Popen(["sleep", "1000"])
        return self

    def describe(self) -> dict[str, str]:
        return {"server": str(self.server.pid)}


class StartsAServerAndHangs(StartsAServer):
    def load_samples(self, indices: Sequence[int]) -> None:
        ctypes.PyDLL(None).pause()


class WrongOutputs(Sound):
    def __init__(
        self, dataset: Dataset, model: str | None, precision: str, *, outputs: str
    ) -> None:
        super().__init__(dataset, model, precision)
        self.outputs = outputs

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        outputs: dict[str, Any] = {
            "none": None,
            "text": ["text"] * len(ids),
            "few": [b"bytes"] * (len(ids) - 1),
        }
        sink.done(ids, outputs[self.outputs] if sink.wants_output else None)


class WrongTokens(Sound):
    def __init__(self, dataset: Dataset, model: str | None, precision: str, *, how: str) -> None:
        super().__init__(dataset, model, precision)
        self.how = how

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if self.how != "no first":
            sink.first_tokens(ids)
        if self.how == "first twice":
            sink.first_tokens(ids)
        sink.done(ids, None, {"none": None, "one": [1]}.get(self.how, [4]))


class CompletesFromDyingThreads(Sound):
    """Completes from a thread that ends during the run, which LoadGen does not survive."""

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        half = len(ids) // 2
        for part in (ids[:half], ids[half:-1]):
            thread = threading.Thread(target=sink.done, args=(part,))
            thread.start()
            thread.join()
        time.sleep(0.1)
        sink.done(ids[-1:])


class KillsItself(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Segfaults(Sound):
    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        ctypes.string_at(8)


class WritesToEvents(Sound):
    """Writes to the descriptor that is its worker's way to speak."""

    def __init__(self, dataset: Dataset, model: str | None, precision: str, *, text: str) -> None:
        super().__init__(dataset, model, precision)
        self.text = text.encode()

    def __enter__(self) -> Self:
        descriptor = int(sys.argv[sys.argv.index("--events") + 1])
        while True:
            os.write(descriptor, self.text)


class ReadsStdin(Sound):
    """Ask a question on stdin that has no answer, and have a process ask it too."""

    def __enter__(self) -> Self:
        child = subprocess.run(["cat"], stdout=subprocess.PIPE, check=True)
        threading.Thread(target=self.read, args=(child.stdout,)).start()
        return self

    def read(self, other: bytes) -> None:
        print("read", repr(sys.stdin.read()), repr(os.read(0, 10)), other, flush=True)


class DeletesFolder(Sound):
    """Deletes the folder of the run, named by an option."""

    def __init__(self, dataset: Dataset, model: str | None, precision: str, *, folder: str) -> None:
        super().__init__(dataset, model, precision)
        self.folder = folder

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        shutil.rmtree(self.folder)
        super().misbehave(ids, indices, sink)


class FillsDisk(Sound):
    """Forbids this process to write more into files, as a full disk would."""

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        super().misbehave(ids, indices, sink)


class RaisesInTelemetry(Sound):
    """Has a thread of its library die while nothing is asked of it, which breaks nothing."""

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self.work)
        thread.start()
        thread.join()
        return self

    def work(self) -> None:
        raise RuntimeError(EXAMPLE)


class BrokenDataset:
    def __init__(self, *, reason: str = EXAMPLE) -> None:
        raise OSError(reason)


class OddDataset:
    """Has a length that changes from call to call, or another digest than a text."""

    def __init__(self, *, lengths: Sequence[int] = (64,), digest: str | None = "odd") -> None:
        self.lengths = list(lengths)
        self.digest = digest

    def __len__(self) -> int:
        return self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]

    def input(self, index: int) -> int:
        return index


class KeepsResultsByIndex(Sound):
    """Answers each index of a batch once, whatever the ids."""

    def misbehave(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        for start in range(0, len(ids), 300):
            by_index = dict(
                zip(indices[start : start + 300], ids[start : start + 300], strict=True)
            )
            super().misbehave(list(by_index.values()), list(by_index), sink)
