"""What the page writes of each case: every test with its table, its reasons and its commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.causes import causes
from pytest_mlperf.core.causes_siblings import Siblings
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.cells import metric_cells, paired_cells, ratio_cells, score_cells, title
from pytest_mlperf.reports.commands import LOG, REPLACE, accept, again, may_be_recorded, record
from pytest_mlperf.reports.figures import cost, declared, invalid_runs, light, searched
from pytest_mlperf.reports.html.case_figures import engine_version
from pytest_mlperf.reports.html.model import Beside, Grouped, Tone, tone

EXPLAINED = 100
"""Failed tests whose causes are looked for among all others: that takes longer the more fail."""

Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]


@dataclass(frozen=True, kw_only=True)
class Test:
    """One test of a case.

    Attributes:
        kind: "accuracy", "performance", ...
        outcome: Its word.
        tone: Colour and shape of the word.
        headline: What follows the word.
        tables: Headings and rows.
        causes: Sentences, the strongest first.
        changed: Differences from the baseline's fingerprint.
        notes: Sentences.
        log: Last lines of a log.
        facts: Label and text.
        commands: Label and command line.
    """

    kind: str
    outcome: str
    tone: Tone
    headline: str
    tables: tuple[Table, ...]
    causes: tuple[str, ...]
    changed: tuple[str, ...]
    notes: tuple[str, ...]
    log: str
    facts: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One case as the page shows it.

    Attributes:
        grouped: The case and its tests.
        outcome, headline: Of the test that decides.
        tests: All of them.
        environment: Number of what it was measured on; 0: not known.
        words: The outcomes of its tests, to be filtered by.
    """

    grouped: Grouped
    outcome: str
    headline: str
    tests: tuple[Test, ...]
    environment: int
    words: str


def shown(cases: Sequence[Grouped], beside: Beside) -> tuple[list[Shown], list[Subject]]:
    """Return all cases, and the distinct environments that they were measured in."""
    subjects: list[Subject] = []
    verdicts = Siblings(result.verdict for one in cases for result in one.results)
    failed = frozenset([r.test for one in cases for r in one.results if r.failed][:EXPLAINED])
    found = []
    for one in cases:
        tests = tuple(
            _test(result, beside, verdicts if result.test in failed else ())
            for result in sorted(one.results, key=lambda each: not each.failed)
        )
        subject = next((r.verdict.subject for r in one.results if r.verdict.subject), None)
        if subject is not None and subject not in subjects:
            subjects.append(subject)
        found.append(
            Shown(
                grouped=one,
                outcome=str(one.worst.verdict.outcome),
                headline=one.worst.verdict.headline,
                tests=tests,
                environment=subjects.index(subject) + 1 if subject else 0,
                words="|".join(dict.fromkeys(str(r.verdict.outcome) for r in one.results)),
            )
        )
    return found, subjects


def in_words(subject: Subject) -> str:
    """Return machine and engine of an environment in a line."""
    engine = engine_version(subject.fingerprint)
    known = [f"{name} {value}" for name, value in subject.identity.items() if value is not None]
    return ", ".join([*filter(None, [engine]), *known])


def _test(result: CaseResult, beside: Beside, others: Sequence[Verdict]) -> Test:
    verdict = result.verdict
    found = causes(verdict, beside.records.get(result.test), others) if others else ()
    notes = [note for note in verdict.notes if not note.startswith(LOG)]
    notes += [
        f"{title(m.metric)}: {m.note}"
        for m in verdict.metrics
        if m.note and m.note not in verdict.headline
    ]
    return Test(
        kind=verdict.kind,
        outcome=str(verdict.outcome),
        tone=tone(verdict.outcome, failed=result.failed),
        headline=verdict.headline,
        tables=tuple(_tables(verdict)),
        causes=tuple(cause.says for cause in found),
        changed=verdict.changed,
        notes=tuple(dict.fromkeys(notes)),
        log="\n".join(n.removeprefix(LOG) for n in verdict.notes if n.startswith(LOG)),
        facts=tuple(_facts(result)),
        commands=tuple(_commands(result)),
    )


# --- tables ----------------------------------------------------------------------------------


def _tables(verdict: Verdict) -> Iterator[Table]:
    columns: tuple[str, ...]
    if verdict.paired:
        columns = ("metric", "baseline", "now", "points", "interval", "margin", "verdict")
        yield _table(columns, [paired_cells(metric) for metric in verdict.paired])
    if verdict.metrics and verdict.kind == "accuracy":
        columns = ("metric", "reference", "needed", "now", "change", "verdict")
        yield _table(columns, [score_cells(metric) for metric in verdict.metrics])
    elif verdict.metrics:
        columns = ("metric", "baseline", "now", "change", "interval", "limit", "verdict")
        rows = [
            metric_cells(metric)
            for metric in verdict.metrics
            if metric.outcome is not None
            or metric.metric not in METRICS
            or METRICS[metric.metric].shown
        ]
        yield _table(columns, rows)
    if verdict.ratio:
        columns = ("metric", "now", "ratio", "interval", "claim", "verdict")
        yield _table(columns, [ratio_cells(verdict.ratio)])


def _table(columns: Sequence[str], rows: Sequence[dict[str, str]]) -> Table:
    """Return a table without the columns that are empty in all rows."""
    kept = tuple(name for name in columns if any(row.get(name) for row in rows))
    return kept, tuple(tuple(row.get(name, "") for name in kept) for row in rows)


# --- words -----------------------------------------------------------------------------------


def _facts(result: CaseResult) -> Iterator[tuple[str, str]]:
    verdict = result.verdict
    yield from declared(result).items()
    yield from (("search", said) for said in searched(verdict)[-1:])
    known = (
        ("invalid", invalid_runs(verdict)),
        ("physics", light(verdict)),
        ("cost", cost(verdict)),
    )
    yield from ((name, said) for name, said in known if said)
    judged = next((m for m in verdict.metrics if m.runs_baseline and m.outcome), None)
    if judged:
        yield "runs", f"{judged.runs} now, {judged.runs_baseline} in the baseline"
    if verdict.accuracy and verdict.kind == "accuracy":
        of = f" of {verdict.accuracy.total:,}" if verdict.accuracy.total else ""
        yield "samples", f"{verdict.accuracy.samples:,}{of}, {verdict.accuracy.source}"
    if verdict.gate and verdict.kind == "accuracy":
        yield "gate", verdict.gate.answer
    if verdict.baseline_set:
        yield "baseline", verdict.baseline_set
    if verdict.baseline_file:
        yield "baseline file", verdict.baseline_file
    if verdict.steady is not None:
        same = "as fast as with the baseline" if verdict.steady else "not as with the baseline"
        yield "machine", f"by a fixed micro-benchmark {same}"
    if verdict.folder:
        yield "files", verdict.folder
    if verdict.log:
        yield "log", verdict.log


def _commands(result: CaseResult) -> Iterator[tuple[str, str]]:
    outcome = result.verdict.outcome
    if result.failed or outcome is Outcome.INCONCLUSIVE:
        yield "reproduce", again(result)
    if command := accept(result):
        yield "accept", command
    if outcome is Outcome.IMPROVED and may_be_recorded(result):
        yield "keep", f"{again(result)} {REPLACE}"
    if command := record(result):
        yield "record", command
