"""Latencies over the time of a run, condensed."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.run.worker.clocks import (
    LATENCIES_FILE,
    MAX_PARTS,
    MAX_QUERIES,
    MIN_PART_QUERIES,
    moments,
    write,
)
from tests.run.harness import FEWER

QUERIES = st.lists(st.tuples(st.floats(0, 1e4), st.floats(1e-6, 1e2)), min_size=1, max_size=400)


@FEWER
@given(QUERIES)
def test_moments_are_few_in_order_and_inside_the_run(queries: list[tuple[float, float]]) -> None:
    ended, latencies = zip(*((begin + took, took) for begin, took in queries), strict=True)
    moments_seen = moments(ended, latencies)
    length = max(ended) - min(end - took for end, took in zip(ended, latencies, strict=True))

    assert 0 < len(moments_seen) <= max(1, min(MAX_PARTS, len(queries) // MIN_PART_QUERIES))
    assert [row[0] for row in moments_seen] == sorted(row[0] for row in moments_seen)
    assert all(0 <= row[0] <= length * 1.001 + 1e-9 for row in moments_seen)
    assert all(row[1] <= row[2] <= max(latencies) * 1.001 for row in moments_seen)


def test_a_backlog_is_seen_while_it_waits_and_nothing_is_written_of_nothing(tmp_path: Path) -> None:
    """Queries that all began at once and were answered one a second."""
    ended = [float(n + 1) for n in range(10 * MIN_PART_QUERIES)]
    moments_seen = moments(ended, ended)
    assert [row[3] for row in moments_seen] == [
        float(MIN_PART_QUERIES * n + 1) for n in range(9, 0, -1)
    ] + [0.0]
    assert moments_seen[0][1:3] == [MIN_PART_QUERIES / 2, MIN_PART_QUERIES - 1]
    assert moments([1.0] * (MAX_QUERIES + 1), [0.5] * (MAX_QUERIES + 1)) == []

    write(tmp_path, moments([], []))
    assert not (tmp_path / LATENCIES_FILE).exists()

    write(tmp_path, moments([1.0], [0.5]))
    assert json.loads((tmp_path / LATENCIES_FILE).read_text())["moments"] == [[0.25, 0.5, 0.5, 0.0]]
