"""Where a baseline was accepted, as a history of sessions shows it."""

from __future__ import annotations

from pytest_mlperf.core.case import Case
from pytest_mlperf.core.history import CaseHistory, CaseSeries, SessionPoint

SERIES = CaseSeries(
    case=Case(workload="w", scenario="Offline", engine="e", precision="fp32", accelerator="cpu"),
    kind="performance",
    profile="quick",
    metric="throughput",
    identity={},
    conditions={},
)


def history(*points: tuple[float | None, bool]) -> CaseHistory:
    """Return sessions with the baseline that each was judged by, and whether it recorded one."""
    return CaseHistory(
        series=SERIES,
        points=[
            SessionPoint(
                run=f"r{number}",
                started=f"2026-11-{number + 1:02}T00:00:00+00:00",
                commit=None,
                value=1.0,
                runs=1,
                baseline=baseline,
                outcome="ok",
                failed=False,
                accepted=accepted,
                fingerprint={},
            )
            for number, (baseline, accepted) in enumerate(points)
        ],
    )


def test_a_baseline_is_marked_once_where_it_was_accepted() -> None:
    cases: list[tuple[list[tuple[float | None, bool]], list[int]]] = [
        ([(None, True), (1.0, False), (1.0, False)], [1, 0, 0]),
        ([(None, True), (1.0, True), (2.0, True), (3.0, False)], [1, 1, 1, 0]),
        ([(1.0, False), (1.0, False), (2.0, False), (2.0, False)], [0, 0, 1, 0]),
        ([(1.0, True), (2.0, False), (3.0, False)], [1, 0, 1]),
        ([(1.0, True), (1.0, False), (2.0, False)], [1, 0, 1]),
        ([(1.0, False), (None, False), (2.0, False)], [0, 0, 1]),
    ]
    for points, marks in cases:
        assert history(*points).accepted == list(map(bool, marks)), points
