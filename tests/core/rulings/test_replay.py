"""Test that judgements stay the same: every field of every verdict on thousands of random cases.

`python -m tests.core.rulings.test_replay` rewrites the file in tests/data after a rule was
changed on purpose.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.measurement import Accuracy, Run, Scored
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.rulings.accuracy import Margin, rule_on_scores
from pytest_mlperf.core.rulings.gate import OWN_REFERENCE, GateWindow, Pass, combine, gate
from pytest_mlperf.core.rulings.multiplicity import (
    SuspectSince,
    interrupted,
    judge_pairs_jointly,
    reset_outcomes,
)
from pytest_mlperf.core.rulings.ruling import rule_on, rule_values
from pytest_mlperf.core.verdict import Outcome, Unchecked, Verdict, with_unchecked_note
from pytest_mlperf.judge.inputs import SessionNoise
from pytest_mlperf.judge.ratio import judge_drop, judge_ratio
from pytest_mlperf.judge.rule_r import RuleR
from tests.core.made import make_accuracy_baseline, make_baseline_run, make_record, make_run


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(gzip.decompress(DATA.read_bytes()))
    return stored


@pytest.mark.slow
def test_every_judgement_is_the_kept_one(kept: dict[str, Any]) -> None:
    replayed_judgements = replayed()
    assert replayed_judgements.keys() == kept.keys()
    changed = [name for name, judgement in replayed_judgements.items() if judgement != kept[name]]
    assert not changed, f"{len(changed)} changed, such as {changed[:5]}"


def test_the_kept_judgements_say_every_word_of_the_rules(kept: dict[str, Any]) -> None:
    """A replay that never met a word would prove nothing of it."""
    names = "OK IMPROVED PERF_DROP ACC_DROP GATE_FAIL SUSPECT PROVISIONAL INCONCLUSIVE NO_BASELINE"

    words = {judgement.get("outcome") for judgement in kept.values()}

    assert {Outcome[name] for name in (*names.split(), "INVALID")} <= words


DATA = Path(__file__).parents[2] / "data" / "judgements.json.gz"

RULE = RuleR(prior_sd=0.007)

LIMITS: tuple[Mapping[str, float], ...] = (
    {"throughput": 0.03},
    {"latency_p50": 0.05, "latency_p99": 0.10},
    {"ttft_p99": 0.10, "tpot_p99": 0.05, "throughput": 0.02},
    {"goodput": 0.05},
)

FACTORS = (0.7, 0.9, 0.95, 0.97, 0.985, 1.0, 1.0, 1.0, 1.02, 1.05, 1.2)

SCENARIO = {"throughput": "Offline", "goodput": "Server", "ttft_p99": "Server"}


def performance(seed: int) -> tuple[list[Run], Record | None, Mapping[str, float]]:
    rng = random.Random(seed)
    limits = rng.choice(LIMITS)
    sessions, runs_per_session = (
        rng.choice(((1, 8), (2, 4), (4, 2), (5, 3), (1, 2))),
        rng.choice((0.5, 1, 3)),
    )
    scatter, queries = 0.004 * runs_per_session, rng.choice((10_000, 10_000, 10_000, 80))
    factor, zero = rng.choice(FACTORS), rng.random() < 0.05

    def measured(common: float) -> dict[str, float]:
        return {name: 100 * common * rng.gauss(1, scatter) for name in limits}

    baseline_runs = []
    for session in range(sessions[0]):
        common = rng.gauss(1, scatter / 3)
        for _ in range(sessions[1]):
            baseline_runs.append(
                make_baseline_run(
                    metrics=measured(common),
                    within_se=dict.fromkeys(limits, scatter / 2),
                    session=f"session {session}",
                    started=f"2026-11-{10 + session:02}T10:00:00+00:00",
                    samples=queries,
                )
            )
    noise = SessionNoise(ratio=1 / 3, df=12.0)
    stored_noise = dict.fromkeys(limits, noise) if rng.random() < 0.4 else {}
    record = make_record(*baseline_runs, session_noise=stored_noise)
    common = rng.gauss(factor, scatter / 3)
    runs = []
    for number in range(rng.randint(1, 5)):
        metrics = measured(common)
        lost = [name for name in metrics if zero and number % 2]
        runs.append(
            make_run(
                metrics={name: value for name, value in metrics.items() if name not in lost},
                within_se=dict.fromkeys(limits, scatter / 2),
                samples=queries,
                queries=queries,
                folder=f"run {number}",
                zero=tuple(name for name in lost if name == "goodput"),
            )
        )
    return runs, record if rng.random() < 0.95 else None, limits


def verdict(seed: int, pairs: int) -> tuple[Verdict, bool]:
    """Return the verdict of rule R on a random case, and whether one more run could decide."""
    runs, record, limits = performance(seed)
    ruling = rule_on(runs, record, limits, RULE, pairs=pairs)
    first = next(iter(limits))
    unchecked = Unchecked.NOT_CHECKED if seed % 3 == 0 else None
    case = Case(
        workload="w",
        scenario=SCENARIO.get(first, "SingleStream"),  # type: ignore[arg-type]
        engine=f"engine-{seed}",
        precision="fp32",
        accelerator="cpu",
    )
    judged = Verdict(
        case=case,
        kind=Kind.PERFORMANCE,
        outcome=ruling.outcome,
        headline=with_unchecked_note(ruling.headline, unchecked),
        unchecked=unchecked,
        metrics=ruling.metrics,
        runs=tuple(runs),
    )
    return judged, ruling.more


def accuracy(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    total, part = 400, rng.random() < 0.4
    worse, flips = rng.choice((0.0, 0.0, 0.01, 0.05, 0.2)), rng.choice((0.0, 0.02, 0.1))
    baseline_scores = [float(100 * (rng.random() < 0.8)) for _ in range(total)]
    new_scores = []
    for value in baseline_scores:
        flipped = 100 - value if rng.random() < flips else value
        new_scores.append(0.0 if rng.random() < worse else flipped)
    order = list(range(total))
    random.Random(1).shuffle(order)
    indices = tuple(sorted(order[:100])) if part else tuple(range(total))
    scores = [new_scores[index] for index in indices]
    mean = sum(scores) / len(scores)
    reference = sum(baseline_scores) / total
    scored = Scored(indices=indices, per_sample={"top1": scores})
    passed = Accuracy(
        scores={"top1": mean}, samples=len(indices), full=not part, folder="", total=total
    )
    baseline = make_accuracy_baseline(
        samples=total, scores={"top1": reference}, steps={"top1": 100}
    )
    measured = Pass(accuracy=passed, scored=scored, order=[] if not part else order, total=total)
    bounds = {"top1": GateWindow(reference=reference, low=0.99 * reference, high=None)}
    gated = gate(
        measured,
        None if seed % 5 == 0 else bounds,
        whose=OWN_REFERENCE if seed % 2 else "MLPerf's",
        complete=False,
        rerun_sd={"top1": 0.3},
    )
    ruling = rule_on_scores(
        baseline,
        {"top1": baseline_scores},
        passed,
        scored,
        order,
        margin=lambda _: Margin(value=1.0, is_share=False),
        sequential=part,
    )
    combined = combine(gated, None if seed % 7 == 0 else ruling, "record it")
    return {
        **words(combined),
        "notes": combined.notes,
        "paired": combined.paired,
        "gate": combined.gate,
        "more": ruling.more,
    }


def words(ruling: Any) -> dict[str, Any]:
    return {"outcome": ruling.outcome, "headline": ruling.headline, "metrics": ruling.metrics}


def brief(judged: Verdict) -> dict[str, Any]:
    """Return the text of a verdict, and only the outcomes of its metrics."""
    metrics = [[m.metric, m.outcome, m.note, m.direction] for m in judged.metrics]
    return {"outcome": judged.outcome, "headline": judged.headline, "metrics": metrics}


def judgements() -> Iterator[tuple[str, Any]]:
    for seed in range(500):
        judged, more = verdict(seed, 1)
        yield f"alone {seed}", {**words(judged), "more": more}
        yield f"interrupted {seed}", brief(interrupted(judged))
    for first in range(1000, 2000, 50):
        many = [verdict(seed, 50)[0] for seed in range(first, first + 50)]
        suspects = {3: SuspectSince("2026-11-19", tuple(m.metric for m in many[3].metrics))}
        settled = judge_pairs_jointly(many[:40], many[40:], 60, RULE, suspects)
        for number, judged_case in enumerate(settled):
            yield f"settled {first + number}", words(judged_case)
            yield f"reopened {first + number}", brief(reset_outcomes(judged_case, 90))
    for seed in range(3000, 3200):
        yield f"accuracy {seed}", accuracy(seed)
    for seed in range(4000, 4200):
        runs, record, limits = performance(seed)
        metric = next(iter(limits))
        new_values, then = (
            rule_values(runs, metric),
            rule_values(record.runs, metric) if record else [],
        )
        fewest = min(len(new_values), len(then))
        if fewest:
            direction = METRICS[metric].direction
            sides = new_values[:fewest], then[:fewest]
            yield f"drop {seed}", judge_drop(*sides, direction=direction, limit=0.05, rule=RULE)
            yield f"claim {seed}", judge_ratio(*sides, direction=direction, least=1.05, rule=RULE)


LEFT_OUT = {"analyses", "sessions", "detectable"}
"""Fields of a metric that its other ones rest on."""


def plain(value: Any) -> Any:
    """Return JSON, numbers with seven digits: the last ones are the platform's."""
    if isinstance(value, Enum):
        return str(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {name: plain(own) for name, own in fields.items() if own and name not in LEFT_OUT}
    if isinstance(value, Mapping):
        return {str(name): plain(own) for name, own in value.items()}
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return value


def replayed() -> dict[str, Any]:
    return {name: json.loads(json.dumps(plain(found))) for name, found in judgements()}


if __name__ == "__main__":
    text = json.dumps(replayed(), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    DATA.write_bytes(gzip.compress(text.encode(), mtime=0))
