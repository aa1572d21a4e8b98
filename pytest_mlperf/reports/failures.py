"""Failed tests of a session, grouped by their common cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_mlperf.core.control import seen_in_words
from pytest_mlperf.core.reason import ranges_of
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.untrusted_text import some
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.causes import DROPS, Strength, causes
from pytest_mlperf.reports.sentences import sentence

MIN_COMMON_TESTS = 3
"""Failed tests from which on a group is reported as one failure."""

NO_DIFFERENCE = "no recorded difference (engine, weights, options, data)"

_JUDGED = DROPS | {Outcome.OK, Outcome.IMPROVED, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE}


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failed tests of one kind that have the same outcome and the same likely cause.

    Attributes:
        cause: Their likely cause; figures that differ between them are ranges.
        results: The failed tests, in the order of the session.
        compared: Number of the session's tests of this kind that were judged.
    """

    cause: str
    results: tuple[CaseResult, ...]
    compared: int

    @property
    def is_common(self) -> bool:
        """Whether it has enough tests to be reported as one failure."""
        return len(self.results) >= MIN_COMMON_TESTS

    @property
    def cases(self) -> list[str]:
        """The ids of the failed cases."""
        return [result.verdict.case.id for result in self.results]

    @property
    def sentence(self) -> str:
        """One sentence: "19 of 19 cases regressed; likely: engine.version 1.2.0 → 1.3.0; ..."."""
        outcome = self.results[0].verdict.outcome
        counts = f"{len(self.results)} of {self.compared} cases"
        if not _regressed(self.results[0].verdict):
            return f"{counts}: {outcome} {self.cause}"
        machines = [result.verdict.machine for result in self.results]
        check = "not run"
        if all(machines):
            worst = max(chain(*machines), key=lambda difference: difference.deviations)
            check = f"at most {seen_in_words([worst])}"
        return f"{counts} regressed; likely: {self.cause}; machine self-check: {check}"


def failure_groups(results: Results) -> list[FailureGroup]:
    """Return the failed tests of a session by their common cause, the largest group first.

    Tests that share no cause are groups of one.
    """
    failed: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for result in results.cases:
        if result.failed:
            failed[result.verdict.kind, str(result.verdict.outcome)].append(result)
    groups = [
        _group(cause, [same[int(place)] for place in places], results)
        for same in failed.values()
        for places, cause in ranges_of(
            [(str(place), _cause(one.verdict)) for place, one in enumerate(same)]
        )
    ]
    return sorted(groups, key=lambda group: -len(group.results))


def repeated(groups: Sequence[FailureGroup]) -> set[str]:
    """Return the tests, by node id, that fail like the first test of their group."""
    return {one.test for group in groups if group.is_common for one in group.results[1:]}


def group_sentences(groups: Sequence[FailureGroup]) -> list[str]:
    """Return a sentence for each group of several tests, with the ids of its first cases."""
    return [f"{one.sentence}. Cases: {some(one.cases)}" for one in groups if one.is_common]


def _group(cause: str, failed: Sequence[CaseResult], results: Results) -> FailureGroup:
    verdict = failed[0].verdict
    compared = [
        result
        for result in results.cases
        if result.verdict.kind == verdict.kind
        and (not _regressed(verdict) or result.verdict.outcome in _JUDGED)
    ]
    return FailureGroup(cause=cause, results=tuple(failed), compared=len(compared))


def _regressed(verdict: Verdict) -> bool:
    return verdict.outcome in DROPS | {Outcome.PROVISIONAL}


def _cause(verdict: Verdict) -> str:
    """Return the strongest cause of a regression; of any other failure its headline."""
    if not _regressed(verdict):
        return sentence(verdict.headline)
    # Without other verdicts: that others regressed too is what the group itself says.
    explained = [one for one in causes(verdict, None, ()) if one.strength > Strength.HINT]
    return explained[0].says if explained else NO_DIFFERENCE
