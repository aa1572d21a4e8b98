"""Nothing but outstanding samples reaches LoadGen, each once, with its own output."""

from __future__ import annotations

import ctypes
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import mlperf_loadgen
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.worker._delivery import (
    LimitedSink,
    OutputSink,
    PerformanceSink,
    Port,
    TokenSink,
)
from pytest_mlperf.run.worker._sink import (
    BATCHES,
    KEPT_FAULTS,
    MAX_STAMPS,
    CountingSink,
    GuardedSink,
    batch_means_error,
)
from pytest_mlperf.stores.artefacts import ArtefactWriter
from tests.run.harness import FEWER


class Received:
    """Takes LoadGen's place: reads every response while the call lasts, as LoadGen does."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bytes, int]] = []
        self.first: list[int] = []
        self.port = Port(
            response=mlperf_loadgen.QuerySampleResponse,
            complete=self.complete,
            first_token=self.first_token,
        )

    def complete(self, responses: Sequence[Any]) -> None:
        self.calls += [(r.id, ctypes.string_at(r.data, r.size), r.n_tokens) for r in responses]

    def first_token(self, responses: Sequence[Any]) -> None:
        self.first += [response.id for response in responses]

    @property
    def ids(self) -> list[int]:
        return [call[0] for call in self.calls]


def give_up(error: BaseException) -> NoReturn:
    raise error


def performance(received: Received) -> GuardedSink:
    return PerformanceSink(give_up, received.port)


def output(received: Received) -> GuardedSink:
    return OutputSink(give_up, received.port, ArtefactWriter(Path("/nowhere/artefacts.zip")))


def token(received: Received) -> GuardedSink:
    return TokenSink(give_up, received.port, needs_first=False)


def finish(sink: GuardedSink, ids: Sequence[int]) -> None:
    """Complete with whatever the kind of sink needs."""
    sink.done(ids, [bytes([sample % 256]) for sample in ids], [2 + sample % 7 for sample in ids])


def in_threads(works: Iterable[Callable[[], None]]) -> None:
    """Do all of this at once, to the end."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def limited(received: Received) -> GuardedSink:
    return LimitedSink(give_up, received.port, limit_s=1.0)


EVERY_SINK = [performance, output, token, limited]


@FEWER
@given(issued=st.sets(st.integers(1, 30)), calls=st.lists(st.lists(st.integers(0, 40))))
def test_each_issued_sample_reaches_loadgen_at_most_once_and_the_rest_are_faults(
    issued: set[int], calls: list[list[int]]
) -> None:
    for make in EVERY_SINK:
        received = Received()
        sink = make(received)
        sink.expect(sorted(issued))
        for ids in calls:
            finish(sink, ids)

        claimed = Counter(sample for ids in calls for sample in ids)
        completed = issued & claimed.keys()
        assert sorted(received.ids) == sorted(completed)
        assert sink.faults.count == claimed.total() - len(completed)
        assert (sink.issued, sink.completed) == (len(issued), len(completed))
        assert sink.outstanding == len(issued) - len(completed)


@pytest.mark.parametrize("make", EVERY_SINK)
def test_of_two_threads_that_complete_the_same_samples_one_wins_each(
    make: Callable[[Received], GuardedSink],
) -> None:
    received = Received()
    sink = make(received)
    ids = list(range(1, 5_001))
    sink.expect(ids)
    gate = threading.Barrier(2)

    def race(order: list[int]) -> None:
        gate.wait()
        for start in range(0, len(order), 50):
            finish(sink, order[start : start + 50])

    in_threads(partial(race, order) for order in (ids, ids[::-1]))

    assert sorted(received.ids) == ids
    assert sink.faults.count == len(ids)
    assert len(sink.threads) == 2
    if make is performance:  # no count of tokens is lost
        mean = sum(2 + sample % 7 for sample in ids) / len(ids)
        assert sink.token_metrics == {"tokens_per_sample": mean}


@FEWER
@given(st.lists(st.binary(max_size=40), max_size=50), st.integers(0, 2**32))
def test_every_output_stays_with_its_sample_also_among_unknown_ids(
    outputs: list[bytes], seed: int
) -> None:
    received = Received()
    sink = output(received)
    sample_ids = list(range(100, 100 + len(outputs)))
    sink.expect(sample_ids)
    order = [(sample, data) for sample, data in zip(sample_ids, outputs, strict=True)]
    order += [(sample, b"unknown") for sample in range(3)]
    random.Random(seed).shuffle(order)

    sink.done([sample for sample, _ in order], [data for _, data in order])

    assert sorted(call[:2] for call in received.calls) == list(
        zip(sample_ids, outputs, strict=True)
    )


def test_ids_may_be_many_and_come_in_any_sequence_type() -> None:
    """Warm-up is idle only when everything is done."""
    received = Received()
    sink = performance(received)
    ids = list(range(1, 5000))
    sink.expect([*ids, 5000, 5001, 5002, 5003])
    for part in (ids, (5000, 5001), range(5002, 5004)):
        sink.done(part)
    assert received.ids == list(range(1, 5004))

    counting = CountingSink(give_up)
    counting.expect([1, 2])
    counting.done([2])
    assert not counting.idle.is_set()
    counting.done([1])
    assert counting.idle.is_set()


def test_wrong_outputs_and_token_counts_end_the_run_before_loadgen_sees_them() -> None:
    given_outputs: list[tuple[Any, str]] = [
        (None, "no outputs"),
        ([], "2 ids but 0 outputs"),
        ([b"one"], "2 ids but 1 outputs"),
        *(
            ([b"one", wrong], f"'{type(wrong).__name__}'; it must be bytes")
            for wrong in ("two", bytearray(b"two"), memoryview(b"two"), 1)
        ),
    ]
    counts: list[tuple[Any, str]] = [
        ([3], "2 ids but 1 n_tokens"),
        ([3, -3], "n_tokens -3; a count of tokens is at least 0"),
        ([3, 2**70], f"n_tokens {2**70}; no sample has more than 2,147,483,647 tokens"),
    ]
    timed: list[tuple[Any, str]] = [
        (None, "no n_tokens"),
        ([3, 1], "n_tokens 1; LoadGen needs at least 2"),
        ([3, 0], "n_tokens 0; LoadGen needs at least 2"),
    ]
    cases: list[tuple[Callable[[Received], GuardedSink], Any, Any, str]] = [
        *((output, outputs, None, message) for outputs, message in given_outputs),
        *((token, None, n_tokens, message) for n_tokens, message in (*counts, *timed)),
        *((performance, None, n_tokens, message) for n_tokens, message in counts),
    ]
    for make, outputs, n_tokens, message in cases:
        received = Received()
        sink = make(received)
        sink.expect([1, 2])
        with pytest.raises(RunError, match=message) as raised:
            sink.done([1, 2], outputs, n_tokens)
        assert (raised.value.layer, received.calls, sink.token_metrics) == ("engine", [], {})


def test_first_tokens_reach_loadgen_once_and_before_the_end() -> None:
    """Tokens that do not add up are faults."""
    received = Received()
    sink = TokenSink(give_up, received.port, needs_first=True)
    sink.expect([1, 2, 3])
    sink.first_tokens([1, 2, 1, 9])
    sink.done([2, 1], None, [5, 4])
    assert received.first == [1, 2]
    assert received.calls == [(2, b"", 5), (1, b"", 4)]
    assert sink.faults.count == 2
    with pytest.raises(RunError, match=r"before first_tokens\(\)"):
        sink.done([3], None, [5])

    sink = TokenSink(give_up, Received().port, needs_first=True)
    sink.expect([1, 2])
    sink.next_tokens([2])
    sink.first_tokens([1, 2])
    sink.next_tokens([1])
    sink.done([1, 2], None, [3, 2])
    assert sink.faults.texts == (
        "next_tokens() was given id 2 before its first token",
        "sample with id 1: first_tokens() and next_tokens() reported 2 tokens, done() 3; report "
        "every token, or only the first",
    )
    assert sink.token_metrics["tokens_per_sample"] == 2.5

    for make in (performance, output):
        other = make(Received())
        other.expect([1])
        other.first_tokens([1])
        other.next_tokens([1])
        other.done([1], [b"1"])
        assert (other.times_tokens, other.token_metrics, other.faults.count) == (False, {}, 0)
    assert token(Received()).times_tokens


def test_fault_texts_are_capped_and_the_rest_counted_and_stamps_stay_bounded() -> None:
    sink = performance(Received())
    sink.done(range(100_000, 100_100))
    assert len(sink.faults.texts) == KEPT_FAULTS + 1
    assert "100000" in sink.faults.texts[0]
    assert sink.faults.texts[-1] == f"and {100 - KEPT_FAULTS} more"

    for sample in range(1, 6 * MAX_STAMPS):
        sink.expect([sample])
        sink.done([sample])
    assert BATCHES <= len(sink.stamps._kept) < MAX_STAMPS
    assert sink.stamps.relative_error > 0


def stamps_of(costs_s: Sequence[float]) -> list[tuple[float, int]]:
    """Return stamps of one sample each that took these seconds."""
    stamps, now_s = [(0.0, 0)], 0.0
    for number, cost_s in enumerate(costs_s, start=1):
        now_s += cost_s
        stamps.append((now_s, number))
    return stamps


def test_batch_means_are_the_standard_error_over_batches_and_tell_the_spread_of_runs() -> None:
    assert batch_means_error(stamps_of([1.0, 2.0] * (BATCHES // 2 - 1))) == 0.0, "unknown"
    assert batch_means_error(stamps_of([0.01] * 1000)) == pytest.approx(0.0, abs=1e-9)
    # Batches of 10 samples that take 1 or 3 s each, by turns: mean 2, deviation sqrt(20 / 19).
    costs_s = ([1.0] * 10 + [3.0] * 10) * (BATCHES // 2)
    expected = (20 / 19) ** 0.5 / 20**0.5 / 2
    assert batch_means_error(stamps_of(costs_s)) == pytest.approx(expected)

    rng = random.Random(20)
    runs = [[rng.expovariate(1.0) for _ in range(1000)] for _ in range(400)]
    rates = [len(run) / sum(run) for run in runs]
    mean = sum(rates) / len(rates)
    spread = (sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)) ** 0.5 / mean
    mean_error = sum(batch_means_error(stamps_of(run)) for run in runs) / len(runs)
    assert mean_error == pytest.approx(spread, rel=0.1)


def test_samples_that_wait_are_called_twins_where_their_index_was_answered() -> None:
    """Not where most wait, the last do, one does, or an index came once."""
    cases: list[tuple[list[int], set[int], bool]] = [
        ([7, 8, 9, 7, 8, 5, 6], {1, 2}, True),
        ([7, 8, 9, 7, 8, 5, 6], {1}, False),
        ([7, 8, 9, 7, 8, 5, 6], {1, 3}, False),
        ([5, 6, 9, 4, 3, 5, 6], {6, 7}, False),
        ([7, 8, 7, 8, 6], {1, 2, 3, 4}, False),
        ([7, 8, 9, 7, 8, 5, 6], set(), False),
    ]
    for row in (1, 20):  # a long list is kept in another way
        for indices, waiting, twins in cases:
            sink = CountingSink(give_up)
            earlier_indices = [index + 100 * n for n in range(1, row) for index in indices]
            wide = [*earlier_indices, *indices]
            ids = list(range(1 - len(earlier_indices), len(indices) + 1))
            sink.expect(ids)
            sink.recent.append((ids, wide))
            sink.done([i for i in ids if i not in waiting])
            text = sink.repeated()
            assert bool(text) == twins, (indices, waiting)
            assert sink.outstanding == len(waiting)
            if text:
                assert "2 samples submitted and not completed" in text
                assert "(first: index 7)" in text
