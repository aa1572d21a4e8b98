"""A report of 1,000 cases × 200 accepted baselines each: how long it takes, how large it is."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.test_collection import cpu_seconds
from pytest_mlperf.core.baseline import Baseline, Record
from pytest_mlperf.core.results import Results
from pytest_mlperf.stores.results import write_results
from tests.addons.html.browser import started
from tests.addons.html.made import many

CASES, POINTS = 1_000, 200

MADE_S, SIZE, PAINT_MS = 10.0, 5 * 10**6, 1_000.0
"""What is promised: seconds to make, bytes, and milliseconds to the first paint in Chromium."""

PAINTS = 3


def test_a_thousand_cases(benchmark: Any, tmp_path: Path) -> None:
    """Made by the command from files, in a fresh process, as a CI job does it."""
    for library in ("jinja2", "vl_convert"):
        pytest.importorskip(library, reason="the HTML report needs pytest-mlperf[html]")
    results, records = many(CASES, POINTS)
    write_results(tmp_path / "results.json", results)
    baselines(tmp_path, results, records)
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "pytest_mlperf", "report", "results.json"]
    command += ["--format", "html", "-o", str(report)]

    began = time.perf_counter()
    cpu_s = benchmark.pedantic(cpu_seconds, args=(command, tmp_path), rounds=1)
    made_s = time.perf_counter() - began
    size, paint_ms = report.stat().st_size, first_paint_ms(report)
    benchmark.extra_info.update(
        {
            "cases": CASES,
            "points": POINTS,
            "made_s": made_s,
            "cpu_s": cpu_s,
            "bytes": size,
            "paint_ms": paint_ms,
        }
    )
    print(
        f"\nHTML report of {CASES:,} cases x {POINTS} points: made in {made_s:.1f} s "
        f"({cpu_s:.1f} s of a core), {size / 1e6:.2f} MB, first paint {paint_ms:.0f} ms"
    )

    assert cpu_s < MADE_S, "of a core, as a busy neighbour says nothing of us"
    assert size < SIZE
    assert paint_ms < PAINT_MS


def first_paint_ms(report: Path) -> float:
    """Return the median time to the first contentful paint."""
    paints: list[float] = []
    with started() as browser:
        for _ in range(PAINTS):
            with browser.opened(report) as opened:
                opened.page.wait_for_function(
                    "() => performance.getEntriesByName('first-contentful-paint').length"
                )
                assert opened.page.inner_text("h1") == f"Failed: {CASES // 10} PERF DROP"
                drawn = opened.tables(opened.open_case(0))[0]
                assert sum(row[1] == "accepted" for row in drawn) == POINTS
                assert opened.messages == []
                paints.append(
                    opened.page.evaluate(
                        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                    )
                )
    return statistics.median(paints)


def baselines(root: Path, results: Results, records: dict[str, Record]) -> None:
    """Write every record into the baseline file that its verdict names."""
    for found in results.cases:
        verdict, case = found.verdict, found.verdict.case
        content = Baseline(
            round=found.round,
            profile=found.profile,
            workload=case.workload,
            scenario=case.scenario,
            engine=case.engine,
            precision=case.precision,
            accelerator=case.accelerator,
            records=(records[found.test],),
        )
        assert verdict.baseline.file is not None
        file = root / verdict.baseline.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(content), indent=2, sort_keys=True), "utf-8")
