"""The texts a user reads: failure message, summary table, plan. Pure: values in, lines out."""

from __future__ import annotations

import io
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import MINUS, change, percent, quantity
from pytest_mlperf.core.results import LABEL, CaseResult, Results
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, Verdict

PROMISE = (
    "no change is failed at most 1 % of the time, a drop of the limit is passed at most 5 %; "
    "between 0 and the limit either answer may come"
)

_COLOURS = {
    Outcome.OK: "green",
    Outcome.IMPROVED: "green",
    Outcome.RECORDED: "green",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NO_BASELINE: "yellow",
    Outcome.EXPECTED: "yellow",
}


class PlannedCase(Protocol):
    """What the plan needs of a case."""

    @property
    def case(self) -> Case:
        """Its name."""
        ...

    @property
    def path(self) -> Path:
        """The suite file."""
        ...

    @property
    def seconds_per_run(self) -> float:
        """Length of one run, seconds."""
        ...


# --- failure message -------------------------------------------------------------------------


def failure(verdict: Verdict, result: CaseResult, width: int) -> str:
    """Return the message of a failed test; its first line holds the verdict.

    Args:
        verdict: What was found.
        result: Where it was found.
        width: Columns; prose wraps, paths and commands do not.
    """
    lines = [f"{verdict.outcome} {verdict.headline}"]
    where = f"{verdict.case.id}  {result.suite}:{result.line}"
    lines += _paragraph("case", where, width, fold=False)
    if verdict.metrics:
        lines += ["", *_metric_table(verdict.metrics, width), ""]
    lines += _about(verdict, result, width)
    return "\n".join(line.rstrip() for line in lines)


def _about(verdict: Verdict, result: CaseResult, width: int) -> Iterator[str]:
    judged = [m for m in verdict.metrics if m.runs_baseline and m.outcome]
    for note in verdict.notes:
        yield from _paragraph("note", note, width)
    if verdict.kind == "performance" and judged:
        first = judged[0]
        counts = f"{first.runs} runs now, {first.runs_baseline} in the baseline"
        yield from _paragraph("rule", f"{PROMISE}; {counts}", width)
        set_by = verdict.baseline_set or ""
        yield from _paragraph("baseline", f"{verdict.baseline_file} {set_by}", width)
        changed = verdict.changed or ("nothing recorded: same engine, weights, options and data",)
        for text in changed:
            yield from _paragraph("changed", text, width)
    if verdict.outcome is Outcome.PERF_DROP and result.handicap:
        yield from _paragraph("likely", f"the handicap of {percent(result.handicap)}", width)
    command = " ".join([f'pytest "{result.test}"', *map(shlex.quote, result.arguments)])
    yield from _paragraph("reproduce", command, width, fold=False)
    if verdict.outcome is Outcome.PERF_DROP and not result.handicap:
        accept = f'{command} --mlperf-update=replace --mlperf-reason "..."'
        yield from _paragraph("accept", accept, width, fold=False)
    if verdict.log:
        yield from _paragraph("log", verdict.log, width, fold=False)
    if verdict.folder:
        yield from _paragraph("files", verdict.folder, width, fold=False)


def _paragraph(head: str, text: str, width: int, *, fold: bool = True) -> list[str]:
    """Return a labelled paragraph; commands and paths stay on one line, to be copied."""
    if not fold:
        return [f"{head:<9} {text}"]
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=f"{head:<9} ",
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _metric_table(metrics: Sequence[MetricVerdict], width: int) -> list[str]:
    """Return one line per metric; columns that do not fit are dropped from the right."""
    rows = [_metric_cells(metric) for metric in metrics]
    columns = ["metric", "baseline", "now", "change", "limit", "verdict", "interval", "note"]
    return _fitting(columns, rows, width, least=6, colour=False)


def _metric_cells(metric: MetricVerdict) -> dict[str, str]:
    name = METRICS[metric.metric].title if metric.metric in METRICS else metric.metric
    return {
        "metric": name,
        "baseline": _shown(metric.metric, metric.baseline),
        "now": _shown(metric.metric, metric.now),
        "change": "" if metric.change is None else change(metric.change),
        "limit": _limit(metric),
        "verdict": str(metric.outcome or "reported"),
        "interval": _interval(metric),
        "note": metric.note,
    }


def _shown(metric: str, value: float | None) -> str:
    return "" if value is None else quantity(metric, value)


def _interval(metric: MetricVerdict) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"{change(metric.low)} to {change(metric.high)}"


def _limit(metric: MetricVerdict) -> str:
    if metric.limit is None:
        return ""
    rises = metric.metric in METRICS and METRICS[metric.metric].direction == "lower"
    return ("+" if rises else MINUS) + percent(metric.limit)


# --- summary ---------------------------------------------------------------------------------


def summary(results: Results, width: int, *, colour: bool) -> list[str]:
    """Return the terminal summary: a table by case, what to do about it, one line of counts."""
    rows = [(result, row) for result in results.cases for row in _rows(result)]
    columns = ["test", "verdict", "metric", "now", "vs base", "limit", "interval"]
    cells = [row for _, row in rows]
    head, *table = _fitting(columns, cells, width - 2, least=4, colour=colour)
    lines = [f"  {head}"]
    last = ""
    for (result, _), line in zip(rows, table, strict=True):
        if result.verdict.case.id != last:
            last = result.verdict.case.id
            lines.append(last)
        lines.append(f"  {line}")
    lines += _advice(results, width)
    lines.append(_counts(results))
    lines.append(LABEL)
    return lines


def _rows(result: CaseResult) -> Iterator[dict[str, str]]:
    """Yield one row per gated metric, at least one per test."""
    verdict = result.verdict
    gated = [m for m in verdict.metrics if m.outcome is not None] or list(verdict.metrics)[:1]
    head = {"test": verdict.kind, "verdict": str(verdict.outcome)}
    if not gated:
        yield head
    for metric in gated:
        cells = _metric_cells(metric)
        own = str(metric.outcome) if metric.outcome and not _whole(verdict) else head["verdict"]
        against = cells["change"] if metric.metric in METRICS else _of_reference(metric)
        yield {
            "test": head["test"],
            "verdict": own,
            "metric": cells["metric"],
            "now": cells["now"],
            "vs base": against,
            "limit": cells["limit"],
            "interval": cells["interval"],
        }
        head = {"test": "", "verdict": ""}


def _whole(verdict: Verdict) -> bool:
    """The word belongs to the whole test, not to its metrics."""
    return verdict.outcome in {
        Outcome.INVALID,
        Outcome.ERROR,
        Outcome.EXPECTED,
        Outcome.UNEXPECTED_PASS,
    }


def _of_reference(metric: MetricVerdict) -> str:
    """An accuracy is set against its reference, not against a baseline."""
    return f"ref {metric.baseline:.4g}" if metric.baseline is not None else ""


def _advice(results: Results, width: int) -> list[str]:
    """Return what to do about verdicts that print no failure message."""
    lines: list[str] = []
    missing = [r for r in results.cases if r.verdict.outcome is Outcome.NO_BASELINE]
    if missing:
        suites = " ".join(sorted({r.suite for r in missing}))
        lines.append(f"record the missing baselines: pytest {suites} --mlperf-update=missing")
    for result in results.cases:
        verdict = result.verdict
        if verdict.outcome is Outcome.INCONCLUSIVE:
            lines += _paragraph("undecided", f"{verdict.case.id}: {_what_decides(verdict)}", width)
        elif verdict.outcome in {Outcome.INVALID, Outcome.ERROR, Outcome.UNEXPECTED_PASS}:
            text = f"{verdict.case.id}: {verdict.headline}"
            lines += _paragraph(str(verdict.outcome), text, width)
        elif verdict.outcome is Outcome.IMPROVED:
            how = '--mlperf-update=replace --mlperf-reason "..."'
            text = f"{verdict.case.id}: keep it with {how}"
            lines += _paragraph("improved", text, width)
        if not result.failed:
            for note in verdict.notes:
                lines += _paragraph("note", f"{verdict.case.id}: {note}", width)
    return lines


def _what_decides(verdict: Verdict) -> str:
    metric = next((m for m in verdict.metrics if m.outcome is Outcome.INCONCLUSIVE), None)
    if metric is None:
        return verdict.headline
    if metric.note.startswith("advisory"):
        return f"{metric.note}; append a session with --mlperf-update=append"
    detectable = percent(metric.detectable) if metric.detectable else "more"
    return (
        f"after {metric.runs} runs {metric.metric} could prove changes of {detectable}; a quieter "
        "machine, a longer baseline (--mlperf-update=append) or --mlperf-max-runs decides"
    )


def _counts(results: Results) -> str:
    counts = Counter(str(result.verdict.outcome) for result in results.cases)
    runs = {run.folder for result in results.cases for run in result.verdict.runs}
    shown = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    tests = f"{len(results.cases)} test" + ("s" if len(results.cases) != 1 else "")
    profiles = " and ".join(sorted({result.profile for result in results.cases}))
    return f"{tests}: {shown}; {len(runs)} runs, {duration(results.seconds)}, profile {profiles}"


def duration(seconds: float) -> str:
    """Return seconds as "41 s", "3 min 20 s" or "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def notices(uncollected: Sequence[Path], not_here: Mapping[str, int], here: str) -> list[str]:
    """Return what was left out: one line each."""
    lines = []
    if uncollected:
        folders = sorted({_suites_root(path) for path in uncollected})
        count = _plural(len(uncollected), "suite")
        lines.append(f"{count} not collected (pytest {' '.join(folders)})")
    if not_here:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(not_here.items()))
        count = _plural(sum(not_here.values()), "test")
        lines.append(f"{count} deselected, accelerator not here: {names}; here: {here}")
    return lines


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _suites_root(path: Path) -> str:
    """Return the folder to name: the outermost "suites" above a file, else its own folder."""
    for parent in reversed(path.parents):
        if parent.name == "suites":
            return relative(parent)
    return relative(path.parent)


def relative(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


# --- plan ------------------------------------------------------------------------------------


def plan(
    cases: Sequence[PlannedCase], wanted: Mapping[tuple[Path, str], set[Kind]], width: int
) -> list[str]:
    """Return the cases that would run, with the time they need at least and at most."""
    rows = []
    for planned in cases:
        kinds = wanted.get((planned.path, planned.case.id), set())
        rows.append(
            {
                "case": planned.case.id,
                "tests": ", ".join(sorted(kinds)),
                "one run": duration(planned.seconds_per_run),
                "at most": duration(5 * planned.seconds_per_run),
            }
        )
    total = sum(planned.seconds_per_run for planned in cases)
    lines = _fitting(["case", "one run", "at most", "tests"], rows, width, least=3, colour=False)
    lines.append(
        f"{_plural(len(cases), 'case')}: {duration(total)} of measuring if one run decides each, "
        f"{duration(5 * total)} if five are needed; loading and accuracy passes come on top"
    )
    return lines


# --- properties ------------------------------------------------------------------------------


def properties(result: CaseResult) -> list[tuple[str, str]]:
    """Return the JUnit properties of a test: verdict, values, and what they were set against."""
    verdict = result.verdict
    found = [
        ("mlperf.case", verdict.case.id),
        ("mlperf.verdict", str(verdict.outcome)),
        ("mlperf.headline", verdict.headline),
        ("mlperf.profile", result.profile),
        ("mlperf.runs", str(len(verdict.runs))),
    ]
    for metric in verdict.metrics:
        found.append((f"mlperf.{metric.metric}", f"{metric.now:.9g}"))
        if metric.baseline is not None:
            found.append((f"mlperf.{metric.metric}.baseline", f"{metric.baseline:.9g}"))
        if metric.change is not None:
            found.append((f"mlperf.{metric.metric}.change", f"{metric.change:.6f}"))
    return found


# --- tables ----------------------------------------------------------------------------------


def _fitting(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    width: int,
    *,
    least: int,
    colour: bool,
) -> list[str]:
    """Return a table; columns are dropped from the right until it fits, but `least` stay."""
    kept = [c for c in columns if any(row.get(c) for row in rows)]
    while len(kept) > least and _natural_width(kept, rows) > width:
        kept.pop()
    return _render(kept, rows, width, colour=colour)


def _natural_width(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> int:
    """Return the width that a table needs."""
    widest = (max(cell_len(t) for t in (c, *(row.get(c, "") for row in rows))) for c in columns)
    return sum(width + 2 for width in widest) - 2


_LEFT = {"case", "test", "tests", "verdict", "metric", "note", "interval"}


def _render(
    columns: Sequence[str], rows: Sequence[Mapping[str, str]], width: int, *, colour: bool
) -> list[str]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        justify: Any = "left" if column in _LEFT else "right"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        cells = [Text(row.get(column, "")) for column in columns]
        for column, cell in zip(columns, cells, strict=True):
            if column == "verdict" and _is_outcome(cell.plain):
                cell.stylize(_COLOURS.get(Outcome(cell.plain), "red"))
        table.add_row(*cells)
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if colour else None,
        force_terminal=colour,
        legacy_windows=False,
        highlight=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def _is_outcome(word: str) -> bool:
    return word in set(Outcome)
