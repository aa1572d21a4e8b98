"""Test that recorded sessions, judged again, have the stored verdicts byte by byte.

tests/data/replay holds sessions of the plugin on a CPU with all that they were compared with;
tools/record_replay.py records them again. The last digits are those of Linux on x86-64.

Left out are parts that need a measurement (runs interleaved with the baseline's build, the
machine's own speed), the notes of a verdict, and the headline of a claim about two engines: its
numbers are judged again, but the sentence is written during the measurement.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.performance import judge_performance
from pytest_mlperf.bench.policy import Policy, rule_for
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Words
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.rulings.ruling import Ruling, rule_values
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, Verdict
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.judge.ratio import judge_ratio
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.stores.accuracy import AccuracyPasses
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.suite.plan import Planned, plan_suite
from tests.core.made import present

DATA = Path(__file__).parents[1] / "data" / "replay"

WORDS: TypeAdapter[Words] = TypeAdapter(Words)
METRIC_VERDICTS = TypeAdapter(tuple[MetricVerdict, ...])
PAIRED_VERDICTS = TypeAdapter(tuple[PairedVerdict, ...])

OUTCOMES_STORED = {
    "unchanged": ["ok", "PROVISIONAL", "NO BASELINE", "ok", "ok", "ok"],
    "slowed": ["PERF DROP"],
    "wrong": ["ACC DROP", "INVALID"],
}


@dataclass(frozen=True)
class Stored:
    session: str
    result: CaseResult

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict

    @property
    def planned(self) -> Planned:
        cases = plan_suite(DATA / self.result.suite.replace(".mlperf.toml", ".toml"))
        return next(one for one in cases if one.case == self.verdict.case)

    def case(self) -> CaseRuns:
        """Return the case as it was when everything of it was measured."""
        subject = present(self.verdict.subject)
        conditions = Conditions(
            folder=DATA,
            session="replay",
            commit=None,
            handicap=self.result.handicap,
            patience=Patience(),
            lease_limit_s=1.0,
            machine=Machine(cpu=subject.identity),
            control=False,
        )
        case = CaseRuns(self.planned, conditions, POLICY, lambda _: None)
        case.subject = case.scored_subject = subject
        case.runs = list(self.verdict.runs)
        case.rate = self.result.target_qps
        if self.verdict.accuracy is not None:
            stored = present(AccuracyPasses(DATA / self.session).load("pass"))
            case.accuracy, case.scored = stored.accuracy, stored.scored
        return case

    def with_throughput(self, factor: float) -> Stored:
        """Return the same with the throughput of its first run multiplied by `factor`."""
        first, *others = self.verdict.runs
        throughput = first.metrics["throughput"] * factor
        changed = replace(first, metrics={**first.metrics, "throughput": throughput})
        verdict = replace(self.verdict, runs=(changed, *others))
        return replace(self, result=replace(self.result, verdict=verdict))


POLICY = Policy(baselines=DATA / "baselines", accuracy=DATA / "none", root=DATA, confirm="never")


def stored_results() -> Iterator[Stored]:
    for session in OUTCOMES_STORED:
        for result in read_results(DATA / session / "results.json").cases:
            yield Stored(session, result)


STORED = {f"{one.session}: {one.result.test}": one for one in stored_results()}
JUDGED = {name: one for name, one in STORED.items() if one.verdict.kind != "pair"}
PAIRS = {name: one for name, one in STORED.items() if one.verdict.kind == "pair"}


def judged(stored: Stored) -> Ruling:
    """Judge a test again; a run more than it had would be a verdict that was not the last one."""
    case = stored.case()
    if stored.verdict.kind == "accuracy":
        return case.judge_accuracy()
    return judge_performance(case, {Kind.PERFORMANCE})


def text(verdict: Verdict | Ruling) -> str:
    """Return the compared parts as JSON, with every digit of every number."""
    return json.dumps(
        {
            "outcome": verdict.outcome,
            "headline": WORDS.dump_python(verdict.headline, mode="json"),
            "metrics": METRIC_VERDICTS.dump_python(verdict.metrics, mode="json"),
            "paired": PAIRED_VERDICTS.dump_python(verdict.paired, mode="json"),
        },
        ensure_ascii=False,
        indent=1,
    )


def claim(stored: Stored) -> dict[str, Any]:
    """Judge a claim about two engines again; its runs are stored in turns, a before b."""
    ratio, runs = present(stored.verdict.ratio), stored.verdict.runs
    again = judge_ratio(
        rule_values(runs[0::2], ratio.metric),
        rule_values(runs[1::2], ratio.metric),
        direction=METRICS[ratio.metric].direction,
        least=ratio.least,
        rule=rule_for("cpu", stored.result.max_runs),
    )
    numbers = {name: getattr(again, name) for name in ("ratio", "low", "high", "pairs")}
    return {"outcome": outcome_of(again, Outcome.PAIR_FAIL), **numbers}


@pytest.mark.parametrize("name", JUDGED)
def test_a_recorded_session_is_judged_as_it_was(name: str) -> None:
    """Another value of one run is another verdict."""
    stored = JUDGED[name]
    other = stored.with_throughput(1 + 1e-12)
    assert text(judged(stored)) == text(stored.verdict)
    assert not stored.verdict.metrics or text(judged(other)) != text(stored.verdict)


def test_a_recorded_claim_is_judged_as_it_was() -> None:
    """The recorded sessions end in all that matters."""
    outcomes: dict[str, list[str]] = {}
    for stored_claim in STORED.values():
        outcomes.setdefault(stored_claim.session, []).append(stored_claim.verdict.outcome)
    (stored,) = PAIRS.values()
    again = claim(stored)
    stored_ratio = {name: getattr(stored.verdict.ratio, name) for name in again}

    assert outcomes == OUTCOMES_STORED
    assert json.dumps(again) == json.dumps({**stored_ratio, "outcome": stored.verdict.outcome})
    assert claim(stored.with_throughput(1 + 1e-9)) != again


def test_an_undone_drop_is_no_longer_reported_and_a_wrong_answer_changes_the_verdict() -> None:
    """A run at twice its speed undoes what proved the drop: one run more is asked for, or ok."""
    of = {one.verdict.outcome: one for one in JUDGED.values()}
    case = of[Outcome.PERF_DROP].with_throughput(2).case()
    case.rule = replace(case.rule, max_runs=len(case.runs))
    wrong = of[Outcome.ACC_DROP].case()
    scored = present(wrong.scored)
    scores = [*scored.per_sample["top1"]]
    scores[-1] = 0.0 if scores[-1] else 100.0
    wrong.scored = replace(scored, per_sample={"top1": scores})

    assert judge_performance(case, {Kind.PERFORMANCE}).outcome is not Outcome.PERF_DROP
    assert text(wrong.judge_accuracy()) != text(of[Outcome.ACC_DROP].verdict)


@pytest.mark.process
@pytest.mark.quiet
def test_real_sessions_have_the_keys_of_the_recorded_ones() -> None:
    done = subprocess.run(
        [sys.executable, "tools/record_replay.py", "--check"],
        cwd=DATA.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
