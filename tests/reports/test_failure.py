"""The failure message, as a user reads it in a terminal of 80 and of 140 columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mlperf.core.causes import causes
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.terminal.text import failure
from tests.reports import verdicts
from tests.reports.verdicts import result

DROP_80 = """\
PERF DROP samples/s −6.3 % (−6.9 to −5.7 %); −3 % exceeded
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric       baseline      now  change        interval  limit  verdict
samples/s      24 118   22 598  −6.3 %  −6.9 to −5.7 %   −3 %  PERF DROP
p50 latency   12.3 ms  12.5 ms  +1.6 %                         reported

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      2 runs now, 8 in the baseline; no change is failed at most 1 % of the
          time, a drop of the limit is passed at most 5 %; between 0 and the
          limit either answer may come
baseline  baselines/H200/quick/resnet50/Offline.ort.fp16.json
          set 2026-10-02 at 3f2c1ab0d9e8: "onnxruntime 1.20"
changed   engine.version 1.20.0 → 1.20.1
          options {"threads": 2} → {"threads": 1}
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
accept    pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]" --mlperf-update=replace --mlperf-reason "..."
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""  # noqa: E501 - commands are never folded

GATE_FAIL_80 = """\
GATE FAIL top1 71.650 < 75.695, 99 % of MLPerf's reference
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14
gate      failed on 50,000 samples

metric  reference  needed     now  change  verdict
top1       76.460  75.695  71.650  −6.3 %  GATE FAIL

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
reproduce pytest "suites/rn.mlperf.toml::test_accuracy[resnet50-Offline-ort-fp16-H200]"
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""

ACC_DROP_80 = """\
ACC DROP rouge1 −2.31 points (−2.93 to −1.69); −0.22 exceeded
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14
gate      not decided on 1,024 of 24,576 samples

metric             baseline      now  points        interval  margin  verdict
rouge1               44.391   42.081   −2.31  −2.93 to −1.69   −0.22  ACC DROP
tokens_per_sample   294.400  301.200   +6.80                          reported

rule      1,024 of 24,576 samples compared one by one, 288 got worse and 123
          better; no change is failed at most 1 % of the time, a drop of the
          margin is passed at most 5 %
reproduce pytest "suites/rn.mlperf.toml::test_accuracy[resnet50-Offline-ort-fp16-H200]"
accept    pytest "suites/rn.mlperf.toml::test_accuracy[resnet50-Offline-ort-fp16-H200]" --mlperf-update=replace --mlperf-reason "..."
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""  # noqa: E501 - commands are never folded

ERROR_80 = """\
ERROR engine: RuntimeError: CUDA out of memory
case      resnet50-Server-ort-fp16-H200  suites/rn.mlperf.toml:14
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Server-ort-fp16-H200]"
log       .mlperf/runs/20261120-ab12/resnet50-Server-ort-fp16-H200.1/engine.log
          Traceback (most recent call last):
          RuntimeError: CUDA out of memory
files     .mlperf/runs/20261120-ab12/resnet50-Server-ort-fp16-H200.1
"""

INVALID_80 = """\
INVALID offered rate differs: suite 120/s, baseline 100/s
case      resnet50-Server-ort-fp16-H200  suites/rn.mlperf.toml:14
note      latencies at different rates cannot be compared: set target_qps back,
          or record anew with --mlperf-update=replace --mlperf-reason "..."
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Server-ort-fp16-H200]"
"""

NO_BASELINE_80 = """\
NO BASELINE samples/s: baseline of 2026-11-20 applied to power_limit_w 700, here
  500
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric        now  limit  verdict
samples/s  24 140   −3 %  NO BASELINE

note      baseline of 2026-11-20 applied to power_limit_w 700, here 500
official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      nothing was compared, so nothing is shown; under CI that fails on
          named accelerators, and --mlperf-fail-on=no:no-baseline lets it pass
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
record    pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]" --mlperf-update=missing
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""  # noqa: E501 - commands are never folded

INCONCLUSIVE_80 = """\
INCONCLUSIVE samples/s −2.1 % (−4.5 to +0.3 %); −3 % undecided
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric     baseline     now  change        interval  limit  verdict
samples/s    24 118  22 598  −2.1 %  −4.5 to +0.3 %   −3 %  INCONCLUSIVE

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      5 runs now, 8 in the baseline; no change is failed at most 1 % of the
          time, a drop of the limit is passed at most 5 %; between 0 and the
          limit either answer may come
undecided after 5 runs samples/s could prove changes of 4.1 %; a longer baseline
          (--mlperf-update=append --mlperf-reason "..."), more runs
          (--mlperf-max-runs) or a quieter machine would decide
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""

PROVISIONAL_DROP_80 = """\
PROVISIONAL samples/s −6.3 % (−6.9 to −5.7 %); drop if sessions differ < 1.4 %
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric     baseline     now  change        interval  limit  verdict
samples/s    24 118  22 598  −6.3 %  −6.9 to −5.7 %   −3 %  PROVISIONAL drop

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      2 runs now, 8 in the baseline of 4 sessions; provisional: no change is
          failed at most 1 % of the time, a drop of the limit that every run
          shares is passed at most 5 %, while sessions differ by less than 1.4 %
settle    4 sessions of the baseline show too little of what sessions differ by:
          calibrate on other days (pytest-mlperf calibrate), or name the
          baseline's build in the suite (baseline_engine): a drop is then
          measured again beside it, in turns
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
accept    pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]" --mlperf-update=replace --mlperf-reason "..."
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""  # noqa: E501 - commands are never folded

ADVISORY_80 = """\
INCONCLUSIVE samples/s −6.3 % (−6.9 to −5.7 %); advisory: 3 of 5 baseline runs
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric     baseline     now  change        interval  limit  verdict
samples/s    24 118  22 598  −6.3 %  −6.9 to −5.7 %   −3 %  INCONCLUSIVE

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      2 runs now, 3 in the baseline; no change is failed at most 1 % of the
          time, a drop of the limit is passed at most 5 %; between 0 and the
          limit either answer may come
undecided advisory: 3 of 5 baseline runs; add a session to the baseline:
          --mlperf-update=append --mlperf-reason "..."
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""

FEW_QUERIES_80 = """\
INCONCLUSIVE p99 latency: under 1,000 queries a run, only reported
case      resnet50-MultiStream-ort-fp16-H200  suites/rn.mlperf.toml:14

metric       baseline     now  change  verdict
p99 latency    123 ms  125 ms  +1.6 %  reported

undecided p99 latency: under 1,000 queries a run, only reported; a longer
          min_duration would decide
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-MultiStream-ort-fp16-H200]"
files     .mlperf/runs/20261120-ab12/resnet50-MultiStream-ort-fp16-H200.2/performance
"""

UNEXPECTED_PASS_80 = """\
UNEXPECTED PASS remove the expected failure (issue 812): samples/s +0.1 % (−0.5
  to +0.6 %); inside −3 %
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric     baseline     now  change        interval  limit  verdict
samples/s    24 118  24 140  +0.1 %  −0.5 to +0.6 %   −3 %  ok

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029
          samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      2 runs now, 8 in the baseline; no change is failed at most 1 % of the
          time, a drop of the limit is passed at most 5 %; between 0 and the
          limit either answer may come
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""

DROP_140 = """\
PERF DROP samples/s −6.3 % (−6.9 to −5.7 %); −3 % exceeded
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric       baseline      now  change        interval  limit  verdict
samples/s      24 118   22 598  −6.3 %  −6.9 to −5.7 %   −3 %  PERF DROP
p50 latency   12.3 ms  12.5 ms  +1.6 %                         reported

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029 samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      2 runs now, 8 in the baseline; no change is failed at most 1 % of the time, a drop of the limit is passed at most 5 %; between 0
          and the limit either answer may come
baseline  baselines/H200/quick/resnet50/Offline.ort.fp16.json
          set 2026-10-02 at 3f2c1ab0d9e8: "onnxruntime 1.20"
changed   engine.version 1.20.0 → 1.20.1
          options {"threads": 2} → {"threads": 1}
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
accept    pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]" --mlperf-update=replace --mlperf-reason "..."
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""  # noqa: E501 - commands are never folded

INCONCLUSIVE_140 = """\
INCONCLUSIVE samples/s −2.1 % (−4.5 to +0.3 %); −3 % undecided
case      resnet50-Offline-ort-fp16-H200  suites/rn.mlperf.toml:14

metric     baseline     now  change        interval  limit  verdict
samples/s    24 118  22 598  −2.1 %  −4.5 to +0.3 %   −3 %  INCONCLUSIVE

official  23.5 % of the best official result per GPU (v4.1, Dell): 96,029 samples/s in XE9680_H200_SXM_141GBx8_TRT, 8 GPUs
rule      5 runs now, 8 in the baseline; no change is failed at most 1 % of the time, a drop of the limit is passed at most 5 %; between 0
          and the limit either answer may come
undecided after 5 runs samples/s could prove changes of 4.1 %; a longer baseline (--mlperf-update=append --mlperf-reason "..."), more runs
          (--mlperf-max-runs) or a quieter machine would decide
reproduce pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"
files     .mlperf/runs/20261120-ab12/resnet50-Offline-ort-fp16-H200.2/performance
"""  # noqa: E501 - commands are never folded


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("DROP", 80, DROP_80),
        ("GATE_FAIL", 80, GATE_FAIL_80),
        ("PROVISIONAL_DROP", 80, PROVISIONAL_DROP_80),
        ("ACC_DROP", 80, ACC_DROP_80),
        ("ERROR", 80, ERROR_80),
        ("INVALID", 80, INVALID_80),
        ("NO_BASELINE", 80, NO_BASELINE_80),
        ("INCONCLUSIVE", 80, INCONCLUSIVE_80),
        ("ADVISORY", 80, ADVISORY_80),
        ("FEW_QUERIES", 80, FEW_QUERIES_80),
        ("UNEXPECTED_PASS", 80, UNEXPECTED_PASS_80),
        ("DROP", 140, DROP_140),
        ("INCONCLUSIVE", 140, INCONCLUSIVE_140),
    ],
)
def test_a_failure_reads_as_designed(name: str, width: int, expected: str) -> None:
    verdict = getattr(verdicts, name)

    assert failure(verdict, result(verdict), width) + "\n" == expected


COPIED = ("case ", "reproduce ", "accept ", "record ", "baseline ", "log ", "files ")
"""How the lines begin that hold a path or a command."""


@pytest.mark.parametrize("width", [60, 72, 80, 100, 140])
@pytest.mark.parametrize("verdict", verdicts.ALL, ids=lambda v: str(v.outcome))
def test_only_what_is_copied_is_wider_than_the_terminal(verdict: Verdict, width: int) -> None:
    text = failure(verdict, result(verdict), width)

    wide = [line for line in text.split("\n") if len(line) > width]
    assert [line for line in wide if not line.startswith(COPIED)] == []
    assert not any(line.endswith(" ") for line in text.split("\n"))
    assert "\x1b" not in text


@pytest.mark.parametrize("verdict", verdicts.ALL, ids=lambda v: str(v.outcome))
def test_the_first_line_is_the_word_and_the_headline(verdict: Verdict) -> None:
    first = failure(verdict, result(verdict), 200).split("\n")[0]

    assert first == f"{verdict.outcome} {verdict.headline}"


def test_a_percentage_is_never_parted_from_its_sign() -> None:
    headline = "x" * 70 + " −6.3 % (−6.9 to −5.7 %); −3 % exceeded"

    for width in range(72, 110):
        for line in failure(
            replace(verdicts.DROP, headline=headline), result(verdicts.DROP), width
        ).split("\n"):
            assert not line.lstrip().startswith("%")


def test_a_slowed_run_is_never_accepted() -> None:
    slowed = replace(verdicts.DROP, handicap=0.5)
    text = failure(slowed, result(slowed, handicap=0.5), 80, causes(slowed, None, []))

    assert "the handicap of 50 %: work was slowed on purpose\n" in text
    assert "accept" not in text


def test_commands_carry_the_options_of_the_session_quoted_for_a_shell() -> None:
    found = result(verdicts.DROP, arguments=("--mlperf-baselines", "my baselines"))

    text = failure(verdicts.DROP, found, 80)

    assert f"""reproduce pytest "{found.test}" --mlperf-baselines 'my baselines'\n""" in text
    assert (
        f"""accept    pytest "{found.test}" --mlperf-baselines 'my baselines' --mlperf-up""" in text
    )


def test_a_metric_that_was_not_measured_has_no_figure_and_a_note_that_is_said_once() -> None:
    """The first line has the note of the metric that decided."""
    first = verdicts.unset("latency_p50", Outcome.INVALID, None, limit=0.05, note="in 1 of 2 runs")
    missing = verdicts.unset("ttft_p50", Outcome.INVALID, None, limit=0.05, note="not measured")
    told = replace(verdicts.INVALID, headline="p50 latency: in 1 of 2 runs")

    text = failure(replace(told, metrics=(first, missing)), result(verdicts.INVALID), 80)

    assert "\nmetric       limit  verdict\np50 latency   +5 %  INVALID\np50 TTFT      +5 %" in text
    assert "\nnote      latencies" in text
    assert "\n          p50 TTFT: not measured\n" in text
    assert text.count("in 1 of 2 runs") == 1


@pytest.mark.parametrize("verdict", [verdicts.DROP, verdicts.NO_BASELINE], ids=["drop", "new"])
def test_a_pretended_run_is_never_accepted(verdict: Verdict) -> None:
    text = failure(verdict, result(verdict, pretended=True), 80)

    assert "reproduce pytest" in text
    assert "--mlperf-update" not in text


def test_what_did_not_change_is_said_too() -> None:
    text = failure(replace(verdicts.DROP, changed=()), result(verdicts.DROP), 100)

    assert (
        "\nchanged   nothing that is recorded: engine, weights, options and data are the same\n"
        in text
    )


def test_a_metric_that_was_not_judged_says_why() -> None:
    note = verdicts.FEW_QUERIES.metrics[0]
    both = replace(verdicts.DROP, metrics=(*verdicts.DROP.metrics, note))

    assert "\nnote      p99 latency: under 1,000 queries a run, only reported\n" in failure(
        both, result(both), 80
    )


def test_one_run_is_one_run() -> None:
    first = replace(verdicts.DROP.metrics[0], runs=1)

    assert "rule      1 run now, 8 in the baseline;" in failure(
        replace(verdicts.DROP, metrics=(first,)), result(verdicts.DROP), 80
    )


def test_every_outcome_is_among_the_examples() -> None:
    assert {verdict.outcome for verdict in verdicts.ALL} == set(Outcome)
