"""The results file: everything a session found, in one versioned document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_mlperf.core.case import Division, Profile
from pytest_mlperf.core.expectation import Known
from pytest_mlperf.core.ranges import AtLeastOne, Count, Positive, Runs, Seconds, Slowdown
from pytest_mlperf.core.verdict import Verdict

SCHEMA = 1
LABEL = "Result not verified by MLCommons Association."


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """One test with its verdict.

    Attributes:
        test: Pytest's node id.
        suite: Suite or test file, relative to the root folder.
        line: Line of the engine entry in the suite.
        round: MLPerf round.
        profile: "quick" or "official".
        verdict: The verdict with its runs.
        failed: The test failed, as options and outcome say.
        limits: Gated metrics with their limits, as shares.
        scored: The case has an accuracy pass that a record must rest on.
        handicap: Share of speed taken away; above 0 nothing may be recorded.
        pretended: The accelerator was only pretended; nothing may be recorded.
        max_runs: Most runs before INCONCLUSIVE: what the rule's looks are split over.
        arguments: The session's --mlperf options that a reproduction needs.
        target_qps: Offered or expected rate, per second.
        qps_source: Where the rate comes from: "suite", "probe" or None.
        division: "closed" or "open".
        techniques: What the engine entry declares to do that only the open division allows.
        elsewhere: The other Python in which its engine runs, as the suite writes it; "": none.
        pairs: Gated pairs of case and metric that it was judged together with; 0: judged alone.
        expected_failures: Failures that the suite expects.
    """

    test: str
    suite: str
    line: Count
    round: str
    profile: Profile
    verdict: Verdict
    failed: bool
    limits: Mapping[str, Positive]
    scored: bool
    handicap: Slowdown
    pretended: bool
    arguments: tuple[str, ...] = ()
    max_runs: Runs = 5
    target_qps: Positive | None
    qps_source: str | None
    division: Division = "closed"
    techniques: tuple[str, ...] = ()
    elsewhere: str = ""
    pairs: Count = 0
    expected_failures: tuple[Known, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Results:
    """One session.

    Attributes:
        schema: Version of this document.
        run: Id of the session; also the name of its folder.
        started: ISO 8601 UTC.
        seconds: Wall-clock length of the session, seconds.
        commit: Commit of the tested project, or None.
        versions: Versions of this package and its tools.
        deselected: Cases whose accelerator was not here, by accelerator.
        cases: One entry per judged test.
        skipped: Tests that were collected and not run, with the reason.
        pairs: Gated pairs of case and metric that were judged together; 0: each alone.
        label: How MLCommons wants such figures to be labelled.
    """

    schema: AtLeastOne = SCHEMA
    run: str
    started: str
    seconds: Seconds
    commit: str | None
    versions: Mapping[str, str]
    deselected: Mapping[str, Count]
    cases: tuple[CaseResult, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    pairs: Count = 0
    label: str = LABEL


def by_case(results: Iterable[CaseResult]) -> tuple[CaseResult, ...]:
    """Return results with those of a case together; verdicts that waited came last."""
    cases: dict[tuple[str, str], list[CaseResult]] = {}
    for result in results:
        cases.setdefault((result.suite, result.verdict.case.id), []).append(result)
    return tuple(result for case in cases.values() for result in case)
