"""Test the precision table: its comparisons, and that no figure is made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.addons.github import comment, markdown
from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.measurement import Accuracy, Subject
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.results import UNVERIFIED_LABEL, CaseResult
from pytest_mlperf.core.verdict import (
    BaselineReference,
    MetricBaseline,
    MetricVerdict,
    Outcome,
    PairedVerdict,
    worst,
)
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.layout import Row
from pytest_mlperf.reports.terminal.precisions import (
    Block,
    PrecisionEntry,
    Score,
    Speed,
    blocks_of,
    hardware,
    precision_lines,
    precision_section,
    precision_table,
)
from tests.reports import verdicts
from tests.reports.verdicts import TOO_SHORT, reported, result, run, session, texts_of

FILE = "baselines/accuracy/resnet50/ort.fp32.json"


def case(precision: str, **fields: Any) -> Case:
    return replace(verdicts.CASE, precision=precision, **fields)


def measured(
    measured_case: Case, *values: float, metric: str = "throughput", **fields: Any
) -> CaseResult:
    """Return a performance test with a run for each value."""
    runs = [
        run(n, case=measured_case, **{metric: value}) for n, value in enumerate(values, start=1)
    ]
    return result(replace(verdicts.OK, case=measured_case, runs=tuple(runs)), **fields)


def gated(score: float, metric: str = "top1", *, reference: float = 76.0) -> MetricVerdict:
    word = Outcome.OK if score >= 0.99 * reference else Outcome.GATE_FAIL
    return MetricVerdict(
        metric=metric, outcome=word, now=score, baseline=MetricBaseline(value=reference), limit=0.01
    )


def paired(change: float, word: Outcome = Outcome.OK, metric: str = "top1") -> PairedVerdict:
    return replace(
        verdicts.FELL,
        metric=metric,
        outcome=word,
        baseline=76.0,
        now=76.0 + change,
        change=change,
        low=change - 0.5,
        high=change + 0.5,
    )


def scored(scored_case: Case, score: float, *pairs: PairedVerdict, **fields: Any) -> CaseResult:
    """Return an accuracy test of the whole data set, gated at 99 % of 76."""
    verdict_fields: dict[str, Any] = {
        "metrics": (gated(score),),
        "accuracy": Accuracy(scores={"top1": score}, samples=500, total=500, full=True, folder=""),
        "baseline": BaselineReference(file=FILE),
    }
    words = [gated(score).outcome, *(each.outcome for each in pairs)]
    word = worst([one for one in words if one is not None])
    accuracy_verdict = verdicts.verdict(
        word, "h", gated(score), case=scored_case, kind=Kind.ACCURACY, paired=pairs
    )
    return result(replace(accuracy_verdict, runs=(), **{**verdict_fields, **fields}))


def only(*results: CaseResult) -> Block:
    (block,) = blocks_of(results)
    return block


def entry(block: Block, precision: str) -> PrecisionEntry:
    (entry_found,) = (each for each in block.entries if each.case.precision == precision)
    return entry_found


def speed(block: Block, precision: str) -> Speed:
    speed_found = entry(block, precision).speed
    assert speed_found is not None
    return speed_found


def test_the_widest_precision_stands_first_and_floats_before_integers() -> None:
    """Entries are named by their precision if that is unambiguous."""
    names = "w4a16 int8 best fp8 int4 fp16 fp32 bf16 fp64 nvfp4"

    block = only(*(measured(case(name), 1.0) for name in names.split(" ")))

    order = " ".join(each.case.precision for each in block.entries)
    assert order == "fp64 fp32 bf16 fp16 fp8 int8 int4 w4a16 nvfp4 best"
    same = only(measured(case("fp32"), 1.0), measured(case("int8"), 1.0))
    other = only(measured(case("fp32"), 1.0), measured(case("int8", engine="trt"), 1.0))
    assert [same.label(each) for each in same.entries] == ["fp32", "int8"]
    assert [other.label(each) for each in other.entries] == ["ort-fp32", "trt-int8"]


ENTRIES: list[tuple[str, list[str], int]] = [
    ("ort-fp32 ort-int8", ["ort-fp32 ort-int8"], 1),
    ("ort-int8 ort-fp16 ort-bf16", ["ort-bf16 ort-fp16 ort-int8"], 1),
    (
        "ort-fp32 ort-int8 torch-fp32 torch-bf16",
        ["ort-fp32 ort-int8", "torch-fp32 torch-bf16"],
        2,
    ),
    ("ort-fp32 trt-fp16 trt-fp8", ["ort-fp32 trt-fp16 trt-fp8"], 1),
    ("ort-fp32 ort-int8 torch-fp32", ["ort-fp32 torch-fp32 ort-int8"], 1),
    ("ort-fp32 trt-fp16", ["ort-fp32 trt-fp16"], 0),
    ("plain-fp16 cached-fp16", ["plain-fp16 cached-fp16"], 0),
    ("ort-int8", ["ort-int8"], 0),
]
"""Engines and precisions, what is compared, and the sections that reports have of it."""


def test_entries_are_compared_with_the_reference_of_their_block() -> None:
    """The reference stands first; an engine that has its precision and others is its own."""
    for names, expected, _ in ENTRIES:
        blocks = blocks_of(of_entries(names))
        assert [" ".join(entry.name for entry in block.entries) for block in blocks] == expected
        assert [block.reference.name for block in blocks] == [
            block.split()[0] for block in expected
        ]


def test_reports_have_the_section_where_an_engine_ran_in_several_precisions() -> None:
    for names, _, sections in ENTRIES:
        results = session(*of_entries(names))
        lines = text.summary(results, 100, colour=False)
        assert len(precision_section(results.cases)[0]) == bool(sections), names
        assert sum("Precisions against " in line for line in lines) == bool(sections)
        assert any(line.startswith("measured") for line in lines) is bool(sections)
        assert markdown.report(reported(results)).count("Precisions against ") == bool(sections)
        assert ("### Precisions" in markdown.report(reported(results))) is bool(sections)
        assert "### Precisions" not in comment.report(reported(results))


def of_entries(names: str) -> list[CaseResult]:
    return [
        measured(case(precision, engine=engine), 1.0)
        for engine, _, precision in (name.partition("-") for name in names.split())
    ]


def test_scenarios_accelerators_and_profiles_are_never_compared() -> None:
    int8_case = case("int8")
    results = [
        measured(case("fp32"), 1.0),
        measured(replace(int8_case, scenario=Scenario.SINGLE_STREAM), 2.0, metric="latency_p90"),
        measured(replace(int8_case, accelerator="cpu"), 3.0),
        measured(replace(int8_case, workload="bert-99"), 4.0),
        measured(int8_case, 5.0, profile="official"),
    ]

    blocks = blocks_of(results)

    assert [len(block.entries) for block in blocks] == [1] * 5


def score_of(block: Block, precision: str) -> Score:
    (score,) = entry(block, precision).scores
    return score


def test_the_paired_comparison_with_the_reference_gives_change_and_interval() -> None:
    block = only(scored(case("fp32"), 76.0), scored(case("int8"), 75.8, paired(-0.2)))

    score = score_of(block, "int8")
    assert (score.value, score.change, score.low, score.high) == (75.8, -0.2, -0.7, 0.3)
    assert score.needed == pytest.approx(75.24)
    assert score_of(block, "fp32").change is None, "the reference has no change against itself"


def test_the_side_of_a_window_where_scores_get_better_is_no_gate_to_fear() -> None:
    low = MetricVerdict(
        metric="fid",
        outcome=Outcome.OK,
        now=685.0,
        baseline=MetricBaseline(value=685.0),
        limit=0.02,
    )
    high = replace(low, limit=-0.02)
    needed = []
    for side in (low, high):
        result = scored(case("fp32"), 685.0)
        assert result.verdict.accuracy is not None
        accuracy = replace(result.verdict.accuracy, scores={"fid": 685.0}, lower=("fid",))
        verdict = replace(result.verdict, metrics=(side,), accuracy=accuracy)
        needed.append(score_of(only(replace(result, verdict=verdict)), "fp32").needed)

    assert needed == [None, pytest.approx(698.7)]


def test_a_comparison_with_the_entrys_own_baseline_is_none_with_the_reference() -> None:
    """Then the scores of two passes over the same samples are subtracted, without an interval."""
    baseline_file = "baselines/accuracy/resnet50/ort.int8.json"
    int8 = scored(case("int8"), 75.8, paired(0.1), baseline=BaselineReference(file=baseline_file))
    score = score_of(only(scored(case("fp32"), 76.0), int8), "int8")
    assert score.change == pytest.approx(-0.2)
    assert (score.low, score.high) == (None, None)
    for samples, is_compared in ((500, True), (128, False)):
        part = Accuracy(scores={"top1": 75.0}, samples=samples, total=500, full=False, folder="")
        block = only(scored(case("fp32"), 76.0), scored(case("int8"), 75.0, accuracy=part))
        assert (score_of(block, "int8").change is not None) is is_compared


def test_the_word_of_a_score_is_the_worse_of_gate_and_paired_rule() -> None:
    rows = [
        (76.0, Outcome.OK, Outcome.OK),
        (75.3, Outcome.ACC_DROP, Outcome.ACC_DROP),
        (75.3, Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE),
        (70.0, Outcome.ACC_DROP, Outcome.GATE_FAIL),
        (70.0, Outcome.OK, Outcome.GATE_FAIL),
    ]
    for score, word, outcome in rows:
        block = only(scored(case("fp32"), 76.0), scored(case("int8"), score, paired(-1.0, word)))
        assert score_of(block, "int8").outcome is outcome


def test_only_scores_that_are_judged_are_shown_and_without_any_all_but_counts() -> None:
    scores = {"top1": 76.0, "top5": 93.0, "tokens_per_sample": 3.0}
    all_of = Accuracy(scores=scores, samples=500, total=500, full=True, folder="")
    judged = only(scored(case("fp32"), 76.0, accuracy=all_of))
    unjudged = only(scored(case("fp32"), 76.0, accuracy=all_of, metrics=()))

    assert [each.metric for each in entry(judged, "fp32").scores] == ["top1"]
    assert [each.metric for each in entry(unjudged, "fp32").scores] == ["top1", "top5"]


def test_a_ratio_above_1_is_better_for_any_metric() -> None:
    rows: list[Any] = [
        ("Offline", "throughput", 100.0, 183.0, 1.83),
        ("Offline", "throughput", 100.0, 50.0, 0.5),
        ("SingleStream", "latency_p90", 0.010, 0.005, 2.0),
        ("MultiStream", "latency_p99", 0.010, 0.020, 0.5),
        ("Server", "latency_p50", 0.010, 0.008, 1.25),
        ("Server", "ttft_p50", 0.2, 0.1, 2.0),
        ("Interactive", "ttft_p50", 0.2, 0.4, 0.5),
    ]
    for scenario, metric, reference, value, ratio in rows:
        block = only(
            measured(case("fp32", scenario=Scenario(scenario)), reference, metric=metric),
            measured(case("int8", scenario=Scenario(scenario)), value, metric=metric),
        )
        assert block.metric == metric
        assert speed(block, "int8").ratio == pytest.approx(ratio)
        assert speed(block, "fp32").ratio == 1.0


VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4)


@given(
    VALUES, VALUES, st.sampled_from([("Offline", "throughput"), ("SingleStream", "latency_p90")])
)
def test_a_ratio_turned_round_is_its_inverse_and_lies_in_its_spread(
    first: list[float], second: list[float], kind: tuple[Any, str]
) -> None:
    scenario, metric = kind

    def of(reference: list[float], other: list[float]) -> Speed:
        results = [
            measured(case("fp32", scenario=Scenario(scenario)), *reference, metric=metric),
            measured(case("int8", scenario=Scenario(scenario)), *other, metric=metric),
        ]
        return speed(only(*results), "int8")

    forth, back = of(first, second), of(second, first)

    assert forth.ratio is not None
    assert back.ratio is not None
    assert forth.ratio * back.ratio == pytest.approx(1.0)
    higher = METRICS[metric].direction is Direction.HIGHER
    assert (forth.ratio >= 1.0) == ((forth.value >= back.value) == higher) or forth.ratio == (
        pytest.approx(1.0)
    )
    if min(len(first), len(second)) == 1:
        assert (forth.low, forth.high) == (None, None), "a single run has no spread"
    else:
        assert forth.low is not None
        assert forth.high is not None
        assert forth.low * (1 - 1e-9) <= forth.ratio <= forth.high * (1 + 1e-9)


def test_invalid_runs_and_those_of_a_test_that_broke_are_not_shown() -> None:
    good, bad = run(1, throughput=100.0), replace(run(2, throughput=900.0), invalid=(TOO_SHORT,))
    broken = measured(case("int8"), 500.0)
    broken = replace(
        broken, verdict=replace(broken.verdict, outcome=Outcome.ERROR, headline="engine: x")
    )
    fp32 = replace(
        measured(case("fp32"), 1.0),
        verdict=replace(verdicts.OK, case=case("fp32"), runs=(good, bad)),
    )

    block = only(fp32, broken)

    assert speed(block, "fp32").value == pytest.approx(100.0)
    assert entry(block, "int8").speed is None
    assert entry(block, "int8").performance is Outcome.ERROR
    assert entry(block, "int8").notes == ("ERROR engine: x",)


def test_latencies_at_different_rates_have_no_ratio() -> None:
    first, other = case("fp32", scenario=Scenario.SERVER), case("int8", scenario=Scenario.SERVER)
    block = only(
        measured(first, 0.01, metric="latency_p50", target_qps=100.0),
        measured(other, 0.01, metric="latency_p50", target_qps=120.0),
    )

    assert speed(block, "int8").ratio is None
    assert entry(block, "int8").notes == (
        "measured at 120/s, the reference at 100/s: latencies at different rates cannot be "
        "compared",
    )


def test_the_basis_of_a_figure_is_noted() -> None:
    block = only(
        measured(case("fp32"), 1.0, handicap=0.5),
        measured(case("int8"), 1.0, pretended=True, division="open", techniques=("pruning",)),
    )

    assert [each.notes for each in block.entries] == [
        ("measured with --mlperf-handicap 50%",),
        ("H200 was only pretended", "open division: pruning"),
    ]


ERROR = replace(verdicts.ERROR, case=case("int4"), headline="engine: no int4 | here")
RESULTS = session(
    scored(case("fp32"), 76.0),
    measured(case("fp32"), 1000.0, 1010.0),
    scored(case("bf16"), 75.98, paired(-0.02)),
    scored(case("int8"), 75.3, paired(-0.7, Outcome.INCONCLUSIVE)),
    measured(case("int8"), 1830.0, 1850.0),
    result(replace(ERROR, kind=Kind.ACCURACY)),
    result(ERROR),
)

TABLE = texts_of("precisions")["RESULTS 100"]


def test_the_table_as_it_is_printed() -> None:
    """The terminal shows it below the table of cases."""
    assert "\n".join(precision_lines(RESULTS, 100)) == TABLE
    lines = "\n".join(text.summary(RESULTS, 100, colour=False))

    assert lines.index("resnet50-Offline-ort-int8-H200") < lines.index(TABLE)
    assert lines.index(TABLE) + len(TABLE) < lines.index("7 tests:")


def test_two_engines_in_two_precisions_each_are_distinguished() -> None:
    """Each precision is compared with the reference of its own engine."""
    (table,), _ = precision_section(of_entries("ort-fp32 ort-int8 torch-fp32 torch-bf16"))

    assert [[row[name] for name in ("engine", "precision", "against")] for row in table.rows] == [
        ["ort", "fp32", ""],
        ["ort", "int8", "ort-fp32"],
        ["torch", "fp32", ""],
        ["torch", "bf16", "torch-fp32"],
    ]
    assert "workload" in table.filled[0]


def test_a_table_that_can_be_sorted_names_everything_in_each_row() -> None:
    """Its columns have the names of the terminal's, and it repeats what that leaves out."""
    (whole,), remarks = precision_section(RESULTS.cases, whole=True)
    (folded,), same_remarks = precision_section(RESULTS.cases)

    assert [name for name in whole.filled[0] if name not in ("workload", "against")] == (
        folded.filled[0]
    )
    assert whole.columns == folded.columns
    assert remarks == same_remarks
    assert [[row[name] for name in ("workload", "precision", "against")] for row in whole.rows] == [
        ["resnet50 Offline on H200", precision, "ort-fp32"]
        for precision in ("fp32", "bf16", "int8", "int4")
    ]


def test_a_session_compares_precisions_only_where_it_is_asked_to() -> None:
    lines = text.summary(RESULTS, 100, colour=False, precisions=False)

    assert not [line for line in lines if "Precisions" in line or line.startswith("measured")]


def test_a_narrow_terminal_loses_the_least_needed_columns() -> None:
    rows = [
        (120, ""),
        (100, "needed spread"),
        (80, "needed spread interval"),
        (60, "needed spread interval"),
    ]
    every = "engine precision metric score needed points interval accuracy samples/s speed spread"
    for width, lost in rows:
        kept = [name for name in every.split(" ") if name not in lost.split(" ")]
        assert precision_lines(RESULTS, width)[1].split() == kept


def test_markdown_has_every_column_and_shows_signs_as_they_stand() -> None:
    page = markdown.report(reported(RESULTS))

    assert f"\n{texts_of('markdown')['RESULTS']}\n- points: " in page
    assert page.index("### Precisions") < page.index("### Every test")
    assert page.endswith(f"{UNVERIFIED_LABEL}\n")


def cells(block: Block) -> list[Row]:
    table = precision_table([block])
    return list(table.rows)


def test_cells_of_odd_entries() -> None:
    """A word that no score has, several scores, which have one speed, a part of the data set."""
    expected = replace(scored(case("fp32"), 76.0).verdict, outcome=Outcome.EXPECTED)
    assert [row["accuracy"] for row in cells(only(result(expected)))] == ["expected failure"]
    two = scored(case("fp32"), 76.0, metrics=(gated(76.0), gated(75.9, "top5")))
    rows = cells(only(two, measured(case("fp32"), 10.0)))
    names = [(row.get("precision", ""), row["metric"]) for row in rows]
    assert names == [("fp32", "top1"), ("", "top5")]
    assert [row.get("samples/s") for row in rows] == ["10", None]
    part = Accuracy(scores={"top1": 75.0}, samples=128, total=500, full=False, folder="")
    few = scored(case("fp32"), 75.0, accuracy=part)
    assert [row["samples"] for row in cells(only(few))] == ["128 of 500"]


def test_the_origin_of_a_session_outside_git_says_so() -> None:
    later = replace(RESULTS, started="2026-11-21T01:02:03+00:00", commit=None)

    assert "measured  2026-11-21 01:02 UTC, no commit, NVIDIA H200" in precision_lines(later, 100)


def test_hardware_in_words() -> None:
    rows: list[Any] = [
        ({"cpu": "Some CPU", "cores": 2, "governor": None}, ["Some CPU, 2 cores"]),
        ({"cpu": "Some CPU", "cores": 1}, ["Some CPU, 1 core"]),
        ({"cpu": "Some CPU", "cores": 1.5}, ["Some CPU, 1.5 cores"]),
        ({"cpu": "Some CPU"}, ["Some CPU"]),
        ({"gpus": 8, "gpu": "NVIDIA H200"}, ["8 x NVIDIA H200"]),
        ({"gpus": 1, "gpu": "NVIDIA H200"}, ["NVIDIA H200"]),
        ({"pretended": "H200"}, []),
    ]
    case_result = measured(case("fp32"), 1.0)
    rows_found = []
    for identity, _ in rows:
        subject = Subject(identity=identity, fingerprint={})
        results = session(
            replace(case_result, verdict=replace(case_result.verdict, subject=subject))
        )
        rows_found.append((identity, hardware(results)))

    assert rows_found == rows


def test_foreign_text_is_escaped() -> None:
    forged = replace(ERROR, headline="engine: \x1b[2Jall ok <b>")
    results = replace(RESULTS, cases=(*RESULTS.cases[:-1], result(forged)))

    lines = precision_lines(results, 100)
    assert "all ok <b>" in " ".join(lines)
    for output in ("".join(lines), markdown.report(reported(results))):
        assert "\x1b" not in output
    assert "<b>" not in markdown.report(reported(results))
