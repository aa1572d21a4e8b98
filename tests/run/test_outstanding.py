"""Every issued sample can be taken once, in any order and in pieces of any size."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.run.worker._sink import ROW, Outstanding
from tests.run.harness import FEWER
from tests.run.test_sink import in_threads


def taken(outstanding: Outstanding, ids: Sequence[int]) -> list[int]:
    """Claim ids and return those that were outstanding."""
    bad = outstanding.claim(ids)
    return [sample for position, sample in enumerate(ids) if position not in bad]


def pieces(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]


@FEWER
@given(
    queries=st.lists(st.sampled_from([1, 3, ROW - 1, ROW, 3 * ROW]), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 1000), max_size=8),
    swaps=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_queries_of_any_length_completed_in_nearly_any_order_are_all_taken_once(
    queries: list[int], cuts: list[int], swaps: int, seed: int
) -> None:
    outstanding = Outstanding()
    issued = list(range(sum(queries)))
    start = 0
    for length in queries:
        outstanding.add(issued[start : start + length])
        start += length
    rng = random.Random(seed)
    order = list(issued)
    for _ in range(swaps):
        index, other = rng.randrange(len(order)), rng.randrange(len(order))
        order[index], order[other] = order[other], order[index]

    assert len(outstanding) == len(issued)
    for number, piece in enumerate(pieces(order, cuts)):
        if number % 2 and len(piece) == 1:
            assert outstanding.claim_late(piece[0])
        else:
            assert taken(outstanding, piece) == list(piece)
    assert len(outstanding) == 0
    assert taken(outstanding, issued) == []


def test_a_long_list_is_taken_in_its_order_and_with_its_type() -> None:
    for sequence in (list, tuple):
        outstanding = Outstanding()
        outstanding.add(range(2 * ROW))
        assert taken(outstanding, sequence(range(ROW))) == list(range(ROW))
        assert len(outstanding) == ROW

    outstanding = Outstanding()
    ids = list(range(ROW))
    outstanding.add(ids)
    ids.reverse()
    assert taken(outstanding, list(range(ROW))) == list(range(ROW))

    for length in (1, ROW - 1, ROW, 4 * ROW):
        outstanding = Outstanding()
        outstanding.add(range(length))
        assert outstanding.holds_any([length - 1])
        assert not outstanding.holds_any([length, length + 1])
        outstanding.claim(range(length))
        assert not outstanding.holds_any(range(length))


@pytest.mark.parametrize("threads", [2, 4])
def test_racing_threads_share_a_list_without_loss_or_repeat(threads: int) -> None:
    outstanding = Outstanding()
    outstanding.add(range(40_000))
    gate = threading.Barrier(threads)
    claimed: list[int] = []

    def race(number: int) -> None:
        gate.wait()
        for start in range(0, 40_000, 40):
            # Half the threads go backwards, and the odd ones take single samples.
            first = start if number % 2 else 39_960 - start
            piece = range(first, first + 40)
            if number < 2:
                claimed.extend(taken(outstanding, list(piece)))
            else:
                claimed.extend(sample for sample in piece if outstanding.claim_late(sample))

    in_threads(partial(race, number) for number in range(threads))

    assert sorted(claimed) == list(range(40_000))
    assert len(outstanding) == 0
