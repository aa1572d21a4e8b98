"""Group the failed tests of a session by their common cause, for every report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.reason import ranges_of
from pytest_mlperf.core.results import IMPORTED, CaseResult, Results
from pytest_mlperf.core.untrusted_text import some
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.causes import (
    DROPS,
    EXPLAINED,
    NO_CAUSE,
    Cause,
    Siblings,
    Strength,
    causes,
)
from pytest_mlperf.reports.rows import all_tables
from pytest_mlperf.reports.sentences import first_line, machine_speed
from pytest_mlperf.reports.terminal.advice import rerun_command

MIN_COMMON_TESTS = 3
"""Least failed tests of a group that is reported as one failure."""

MAX_LISTED_METRICS = 3
NO_DIFFERENCE = "no recorded difference (engine, weights, options, data)"

_JUDGED = DROPS | {Outcome.OK, Outcome.IMPROVED, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Hold the `result` of a failed test.

    Attributes:
        causes: Likely causes of the failure, strongest first; empty if no metric regressed.
    """

    result: CaseResult
    causes: tuple[Cause, ...] = ()

    @property
    def regressed(self) -> bool:
        """Whether the test failed because of a change against the baseline."""
        return self.result.verdict.outcome in DROPS | {Outcome.PROVISIONAL}

    @property
    def changes(self) -> str:
        """Changes of the first metrics: "24,118 → 22,598 samples/s, 6.3 % slower"."""
        return some(list(_changes(self.result.verdict)), MAX_LISTED_METRICS)

    @property
    def reproduce(self) -> str | None:
        """Command that repeats the test; None if another tool made its runs."""
        return None if self.result.suite == IMPORTED else rerun_command(self.result)

    @property
    def labels(self) -> list[str]:
        """Causes by which to group the test: those of a regression, else the headline."""
        verdict = self.result.verdict
        if not self.regressed:
            return [first_line(verdict)]
        # That other cases regressed too is what the group itself says.
        likely = [c for c in self.causes if c.strength > Strength.HINT and c.rule != "siblings"]
        base = verdict.baseline
        equal = base.source and not (base.changed or base.unknown)
        return [c.common or c.says for c in likely] or [NO_DIFFERENCE if equal else NO_CAUSE]


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Hold failed tests with the same likely cause or, without a regression, the same headline.

    Attributes:
        cause: The common cause or headline, with ranges for differing figures; "" if none.
        failures: The failed tests, in the order of the session.
        compared: Number of judged tests in the session, of the same kinds as `failures`.
    """

    cause: str
    failures: tuple[Failure, ...]
    compared: int

    @property
    def is_common(self) -> bool:
        """Whether the group has enough tests to be reported as one failure."""
        return bool(self.cause) and len(self.failures) >= MIN_COMMON_TESTS

    @property
    def title(self) -> str:
        """Heading of the group: "Likely: engine.version 1.2 → 1.3 since the baseline"."""
        if not self.cause or self.cause in {NO_CAUSE, NO_DIFFERENCE}:
            return "No common cause" if not self.cause else self.cause.capitalize()
        return f"Likely: {self.cause}" if self.failures[0].regressed else self.cause

    @property
    def sentence(self) -> str:
        """One sentence: "19 of 19 tests regressed; likely: engine.version 1.2.0 → 1.3.0; ..."."""
        counts = f"{len(self.failures)} of {self.compared} tests"
        if not self.failures[0].regressed:
            return f"{counts}: {self.cause}"
        machines = [failure.result.verdict.machine for failure in self.failures]
        check = "not run"
        if all(machines):
            worst = max(chain(*machines), key=lambda difference: difference.deviations)
            check = f"at most {machine_speed([worst])}"
        return f"{counts} regressed; likely: {self.cause}; micro-benchmark of the machine: {check}"


def failure_groups(
    results: Results, records: Mapping[str, Record] | None = None
) -> list[FailureGroup]:
    """Return the failed tests of a session, each grouped by its most common cause.

    The largest group is first. Tests without a common cause are in the last group.

    Args:
        records: Baseline record by test id; tests without one are explained without it.
    """
    verdicts = Siblings(result.verdict for result in results.cases)
    records, failures = records or {}, list[Failure]()
    for result in filter(lambda result: result.failed, results.cases):
        others = verdicts if len(failures) < EXPLAINED else ()
        likely = causes(result.verdict, records.get(result.test), others)
        failures.append(Failure(result=result, causes=likely))
    labels = [(str(place), text) for place, one in enumerate(failures) for text in one.labels]
    shared: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for names, text in ranges_of(labels):
        for name in names:
            shared[int(name)].append((len(names), text))
    groups: dict[str, list[Failure]] = defaultdict(list)
    for place, failure in enumerate(failures):
        count, cause = max(shared[place], key=lambda label: label[0])
        groups[cause if count > 1 or failure.regressed else ""].append(failure)
    last = ("", NO_CAUSE, NO_DIFFERENCE)
    ordered = sorted(groups.items(), key=lambda group: (group[0] in last, -len(group[1])))
    ordered.sort(key=lambda group: not group[0])
    return [_group(cause, members, results) for cause, members in ordered]


def duplicate_failures(groups: Sequence[FailureGroup]) -> set[str]:
    """Return the node ids of tests that fail for the same reason as the first of their group."""
    common = chain.from_iterable(group.failures[1:] for group in groups if group.is_common)
    return {failure.result.test for failure in common}


def group_sentences(groups: Sequence[FailureGroup]) -> list[str]:
    """Return a sentence for each group of several tests, with the ids of its first cases."""
    return [
        f"{group.sentence}. Cases: {some([f.result.verdict.case.id for f in group.failures])}"
        for group in groups
        if group.is_common
    ]


def _group(cause: str, failures: Sequence[Failure], results: Results) -> FailureGroup:
    regressed = failures[0].regressed
    kinds = {failure.result.verdict.kind for failure in failures}
    verdicts = [result.verdict for result in results.cases if result.verdict.kind in kinds]
    compared = sum(not regressed or verdict.outcome in _JUDGED for verdict in verdicts)
    return FailureGroup(cause=cause, failures=tuple(failures), compared=compared)


def _changes(verdict: Verdict) -> Iterator[str]:
    for row in chain.from_iterable(table.rows for table in all_tables(verdict)):
        start = row.get("baseline") or row.get("reference")
        outcome = row.get("outcome") or row.get("verdict")
        if start and row.get("now") and outcome == str(verdict.outcome):
            effect = row.get("effect") or row.get("change")
            yield ", ".join(filter(None, [f"{start} → {row['now']} {row['metric']}", effect]))
