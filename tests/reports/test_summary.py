"""The summary, as a user reads it below the test run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.terminal.text import summary
from tests.reports import verdicts
from tests.reports.verdicts import metric, result, session

SMALL = session(result(verdicts.UNGATED), result(verdicts.OK))

EVERY = session(
    *(
        result(replace(verdict, case=replace(verdict.case, engine=f"e{number}")))
        for number, verdict in enumerate(verdicts.ALL)
    ),
    seconds=4000,
)

SMALL_80 = """\
  test         verdict  metric        now  vs base        interval  limit
resnet50-Offline-ort-fp16-H200
  no gate: no reference score is known
  23.5 % of the best official result per GPU (v4.1, Dell)
  accuracy     ok       top1       76.523
  performance  ok       samples/s  24 140   +0.1 %  −0.5 to +0.6 %   −3 %
2 tests: 2 ok; 2 runs, 3 min 20 s, profile quick
Result not verified by MLCommons Association.
"""

EVERY_80 = """\
  test         verdict           metric          now     vs base    limit
resnet50-Offline-e0-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  PERF DROP         samples/s    22 598      −6.3 %     −3 %
resnet50-Offline-e1-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  ok                samples/s    24 140      +0.1 %     −3 %
resnet50-Offline-e2-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  improved          samples/s    25 324      +5.0 %     −3 %
resnet50-Offline-e3-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  INCONCLUSIVE      samples/s    22 598      −2.1 %     −3 %
resnet50-Offline-e4-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  INCONCLUSIVE      samples/s    22 598      −6.3 %     −3 %
resnet50-MultiStream-e5-fp16-H200
  performance  INCONCLUSIVE      p99 latency  125 ms      +1.6 %
resnet50-Offline-e6-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  NO BASELINE       samples/s    24 140                 −3 %
resnet50-Offline-e7-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  recorded          samples/s    24 140                 −3 %
resnet50-Offline-e8-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  expected failure  samples/s    22 598      −6.3 %     −3 %
resnet50-Offline-e9-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  UNEXPECTED PASS   samples/s    24 140      +0.1 %     −3 %
resnet50-Server-e10-fp16-H200
  performance  INVALID           offered rate differs: suite 120/s, baseline
                                 100/s
resnet50-Server-e11-fp16-H200
  performance  ERROR             engine: RuntimeError: CUDA out of memory
resnet50-Offline-e12-fp16-H200
  gate failed on 50,000 samples
  23.5 % of the best official result per GPU (v4.1, Dell)
  accuracy     GATE FAIL         top1         71.650  ref 76.460     −1 %
resnet50-Offline-e13-fp16-H200
  no gate: no reference score is known
  23.5 % of the best official result per GPU (v4.1, Dell)
  accuracy     ok                top1         76.523
resnet50-Offline-e14-fp16-H200
  accuracy     not evaluated     the weights are dummy: speed may be judged,
                                 accuracy never
resnet50-Offline-e15-fp16-H200
  gate not decided on 1,024 of 24,576 samples
  accuracy     ACC DROP          rouge1       42.081       −2.31    −0.22
resnet50-Offline-e16-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  efficiency   POWER DROP        samples/J      33.1      −6.3 %     −5 %
sdxl-Offline-e17-fp16-H200
  open division: deepcache
  pair         PAIR FAIL         samples/s     2.852       1.10x  >= 1.5x
resnet50-Offline-e18-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  SUSPECT           samples/s    22 598      −2.6 %     −3 %
resnet50-Offline-e19-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  PROVISIONAL       samples/s    24 022      −0.4 %     −3 %
resnet50-Offline-e20-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  PROVISIONAL drop  samples/s    22 598      −6.3 %     −3 %
record    pytest suites/rn.mlperf.toml --mlperf-update=missing
settle    resnet50-Offline-e19-fp16-H200: the baseline has 1 of 4 sessions: run
          its build with --mlperf-update=missing, best on other days, and it
          grows
improved  resnet50-Offline-e2-fp16-H200: keep it with
          --mlperf-update=replace --mlperf-reason "..."
undecided resnet50-Offline-e3-fp16-H200: after 5 runs samples/s could prove
          changes of 4.1 %; a longer baseline
          (--mlperf-update=append --mlperf-reason "..."), more runs
          (--mlperf-max-runs) or a quieter machine would decide
undecided resnet50-Offline-e4-fp16-H200: advisory: 3 of 5 baseline runs; add a
          session to the baseline: --mlperf-update=append --mlperf-reason "..."
undecided resnet50-MultiStream-e5-fp16-H200: p99 latency: under 1,000 queries a
          run, only reported; a longer min_duration would decide
note      resnet50-Offline-e6-fp16-H200: baseline of 2026-11-20 applied to
          power_limit_w 700, here 500
note      resnet50-Offline-e7-fp16-H200: throughput: can prove changes of 4.1 %
          and more, the limit is 3 %: record a longer baseline
          (--mlperf-update=append) or widen it
expected  resnet50-Offline-e8-fp16-H200: PERF DROP samples/s −6.3 % (−6.9 to
          −5.7 %); −3 % exceeded; until 2027-01-31: issue 812
changed   resnet50-Offline-e8-fp16-H200: engine.version 1.20.0 → 1.20.1,
          options: threads 2 → 1 since the baseline
suspect   resnet50-Offline-e18-fp16-H200: samples/s −2.6 % (−5.0 to −0.3 %);
          alone it would be a drop, among 24 pairs judged together it is none,
          p=0.004
21 tests: 1 ERROR, 1 INVALID, 1 GATE FAIL, 1 ACC DROP, 1 PERF DROP, 1 PAIR FAIL,
1 POWER DROP, 1 SUSPECT, 2 PROVISIONAL, 3 INCONCLUSIVE, 1 NO BASELINE,
1 not evaluated, 1 expected failure, 1 UNEXPECTED PASS, 2 ok, 1 improved,
1 recorded; 2 runs, 1 h 7 min, profile quick
Result not verified by MLCommons Association.
"""

EVERY_140 = """\
  test         verdict           metric          now     vs base        interval    limit
resnet50-Offline-e0-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  PERF DROP         samples/s    22 598      −6.3 %  −6.9 to −5.7 %     −3 %
resnet50-Offline-e1-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  ok                samples/s    24 140      +0.1 %  −0.5 to +0.6 %     −3 %
resnet50-Offline-e2-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  improved          samples/s    25 324      +5.0 %  +3.1 to +6.9 %     −3 %
resnet50-Offline-e3-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  INCONCLUSIVE      samples/s    22 598      −2.1 %  −4.5 to +0.3 %     −3 %
resnet50-Offline-e4-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  INCONCLUSIVE      samples/s    22 598      −6.3 %  −6.9 to −5.7 %     −3 %
resnet50-MultiStream-e5-fp16-H200
  performance  INCONCLUSIVE      p99 latency  125 ms      +1.6 %
resnet50-Offline-e6-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  NO BASELINE       samples/s    24 140                                 −3 %
resnet50-Offline-e7-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  recorded          samples/s    24 140                                 −3 %
resnet50-Offline-e8-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  expected failure  samples/s    22 598      −6.3 %  −6.9 to −5.7 %     −3 %
resnet50-Offline-e9-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  UNEXPECTED PASS   samples/s    24 140      +0.1 %  −0.5 to +0.6 %     −3 %
resnet50-Server-e10-fp16-H200
  performance  INVALID           offered rate differs: suite 120/s, baseline 100/s
resnet50-Server-e11-fp16-H200
  performance  ERROR             engine: RuntimeError: CUDA out of memory
resnet50-Offline-e12-fp16-H200
  gate failed on 50,000 samples
  23.5 % of the best official result per GPU (v4.1, Dell)
  accuracy     GATE FAIL         top1         71.650  ref 76.460                     −1 %
resnet50-Offline-e13-fp16-H200
  no gate: no reference score is known
  23.5 % of the best official result per GPU (v4.1, Dell)
  accuracy     ok                top1         76.523
resnet50-Offline-e14-fp16-H200
  accuracy     not evaluated     the weights are dummy: speed may be judged, accuracy never
resnet50-Offline-e15-fp16-H200
  gate not decided on 1,024 of 24,576 samples
  accuracy     ACC DROP          rouge1       42.081       −2.31  −2.93 to −1.69    −0.22
resnet50-Offline-e16-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  efficiency   POWER DROP        samples/J      33.1      −6.3 %  −6.9 to −5.7 %     −5 %
sdxl-Offline-e17-fp16-H200
  open division: deepcache
  pair         PAIR FAIL         samples/s     2.852       1.10x  1.08x to 1.13x  >= 1.5x
resnet50-Offline-e18-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  SUSPECT           samples/s    22 598      −2.6 %  −5.0 to −0.3 %     −3 %
resnet50-Offline-e19-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  PROVISIONAL       samples/s    24 022      −0.4 %  −0.9 to +0.2 %     −3 %
resnet50-Offline-e20-fp16-H200
  23.5 % of the best official result per GPU (v4.1, Dell)
  performance  PROVISIONAL drop  samples/s    22 598      −6.3 %  −6.9 to −5.7 %     −3 %
record    pytest suites/rn.mlperf.toml --mlperf-update=missing
settle    resnet50-Offline-e19-fp16-H200: the baseline has 1 of 4 sessions: run its build with --mlperf-update=missing, best on other days,
          and it grows
improved  resnet50-Offline-e2-fp16-H200: keep it with --mlperf-update=replace --mlperf-reason "..."
undecided resnet50-Offline-e3-fp16-H200: after 5 runs samples/s could prove changes of 4.1 %; a longer baseline
          (--mlperf-update=append --mlperf-reason "..."), more runs (--mlperf-max-runs) or a quieter machine would decide
undecided resnet50-Offline-e4-fp16-H200: advisory: 3 of 5 baseline runs; add a session to the baseline:
          --mlperf-update=append --mlperf-reason "..."
undecided resnet50-MultiStream-e5-fp16-H200: p99 latency: under 1,000 queries a run, only reported; a longer min_duration would decide
note      resnet50-Offline-e6-fp16-H200: baseline of 2026-11-20 applied to power_limit_w 700, here 500
note      resnet50-Offline-e7-fp16-H200: throughput: can prove changes of 4.1 % and more, the limit is 3 %: record a longer baseline
          (--mlperf-update=append) or widen it
expected  resnet50-Offline-e8-fp16-H200: PERF DROP samples/s −6.3 % (−6.9 to −5.7 %); −3 % exceeded; until 2027-01-31: issue 812
changed   resnet50-Offline-e8-fp16-H200: engine.version 1.20.0 → 1.20.1, options: threads 2 → 1 since the baseline
suspect   resnet50-Offline-e18-fp16-H200: samples/s −2.6 % (−5.0 to −0.3 %); alone it would be a drop, among 24 pairs judged together it is
          none, p=0.004
21 tests: 1 ERROR, 1 INVALID, 1 GATE FAIL, 1 ACC DROP, 1 PERF DROP, 1 PAIR FAIL, 1 POWER DROP, 1 SUSPECT, 2 PROVISIONAL, 3 INCONCLUSIVE,
1 NO BASELINE, 1 not evaluated, 1 expected failure, 1 UNEXPECTED PASS, 2 ok, 1 improved, 1 recorded; 2 runs, 1 h 7 min, profile quick
Result not verified by MLCommons Association.
"""  # noqa: E501 - commands are never folded


@pytest.mark.parametrize(
    ("results", "width", "expected"),
    [(SMALL, 80, SMALL_80), (EVERY, 80, EVERY_80), (EVERY, 140, EVERY_140)],
    ids=["small", "every outcome", "wide"],
)
def test_the_summary_reads_as_designed(results: Results, width: int, expected: str) -> None:
    assert "\n".join(summary(results, width, colour=False)) + "\n" == expected


@pytest.mark.parametrize("width", [60, 72, 80, 100, 140])
def test_only_case_ids_and_commands_are_wider_than_the_terminal(width: int) -> None:
    lines = summary(EVERY, width, colour=False)

    assert not [
        line
        for line in lines
        if len(line) > width and not line.startswith(("record ", "resnet50-"))
    ]
    assert not any(line.endswith(" ") for line in lines)


def test_every_outcome_has_its_word_in_the_table_and_in_the_counts() -> None:
    lines = summary(EVERY, 140, colour=False)
    table = "\n".join(line for line in lines if line.startswith("  "))
    counts = next(line for line in lines if line.startswith("21 tests: "))

    for outcome in Outcome:
        assert re.search(rf"  {outcome}\b", table)
    assert counts.startswith("21 tests: 1 ERROR, 1 INVALID, 1 GATE FAIL, 1 ACC DROP, 1 PERF DROP")


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (verdicts.OK, 32),
        (verdicts.IMPROVED, 32),
        (verdicts.RECORDED, 32),
        (verdicts.INCONCLUSIVE, 33),
        (verdicts.PROVISIONAL_OK, 33),
        (verdicts.PROVISIONAL_DROP, 31),
        (verdicts.NO_BASELINE, 33),
        (verdicts.EXPECTED, 33),
        (verdicts.DROP, 31),
        (verdicts.ERROR, 31),
        (verdicts.GATE_FAIL, 31),
        (verdicts.UNEXPECTED_PASS, 31),
    ],
    ids=lambda value: str(getattr(value, "outcome", "")),
)
def test_words_are_coloured_where_the_terminal_has_colours(verdict: Verdict, code: int) -> None:
    plain = summary(session(result(verdict)), 80, colour=False)
    coloured = summary(session(result(verdict)), 80, colour=True)

    assert "\x1b" not in "\n".join(plain)
    assert f"\x1b[{code}m{verdict.outcome}\x1b[0m" in "\n".join(coloured)
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in coloured] == plain


def test_several_metrics_of_a_test_have_a_line_and_a_word_each() -> None:
    dropped = replace(
        verdicts.DROP,
        metrics=(
            metric("latency_p50", Outcome.OK, now=0.0125, limit=0.05),
            metric("latency_p99", Outcome.PERF_DROP, now=0.0211, change=0.21, limit=0.1),
        ),
    )

    assert summary(session(result(dropped)), 72, colour=False)[:5] == [
        "  test         verdict    metric           now  vs base  limit",
        "resnet50-Offline-ort-fp16-H200",
        "  23.5 % of the best official result per GPU (v4.1, Dell)",
        "  performance  ok         p50 latency  12.5 ms   −6.3 %   +5 %",
        "               PERF DROP  p99 latency  21.1 ms  +21.0 %  +10 %",
    ]


def test_a_word_that_belongs_to_the_whole_test_is_not_broken_down() -> None:
    (row,) = [
        line
        for line in summary(session(result(verdicts.EXPECTED)), 80, colour=False)
        if line.startswith("  performance")
    ]

    assert (
        row.split()
        == [
            *("performance", "expected", "failure", "samples/s"),
            *("22", "598", "−6.3", "%", "−3", "%"),
        ]
        or "−6.9 to −5.7 %" in row
    )


def test_what_changed_is_told_beside_a_verdict_that_stands_the_machine_first() -> None:
    texts = ("engine.version 1.0 → 1.1", "a 1 → 2", "b 1 → 2", "c 1 → 2", "machine.driver 1 → 2")
    (told,) = [
        line
        for line in summary(session(result(replace(verdicts.OK, changed=texts))), 200, colour=False)
        if line.startswith("changed")
    ]
    failed = summary(session(result(replace(verdicts.DROP, changed=texts))), 200, colour=False)

    assert told == (
        f"changed   {verdicts.CASE.id}: machine.driver 1 → 2, engine.version 1.0 → 1.1, a 1 → 2, "
        "b 1 → 2 and 1 more since the baseline"
    )
    assert not [line for line in failed if line.startswith("changed")]


def test_a_note_that_two_tests_share_is_said_once() -> None:
    slowed = ("work was slowed by --mlperf-handicap 10%",)
    results = [
        result(replace(verdict, notes=slowed)) for verdict in (verdicts.UNGATED, verdicts.OK)
    ]

    lines = summary(session(*results), 140, colour=False)

    assert sum("work was slowed" in line for line in lines) == 1


@pytest.mark.parametrize("fields", [{"handicap": 0.5}, {"pretended": True}], ids=str)
def test_what_may_not_be_recorded_is_not_proposed(fields: dict[str, object]) -> None:
    lines = summary(session(result(verdicts.NO_BASELINE, **fields)), 80, colour=False)

    assert not [line for line in lines if "--mlperf-update" in line]


def test_suites_without_baseline_are_named_once_each() -> None:
    def missing(suite: str) -> CaseResult:
        return result(verdicts.NO_BASELINE, suite=suite)

    lines = summary(
        session(missing("b.mlperf.toml"), missing("a.mlperf.toml"), missing("b.mlperf.toml")),
        80,
        colour=False,
    )

    assert "record    pytest a.mlperf.toml b.mlperf.toml --mlperf-update=missing" in lines


def test_runs_are_counted_once_though_two_tests_rest_on_them() -> None:
    lines = summary(session(result(verdicts.OK), result(verdicts.OK)), 80, colour=False)

    assert "2 tests: 2 ok; 2 runs, 3 min 20 s, profile quick" in lines


def test_profiles_are_named() -> None:
    lines = summary(
        session(result(verdicts.OK, profile="official"), result(verdicts.OK)), 80, colour=False
    )

    assert lines[-2].endswith("profile official and quick")
    assert lines[-1] == "Result not verified by MLCommons Association."


def test_a_claim_that_stays_open_says_what_would_decide_it() -> None:
    undecided = replace(
        verdicts.PAIR_FAIL,
        outcome=Outcome.INCONCLUSIVE,
        headline="samples/s 1.10x (1.03x to 1.24x); >= 1.1x undecided",
    )

    lines = summary(session(result(undecided)), 80, colour=False)

    assert lines[4:8] == [
        "undecided sdxl-Offline-cached-vs-plain-fp16-H200: samples/s 1.10x (1.03x to",
        "          1.24x); >= 1.1x undecided after 2 runs of each; longer runs",
        "          (min_duration), more of them (--mlperf-max-runs) or a quieter machine",
        "          would decide",
    ]


class Counted(tuple[CaseResult, ...]):
    """Results that count how often somebody goes through them all."""

    passes = 0

    def __iter__(self) -> Iterator[CaseResult]:
        """Count, and go through them."""
        self.passes += 1
        return super().__iter__()


def test_more_cases_are_not_compared_with_each_other() -> None:
    def passes(cases: int) -> int:
        counted = Counted(
            result(replace(verdicts.OK, case=replace(verdicts.CASE, engine=f"e{number}")))
            for number in range(cases)
        )
        summary(replace(session(), cases=counted), 80, colour=False)
        return counted.passes

    assert passes(200) == passes(20)
