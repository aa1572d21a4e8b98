"""Join the results of a plan's parts, and judge all their pairs together."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.expectation import expect
from pytest_mlperf.core.judge.many import FEW
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.judge.together import FALLS, is_open, reopened, settle
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Verdict

SHORT = 12
"""Digits of a commit that are shown."""


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A planned test without a verdict.

    Attributes:
        test: Pytest's node id.
        why: What is known of the reason.
    """

    test: str
    why: str


def absent(planned: Iterable[str], merged: Results) -> list[Absent]:
    """Return the planned tests that no part judged."""
    judged = {result.test for result in merged.cases}
    never = "in no results file: it was deselected, or what ran it ended before it"
    return [
        Absent(test=test, why=merged.skipped.get(test, never))
        for test in planned
        if test not in judged
    ]


def merge(
    parts: Mapping[str, Results], *, run: str, pairs: int, today: dt.date, strict: bool
) -> Results:
    """Join parts, and give every verdict that depends on all others its last word.

    A part that knew the whole plan (--mlperf-manifest) fails only what fails here as well. One that
    did not may have failed a drop that, among all, is only SUSPECT: its word is replaced.

    Args:
        parts: Results by what to call them, such as a file's name.
        run: Id of what is made.
        pairs: Gated pairs of the plan; what the parts hold counts where it is more.
        today: The date, UTC.
        strict: What is INCONCLUSIVE or SUSPECT fails.

    Raises:
        MlperfError: They do not belong together.
    """
    _check(parts)
    found = list(parts.values())
    cases = [result for part in found for result in part.cases]
    held = sum(len(c.limits) for c in cases if _is_judged(c.verdict))
    total = max(pairs, held, *(part.pairs for part in found))
    if total > FEW:
        cases = _together(cases, total, today, strict=strict)
    order = sorted(range(len(cases)), key=lambda i: (cases[i].suite, cases[i].verdict.case.id, i))
    deselected: Counter[str] = Counter()
    for part in found:
        deselected.update(part.deselected)
    judged = {case.test for case in cases}
    return Results(
        run=run,
        started=min(part.started for part in found),
        seconds=round(sum(part.seconds for part in found), 1),
        commit=next((part.commit for part in found if part.commit), None),
        versions=_versions(found),
        deselected=dict(deselected),
        cases=tuple(cases[i] for i in order),
        skipped={t: why for p in found for t, why in p.skipped.items() if t not in judged},
        pairs=total if total > FEW else 0,
    )


def _is_judged(verdict: Verdict) -> bool:
    return verdict.kind in FALLS and verdict.outcome is not Outcome.RECORDED


def _together(
    cases: Sequence[CaseResult], pairs: int, today: dt.date, *, strict: bool
) -> list[CaseResult]:
    """Return results with their last words."""
    judged = [case for case in cases if _is_judged(case.verdict)]
    again = {case.test: reopened(case.verdict, pairs) for case in judged}
    open_ = {test: verdict for test, verdict in again.items() if is_open(verdict)}
    final = [verdict for test, verdict in again.items() if test not in open_]
    settled = settle(list(open_.values()), final, pairs, RuleR())
    last = dict(zip(open_, settled, strict=True))
    found = []
    for case in cases:
        if case.test in last:
            verdict = expect(last[case.test], case.expected_failures, today)
            undecided = verdict.outcome in {Outcome.INCONCLUSIVE, Outcome.SUSPECT}
            failed = verdict.outcome.fails or (strict and undecided)
            case = replace(case, verdict=verdict, failed=failed)  # noqa: PLW2901
        found.append(replace(case, pairs=pairs) if _is_judged(case.verdict) else case)
    return found


def _check(parts: Mapping[str, Results]) -> None:
    """Refuse parts that do not belong together."""
    commits = {part.commit: name for name, part in parts.items() if part.commit}
    if len(commits) > 1:
        (one, a), (other, b) = list(commits.items())[:2]
        raise MlperfError(
            f"{a} is of commit {one[:SHORT]}, {b} of {other[:SHORT]}: parts of one plan measure "
            "one commit"
        )
    seen: dict[str, str] = {}
    for name, part in parts.items():
        for test in (result.test for result in part.cases):
            if test in seen:
                raise MlperfError(
                    f"{test} is in {seen[test]} and in {name}; name each part once, and the newer "
                    "file of a part that was run again"
                )
            seen[test] = name


def _versions(parts: Collection[Results]) -> dict[str, str]:
    """Return versions; where parts differ, all of them."""
    names = dict.fromkeys(name for part in parts for name in part.versions)
    return {
        name: " and ".join(dict.fromkeys(p.versions[name] for p in parts if name in p.versions))
        for name in names
    }
