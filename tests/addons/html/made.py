"""Sessions of any size, with baselines that have a past."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_mlperf.addons.html.model import Percentiles, RunFiles
from pytest_mlperf.core.baseline import BaselineRun, HistoryEntry, Record
from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.history import CaseHistory, CaseSeries, SessionPoint
from pytest_mlperf.core.recording import acceptance_text
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.roofline.gpu import GpuPrice, PerDollar
from pytest_mlperf.core.verdict import Confirmation, InterleavedRuns, Outcome, Verdict
from tests.reports import verdicts
from tests.reports.verdicts import metric, result, run, verdict

WORKLOADS = ("resnet50", "bert-99", "dlrm-v2-99", "gptj-99", "llama2-70b-99", "retinanet")
ACCELERATORS = ("H100", "H200", "8xH100", "8xH200", "B200", "cpu")
START = dt.date(2024, 1, 1)

HOSTILE = (
    '<img src=x onerror="document.title=1">',
    "</script><script>document.title=1</script>",
    "'\"><svg onload=document.title=1>",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "\u2028\u2029\x1b[2J <!-- ]]>",
    "javascript:document.title=1",
)
"""Texts that a results file from elsewhere may hold."""


def record(
    entries: int = 3, *, value: float = 24_118.0, seed: int = 0, reason: str = "an upgrade"
) -> Record:
    """Return a record whose value was accepted `entries` times, some days apart."""
    chance = random.Random(seed)
    history = list(_past(entries, value, reason, chance))
    mean = history[-1].new["throughput"]
    runs = tuple(
        BaselineRun(
            metrics={"throughput": mean * chance.uniform(0.99, 1.01)},
            within_se={},
            session=f"s{number // 2}",
            started=f"{history[-1].date}T0{number}:00:00+00:00",
            samples=1000,
            duration_s=60.0,
            commit="9d0e77a",
        )
        for number in range(8)
    )
    return Record(
        identity={"gpu": "NVIDIA H200"},
        target_qps=None,
        qps_source=None,
        fingerprint={"engine": "onnxruntime", "engine.version": "1.20.0"},
        runs=runs,
        minimum_detectable_change={"throughput": 0.021},
        history=tuple(history),
    )


def _past(entries: int, value: float, reason: str, chance: random.Random) -> Iterator[HistoryEntry]:
    means: dict[str, float] = {}
    day = START
    for number in range(entries):
        old_means, means = means, {"throughput": value * chance.uniform(0.8, 1.2)}
        yield HistoryEntry(
            date=day.isoformat(),
            commit=f"{chance.randrange(16**7):07x}",
            reason=f"{reason} {number}",
            action="replace" if number else "record",
            runs=8,
            old=old_means,
            new=means,
        )
        day += dt.timedelta(days=chance.randrange(1, 6))


def many(cases: int, entries: int) -> tuple[Results, dict[str, Record]]:
    """Return a session of this many cases, a tenth of which fell, and their baselines by test."""
    case_results: list[CaseResult] = []
    records: dict[str, Record] = {}
    for number in range(cases):
        case = Case(
            workload=WORKLOADS[number % len(WORKLOADS)],
            scenario=Scenario.OFFLINE,
            engine=f"engine{number // 36}",
            precision="fp8",
            accelerator=ACCELERATORS[number // 6 % len(ACCELERATORS)],
        )
        kept = record(entries, value=1000.0 + 7 * number, seed=number)
        case_results.append(_one(case, kept, fell=number % 10 == 0, number=number))
        records[case_results[-1].test] = kept
    return verdicts.session(*case_results, pairs=cases), records


def _one(case: Case, kept: Record, *, fell: bool, number: int) -> CaseResult:
    base = kept.history[-1].new["throughput"]
    share = -0.063 if fell else 0.002 * (number % 5)
    current = base * (1 + share)
    runs = tuple(
        replace(run(place, case=case, throughput=current * (1 + place / 1000)), started=started)
        for place, started in ((1, "2026-11-20T10:11:12+00:00"), (2, "2026-11-20T10:15:12+00:00"))
    )
    outcome = Outcome.PERF_DROP if fell else Outcome.OK
    judged = metric(
        outcome=outcome,
        now=current,
        baseline=base,
        change=share,
        low=share - 0.006,
        high=share + 0.006,
    )
    headline = f"samples/s {share:+.1%}; " + (
        "limit −3 % exceeded" if fell else "within limit −3 %"
    )
    file = f"baselines/{case.accelerator}/quick/{case.workload}/Offline.{case.engine}.fp8.json"
    return result(
        replace(
            verdict(outcome, headline, judged, case=case),
            runs=runs,
            baseline=replace(
                verdict(outcome, headline, judged, case=case).baseline,
                file=file,
                source=acceptance_text(kept.history),
                changed=("engine.version 1.20.0 → 1.20.1",) if fell else (),
            ),
            subject=replace(verdicts.SUBJECT, identity=kept.identity),
        ),
        suite=f"suites/{case.workload}.mlperf.toml",
    )


def hostile() -> tuple[Results, RunFiles]:
    """Return a session in which every text that a file can hold is hostile."""
    case_results = []
    for number, text in enumerate(HOSTILE):
        case = Case(
            workload=text,
            scenario=Scenario.OFFLINE,
            engine=text,
            precision=text,
            accelerator=f"{text}{number}",
        )
        hostile_verdict = replace(
            verdicts.DROP,
            case=case,
            headline=text,
            notes=(text,),
            logs=replace(verdicts.DROP.logs, tail=(text,), folder=text, file=text),
            baseline=replace(verdicts.DROP.baseline, changed=(text,), file=text, source=text),
            subject=replace(
                verdicts.SUBJECT, identity={text: text}, fingerprint={"engine": text, text: text}
            ),
        )
        case_results.append(
            result(
                hostile_verdict, test=f"{text}{number}", suite=text, arguments=(text,), round=text
            )
        )
    records = {one.test: record(30, reason=one.test) for one in case_results}
    results = verdicts.session(*case_results, skipped={text: text for text in HOSTILE})
    results = replace(results, run=HOSTILE[0], started=HOSTILE[1], commit=HOSTILE[2])
    return results, RunFiles(records=records, notes=HOSTILE)


def history(name: str, *, drop: float = 0.0, sessions: int = 40) -> CaseHistory:
    """Return a case whose level falls after three quarters of its sessions."""
    rng = random.Random(name)
    points = [
        SessionPoint(
            run=f"run-{n}",
            started=f"2026-{1 + n // 28:02}-{1 + n % 28:02}T06:00:00+00:00",
            commit=f"{n:012x}",
            value=100 * (1 - drop * (n >= sessions * 3 // 4)) * math.exp(rng.gauss(0, 0.004)),
            runs=2,
            baseline=100.0 if n < 10 else 101.0,
            outcome="PERF DROP" if drop and n == sessions - 1 else "ok",
            failed=bool(drop) and n == sessions - 1,
            accepted=False,
            fingerprint={"engine": "trtllm", "engine.version": "1.0.0" if n < 20 else "1.1.0"},
        )
        for n in range(sessions)
    ]
    case = Case(
        workload=name,
        scenario=Scenario.OFFLINE,
        engine="trtllm",
        precision="fp8",
        accelerator="H200",
    )
    series = CaseSeries(
        case=case,
        kind=Kind.PERFORMANCE,
        profile="quick",
        metric="throughput",
        identity={"gpu": "H200", "power_limit_w": 700},
        conditions={},
    )
    return CaseHistory(series=series, points=points)


def everything() -> tuple[Results, RunFiles]:
    """Return a session with every kind of verdict and every figure."""
    case_results = [
        result(replace(one, case=replace(one.case, engine=f"{one.case.engine}{number}")))
        for number, one in enumerate(verdicts.ALL)
    ]
    hungry = replace(
        verdicts.POWER_DROP,
        case=replace(verdicts.CASE, engine="hungry"),
        runs=tuple(run(n, throughput=90.0, samples_per_joule=0.5 + n / 100) for n in (1, 2)),
    )
    case_results += [result(against())]
    case_results += [result(_served()), result(hungry), result(_curve()), result(_open())]
    fallen, test = case_results[0].test, case_results[-3].test
    logged = [(0.0, 0.004), (0.5, 0.02), (0.9, 0.03), (0.99, 0.06), (0.999, 0.08)]
    moments = [(n / 2, 0.02, 0.05, n % 4) for n in range(60)]
    took = {"before": 3.0, "measured": 4.0, "accuracy pass": 1.5}
    files = RunFiles(
        records={fallen: record(30), test: record(2)},
        percentiles={
            test: [Percentiles(timed="latency", points=logged, limit_s=0.1, limit_share=0.99)]
        },
        moments={test: moments},
        power={test: _trace()},
        spent={one.test: [took] for one in case_results[:9]},
        sessions={case_results[0].verdict.case.id: [history("x", drop=0.05)]},
        folder=True,
    )
    return verdicts.session(
        *case_results, skipped={"suites/x.toml::test_accuracy[y]": "no model"}
    ), files


def against() -> Verdict:
    """Return a verdict by four pairs of runs of this and another build."""
    slow, fast = ([run(n, throughput=rate + n) for n in range(1, 5)] for rate in (80.0, 100.0))
    state, case = Confirmation.PROVEN, replace(verdicts.CASE, engine="paired")
    other = InterleavedRuns(state=state, build="git v1", pairs=4, runs=4, other_runs=tuple(fast))
    return replace(verdicts.DROP, case=case, runs=tuple(slow), interleaved=other)


def _served() -> Verdict:
    """Return a Server verdict with two runs and a price."""
    price = GpuPrice(usd_per_gpu_hour=3.29, as_of=dt.date(2026, 11, 1))
    judged = metric("latency_p99", Outcome.OK, now=0.06, baseline=0.061, change=-0.016, limit=0.1)
    return replace(
        verdicts.OK,
        case=replace(verdicts.SERVER, engine="served"),
        runs=tuple(
            run(n, throughput=90.0, latency_p50=0.02, latency_p99=0.05 + n / 100) for n in (1, 2)
        ),
        metrics=(judged,),
        cost=PerDollar(value=9.8e4, of="samples", gpus=1, price=price),
    )


CURVE = {1: (96.0, 95.0), 8: (700.0, 82.0), 64: (2900.0, 41.0)}
"""Tokens/s of all and of one user, by requests under way."""


def _curve() -> Verdict:
    """Return a curve of which one point fell."""
    metrics: dict[str, Any] = {
        name: value
        for point, (rate, user) in CURVE.items()
        for name, value in (
            (f"tokens_per_second@{point}", rate),
            (f"tps_per_user@{point}", user),
        )
    }
    judged = tuple(
        metric(
            f"tokens_per_second@{point}",
            Outcome.PERF_DROP if point == 64 else Outcome.OK,
            now=rate,
            baseline=rate / (0.92 if point == 64 else 1.0),
            change=-0.08 if point == 64 else 0.0,
            low=-0.1 if point == 64 else -0.02,
            high=-0.06 if point == 64 else 0.02,
            limit=0.05,
        )
        for point, (rate, _) in CURVE.items()
    )
    return replace(
        verdicts.DROP,
        case=replace(verdicts.CASE, scenario=Scenario.CONCURRENCY, engine="curve"),
        runs=(run(1, **metrics), run(2, **metrics)),
        metrics=judged,
    )


def _open() -> Verdict:
    """Return an open loop at two rates, one of them below 1/s."""
    took, ends = {0.5: 0.11, 4: 0.18}, {"change": 0.02, "low": -0.01, "high": 0.05}
    judged = tuple(
        metric(f"ttft_p50@{rate}", Outcome.OK, now=s, baseline=s / 1.02, **ends)
        for rate, s in took.items()
    )
    metrics: dict[str, Any] = {f"ttft_p50@{rate}": s for rate, s in took.items()}
    return replace(
        verdicts.OK,
        case=replace(verdicts.CASE, scenario=Scenario.OPEN_LOOP, engine="open"),
        runs=(run(1, **metrics), run(2, **metrics)),
        metrics=judged,
    )


def _trace() -> dict[str, Any]:
    """Return two GPUs of which heat and the power cap held the clocks back."""
    times = [s / 5 for s in range(-20, 100)]
    values = [None if 10 < s / 5 < 12 else 480.0 + s % 7 for s in range(-20, 100)]
    series = {name: [times, values] for name in ("power", "clock", "temperature")}
    machine = "2 x NVIDIA H200, driver 595.45.04; the window began 2026-11-20 10:11:12 UTC"
    held = "heat (hardware) 12 %, power cap 31 %"
    return {
        "plot": "power",
        "says": (
            f"{machine}. LoadGen's window is shaded; so are times with reduced clocks: {held}. By "
            "NVML, not MLPerf Power."
        ),
        "window": 15.0,
        "gpus": [{"name": f"GPU {n}", "limit": 700.0, **series} for n in range(2)],
        "held": [
            ("heat (hardware) 12 %", "fail", [(3.0, 4.8)]),
            ("power cap 31 %", "open", [(6.0, 9.0), (9.5, 9.6)]),
        ],
    }
