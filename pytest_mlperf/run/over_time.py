"""Latencies over the time of a run, condensed: what LoadGen's percentiles of the whole hide."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

from pytest_mlperf.run.token_times import percentile
from pytest_mlperf.stores import atomic

FILE = "latencies.json"
"""Beside LoadGen's logs of a performance run."""

PARTS = 120
"""Parts of a run at most."""

FEWEST = 20
"""Queries that a part has on average at least."""

MOST = 500_000
"""Queries of a run at most: to sort more of them would hold up what comes next for seconds."""


def moments(ended_s: Sequence[float], latencies_s: Sequence[float]) -> list[list[float]]:
    """Return, for equal parts of a run, [middle, p50, p99, outstanding at its end].

    Args:
        ended_s: When each query ended, by any one clock.
        latencies_s: How long it took.

    Returns:
        Times in seconds after the first query began; parts in which none ended are left out.
        Nothing of more than `MOST` queries.
    """
    if not 0 < len(ended_s) <= MOST:
        return []
    pairs = sorted(zip(ended_s, latencies_s, strict=True))
    ends = [end for end, _ in pairs]
    begins = sorted(end - latency for end, latency in pairs)
    first = begins[0]
    parts = max(1, min(PARTS, len(pairs) // FEWEST))
    width = (ends[-1] - first) / parts or 1.0
    found = []
    for number in range(parts):
        low, high = first + number * width, first + (number + 1) * width
        until = len(ends) if number == parts - 1 else bisect_left(ends, high)
        inside = sorted(latency for _, latency in pairs[bisect_left(ends, low) : until])
        if inside:
            waiting = bisect_right(begins, high) - until
            middle = (number + 0.5) * width
            p50, p99 = (percentile(inside, share) for share in (0.5, 0.99))
            found.append([middle, p50, p99, float(max(waiting, 0))])
    return [[float(f"{value:.6g}") for value in row] for row in found]


def write(folder: Path, found: Sequence[Sequence[float]]) -> None:
    """Write moments beside LoadGen's logs; of none there is no file."""
    if found:
        atomic.write_text(folder / FILE, json.dumps({"schema": 1, "moments": found}) + "\n")
