"""A handicap stretches the work of an engine, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from pytest_mlperf.core.extension import Engine, Sink
from pytest_mlperf.run.worker._handicap import HandicapEngine
from pytest_mlperf.testing import RecordingSink


class Clock:
    """A clock that moves only through work, sleep, or a reading of it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.oversleep_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-7
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.oversleep_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("pytest_mlperf.run.worker._handicap.time", clock)
    return clock


class Recorder(RecordingSink):
    """Notes when each call arrives, by the clock of these tests."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(times_tokens=True)
        self.clock = clock
        self.at_s: list[float] = []

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        self.at_s.append(self.clock.now_s)
        super().first_tokens(ids, tokens)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        self.at_s.append(self.clock.now_s)
        super().done(ids, outputs, n_tokens)


class Works(Engine):
    """Works on one sample after the other, for a time each."""

    def __init__(self, clock: Clock, work_s: float) -> None:
        self.clock = clock
        self.work_s = work_s

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        for sample in ids:
            self.clock.now_s += self.work_s
            sink.done([sample])

    def describe(self) -> Mapping[str, str]:
        return {"version": "7"}


def test_each_samples_work_and_each_token_take_as_much_longer_as_speed_was_taken(
    clock: Clock,
) -> None:
    for work_s, handicap in itertools.product((2e-4, 0.003, 2.0), (0.05, 0.1, 0.5, 0.9)):
        recorder = Recorder(clock)
        begun_s = clock.now_s
        HandicapEngine(Works(clock, work_s), handicap).submit(range(1, 6), range(5), recorder)

        expected_s = [number * work_s / (1 - handicap) for number in range(1, 6)]
        assert [at_s - begun_s for at_s in recorder.at_s] == pytest.approx(expected_s, rel=0.01)

    class Speaks(Works):
        def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
            self.clock.sleep(1.0)
            sink.first_tokens(ids)
            self.clock.sleep(3.0)
            sink.done(ids, None, [4])

    recorder = Recorder(clock)
    begun_s = clock.now_s
    HandicapEngine(Speaks(clock, 0.0), 0.5).submit([1], [0], recorder)
    assert [at_s - begun_s for at_s in recorder.at_s] == pytest.approx([2.0, 8.0], rel=0.01)


def test_waits_that_take_too_long_do_not_add_up_and_time_without_work_is_not_stretched(
    clock: Clock,
) -> None:
    recorder = Recorder(clock)
    engine = HandicapEngine(Works(clock, 0.01), 0.5)
    took_s = []
    for sample in (1, 2):
        clock.sleep(60.0)
        begun_s = clock.now_s
        engine.submit([sample], [0], recorder)
        took_s.append(clock.now_s - begun_s)
    assert took_s == pytest.approx([0.02, 0.02], rel=0.01)

    clock.oversleep_s = 0.004
    recorder = Recorder(clock)
    begun_s = clock.now_s
    HandicapEngine(Works(clock, 0.01), 0.5).submit(range(100), range(100), recorder)
    assert recorder.at_s[-1] - begun_s == pytest.approx(100 * 0.02, abs=0.005)


def test_everything_an_engine_says_arrives_unchanged(clock: Clock) -> None:
    error = RuntimeError("example")

    class Says(Works):
        def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
            assert sink.wants_output
            sink.first_tokens([1], [b"a"])
            sink.attach([1], [{"text": b"a b"}])
            sink.done([1, 2], [b"ab", b""], [2, 3])
            sink.failed(error)

        def metrics_pages(self) -> Sequence[str]:
            return ("http://h/metrics",)

    recorder = Recorder(clock)
    engine = HandicapEngine(Says(clock, 0.0), 0.5)
    engine.submit([1, 2], [0, 1], recorder)
    assert recorder.calls == [("first", [1]), ("done", [1, 2])]
    assert recorder.first == {1: b"a"}
    assert recorder.artefacts == {1: {"text": b"a b"}}
    assert (recorder.outputs, recorder.n_tokens) == ({1: b"ab", 2: b""}, {1: 2, 2: 3})
    assert recorder.errors == [error]
    assert engine.describe() == {"version": "7"}
    assert engine.metrics_pages() == ("http://h/metrics",)

    for handicap in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"handicap={handicap!r}"):
            HandicapEngine(Works(clock, 0.0), handicap)
