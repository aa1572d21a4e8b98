"""Define the settings of a comparison, its rows (verdicts by metric), and sessions of runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.model import RANKS, Quantity, ToolPoint, ToolRun, named, split
from pytest_mlperf.judge import Direction

DECIDING = (
    *(Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID, Outcome.SUSPECT),
    *(Outcome.PROVISIONAL, Outcome.INCONCLUSIVE, Outcome.OK, Outcome.IMPROVED),
)
"""Outcomes in the order in which they decide a comparison: a proven drop first."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hold the settings of a comparison.

    Attributes:
        limits: Smallest relevant change for the worse, as a share, by metric or quantity.
        metrics: Metrics ("ttft_p99") or quantities ("ttft") to judge; empty: `usual_metrics`.
        allow_missing: Whether a task or concurrency that one side lacks is noted, not INVALID.
        ignored: Names of conditions that may differ.
        session_by: Field that identifies a run's session; None for day, host and commit.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    allow_missing: bool = False
    ignored: tuple[str, ...] = ()
    session_by: str | None = None

    def limit(self, metric: str, quantity: Quantity) -> float:
        """Return the smallest relevant change, a share: the user's or else the quantity's own."""
        return self.limits.get(metric, self.limits.get(split(metric)[0], quantity.limit))

    def selects(self, metric: str) -> bool:
        """Check whether the user selected a metric: its name "ttft_p99" or its quantity "ttft"."""
        return any(name in self.metrics for name in (metric, split(metric)[0]))


@dataclass(frozen=True, kw_only=True)
class Row:
    """Hold the verdict on one metric of a task or concurrency.

    Attributes:
        outcome: None if the metric is reported but not judged.
        change, low, high: Relative change and its confidence bounds; score points if `absolute`.
        runs, sessions: Numbers of baseline runs or sessions, and of new ones.
        p: One-sided p-value of a drop; None if not judged.
        direction: Likely answer of an undecided row: "ok" or "drop".
        documents: Numbers of documents that were compared, got worse, and got better.
    """

    tool: str
    point: str
    metric: str
    outcome: Outcome | None
    quantity: Quantity
    before: float | None = None
    now: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    runs: tuple[int, int] = (0, 0)
    sessions: tuple[int, int] = (0, 0)
    note: str = ""
    p: float | None = None
    direction: Literal["ok", "drop"] | None = None
    absolute: bool = False
    documents: tuple[int, int, int] = (0, 0, 0)

    @property
    def sign(self) -> int:
        """1 if higher values are better, -1 if lower ones are."""
        return -1 if self.quantity.direction is Direction.LOWER else 1


class MeasuredPoint(NamedTuple):
    """Hold one point (task or concurrency) of a run, the run itself, and its session's name."""

    run: ToolRun
    point: ToolPoint
    session: str


Points = Mapping[tuple[str, str], Sequence[MeasuredPoint]]


@dataclass(frozen=True, kw_only=True)
class FileComparison:
    """Hold all rows of a comparison, and how they were judged.

    Attributes:
        how: How the runs were judged, and the error rate, in words.
        new: The points of the new runs by tool and name.
        changed: Differences that do not prevent a comparison: versions, flags, host.
        one_session: Whether a side has only one session, so that nothing can be proven.
        recorded: Whether the new runs became a baseline, or a part of it.
    """

    rows: tuple[Row, ...]
    how: str
    new: Points = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    one_session: bool = False
    recorded: bool = False

    @property
    def outcome(self) -> Outcome:
        """Most severe outcome of all rows."""
        outcomes = {row.outcome for row in self.rows if row.outcome}
        return min(outcomes, key=DECIDING.index, default=Outcome.NOT_EVALUATED)


def session_of(run: ToolRun, by: str | None) -> str:
    """Return the name of a run's session: its field `by`, else day (or folder), host and commit.

    Raises:
        KeyError: The run has no such field.
    """
    if by is not None:
        return _field(run, by)
    if run.started is None:
        return f"{run.folder} {run.host or ''} {run.commit or ''}"
    return f"{_field(run, 'date')} {run.host or ''} {run.commit or ''}"


def _field(run: ToolRun, name: str) -> str:
    if name == "date" and run.started is not None:
        return dt.datetime.fromtimestamp(run.started, dt.UTC).date().isoformat()
    fields = {"file": run.source, "folder": run.folder, "host": run.host, "commit": run.commit}
    value = {**run.details, "version": run.version, **fields}.get(name)
    if value is None:
        raise KeyError(name)
    return value


def in_pairs(
    base: Sequence[MeasuredPoint], new_runs: Sequence[MeasuredPoint], settings: Settings
) -> bool:
    """Check by start times whether baseline and new runs were interleaved on one host.

    This requires at least two pairs, and one run of each side in each pair.
    """
    runs = [(measured.run, side) for side, of in enumerate((base, new_runs)) for measured in of]
    hosts = {run.host for run, _ in runs}
    one_host = len(hosts) == 1 and (None not in hosts or "host" in settings.ignored)
    timed = all(run.started is not None for run, _ in runs) and not settings.session_by
    if not (one_host and timed and len(base) == len(new_runs) > 1):
        return False
    sides = [side for _, side in sorted(runs, key=lambda pair: pair[0].started or 0.0)]
    return all(x != y for x, y in zip(sides[::2], sides[1::2], strict=True))


def row_of(key: tuple[str, str], metric: str, outcome: Outcome | None, **more: Any) -> Row:
    """Create a row for `key` (tool, task or concurrency); `more` are further fields of `Row`."""
    more.setdefault("quantity", named(metric) or Quantity(metric))
    return Row(tool=key[0], point=key[1], metric=metric, outcome=outcome, **more)


def usual_metrics(names: Collection[str]) -> list[str]:
    """Return the metrics to judge if the user selects none.

    Rates of one run are proportional, so only the first in `RANKS` is judged. A benchmark with a
    time is judged by it, not by rate or CPU time. A latency is judged by its median (else its mean)
    and its 99th percentile.
    """
    rank = next((name for name in RANKS if name in names), None)
    timed = any(split(name)[0] == "time" for name in names)

    def is_left_out(name: str) -> bool:
        base, statistic = split(name)
        return (
            (statistic in {"mean", "min", "max"} and f"{base}_p50" in names)
            or statistic == "min"
            or (statistic == "max" and f"{base}_mean" in names)
            or (statistic[:1] == "p" and statistic not in {"p50", "p99"})
            or (name == "cpu_time" and timed)
            or ("_per_second" in name and name != rank and bool(rank or timed))
        )

    return [name for name in names if not is_left_out(name)]
