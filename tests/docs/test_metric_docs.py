"""Test that docs/suites.md agrees with the table of metrics for each metric of tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mlperf.core.metrics import (
    COUNTS,
    EFFICIENCY,
    METRICS,
    NET_JOULES_PER_SAMPLE,
    OF_BENCHMARKS,
)

TEXT = (Path(__file__).parents[2] / "docs/suites.md").read_text("utf-8")

ELSEWHERE = {"throughput", NET_JOULES_PER_SAMPLE, *OF_BENCHMARKS}
"""Metrics that other pages explain."""


def rows() -> dict[str, tuple[str, str, str]]:
    """Return direction, limit in percent and least queries of each metric in the table."""
    table = TEXT.partition("| metric | meaning |")[2].partition("\n\n")[0]
    metrics = {}
    for line in table.splitlines()[2:]:
        names, _, better, limits, queries = (cell.strip() for cell in line.strip("|").split("|"))
        first, *others = re.findall(r"`([a-z_0-9]+)`", names)
        stem = first.rpartition("_p")[0]
        every = [first, *(f"{stem}{other}" for other in others)]
        shares = (limits.removesuffix(" %").split(", ") * len(every))[: len(every)]
        for name, share in zip(every, shares, strict=True):
            named = dict(re.findall(r"(p\d\d): ([\d,]+)", queries))
            share_of_metric = named.get(name[-3:], "" if named else queries)
            metrics[name] = (better, share, share_of_metric)
    return metrics


def test_the_table_is_that_of_the_code() -> None:
    table = rows()
    for name in METRICS.keys() - EFFICIENCY - ELSEWHERE:
        metric = METRICS[name]
        better, limit, queries = table[name]
        if name in COUNTS:
            assert (better, limit, queries) == ("", "", "")
        else:
            assert better == metric.direction, name
            assert float(limit) == pytest.approx(100 * metric.limit), name
            assert int(queries.replace(",", "") or 0) == metric.min_queries, name
