"""The null engine answers every sample with its index, in batches, from inline or its threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from pytest_mlperf.core.extension import Sink
from pytest_mlperf.datasets.synthetic import SyntheticDataset
from pytest_mlperf.engines.null import NullEngine


class Answers:
    """A sink that keeps what it is told and says when it has enough."""

    def __init__(self, expected: int, *, wants_output: bool = True) -> None:
        self.wants_output = wants_output
        self.times_tokens = False
        self.calls: list[tuple[list[int], Sequence[bytes] | None, Sequence[int] | None]] = []
        self.first: list[int] = []
        self.threads: set[int] = set()
        self.complete = threading.Event()
        self._left = expected
        self._lock = threading.Lock()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        self.first += ids

    def next_tokens(self, ids: Sequence[int]) -> None:
        raise AssertionError("no tokens are timed here")

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.calls.append((list(ids), outputs, n_tokens))
            self._left -= len(ids)
            if not self._left:
                self.complete.set()

    def failed(self, error: BaseException) -> None:
        raise error

    @property
    def outputs(self) -> dict[int, bytes]:
        return {
            sample: output
            for ids, outputs, _ in self.calls
            for sample, output in zip(ids, outputs or (), strict=True)
        }


def engine(
    *, latency_s: float = 0.0, batch_size: int = 1, threads: int = 0, tokens: int = 0
) -> NullEngine:
    return NullEngine(
        dataset=SyntheticDataset(),
        latency_s=latency_s,
        batch_size=batch_size,
        threads=threads,
        tokens=tokens,
    )


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_every_sample_is_answered_once_with_its_index_in_batches(
    threads: int, batch_size: int
) -> None:
    ids, indices = list(range(500, 600)), list(range(100))
    answers: Sink = (kept := Answers(len(ids)))
    with engine(batch_size=batch_size, threads=threads) as null:
        null.submit(ids, indices, answers)
        assert kept.complete.wait(30)

    assert kept.outputs == {500 + index: index.to_bytes(8, "little") for index in indices}
    assert sorted(sample for call in kept.calls for sample in call[0]) == ids
    assert max(len(call[0]) for call in kept.calls) == min(batch_size, len(ids))
    assert (threading.get_ident() in kept.threads) is (threads == 0)


def test_outputs_are_left_out_where_nobody_reads_them() -> None:
    answers = Answers(2, wants_output=False)
    engine(batch_size=2).submit([1, 2], [0, 1], answers)

    assert answers.calls == [([1, 2], None, None)]


@pytest.mark.parametrize("wants_output", [True, False])
def test_tokens_come_with_a_first_one_and_a_count(wants_output: bool) -> None:
    answers = Answers(2, wants_output=wants_output)
    engine(batch_size=2, tokens=5).submit([1, 2], [0, 1], answers)

    assert answers.first == [1, 2]
    ((ids, outputs, n_tokens),) = answers.calls
    assert (ids, n_tokens) == ([1, 2], [5, 5])
    assert (outputs is not None) is wants_output


@pytest.mark.parametrize("latency_s", [1e-4, 2e-3])
def test_work_takes_at_least_its_time_per_sample(
    monkeypatch: pytest.MonkeyPatch, latency_s: float
) -> None:
    class Clock:
        now_s = 5.0

        def perf_counter(self) -> float:
            self.now_s += 1e-7
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += seconds

    clock = Clock()
    monkeypatch.setattr("pytest_mlperf.engines.null.time", clock)
    engine(latency_s=latency_s, batch_size=4).submit(range(10), range(10), Answers(10))

    assert clock.now_s - 5.0 == pytest.approx(10 * latency_s, rel=0.02)


def test_what_decides_its_speed_is_described() -> None:
    assert engine(latency_s=0.5, batch_size=2, threads=3, tokens=4).describe() == {
        "engine": "null",
        "latency_s": "0.5",
        "batch_size": "2",
        "threads": "3",
        "tokens": "4",
    }


def test_an_option_out_of_range_is_refused_with_its_value() -> None:
    with pytest.raises(ValueError, match="batch_size=0"):
        engine(batch_size=0)
    with pytest.raises(ValueError, match=r"latency_s=-0\.1"):
        engine(latency_s=-0.1)
    with pytest.raises(ValueError, match="threads=-1"):
        engine(threads=-1)
    with pytest.raises(ValueError, match="tokens=-1"):
        engine(tokens=-1)
