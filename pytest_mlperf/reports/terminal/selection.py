"""Format the plan of a session, and notices on tests that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.numbers import duration, plural
from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.reports.costs import Costs, cost_of
from pytest_mlperf.reports.terminal.layout import fold, relative, table
from pytest_mlperf.run.conditions import MAX_WARMUP_SECONDS, WAIT_IDLE_S, needs_warm_up
from pytest_mlperf.suite.benchmarks import BENCHMARK_USE
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import Planned


def idle_in_words(seconds: float = WAIT_IDLE_S) -> str:
    """Return the maximum wait for an idle machine as text; "" if it is 0."""
    return f" and up to {seconds:.0f} s waiting for an idle machine" if seconds else ""


def plan(
    cases: Sequence[Testable],
    tests: Mapping[tuple[Path, str], set[Kind]],
    width: int,
    *,
    max_runs: int,
    measured: Costs | None = None,
    idle_s: float = WAIT_IDLE_S,
    more: Sequence[str] = (),
) -> list[str]:
    """Return lines on the cases of a session and their shortest and longest time.

    Args:
        tests: Kinds of test of each case, by suite file and case id.
        measured: Costs in earlier sessions; other cases are estimated from their suite.
        idle_s: Maximum wait for an idle machine.
        more: Texts to add.
    """
    costs = [cost_of(planned, measured or {}) for planned in cases]
    rows = [
        {
            "case": planned.case.id,
            "one run": duration(cost.first_s),
            "at most": duration(cost.at_most_s(max_runs)),
            "from": plural(cost.sessions, "session") if cost.sessions else "suite" * bool(measured),
            "tests": ", ".join(sorted(tests.get((planned.path, planned.case.id), set()))),
        }
        for planned, cost in zip(cases, costs, strict=True)
    ]
    there = Counter(planned.elsewhere for planned in cases if planned.elsewhere)
    timed = sum(cost.sessions > 0 for cost in costs)
    on_top = "loading and accuracy passes come on top"
    if timed:
        rest = f"; {on_top} for the others" if timed < len(cases) else ""
        on_top = f"times from sessions include loading and accuracy passes{rest}"
    least, most = sum(c.first_s for c in costs), sum(c.at_most_s(max_runs) for c in costs)
    usual = sum(cost.usual_s() for cost in costs)
    total = (
        f"{plural(len(cases), 'case')}: usually {duration(usual)}{idle_in_words(idle_s)}; "
        f"{duration(least)} if one run decides each, {duration(most)} if all {max_runs} are "
        f"needed; {on_top}"
    )
    against = "with --mlperf-against, which measures another build too, about"
    elsewhere = (f"{plural(count, 'case')} in {name}" for name, count in there.items())
    texts = (*gaps(cases), *elsewhere, total, f"{against} {duration(2 * usual)}", *more)
    lines = table(rows, width, left=["case", "from", "tests"], spare=["tests", "from"])
    return [*lines, *(line for text in texts for line in fold(text, width))]


def gaps(cases: Iterable[Testable]) -> list[str]:
    """Return how the cases deviate from the requirements of their MLPerf round."""
    suites = [case.suite for case in cases if isinstance(case, Planned)]
    counts = Counter(gap for suite in suites for gap in suite.gaps)
    return [f"{plural(count, 'case')}: {gap}" for gap, count in counts.items()]


def notices(
    uncollected: Sequence[Path],
    absent_accelerators: Mapping[str, int],
    present_accelerators: str,
    width: int,
    *,
    action: str = "deselected",
) -> list[str]:
    """Return lines on uncollected suites, and on tests `action` as their accelerator is absent."""
    lines = []
    if uncollected:
        folders = set()
        for path in uncollected:
            above = [parent for parent in path.parents if parent.name == "suites"]
            folders.add(relative(above[-1] if above else path.parent))
        count = plural(len(uncollected), "suite")
        lines.append(f"{count} not collected; run: pytest {visible(' '.join(sorted(folders)))}")
    if absent_accelerators:
        names = ", ".join(
            f"{name} ({count})" for name, count in sorted(absent_accelerators.items())
        )
        count = plural(sum(absent_accelerators.values()), "test")
        lines += fold(
            f"{count} {action}, accelerator not here: {names}; here: {present_accelerators}", width
        )
    return lines


def extra_time_lines(
    planned: Sequence[Testable], *, max_runs: int, warmup: str = "auto", confirm: str = "auto"
) -> list[str]:
    """Return sentences on warm-ups and extra runs, which a plan's times do not include."""
    pairs = [(test.a, test.b) if isinstance(test, PlannedPair) else (test,) for test in planned]
    cases = [case for pair in pairs for case in pair]
    first = {
        case.case.accelerator: case
        for case in reversed(cases)
        if needs_warm_up(
            case.case.accelerator,
            case.engine.use if isinstance(case, Planned) else BENCHMARK_USE,
            warmup,
        )
    }
    lines = []
    if first:
        seconds = sum(min(case.seconds_per_run, MAX_WARMUP_SECONDS) for case in first.values())
        names = ", ".join(reversed(first))
        lines.append(
            f"plus {plural(len(first), 'warm-up run')}, one on each of {names}, whose results do "
            f"not count: {duration(seconds)} in all"
            if len(first) > 1
            else f"plus 1 warm-up run on {names}, whose result does not count: {duration(seconds)}"
        )
    lines += dict.fromkeys(
        f"{case.case.workload} in {case.case.scenario} is timed on "
        f"{case.data.source('performance').title} and scored on "
        f"{case.data.source('accuracy').title}, in a process of its own"
        for case in cases
        if isinstance(case, Planned) and case.scorer_name and not case.data.shared
    )
    limited = {case.case.id: case.limit_w for case in cases if case.limit_w is not None}
    if limited:
        watts = ", ".join(map(str, sorted(set(limited.values()))))
        lines.append(
            f"{plural(len(limited), 'case')} with the GPUs' power limit at {watts} W: set "
            "before the case and restored after it, which needs permission unless the GPU "
            "has this limit already"
        )
    named = [test for test in planned if isinstance(test, Planned) and test.engine.baseline_engine]
    if named and confirm != "never":
        seconds = 2 * max_runs * sum(c.runs_per_value[1] * c.seconds_per_run for c in named)
        lines.append(
            f"a drop of {plural(len(named), 'case')} with a baseline_engine is measured again, in "
            f"up to {max_runs} pairs of runs each: {duration(seconds)} if all of them drop"
        )
    return lines
