"""Test that the queue keeps its threads, loses no sample, and gathers samples."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from pytest_mlperf.core.extension import Sink
from pytest_mlperf.run.work_queue import WorkQueue
from pytest_mlperf.testing import RecordingSink


class Held:
    """Work that waits at a gate, so that more can gather in the queue."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.calls: list[tuple[list[int], list[int]]] = []
        self.threads: set[int] = set()
        self._lock = threading.Lock()

    def __call__(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self.begun.release()
        assert self.gate.wait(30)
        with self._lock:
            self.calls.append((list(ids), list(indices)))
            self.threads.add(threading.get_ident())


def test_samples_gathered_during_work_are_worked_on_together() -> None:
    together = [[0], [1, 2, 3, 4, 5]]
    cut = [[0], [1, 2], [3, 4], [5]]
    for max_batch, batches in ((None, together), (2, cut), (5, together), (100, together)):
        work, sink = Held(), RecordingSink()
        queue = WorkQueue(work, max_batch=max_batch)
        queue.put([0], [10], sink)
        assert work.begun.acquire(timeout=30)
        for sample in range(1, 6):
            queue.put([sample], [10 + sample], sink)
        work.gate.set()
        queue.close()

        assert work.calls == [(ids, [10 + sample for sample in ids]) for ids in batches]


def test_a_large_list_is_cut_so_that_all_threads_get_some_and_two_runs_are_never_joined() -> None:
    work = Held()
    queue = WorkQueue(work, threads=3, max_batch=4)
    queue.put(list(range(12)), list(range(12)), RecordingSink())
    for _ in range(3):
        assert work.begun.acquire(timeout=30)
    work.gate.set()
    queue.close()
    assert sorted(ids for ids, _ in work.calls) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(work.threads) == 3

    work, first, second = Held(), RecordingSink(), RecordingSink()
    queue = WorkQueue(work)
    queue.put([0], [0], first)
    assert work.begun.acquire(timeout=30)
    for sample, sink in ((1, first), (2, second), (3, second)):
        queue.put([sample], [sample], sink)
    work.gate.set()
    queue.close()
    assert [ids for ids, _ in work.calls][:2] == [[0], [1]]
    assert sorted(sample for ids, _ in work.calls[2:] for sample in ids) == [2, 3]
    for sizes in ({"threads": 0}, {"threads": -1}, {"max_batch": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            WorkQueue(work, **sizes)


@pytest.mark.parametrize("error", [RuntimeError("example"), SystemExit(3)])
def test_a_failure_is_reported_and_the_thread_lives_on(error: BaseException) -> None:
    sink, threads = RecordingSink(1), []

    def work(ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        threads.append(threading.get_ident())
        if ids[0] == 0:
            raise error

    queue = WorkQueue(work)
    queue.put([0], [0], sink)
    sink.wait_for_end()
    queue.put([1], [1], sink)
    queue.close()

    assert sink.errors == [error]
    assert len(threads) == 2
    assert len(set(threads)) == 1
