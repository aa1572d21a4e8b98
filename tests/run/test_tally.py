"""Test the tally of a replica's work in a run, and its speed relative to the others."""

from __future__ import annotations

import pytest

from pytest_mlperf.run.worker._replica_group import MAX_SNAPSHOTS, SLICES, Tally, relative_speeds


def worked(seconds_per_list: float, *, lists: int, samples: int = 10, work: float = 10.0) -> Tally:
    tally, now_s = Tally(), 5.0
    for _ in range(lists):
        tally.count_submitted(now_s, samples, work)
        now_s += seconds_per_list
        tally.take(now_s, samples)
    return tally


def test_rate_and_mean_latency_are_those_of_the_time_with_work() -> None:
    tally = worked(0.5, lists=4)
    tally.count_submitted(100.0, 10, 10.0)
    tally.take(100.5, 10)
    assert tally.samples == 50
    assert tally.throughput == pytest.approx(50 / 2.5)
    assert tally.latency_s == pytest.approx(0.5)
    assert tally.open == 0

    tally = Tally()
    tally.count_submitted(0.0, 2, 2.0)
    tally.take(1.0, 1)
    tally.take(3.0, 1)
    assert tally.latency_s == pytest.approx(2.0)
    assert tally.throughput == pytest.approx(2 / 3)

    tally = worked(0.5, lists=4)
    tally.count_submitted(10.0, 3, 3.0)
    tally.reset()
    assert (tally.open, tally.samples, tally.latency_s) == (3, 0, 0.0)

    tally = worked(0.1, lists=4 * MAX_SNAPSHOTS)
    assert len(tally._kept) <= MAX_SNAPSHOTS + 1
    assert tally.throughput == pytest.approx(100)


@pytest.mark.parametrize("lists", [True, False])
def test_a_slow_one_is_a_share_of_the_median_in_every_part(*, lists: bool) -> None:
    fast, other, slow = worked(0.1, lists=300), worked(0.1, lists=300), worked(0.125, lists=240)

    shares_of_slices = relative_speeds([fast, other, slow], lists=lists)

    assert [len(each) for each in shares_of_slices] == [SLICES] * 3
    assert shares_of_slices[0] == pytest.approx([1.0] * SLICES)
    assert shares_of_slices[2] == pytest.approx([0.8] * SLICES, rel=0.02)


def test_lists_of_larger_samples_count_by_their_work() -> None:
    long, short = worked(0.2, lists=100, work=20.0), worked(0.1, lists=200, work=10.0)
    shares_of_slices = relative_speeds([long, short], lists=True)
    assert shares_of_slices[0] == pytest.approx([1.0] * SLICES, rel=0.02)

    tally = Tally()
    assert (tally.samples, tally.throughput, tally.latency_s) == (0, 0.0, 0.0)
    assert relative_speeds([tally, worked(0.5, lists=100)], lists=True) == [[], []]
