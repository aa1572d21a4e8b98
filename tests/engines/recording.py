"""What tests of all engines share: a data set, sinks, and samples asked of an engine."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from pytest_mlperf.core.extension import Engine


class Samples:
    """A data set of whatever it is given."""

    digest = "0" * 64

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def input(self, index: int) -> Any:
        return self._samples[index]

    def reference(self, index: int) -> Any:
        return None


class Recorder:
    """A sink that keeps every report in order: ("first", 3), ("next", 3), ("done", 3)."""

    limit_s: ClassVar[float] = 60.0
    """A sample that takes longer is lost."""

    counts_tokens: ClassVar[bool] = True

    def __init__(
        self, expected: int = 0, *, wants_output: bool = True, times_tokens: bool = True
    ) -> None:
        self.wants_output = wants_output
        self.times_tokens = times_tokens
        self.events: list[tuple[str, int]] = []
        self.ids: list[int] = []
        self.batches: list[int] = []
        self.outputs: dict[int, bytes] = {}
        self.n_tokens: dict[int, int] = {}
        self.threads: set[int] = set()
        self.errors: list[BaseException] = []
        self._expected = expected
        self._over = threading.Event()
        self._lock = threading.RLock()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        assert self.times_tokens
        self._keep("first", ids)

    def next_tokens(self, ids: Sequence[int]) -> None:
        assert self.times_tokens
        self._keep("next", ids)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        assert (outputs is not None) is self.wants_output
        assert (n_tokens is not None) is self.counts_tokens
        with self._lock:
            self._keep("done", ids)
            self.ids += ids
            assert len(set(self.ids)) == len(self.ids), "a sample is done twice"
            self.batches.append(len(ids))
            self.outputs.update(zip(ids, outputs or (), strict=outputs is not None))
            self.n_tokens.update(zip(ids, n_tokens or (), strict=self.counts_tokens))
            if len(self.ids) == self._expected:
                self._over.set()

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self._over.set()

    def wait_for_end(self) -> None:
        """Return when all samples are done or the run has failed."""
        assert self._over.wait(self.limit_s), f"done are only {self.ids}"

    def wait(self) -> None:
        """Return when all samples are done; raise what the engine failed with."""
        self.wait_for_end()
        if self.errors:
            raise self.errors[0]

    def reports(self, sample: int) -> list[str]:
        return [kind for kind, each in self.events if each == sample]

    @property
    def answers(self) -> dict[int, list[int]]:
        """The tokens of each output."""
        return {
            sample: list(struct.unpack(f"<{len(output) // 8}q", output))
            for sample, output in self.outputs.items()
        }

    @property
    def error(self) -> str:
        """The text of the one error."""
        self.wait_for_end()
        (error,) = self.errors
        return str(error)

    def _keep(self, kind: str, ids: Sequence[int]) -> None:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.events += [(kind, sample) for sample in ids]


class Tokenless(Recorder):
    """A sink for models whose answers are no tokens."""

    counts_tokens = False

    def __init__(self, expected: int = 0, *, wants_output: bool = True) -> None:
        super().__init__(expected, wants_output=wants_output, times_tokens=False)


class Counting:
    """A sink for benchmarks: it counts tokens, and every one is reported as in a run."""

    wants_output = False
    times_tokens = True

    def __init__(self, expected: int) -> None:
        self.tokens = 0
        self.error: BaseException | None = None
        self._left = expected
        self._over = threading.Event()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Not counted."""

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Not counted."""

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        self.tokens += sum(n_tokens or ())
        self._left -= len(ids)
        if not self._left:
            self._over.set()

    def failed(self, error: BaseException) -> None:
        self.error = error
        self._over.set()

    def wait(self) -> None:
        assert self._over.wait(60)
        if self.error is not None:
            raise self.error


def ask(engine: Engine, sink: Recorder, samples: int, *, one_by_one: bool = False) -> None:
    """Submit samples 0, 1, … as ids 100, 101, … and wait for them; the engine is entered."""
    engine.load_samples(range(samples))
    ids = range(100, 100 + samples)
    if one_by_one:
        for sample, index in zip(ids, range(samples), strict=True):
            engine.submit([sample], [index], sink)
    else:
        engine.submit(ids, range(samples), sink)
    sink.wait()


def answers_of(engine: Engine, samples: int, *, one_by_one: bool = False) -> list[list[int]]:
    """Return the tokens that an engine, not entered yet, generates for each of its samples."""
    sink = Recorder(samples, times_tokens=False)
    with engine:
        ask(engine, sink, samples, one_by_one=one_by_one)
    found = sink.answers
    return [found[100 + index] for index in range(samples)]
