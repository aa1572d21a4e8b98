"""Format the comparison of two sides, and the trend of a case's accepted baselines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pytest_mlperf.core.metrics import METRICS, title
from pytest_mlperf.core.numbers import change, interval, plural, quantity
from pytest_mlperf.core.rulings.sides import SPARE_SESSIONS
from pytest_mlperf.core.trend import TrendPoint, TrendStep, proven, step, versions
from pytest_mlperf.core.verdict import SEVERITY, MetricVerdict, Outcome
from pytest_mlperf.judge.robustness import MAX_SPREAD_RATIO
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.failures import NO_DIFFERENCE
from pytest_mlperf.reports.rows import metric_cells, shown
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal.layout import Row, fold, paragraph, paragraphs, table, unbroken

COLUMNS = ("verdict", "metric", "A", "B", "change", "interval", "limit", "runs")


@dataclass(frozen=True, kw_only=True)
class ComparedCase:
    """Hold one case that both sides have.

    Attributes:
        metrics: One entry per metric, gated first; `baseline` is A, `now` is B.
        reason: Why the case may not be judged; "" if it was judged.
        changed: Differences of the fingerprints: "engine.version 1.2.0 → 1.2.1".
    """

    case: str
    outcome: Outcome
    metrics: tuple[MetricVerdict, ...] = ()
    reason: str = ""
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def comparison(
    compared: Sequence[ComparedCase],
    sides: Sequence[str],
    alone: Mapping[str, Sequence[str]],
    notes: Sequence[str],
    width: int,
) -> list[str]:
    """Return the table, the changes, the cases that were not compared, and a line of counts.

    Args:
        sides: Descriptions of A and B.
        alone: Case ids that only one side has, by "A" and "B".
    """
    lines = [
        line
        for label, text in zip("AB", sides, strict=True)
        for line in paragraph(label, text, width)
    ]
    lines += ["", *_table(compared, width)] if compared else []
    lines += paragraphs("changed", _changed(compared), width)
    for label, cases in alone.items():
        lines += paragraphs(f"only {label}", cases, width)
    lines += paragraphs("note", [*_notes(compared), *notes], width)
    return [*lines, *fold(_counts(compared), width)]


def _table(compared: Sequence[ComparedCase], width: int) -> list[str]:
    rows = [(one, row) for one in compared for row in _rows(one)]
    cells = [row for _, row in rows]
    head, *body = table(
        COLUMNS,
        cells,
        width - 2,
        left=["verdict", "metric"],
        spare=["runs", "limit", "A", "interval"],
    )
    lines, last = [f"  {head}"], ""
    for (one, row), text in zip(rows, body, strict=True):
        if one.case != last:
            last = one.case
            lines.append(one.case)
        lines.append(f"  {text}")
        if one.reason and row.get("verdict"):
            lines += fold(one.reason, width, first="    ", rest="    ")
    return lines


def _rows(one: ComparedCase) -> list[Row]:
    gated = [metric for metric in one.metrics if metric.outcome is not None]
    if one.reason or not (gated or one.metrics):
        return [{"verdict": str(one.outcome)}]
    return [_cells(metric, one) for metric in gated or one.metrics[:1]]


def _cells(metric: MetricVerdict, one: ComparedCase) -> Row:
    cells = metric_cells(metric)
    return {
        **cells,
        "verdict": str(metric.outcome or one.outcome),  # what it leans to is noted
        "A": cells["baseline"],
        "B": cells["now"],
        "runs": f"{metric.baseline.runs}, {metric.runs}",
    }


def _changed(compared: Sequence[ComparedCase]) -> list[str]:
    counts = Counter(text for one in compared for text in one.changed)
    if not counts:
        return [NO_DIFFERENCE] if compared else []
    return [
        text if count == len(compared) else f"{text} ({plural(count, 'case')})"
        for text, count in counts.items()
    ]


def _notes(compared: Sequence[ComparedCase]) -> list[str]:
    cases = defaultdict(list)
    for one in compared:
        explained = [
            f"{metric.outcome} {title(metric.metric)}, {sentence(metric.note)}"
            for metric in one.metrics
            if metric.outcome is not None and metric.note
        ]
        for note in (*explained, *map(sentence, filter(None, one.notes))):
            cases[note].append(one.case)
    return [
        f"{found[0]}: {note}" if len(found) == 1 else f"{note} ({len(found)} cases)"
        for note, found in cases.items()
    ]


def _counts(compared: Sequence[ComparedCase]) -> str:
    counts = Counter(one.outcome for one in compared)
    shown = ", ".join(unbroken(f"{counts[word]} {word}") for word in SEVERITY if counts[word])
    return f"{plural(len(compared), 'case')} on both sides{': ' if shown else ''}{shown}"


TREND_COLUMNS = ("date", "commit", "engine", "case", "runs", "value", "change", "interval", "says")


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Hold the changes of a metric between accepted baselines.

    Attributes:
        points: Accepted baselines, oldest first; at least one.
        versions: Engine version of each point.
        steps: Change from each point to the next, one fewer than points.
        since: Index of the oldest point that is comparable with the last; None if none is.
        total: Change from that point to the last one.
        noise: Source of the expected noise.
    """

    metric: str
    points: Sequence[TrendPoint]
    versions: Sequence[str]
    steps: Sequence[TrendStep]
    since: int | None
    total: TrendStep
    notes: Sequence[str]
    noise: str


def trend_of(
    points: Sequence[TrendPoint], metric: str | None, rule: RuleR, notes: Sequence[str], noise: str
) -> Trend:
    """Return the changes from point to point, oldest first, and the total change.

    "better" and "worse" are adjusted for the number of changes, see `trend.proven`. A `metric` of
    None is the first known one of the last point.
    """
    last = points[-1]
    name = metric or next((name for name in last.means if name in METRICS), "throughput")
    totals = [step(point, last, name, rule) for point in points[:-1]]
    since = next((i for i, total in enumerate(totals) if not total.refused), None)
    steps = [step(a, b, name, rule) for a, b in pairwise(points)]
    if since is None:
        steps, total = proven(steps), TrendStep()
    elif since == len(steps) - 1:
        steps = proven(steps)
        total = steps[-1]  # one and the same: not to be counted twice
    else:
        *steps, total = proven([*steps, totals[since]])
    return Trend(
        metric=name,
        points=points,
        versions=versions(points),
        steps=steps,
        since=since,
        total=total,
        notes=notes,
        noise=noise,
    )


def trend(history: Trend, width: int) -> list[str]:
    """Return the table, the reasons for missing ratios, and the total change."""
    cases = dict.fromkeys(point.case.id for point in history.points)
    rows = _trend_rows(history, several=len(cases) > 1)
    columns = [name if name != "value" else title(history.metric) for name in TREND_COLUMNS]
    left = ["date", "commit", "engine", "case", "says"]
    lines = [line for case in cases for line in fold(case, width)]
    lines += [
        "",
        *table(columns, rows, width, left=left, spare=["runs", "commit", "case", "interval"]),
        "",
    ]
    for number, later in enumerate(history.steps, start=1):
        if later.refused:
            ends = f"{history.points[number - 1].date} to {history.points[number].date}"
            lines += paragraphs("no ratio", [f"{ends}: {text}" for text in later.refused], width)
    lines += paragraphs("note", [*_trend_notes(history), *history.notes], width)
    return [*lines, *paragraph("total", _total(history), width)]


def _trend_rows(history: Trend, *, several: bool) -> list[dict[str, str]]:
    steps = (None, *history.steps)
    return [
        {
            "date": point.date,
            "commit": point.commit[:9] if point.commit != "not committed" else point.commit,
            "engine": version,
            "case": f"{point.case.engine}-{point.case.accelerator}" if several else "",
            "runs": str(len(point.runs) or ""),
            title(history.metric): shown(
                point.means.get(history.metric), partial(quantity, history.metric)
            ),
            **(_step_cells(step) if step else {}),
        }
        for point, version, step in zip(history.points, history.versions, steps, strict=True)
    ]


def _step_cells(step: TrendStep) -> dict[str, str]:
    if step.change is None:
        return {"says": "no ratio"}
    bounds = "" if step.low is None or step.high is None else interval(step.low, step.high)
    return {"change": change(step.change), "interval": bounds, "says": _says(step)}


def _says(step: TrendStep) -> str:
    if step.low is None:
        return "runs not here"
    return {True: "better", False: "worse", None: "not proven"}[step.better]


def _trend_notes(history: Trend) -> list[str]:
    steps = [step for step in history.steps if step.low is not None]
    if not steps:
        return []
    notes = ["95 % confidence intervals, from all runs of both sides"]
    if len(history.points) > 2:
        notes.append(
            "better and worse are corrected for the number of changes shown: if nothing "
            "changed, 1 trend of 20 shows any"
        )
    if any(step.by_sessions is False for step in (*steps, history.total)):
        notes.append(
            f"with fewer than {SPARE_SESSIONS + 2} sessions on both sides the variation "
            f"between sessions is unknown: {MAX_SPREAD_RATIO:g} times that of runs is "
            "assumed, so these intervals are wide"
        )
    return [*notes, history.noise]


def _total(history: Trend) -> str:
    last = len(history.points) - 1
    if len(history.points) == 1:
        return "one accepted baseline: nothing to compare it with yet"
    if history.since is None:
        return "the last baseline cannot be compared"
    ends = f"{history.versions[history.since]} → {history.versions[last]}"
    days = f"{history.points[history.since].date} to {history.points[last].date}"
    text = f"{title(history.metric)} {change(history.total.change or 0.0)}"
    if history.total.low is not None and history.total.high is not None:
        text += f" ({interval(history.total.low, history.total.high)}), {_says(history.total)}"
    left = (
        f"; {plural(history.since, 'baseline')} before that not comparable" if history.since else ""
    )
    return f"{text}: {ends}, {days}{left}"
