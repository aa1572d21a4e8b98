"""Verdicts of every kind, as a session would find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.guarantees import Guarantee
from pytest_mlperf.core.measurement import Accuracy, Run, Subject
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import (
    BaselineReference,
    Gate,
    GateState,
    Logs,
    MetricBaseline,
    MetricVerdict,
    Outcome,
    PairedVerdict,
    RatioVerdict,
    Verdict,
)
from pytest_mlperf.reports.formats import ReportedSession

CASE = Case(
    workload="resnet50",
    scenario=Scenario.OFFLINE,
    engine="ort",
    precision="fp16",
    accelerator="H200",
)
SERVER = replace(CASE, scenario=Scenario.SERVER)
SUITE = "suites/rn.mlperf.toml"
TOO_SHORT = Reason(key=Key.LOADGEN, text="LoadGen: the run was too short")
RUNS = ".mlperf/runs/20261120-ab12"
SUBJECT = Subject(
    identity={"gpu": "NVIDIA H200", "ecc": True, "mig": None},
    fingerprint={"engine": "onnxruntime", "engine.version": "1.20.1"},
)
OFFICIAL = (
    "23.5 % of the best official result per GPU (v4.1, Dell): 96,029 samples/s in "
    "XE9680_H200_SXM_141GBx8_TRT, 8 GPUs"
)


def texts_of(kind: str) -> dict[str, str]:
    """Return the expected terminal texts, by the name of the verdict and the columns."""
    file = Path(__file__).parents[1] / "data" / "terminal_texts.txt"
    sections = file.read_text("utf-8").split(f"==== {kind} ")[1:]
    parts = (section.partition("\n====")[0].partition("\n") for section in sections)
    return {title: text.rstrip("\n") for title, _, text in parts}


def run(number: int = 1, *, case: Case = CASE, **metrics: float) -> Run:
    """Return a valid run."""
    return Run(
        metrics=metrics or {"throughput": 22_598.0},
        within_se={},
        samples=24_576,
        queries=24_576,
        duration_s=60.0,
        target_qps=25_000.0,
        session="20261120-ab12",
        started="2026-11-20T10:11:12+00:00",
        commit="9d0e77a1b2c3",
        folder=f"{RUNS}/{case.id}.{number}/performance",
    )


BASELINE = {
    "baseline": "value",
    "runs_baseline": "runs",
    "days": "days",
    "detectable": "detectable",
    "lacks": "lacks",
}
"""Keywords of `metric` and `unset` that state fields of the metric's baseline."""


def metric(
    name: str = "throughput", outcome: Outcome | None = None, **fields: Any
) -> MetricVerdict:
    """Return a judged metric that fell by 6.3 %, unless `fields` say otherwise."""
    metric_fields: dict[str, Any] = {
        "now": 22_598.0,
        "baseline": 24_118.0,
        "change": -0.063,
        "low": -0.069,
        "high": -0.057,
        "limit": 0.03,
        "detectable": 0.021,
        "runs": 2,
        "runs_baseline": 8,
    }
    return unset(name, outcome, **{**metric_fields, **fields})


def unset(name: str, outcome: Outcome | None, now: float | None, **fields: Any) -> MetricVerdict:
    """Return a metric, by default without a baseline; see `BASELINE` for its fields."""
    about = {BASELINE[key]: fields.pop(key) for key in BASELINE if key in fields}
    return MetricVerdict(
        metric=name, outcome=outcome, now=now, baseline=MetricBaseline(**about), **fields
    )


def verdict(outcome: Outcome, headline: str, *metrics: MetricVerdict, **fields: Any) -> Verdict:
    """Return a performance verdict."""
    verdict_fields: dict[str, Any] = {
        "case": CASE,
        "kind": Kind.PERFORMANCE,
        "runs": (run(1), run(2)) if metrics else (),
        "subject": SUBJECT if metrics else None,
        "logs": Logs(folder=f"{RUNS}/{fields.get('case', CASE).id}.2/performance"),
    }
    return Verdict(
        outcome=outcome, headline=headline, metrics=metrics, **{**verdict_fields, **fields}
    )


def _is_placed(verdict: Verdict) -> bool:
    is_offline = verdict.case.scenario == "Offline" and not verdict.ratio
    return is_offline and bool(verdict.subject and verdict.runs)


def result(verdict: Verdict, **fields: Any) -> CaseResult:
    """Return a verdict as the test of a quick suite."""
    result_fields: dict[str, Any] = {
        "test": f"{SUITE}::test_{verdict.kind}[{verdict.case.id}]",
        "suite": SUITE,
        "line": 14,
        "round": "v4.1",
        "profile": "quick",
        "failed": verdict.fails,
        "limits": {"throughput": 0.03},
        "scored": False,
        "handicap": 0.0,
        "pretended": False,
        "target_qps": 25_000.0,
        "qps_source": "suite",
        "facts": {"official": OFFICIAL} if _is_placed(verdict) else {},
        **({"division": "open", "techniques": ("deepcache",)} if verdict.ratio else {}),
    }
    return CaseResult(verdict=verdict, **{**result_fields, **fields})


def session(*results: CaseResult, seconds: float = 200.0, **fields: Any) -> Results:
    """Return a whole session."""
    versions: Mapping[str, str] = {"pytest": "9.2.0"}
    return Results(
        run="20261120-ab12",
        started="2026-11-20T10:11:12+00:00",
        seconds=seconds,
        commit="9d0e77a1b2c3",
        versions=versions,
        deselected={},
        cases=results,
        **fields,
    )


def reported(results: Results, **fields: Any) -> ReportedSession:
    """Return the input of a report of a session."""
    return ReportedSession(results=results, file=Path("results.json"), **fields)


DROP = verdict(
    Outcome.PERF_DROP,
    "samples/s −6.3 % (−6.9 to −5.7 %); limit −3 % exceeded",
    metric(outcome=Outcome.PERF_DROP),
    unset("latency_p50", None, 0.0125, baseline=0.0123, change=0.0163, runs=2, runs_baseline=8),
    baseline=BaselineReference(
        changed=("engine.version 1.20.0 → 1.20.1", 'options {"threads": 2} → {"threads": 1}'),
        file="baselines/H200/quick/resnet50/Offline.ort.fp16.json",
        source='set 2026-10-02 at 3f2c1ab0d9e8: "onnxruntime 1.20"',
    ),
)
OK = verdict(
    Outcome.OK,
    "samples/s +0.1 % (−0.5 to +0.6 %); within limit −3 %",
    metric(outcome=Outcome.OK, now=24_140.0, change=0.001, low=-0.005, high=0.006),
)
IMPROVED = verdict(
    Outcome.IMPROVED,
    "samples/s +5.0 % (+3.1 to +6.9 %); within limit −3 %",
    metric(outcome=Outcome.IMPROVED, now=25_324.0, change=0.05, low=0.031, high=0.069),
)
INCONCLUSIVE = verdict(
    Outcome.INCONCLUSIVE,
    "samples/s −2.1 % (−4.5 to +0.3 %); undecided at −3 %",
    metric(
        outcome=Outcome.INCONCLUSIVE,
        change=-0.021,
        low=-0.045,
        high=0.003,
        runs=5,
        detectable=0.041,
    ),
)
PROMISED = Guarantee(lacks="few sessions", runs=8, sessions=1, days=1, age_days=1.0, run_sd=0.004)
PROVISIONAL_OK = verdict(
    Outcome.PROVISIONAL,
    "samples/s −0.4 % (−0.9 to +0.2 %); ok if day-to-day variation < 0.6 %",
    metric(
        outcome=Outcome.PROVISIONAL,
        now=24_022.0,
        change=-0.004,
        low=-0.009,
        high=0.002,
        runs=1,
        note="if sessions differ < 0.6 %",
        direction="ok",
        robust_to=0.006,
        lacks="few sessions",
        days=1,
    ),
    baseline=BaselineReference(guarantee=PROMISED),
)
PROVISIONAL_DROP = verdict(
    Outcome.PROVISIONAL,
    "samples/s −6.3 % (−6.9 to −5.7 %); drop for the second day in a row (since 2026-11-19)",
    metric(
        outcome=Outcome.PROVISIONAL,
        note="for the second day in a row (since 2026-11-19)",
        direction="drop",
        robust_to=0.014,
        lacks="few sessions",
        likely=True,
        since="2026-11-19",
        days=4,
    ),
    baseline=BaselineReference(guarantee=replace(PROMISED, sessions=4, days=4)),
)
PROVISIONAL_WARNING = replace(
    PROVISIONAL_DROP,
    headline="samples/s −6.3 % (−6.9 to −5.7 %); drop if day-to-day variation < 1.4 %",
    metrics=(
        replace(PROVISIONAL_DROP.metrics[0], note="if sessions differ < 1.4 %", since=""),
        *PROVISIONAL_DROP.metrics[1:],
    ),
)
SUSPECT = verdict(
    Outcome.SUSPECT,
    "samples/s −2.6 % (−5.0 to −0.3 %); alone it would be a drop, among 24 pairs judged together "
    "it is none, p=0.004",
    metric(
        outcome=Outcome.SUSPECT,
        change=-0.026,
        low=-0.05,
        high=-0.003,
        runs=5,
        note="alone it would be a drop, among 24 pairs judged together it is none, p=0.004",
        p=0.004,
    ),
)
ADVISORY = verdict(
    Outcome.INCONCLUSIVE,
    "samples/s −6.3 % (−6.9 to −5.7 %); advisory: 3 of 5 baseline runs",
    metric(outcome=Outcome.INCONCLUSIVE, note="advisory: 3 of 5 baseline runs", runs_baseline=3),
)
FEW_QUERIES = verdict(
    Outcome.INCONCLUSIVE,
    "p99 latency: under 1,000 queries a run, only reported",
    unset(
        *("latency_p99", None, 0.125),
        baseline=0.123,
        change=0.016,
        runs_baseline=8,
        note="under 1,000 queries a run, only reported",
    ),
    case=replace(CASE, scenario=Scenario.MULTI_STREAM),
)
NO_BASELINE = verdict(
    Outcome.NO_BASELINE,
    "samples/s: baseline of 2026-11-20 is for another machine: power_limit_w 700, here 500",
    unset("throughput", Outcome.NO_BASELINE, 24_140.0, limit=0.03),
    notes=("baseline of 2026-11-20 is for another machine: power_limit_w 700, here 500",),
)
RECORDED = verdict(
    Outcome.RECORDED,
    "8 runs in baselines/H200/quick/resnet50/Offline.ort.fp16.json",
    unset("throughput", Outcome.RECORDED, 24_140.0, limit=0.03, detectable=0.041),
    notes=(
        "can prove no smaller change than 4.1 % in samples/s (limit 3 %): record a longer "
        "baseline (--mlperf-update=append) or widen the limit",
    ),
)
EXPECTED = replace(
    DROP,
    outcome=Outcome.EXPECTED,
    headline=f"PERF DROP {DROP.headline}; until 2027-01-31: issue 812",
)
UNEXPECTED_PASS = replace(
    OK,
    outcome=Outcome.UNEXPECTED_PASS,
    headline=f"remove the expected failure (issue 812): {OK.headline}",
)
INVALID = verdict(
    Outcome.INVALID,
    "offered rate differs: suite 120/s, baseline 100/s",
    case=SERVER,
    logs=Logs(folder=None),
    notes=(
        "latencies at different rates cannot be compared: set target_qps back, or record again "
        'with --mlperf-update=replace --mlperf-reason "..."',
    ),
)
ERROR = verdict(
    Outcome.ERROR,
    "engine: RuntimeError: CUDA out of memory",
    case=SERVER,
    logs=Logs(
        folder=f"{RUNS}/{SERVER.id}.1",
        file=f"{RUNS}/{SERVER.id}.1/engine.log",
        tail=("Traceback (most recent call last):", "RuntimeError: CUDA out of memory"),
    ),
)
SCORED = Accuracy(
    scores={"top1": 71.65}, samples=50_000, total=50_000, full=True, folder=f"{RUNS}/x"
)
KEPT = Gate(state=GateState.KEPT, samples=50_000, total=50_000)
GATE_FAIL = verdict(
    Outcome.GATE_FAIL,
    "top1 71.650 < 75.695, 99 % of MLPerf's reference",
    unset("top1", Outcome.GATE_FAIL, 71.65, baseline=76.46, change=-0.0629, limit=0.01),
    kind=Kind.ACCURACY,
    accuracy=SCORED,
    gate=replace(KEPT, state=GateState.FAILED),
)
UNGATED = verdict(
    Outcome.OK,
    "top1 76.523; no gate: no reference score is known",
    unset("top1", None, 76.523),
    kind=Kind.ACCURACY,
    accuracy=SCORED,
    gate=replace(KEPT, state=GateState.NONE),
)
NOT_EVALUATED = verdict(
    Outcome.NOT_EVALUATED,
    "dummy weights: only speed is judged, not accuracy",
    kind=Kind.ACCURACY,
)
FELL = PairedVerdict(
    metric="rouge1",
    outcome=Outcome.ACC_DROP,
    baseline=44.391,
    now=42.081,
    change=-2.31,
    low=-2.93,
    high=-1.69,
    margin=0.222,
    samples=1024,
    changed=411,
    down=288,
    up=123,
    p=2.1e-9,
)
LENGTH = replace(
    FELL,
    metric="tokens_per_sample",
    baseline=294.4,
    now=301.2,
    change=6.8,
    down=180,
    up=231,
    outcome=None,
    low=None,
    high=None,
    margin=None,
    p=None,
)
ACC_DROP = verdict(
    Outcome.ACC_DROP,
    "rouge1 −2.31 points (−2.93 to −1.69); limit −0.22 exceeded",
    kind=Kind.ACCURACY,
    accuracy=replace(SCORED, samples=1024, total=24_576, full=False),
    gate=Gate(state=GateState.UNDECIDED, samples=1024, total=24_576),
    paired=(FELL, LENGTH),
)
POWER_DROP = verdict(
    Outcome.POWER_DROP,
    "samples/J −6.3 % (−6.9 to −5.7 %); limit −5 % exceeded",
    metric("samples_per_joule", Outcome.POWER_DROP, now=33.1, baseline=35.3, limit=0.05),
    kind=Kind.EFFICIENCY,
)

PAIR_FAIL = verdict(
    Outcome.PAIR_FAIL,
    "samples/s 1.10x (1.08x to 1.13x); claim >= 1.5x refuted",
    case=replace(CASE, workload="sdxl", engine="cached-vs-plain"),
    kind=Kind.PAIR,
    ratio=RatioVerdict(
        metric="throughput",
        outcome=Outcome.PAIR_FAIL,
        a="sdxl-Offline-cached-fp16-H200",
        b="sdxl-Offline-plain-fp16-H200",
        value_a=2.852,
        value_b=2.593,
        ratio=1.1,
        low=1.08,
        high=1.13,
        least=1.5,
        pairs=2,
    ),
    notes=("cached-fp16-H200: accuracy not checked",),
)

ALL = (
    DROP,
    OK,
    IMPROVED,
    INCONCLUSIVE,
    ADVISORY,
    FEW_QUERIES,
    NO_BASELINE,
    RECORDED,
    EXPECTED,
    UNEXPECTED_PASS,
    INVALID,
    ERROR,
    GATE_FAIL,
    UNGATED,
    NOT_EVALUATED,
    ACC_DROP,
    POWER_DROP,
    PAIR_FAIL,
    SUSPECT,
    PROVISIONAL_OK,
    PROVISIONAL_DROP,
    PROVISIONAL_WARNING,
)
