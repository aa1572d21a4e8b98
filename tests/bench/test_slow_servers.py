"""A server that became slow: its drop is proven also where its runs may prove nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.performance import invalid_run_ruling, judge_performance
from pytest_mlperf.bench.policy import Policy, Update
from pytest_mlperf.bench.runner import Unjudgeable
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal.text import failure
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.suite.plan import plan_suite
from tests.core.made import make_baseline_run, make_record, make_run, on_day
from tests.reports.verdicts import result

QUIET = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.002, 0.998)
FAST = {"throughput": 70.0, "throughput@1": 30.0, "throughput@16": 160.0}
SLOW = {name: value / 5 for name, value in FAST.items()}

FEW = Reason(key=Key.TOO_FEW_REQUESTS, text="at 16: 20 requests in 24 s, 32 are needed")
GROWS = Reason(key=Key.OVERLOADED, text="at 16: overloaded, the queue grew through the window")
NONE_HELD = Reason(key=Key.NO_RATE, text="no rate found: 14/s, the lowest of 8 tried")
DRIFTS = Reason(key=Key.NOT_STEADY, text="at 16: not steady, throughput drifted down by 9%")


def run_of(metrics: dict[str, float], *invalid: Reason, **fields: object) -> Run:
    return make_run(metrics=metrics, invalid=invalid, requests={"1": 30, "16": 20}, **fields)


def case_of(
    folder: Path, valid: Sequence[Run], invalid: Sequence[Run], *, recorded: bool = True
) -> CaseRuns:
    """Return a case with finished runs; the last one is invalid if there is one."""
    file = folder / "s.mlperf.toml"
    file.write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "mine"\n'
        '[[engines]]\nuse = "null"\naccelerators = ["cpu"]\n'
        '[[scenarios]]\nname = "Concurrency"\npoints = [1, 16]\n'
        '[limits]\n"throughput@1" = { max_drop = "5%" }\n"throughput@16" = { max_drop = "5%" }\n',
        "utf-8",
    )
    (planned,) = plan_suite(file)
    conditions = Conditions(
        folder=folder,
        session="now",
        commit=None,
        handicap=0.0,
        patience=Patience(),
        lease_limit_s=1.0,
        machine=Machine(cpu={}),
        control=False,
        watched=True,
    )
    policy = Policy(baselines=folder, accuracy=folder, root=folder, confirm="never")
    case = CaseRuns(planned, conditions, policy, lambda _: None)
    case.subject = Subject(identity={}, fingerprint={})
    case.runs, case.invalid_runs = [*valid], [*invalid]
    if invalid:
        case._broken = Unjudgeable(invalid[-1])
    if recorded:
        case.record = make_record(
            *(
                make_baseline_run(
                    metrics={name: value * factor for name, value in FAST.items()},
                    requests={"1": 90, "16": 480},
                    session=f"session {number // 2}",
                    started=on_day(number // 2),
                )
                for number, factor in enumerate(QUIET)
            ),
            fingerprint={"points": "1, 16"},
        )
    return case


def judged(case: CaseRuns) -> Ruling:
    return judge_performance(case, {Kind.PERFORMANCE})


def test_runs_that_are_invalid_for_being_slow_prove_a_drop_together(tmp_path: Path) -> None:
    """One alone does not, nor runs that are no slower, loaded, drifting, or without a baseline."""
    busy = Contention(window_s=10.0, cores=2, share=0.6)
    for reasons, metrics, count, fields, drops in (
        ([FEW], SLOW, 2, {}, True),
        ([GROWS], SLOW, 3, {}, True),
        ([FEW, GROWS], SLOW, 2, {}, True),
        ([NONE_HELD], SLOW, 2, {}, True),
        ([FEW], SLOW, 1, {}, False),
        ([FEW], FAST, 2, {}, False),
        ([FEW], {name: 0.9 * value for name, value in FAST.items()}, 2, {}, False),
        ([FEW], SLOW, 2, {"contention": busy}, False),
        ([FEW, DRIFTS], SLOW, 3, {}, False),
    ):
        runs = [run_of(metrics, *reasons, **fields) for _ in range(count)]
        if not drops:
            with pytest.raises(Unjudgeable):
                judged(case_of(tmp_path, [], runs))
            continue
        ruling = judged(case_of(tmp_path, [], runs))
        assert ruling.outcome is Outcome.PERF_DROP
        note = Note.of("reasons", reasons=tuple(reason.text for reason in reasons))
        assert ruling.notes[0] == Note.of("last_invalid", reason=note)
    with pytest.raises(Unjudgeable):
        judged(case_of(tmp_path, [], [run_of(SLOW, FEW)] * 2, recorded=False))


def test_runs_that_load_can_have_made_invalid_are_undecided(tmp_path: Path) -> None:
    """Reasons of another kind, an idle machine and a session that records stay INVALID."""
    busy, idle = (Contention(window_s=10.0, cores=2, share=share) for share in (0.6, 0.001))
    lost = Reason(key=Key.GPU_LOST, text="GPU 3 is gone")
    rows: list[tuple[list[Reason], Contention | None, Update | None, Outcome]] = [
        ([DRIFTS], busy, None, Outcome.INCONCLUSIVE),
        ([FEW, GROWS], busy, None, Outcome.INCONCLUSIVE),
        ([DRIFTS], idle, None, Outcome.INVALID),
        ([DRIFTS], None, None, Outcome.INVALID),
        ([DRIFTS, lost], busy, None, Outcome.INVALID),
        ([DRIFTS], busy, "missing", Outcome.INVALID),
    ]
    for reasons, seen, update, outcome in rows:
        run = run_of(FAST, *reasons, contention=seen)
        case = case_of(tmp_path, [], [run])
        case.policy = replace(case.policy, update=update)
        ruling = invalid_run_ruling(case, run)
        assert ruling.outcome is outcome
        assert ruling.headline == reasons[0].text
        assert {metric.metric for metric in ruling.metrics} == set(FAST)


def test_a_drop_that_valid_runs_prove_stands_whatever_the_next_one_is(tmp_path: Path) -> None:
    """One point fell; another one still wants a third run, which drifts in every try."""
    runs = [run_of({**FAST, "throughput@1": 29.2, "throughput@16": 20.0})] * 2
    fell = judged(case_of(tmp_path, runs, [run_of(FAST, DRIFTS)]))
    assert (fell.outcome, fell.dropped) == (Outcome.PERF_DROP, True)
    assert fell.deciding is None or fell.deciding.metric == "throughput@16"

    undecided = [run_of({**FAST, "throughput@1": 29.2})] * 2
    with pytest.raises(Unjudgeable):
        judged(case_of(tmp_path, undecided, [run_of(FAST, DRIFTS)]))


def test_other_answers_beat_a_drop_and_every_invalid_verdict_has_its_figures(
    tmp_path: Path,
) -> None:
    same = " ".join(f"{n}:40" for n in range(30))
    shorter = same.replace(":40", ":20")
    length = {"tokens_per_sample@16": 20.0}
    case = case_of(tmp_path, [run_of({**SLOW, **length}, lengths={"16": shorter})] * 2, [])
    assert case.record
    slower_runs = [
        replace(
            run,
            metrics={**run.metrics, "tokens_per_sample@16": 40.0},
            lengths={"16": same},
        )
        for run in case.record.runs
    ]
    case.record = replace(case.record, runs=tuple(slower_runs))

    ruling = judged(case)

    assert ruling.outcome is Outcome.INVALID
    assert sentence(ruling.headline) == (
        "20 tokens/sample at 16, less than in the baseline (39.2 to 40.8)"
    )
    (whole,) = (m for m in ruling.metrics if m.metric == "throughput")
    assert whole.outcome is None
    assert whole.now == pytest.approx(14.0)
    verdict = Verdict(
        case=case.planned.case,
        kind=Kind.PERFORMANCE,
        outcome=ruling.outcome,
        headline=ruling.headline,
        metrics=ruling.metrics,
    )
    case_result: CaseResult = result(verdict)
    (line,) = (
        one for one in failure(case_result, 140).split("\n") if one.startswith("samples/s at 16")
    )
    assert line.split() == [
        "samples/s",
        "at",
        "16",
        "160",
        "32",
        "−80.0",
        "%",
        "−5",
        "%",
        "reported",
    ]
