"""Track SUSPECT and PROVISIONAL verdicts across sessions."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from pytest_mlperf.core.results import (
    CaseResult,
    Suspect,
    expect,
    newest,
    next_suspects,
    second_day,
    suspected,
)
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.plugin.options import Options
from pytest_mlperf.stores import suspects

PULL_REQUEST = (
    *("GITHUB_HEAD_REF", "CI_MERGE_REQUEST_IID", "CHANGE_ID", "BUILDKITE_PULL_REQUEST"),
    *("CIRCLE_PULL_REQUEST", "TRAVIS_PULL_REQUEST", "BITBUCKET_PR_ID"),
    "SYSTEM_PULLREQUEST_PULLREQUESTID",
)
"""Variables that CI systems set only for pull requests, or to "false" for other builds."""


class Suspicion:
    """Load the SUSPECT and PROVISIONAL tests of earlier sessions; store them for the next one."""

    def __init__(self, options: Options, started: dt.datetime) -> None:
        self._file = options.runs_dir / "suspects.json"
        self._named = options.suspects
        self._at_once = "provisional" in options.fail_on
        self._date = started.isoformat(timespec="seconds")

    @cached_property
    def _left(self) -> suspects.Remembered:
        here = suspects.load(self._file)
        if not self._named:
            return here
        theirs = suspects.load(self._named)
        return replace(
            theirs,
            suspects=newest([*here.suspects, *theirs.suspects]),
            is_any=here.is_any or theirs.is_any,
            defect=here.defect or theirs.defect,
        )

    @property
    def earlier_suspects(self) -> tuple[Suspect, ...]:
        """Tests that were SUSPECT or PROVISIONAL in earlier sessions."""
        return self._left.suspects

    def line(self, results: Sequence[CaseResult]) -> str | None:
        """Return a warning if earlier PROVISIONAL drops of these tests are unknown, else None."""
        left, reason = self._left, self._left.defect
        if left.tests and left.tests.isdisjoint(result.test for result in results):
            reason = reason or f"{self._named} has no results of these tests"
        if self._named and not left.tests:
            reason = reason or f"{self._named} contains no test results"
        if not left.is_any and os.environ.get("CI"):
            reason = (
                reason
                or "results of the last session are missing (name them: --mlperf-suspects FILE)"
            )
        judged = any(result.verdict.baseline.id for result in results)
        text = f"{reason}; each PROVISIONAL drop counts as the first of its test"
        return text if reason and judged else None

    def marked(self, result: CaseResult) -> CaseResult:
        """Return the result; its `suspected` is the test's suspect entry of past sessions."""
        return replace(result, suspected=suspected(self.earlier_suspects, result))

    def fail_repeated_drop(self, result: CaseResult) -> CaseResult:
        """Return a result; if it is its test's second PROVISIONAL drop in a row, it fails."""
        verdict = self.final_verdict(result, result.verdict)
        if verdict is result.verdict:
            return result
        verdict = expect(verdict, result.expected_failures, dt.datetime.now(dt.UTC).date())
        return replace(result, verdict=verdict, failed=result.failed or verdict.fails)

    def final_verdict(self, result: CaseResult, verdict: Verdict) -> Verdict:
        """Return the verdict; a PROVISIONAL drop fails if one also occurred on an earlier day."""
        suspect = None if result.handicap or result.pretended else result.suspected
        return second_day(verdict, suspect, self._date, at_once=self._at_once)

    def after(self, results: Sequence[CaseResult]) -> tuple[Suspect, ...]:
        """Return the tests that are still SUSPECT or PROVISIONAL and must be measured again."""
        return next_suspects(self.earlier_suspects, results, date=self._date)

    def remember(self, results: Iterable[CaseResult]) -> None:
        """Store tests that stay SUSPECT or PROVISIONAL after `results`; not in a pull request."""
        tested = list(results)
        if any(result.verdict.baseline.id for result in tested) and not _of_pull_request():
            suspects.update(
                self._file,
                lambda there: next_suspects(
                    [*there, *self.earlier_suspects], tested, date=self._date, cleared=True
                ),
            )


def _of_pull_request() -> bool:
    event = os.environ.get("GITHUB_EVENT_NAME", "")
    numbers = (os.environ.get(name, "false") for name in PULL_REQUEST)
    return event.startswith(("pull_request", "merge_group")) or any(
        number not in {"", "false"} for number in numbers
    )
