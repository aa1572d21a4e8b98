"""The rule on arrays beside the shipped one: the same word, runs and colour, case by case."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from decisions_lib import rule, two_days
from decisions_lib.noise import Floats
from decisions_lib.performance import SEED
from decisions_lib.worlds import DESIGNS, WORLDS, World
from pytest_mlperf.bench.baseline import noise_of_sessions
from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.rulings.ruling import rule_on
from pytest_mlperf.core.verdict import MetricVerdict, Outcome
from pytest_mlperf.judge.rule_r import RuleR

METRIC = "throughput"
CASE = Case(
    workload="w", scenario=Scenario.OFFLINE, engine="null", precision="fp32", accelerator="1xH200"
)
FILE = Path("baselines", CASE.accelerator, "quick", CASE.workload, f"{CASE.id}.json")
FIRST_DAY = dt.datetime(2026, 11, 1, 10, tzinfo=dt.UTC)
EACH = 8
"""Cases of each world and design: more than 2,000 in all."""

DROPS = (0.0, 0.5, 1.0, 2.0)
"""In limits."""

WORDS = {
    rule.FAIL: "FAIL",
    rule.SEEMS_DROP: "PROVISIONAL drop",
    rule.SEEMS_OK: "PROVISIONAL ok",
    rule.PASS: "ok",
    rule.INCONCLUSIVE: "INCONCLUSIVE",
}


@dataclass(frozen=True)
class Said:
    """What is said of one case on one day."""

    word: str
    runs: int
    red: bool


def differences(part: int = 0, parts: int = 1, each: int = EACH) -> tuple[int, list[str]]:
    """Return how many cases were judged both ways, and where the two differ.

    Args:
        part: Which of `parts`.
        parts: How many there are.
        each: Cases of each world and design.
    """
    settings = [(world, design) for world in WORLDS for design in world.designs][part::parts]
    found = [one for world, design in settings for one in _of(world, design, each)]
    return each * len(settings), found


def _of(world: World, design: str, cases: int) -> Iterator[str]:
    rng = np.random.default_rng([SEED, 10, *world.name.encode(), *design.encode()])
    settings, of = two_days.rule_of(world), world.slots(DESIGNS[design])
    logs = two_days.recorded(rng, world, of, cases, settings)
    logs += np.log1p(-world.limit * rng.choice(DROPS, (cases, 1))) * of.now
    on_arrays = two_days.days(world, of, logs, settings)
    red = two_days.red(on_arrays)
    seen = world.seen(logs)
    for case in range(cases):
        theirs = shipped(world, DESIGNS[design], seen[case], settings)
        ours = [
            Said(WORDS[int(day.decision[case])], int(day.runs[case]), bool(is_red[case]))
            for day, is_red in zip(on_arrays, red, strict=True)
        ]
        if ours != theirs:
            yield f"{world.name}, {design}, case {case}: {ours} on arrays, {theirs} as shipped"


def shipped(world: World, design: Sequence[int], logs: Floats, settings: RuleR) -> list[Said]:
    """Return what the package says of one case's days, with a record as it writes it."""
    of = world.slots(design)
    runs = [
        _run(math.exp(x), session, int(of.days[session]))
        for x, session in zip(logs.tolist(), of.session.tolist(), strict=True)
    ]
    record = _record([run for run, now in zip(runs, of.now, strict=True) if not now], settings)
    said: list[Said] = []
    for session in np.unique(of.session[of.now]):
        today = [run for run in runs if run.session == str(session)]
        verdict = _judged(today, record, world.limit, settings)
        word = f"PROVISIONAL {verdict.direction}" if verdict.direction else _word(verdict.outcome)
        if verdict.seems_drop and verdict.likely and said and said[-1].word == word:
            verdict = replace(verdict, since="the first of these days")
        said.append(Said(word, verdict.runs, verdict.fails))
    return said


def _word(outcome: Outcome | None) -> str:
    words = {Outcome.PERF_DROP: "FAIL", Outcome.OK: "ok", Outcome.IMPROVED: "ok"}
    return words.get(outcome, str(outcome)) if outcome else ""


def _judged(runs: Sequence[Run], record: Record, limit: float, settings: RuleR) -> MetricVerdict:
    """Return the verdict after as many runs as it takes."""
    for count in range(1, settings.max_runs + 1):
        ruling = rule_on(runs[:count], record, {METRIC: limit}, settings)
        if not ruling.more:
            break
    return ruling.metrics[0]


def _run(speed: float, session: int, day: int) -> Run:
    return Run(
        metrics={METRIC: 1000 * speed},
        within_se={},
        samples=10_000,
        queries=10_000,
        duration_s=60.0,
        target_qps=100.0,
        session=str(session),
        started=(FIRST_DAY + dt.timedelta(days=day, minutes=session)).isoformat(),
        commit=None,
        folder="",
    )


def _record(runs: Sequence[Run], settings: RuleR) -> Record:
    kept = [
        BaselineRun(
            metrics=dict(run.metrics),
            within_se={},
            session=run.session,
            started=run.started,
            samples=run.samples,
            duration_s=run.duration_s,
            commit=run.commit,
        )
        for run in runs
    ]
    record = Record(
        identity={},
        target_qps=None,
        qps_source=None,
        fingerprint={},
        runs=tuple(kept),
        minimum_detectable_change={},
        history=(),
    )
    noise = noise_of_sessions(
        record, None, FILE, case=CASE, profile="quick", metrics=[METRIC], rule=settings
    )
    return replace(record, session_noise=noise)
