"""Pairs of runs: chance draws their order, and load that differs between their sides counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.bench import bench
from pytest_mlperf.bench.interleaved import REPEATS, Interleaved, NotComparable
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.bench.runner import CaseRunner, Unjudgeable
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.suite.plan import plan_suite
from tests.core.made import make_run
from tests.jobs import job_of

RULE = RuleR(tolerated=0.05)
LIMITS = {"throughput": 0.05}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "mine"\n'
        '[[engines]]\nuse = "null"\naccelerators = ["cpu"]\n[[scenarios]]\nname = "Offline"\n',
        "utf-8",
    )
    return job_of(plan_suite(file)[0])


class Side(CaseRunner):
    """A side whose runs are written down: throughput, and the share that load can have taken."""

    def __init__(
        self, name: str, job: Job, log: list[str], runs: Sequence[tuple[float, float]], session: str
    ) -> None:
        self.name, self.log, self.session = name, log, session
        self.runs: list[Run] = []
        self.left_out: list[Run] = []
        self.invalid_runs: list[Run] = []
        self._job_given = job
        self._script: Iterator[tuple[float, float]] = iter(runs)

    @property
    def job(self) -> Job:
        return self._job_given

    def add_run(self, **_: object) -> Run:
        throughput, share = next(self._script)
        self.log.append(self.name)
        seen = Contention(window_s=10.0, cores=2, foreign_s=1.0, share=share)
        run = make_run(metrics={"throughput": throughput}, contention=seen)
        self.runs.append(run)
        return run


def sides(
    job: Job,
    old_values: Sequence[tuple[float, float]],
    new_values: Sequence[tuple[float, float]],
    session: str = "s",
) -> tuple[Side, Side]:
    log: list[str] = []
    return Side("before", job, log, old_values, session), Side("now", job, log, new_values, session)


def pairs(old_side: Side, new_side: Side, rule: RuleR = RULE, **options: Any) -> Interleaved:
    return Interleaved(old=old_side, new=new_side, rule=rule, **options)


def orders(job: Job, session: str, leader: bool) -> list[bool]:
    """Return for each of eight pairs whether the baseline's side ran first."""
    old_side, new_side = sides(job, [(100.0, 0.0)] * 8, [(100.0, 0.0)] * 8, session)
    for _ in range(8):
        leading = new_side if leader else None
        pairs(old_side, new_side, leader=leading).add_pair(LIMITS)
    return [name == "before" for name in old_side.log[::2]]


def test_lines_of_progress_count_the_runs_that_are_left(job: Job, tmp_path: Path) -> None:
    """An INVALID run is repeated under the same number, and no number is above the maximum."""
    side, _ = sides(job, [(100.0, 0.0)] * 3, [])
    vars(side).update(conditions=SimpleNamespace(max_runs=2), _build=None, pair=0)
    titles = []
    for repeats in (0, 1, 0):
        side.invalid_runs += [make_run()] * repeats
        titles.append(side._title(performance=True, at=None))
        side.add_run()
    assert titles == [
        "run 1 of at most 2",
        "run 2 of at most 2 (1 run repeated)",
        "run 3 (1 run repeated)",
    ]
    assert side._title(performance=False, at=None) == "accuracy pass"


def test_chance_draws_the_order_and_a_drift_cancels(job: Job) -> None:
    drawn_orders = [orders(job, f"session {number}", leader=False) for number in range(40)]
    for order in drawn_orders:
        assert order[1::2] == [not first for first in order[::2]]
    for pair in range(8):
        assert 8 <= sum(order[pair] for order in drawn_orders) <= 32, pair
    assert drawn_orders[0] == orders(job, "session 0", leader=False)
    led = [orders(job, f"session {number}", leader=True) for number in range(40)]
    assert all(order[:2] == [False, True] for order in led)
    assert 8 <= sum(order[2] for order in led) <= 32


def test_a_pair_that_load_may_explain_is_measured_again_then_left_out(job: Job) -> None:
    """Load explains that its side is worse. It does not explain that the other side is worse."""
    alike, hidden = (100.0, 0.3), (99.0, 0.36)
    for old_value, new_value, repeats in (
        (alike, (50.0, 0.3), 0),
        (alike, (50.0, 0.34), 0),
        (alike, (50.0, 0.0), 0),
        (alike, (120.0, 0.0), REPEATS + 1),
        (alike, (99.0, 0.36), REPEATS + 1),
        (hidden, (100.0, 0.3), REPEATS + 1),
        ((100.0, 0.04), (99.0, 0.0), 0),
    ):
        a, b = sides(job, [old_value] * 3, [new_value] * 3)
        kept = pairs(a, b).add_pair(LIMITS)
        assert kept is (repeats == 0), (old_value, new_value)
        assert len(a.left_out) == len(b.left_out) == repeats
        assert len(a.runs) == len(b.runs) == kept
    a, b = sides(job, [alike] * 2, [(99.0, 0.36), (99.0, 0.3)])
    assert pairs(a, b).add_pair(LIMITS)
    assert (len(a.runs), len(a.left_out), pairs(a, b).left_out) == (1, 1, "")
    careless = replace(RULE, tolerated=float("inf"))
    assert pairs(*sides(job, [alike], [(50.0, 0.9)]), careless).add_pair(LIMITS)


def test_a_claim_is_held_against_its_own_factor(job: Job) -> None:
    """Half the claimed speed under more load proves nothing, twice the claimed speed does."""
    for faster, kept in ((1.5, False), (4.0, True)):
        a, b = sides(job, [(100.0 * faster, 0.3)] * 3, [(100.0, 0.0)] * 3)
        assert pairs(b, a, least=2.0).add_pair(LIMITS) is kept


def test_pairs_that_are_left_out_end_the_comparison(job: Job) -> None:
    """They count as pairs that the rule allows; those that are left decide, or leave it open."""
    rule = replace(RULE, max_runs=4)
    unlike, even = (99.0, 0.9), (100.0, 0.3)
    a, b = sides(job, [even] * 20, [unlike] * 20)
    with pytest.raises(NotComparable, match="loaded the machine unequally within all 4 pairs"):
        pairs(a, b, rule).judge(LIMITS)
    assert len(a.log) == 2 * 4 * (1 + REPEATS)

    a, b = sides(job, [even] * 20, [unlike] * 9 + [(100.1, 0.3)])
    ratios = pairs(a, b, rule).judge(LIMITS)
    assert (ratios["throughput"].outcome, ratios["throughput"].pairs) == (Answer.INCONCLUSIVE, 1)
    assert pairs(a, b).left_out == (
        "3 pairs (18 runs) left out: the load of other processes may explain the difference "
        "between "
        "the builds"
    )

    a, b = sides(job, [even] * 20, [unlike] * 3 + [(50.0, 0.3), (50.2, 0.3), (49.9, 0.3)])
    assert pairs(a, b, rule).judge(LIMITS)["throughput"].outcome is Answer.FAIL


def test_a_compliance_test_without_a_valid_run_is_invalid_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    """The reasons are those of its last run."""
    too_short = Reason(key=Key.LOADGEN, text="LoadGen: the run was too short")

    def audit(*_: object) -> None:
        raise Unjudgeable(make_run(invalid=(too_short,), folder=str(tmp_path / "runs" / "timed")))

    monkeypatch.setattr(bench, "judge_audit", audit)
    conditions = Conditions(folder=tmp_path, session="s", machine=detect(gpus=False))
    (planned,) = plan_suite(tmp_path / "s.mlperf.toml")
    policy = Policy(root=tmp_path, accuracy=tmp_path / "accuracy")

    verdict = bench.Bench(conditions, policy, print).verdict(planned, Kind.TEST01, [Kind.TEST01])

    assert (verdict.outcome, verdict.kind) == (Outcome.INVALID, "TEST01")
    assert verdict.headline == too_short.text
    assert verdict.case == job.case
