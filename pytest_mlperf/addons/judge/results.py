"""Convert a comparison to a session's results, the format that reports and commands read."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.model import COMPLETED, Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.report import headline
from pytest_mlperf.addons.judge.rows import FileComparison, Row
from pytest_mlperf.extension import (
    BaselineReference,
    CaseResult,
    Kind,
    MetricBaseline,
    MetricVerdict,
    PairedVerdict,
    Results,
    Run,
    Subject,
    benchmark_case,
    judge_runs,
    placeless,
    session_of,
)


def results_of(
    result: FileComparison, sides: Sequence[str], failing: Collection[Outcome]
) -> Results:
    """Return a session with one test per task or concurrency; its id depends on content only.

    Args:
        sides: Labels of baseline and new runs.
        failing: Outcomes that fail a test.
    """
    points: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in result.rows:
        points[row.tool, row.point].append(row)
    cases = [
        case_result(replace(result, rows=tuple(rows)), sides, failing, test="::".join(point))
        for point, rows in points.items()
    ]
    runs = {m.run.digest: m.run for of in result.new.values() for m in of}.values()
    started = max((run.started for run in runs if run.started), default=None)
    time = dt.datetime.fromtimestamp(started, dt.UTC) if started else dt.datetime.now(dt.UTC)
    content = f"{(result.rows, sides)!r}{'recorded' if result.recorded else ''}"
    digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:8]
    commits = {run.commit for run in runs}
    versions = {run.tool: run.version for run in runs if run.version}
    return replace(
        session_of(cases, versions),
        run=f"judged-{time:%Y%m%d-%H%M%S}-{digest}",
        started=time.isoformat(timespec="seconds"),
        seconds=sum(run.duration_s or 0.0 for run in runs),
        commit=commits.pop() if len(commits) == 1 else None,
    )


def case_result(
    result: FileComparison, sides: Sequence[str], failing: Collection[Outcome], *, test: str
) -> CaseResult:
    """Return a case's rows as result of `test`; `sides`: labels; `failing`: outcomes that fail."""
    tool, point = result.rows[0].tool, result.rows[0].point
    measured = result.new.get((tool, point), ())
    name = point.replace(", ", "+").replace(" ", "_")
    case = benchmark_case(f"{name}::{tool}", accelerator="any", precision="any")
    facts = {**measured[0].point.facts, COMPLETED: Fact(None)} if measured else {}
    identity = {n: fact.value for n, fact in facts.items() if not fact.tolerance and fact.value}
    details = measured[0].run.details if measured else {}
    subject = Subject(identity=identity, fingerprint=details)
    metrics = {row.metric for row in result.rows}
    runs = [_run(m.run, m.point, metrics) for m in measured if metrics & m.point.metrics.keys()]
    imported = judge_runs(case, runs, subject=subject, limits={})
    paired = [row for row in result.rows if row.documents[0]]
    verdict = replace(
        imported.verdict,
        kind=Kind.ACCURACY if all(row.absolute for row in result.rows) else Kind.PERFORMANCE,
        outcome=Outcome.RECORDED if result.recorded else result.outcome,
        headline=headline(result).partition("  ")[2],
        metrics=tuple(_metric(row) for row in result.rows if row not in paired),
        paired=tuple(map(_paired, paired)),
        notes=result.notes,
        baseline=BaselineReference(
            file=None,
            source=sides[0],
            changed=result.changed,
            unknown=("facts that the tool's files do not contain",),
        ),
        unchecked=None,
    )
    failed = not result.recorded and any(row.outcome in failing for row in result.rows)
    content = replace(imported, test=test, verdict=verdict, failed=failed)
    return placeless(content, (str(Path.cwd()),), str(Path.home()))


def _run(run: ToolRun, point: ToolPoint, metrics: Collection[str]) -> Run:
    started = dt.datetime.fromtimestamp(run.started, dt.UTC).isoformat() if run.started else ""
    return Run(
        metrics={name: value for name, value in point.metrics.items() if name in metrics},
        within_se={},
        samples=point.sent or 0,
        queries=point.sent or 0,
        duration_s=run.duration_s or 0.0,
        target_qps=0.0,
        session=run.digest[:12],
        started=started,
        commit=run.commit,
        folder="",
    )


def _metric(row: Row) -> MetricVerdict:
    falls = row.sign < 0 and not row.absolute
    points = row.change / row.before if row.change is not None and row.before else None
    return MetricVerdict(
        metric=row.metric,
        outcome=row.outcome,
        now=row.now,
        baseline=MetricBaseline(value=row.before, runs=row.runs[0], days=row.sessions[0]),
        change=points if row.absolute else row.change,
        low=None if row.absolute else row.low,
        high=None if row.absolute else row.high,
        limit=row.limit and (-row.limit if falls else row.limit),
        runs=row.runs[1],
        note=row.note or None,
        direction=row.direction,
    )


def _paired(row: Row) -> PairedVerdict:
    compared, worse, better = row.documents
    before, now = row.before or 0.0, row.now or 0.0
    return PairedVerdict(
        metric=row.metric,
        outcome=row.outcome,
        baseline=before,
        now=now,
        change=now - before,
        low=row.low,
        high=row.high,
        margin=(row.limit or 0.0) * abs(before),
        samples=compared,
        changed=worse + better,
        down=worse,
        up=better,
        p=row.p,
        lower=row.sign < 0,
    )
