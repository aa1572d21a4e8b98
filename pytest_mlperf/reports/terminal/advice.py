"""Give advice on verdicts: how to make them final; commands to repeat, accept or record."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_mlperf.core import guarantees
from pytest_mlperf.core.metrics import title
from pytest_mlperf.core.numbers import change, percent, plural
from pytest_mlperf.core.results import IMPORTED, Absent, CaseResult, Results
from pytest_mlperf.core.rulings.multiplicity import null_distributions
from pytest_mlperf.core.verdict import SEVERITY, Outcome, Verdict
from pytest_mlperf.judge.multiplicity import Null
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR
from pytest_mlperf.reports.promises import BELOW_LIMIT_PROMISE, final_word
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal.layout import unbroken

MAX_LISTED_CASES = 3
_UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.SUSPECT, Outcome.NO_BASELINE)


def session_verdict(results: Results, absent: Sequence[Absent] = ()) -> tuple[bool | None, str]:
    """Return whether a session failed, and its verdict: "failed: 2 PERF DROP, 1 ERROR".

    The first is None if nothing failed but a verdict is provisional or undecided, or none exists.
    """
    failed = Counter(result.verdict.outcome for result in results.cases if result.failed)
    parts = [f"{failed[word]} {word}" for word in SEVERITY if failed[word]]
    if absent:
        parts.append(f"{plural(len(absent), 'planned test')} without a result")
    if parts:
        return True, f"failed: {', '.join(parts)}"
    if not results.cases:
        return None, "nothing was measured"
    counts = Counter(result.verdict.outcome for result in results.cases)
    open_counts = {
        "provisional": counts[Outcome.PROVISIONAL],
        "undecided or without a baseline": sum(counts[word] for word in _UNDECIDED),
    }
    words = [f"{count} {word}" for word, count in open_counts.items() if count]
    tests = plural(len(results.cases), "test")
    return None if words else False, ", ".join([f"no drop proven in {tests}", *words])


def finalizing_advice(results: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Return (advice, case ids) pairs: how to make PROVISIONAL verdicts of passed tests final."""
    cases_of: dict[str, dict[str, None]] = {}
    for result in results:
        missing = None if result.failed else final_word(result.verdict)
        if missing:
            cases_of.setdefault(missing, {})[result.verdict.case.id] = None
    return [(missing, in_short([*cases])) for missing, cases in cases_of.items()]


def in_short(cases: Sequence[str]) -> str:
    """Return the names of up to three cases as text, else the number of cases."""
    return ", ".join(cases) if len(cases) <= MAX_LISTED_CASES else f"{len(cases)} cases"


def what_decides(verdict: Verdict) -> str:
    """Return advice on how to decide an INCONCLUSIVE verdict."""
    headline = sentence(verdict.headline)
    open_ = [m for m in verdict.paired if m.outcome is Outcome.INCONCLUSIVE]
    if open_:
        return (
            f"{headline}; all {open_[0].samples:,} samples were compared. Use a larger data set or "
            "a wider margin ([limits] accuracy)."
        )
    if verdict.ratio:
        return (
            f"{headline} after {plural(verdict.ratio.pairs, 'run')} of each. Use longer runs "
            "(min_duration), more runs (--mlperf-max-runs) or an idle machine."
        )
    metric = next((m for m in verdict.metrics if m.outcome is Outcome.INCONCLUSIVE), None)
    if metric is None:
        return f"{headline}. Use a longer min_duration."
    if metric.note:
        if metric.interrupted:
            return f"{sentence(metric.note)}; run it again"
        advice = f". Add a session to the baseline: {unbroken(guarantees.APPEND_OPTIONS)}"
        return sentence(metric.note) + advice * (metric.baseline.runs < GATING_RUNS)
    detectable = metric.baseline.detectable
    shown = percent(detectable) if detectable else "unknown"
    return (
        f"smallest detectable regression of {title(metric.metric)} after "
        f"{plural(metric.runs, 'run')}: {shown}. Use a longer baseline "
        f"({unbroken(guarantees.APPEND_OPTIONS)}), more runs (--mlperf-max-runs) or an idle "
        "machine."
    )


JUDGE = "--mlperf-judge-benchmarks"

_DROPS = frozenset({Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.POWER_DROP})


def lines_of(verdict: Verdict) -> list[str]:
    """Return the notes of a verdict, followed by the last lines of the log after an error."""
    return [*map(sentence, verdict.notes), *(f"log: {line}" for line in verdict.logs.tail)]


def without_file(verdict: Verdict, note: str) -> str:
    """Return a note with the baseline file's path replaced by that of the baselines folder."""
    file = verdict.baseline.file
    folder = file.partition(f"/{verdict.case.accelerator}/")[0] if file else ""
    return note.replace(file, folder) if file else note


def rerun_command(result: CaseResult) -> str:
    """Return the command that runs a test again with the same options."""
    # Ids of benchmarks hold whatever a parameter does; those of suites are plain.
    plain = not set(result.test) & set('"$`\\!')
    test = f'"{result.test}"' if plain else shlex.quote(result.test)
    return " ".join([f"pytest {test}", *map(shlex.quote, result.arguments)])


def may_be_recorded(result: CaseResult) -> bool:
    """Check that a result was not imported, slowed by a handicap, or made on a simulated GPU."""
    return not (result.handicap or result.pretended or result.suite == IMPORTED)


def is_drop(verdict: Verdict) -> bool:
    """Check whether a verdict is a drop that a new baseline would accept."""
    return verdict.outcome in _DROPS or verdict.warns


def commands(result: CaseResult) -> Iterator[tuple[str, str]]:
    """Yield (label, command) to repeat a test, accept its drop, or record its value."""
    verdict, outcome, again = result.verdict, result.verdict.outcome, rerun_command(result)
    if (result.failed or outcome is Outcome.INCONCLUSIVE) and result.suite != IMPORTED:
        yield "reproduce", again
    if not may_be_recorded(result):
        return
    if is_drop(verdict) and verdict.replaces_baseline:
        case = shlex.quote(verdict.case.id)
        yield "accept", f'pytest-mlperf update --write --accept-regression {case} --reason "..."'
    elif is_drop(verdict):
        yield "accept", f"{again} {guarantees.ACCEPT_OPTIONS}"
    if outcome is Outcome.IMPROVED and not verdict.replaces_baseline:
        yield "keep", f"{again} {guarantees.REPLACE_OPTIONS}"
    if outcome is Outcome.NO_BASELINE:
        yield "record", f"{again} {guarantees.MISSING_OPTION}"


PROMISE = (
    "at most 5 % of the drops that fail are expected to be false alarms; a drop as large as its "
    f"limit is missed at most 5 times in 100; {BELOW_LIMIT_PROMISE}"
)


def joint_verdict_notes(results: Results) -> list[str]:
    """Return notes on the (case, metric) pairs that were judged jointly, one paragraph each."""
    if not results.pairs:
        return []
    return [
        f"{results.pairs} pairs judged together: {_words(results)}",
        *machine_noise_notes(results),
    ]


def _words(results: Results) -> str:
    metrics = [m for result in results.cases if result.pairs for m in result.verdict.metrics]
    counts = Counter(metric.outcome for metric in metrics)
    parts = [
        unbroken(f"{counts[word]} {word}")
        for word in (Outcome.PERF_DROP, Outcome.POWER_DROP)
        if counts[word]
    ]
    provisional = [m for m in metrics if m.outcome is Outcome.PROVISIONAL]
    if leaning := sum(metric.direction == "drop" for metric in provisional):
        parts.append(unbroken(plural(leaning, "PROVISIONAL drop")))
    if counts[Outcome.SUSPECT]:
        suspect = unbroken(f"{counts[Outcome.SUSPECT]} SUSPECT")
        parts.append(f"{suspect} (to be run first next time, and judged alone)")
    return ", ".join(parts) or "no drop"


NOTABLE = 1.2
"""Ratio of observed to expected scatter of runs or sessions from which it is reported."""


def machine_noise_notes(results: Results) -> list[str]:
    """Return notes on machines whose metrics all shifted or whose runs vary more than expected."""
    if not results.pairs:
        return []
    shown = null_distributions((result.verdict for result in results.cases), RuleR())
    several = len(shown) > 1
    return [
        f"{machine.accelerator}: {text}" if several else text
        for machine, null in shown.items()
        for text in _null_lines(null)
    ]


def _null_lines(null: Null) -> Iterator[str]:
    if not null.machine_explains_shift or abs(null.shift) > null.spread:
        shift = change(math.expm1(null.shift))
        differ = f"day-to-day variation of this machine is {percent(round(null.spread, 4))}"
        taken = "is ignored" if null.machine_explains_shift else "counts"
        yield f"all {null.pairs} metrics moved by {shift}; {differ}, so this change {taken}"
    if null.scale > NOTABLE:
        yield (
            f"runs of this session vary {null.scale:.1f} times as much as expected: "
            "a drop must be that much larger to fail"
        )
    between = math.sqrt(1 + null.excess)
    if between > NOTABLE:
        yield (
            f"sessions of one metric vary {between:.1f} times as much as expected: "
            "a drop must exceed this variation to fail"
        )
