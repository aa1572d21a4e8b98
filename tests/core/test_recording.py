"""Test that records are made from runs, with changes described in words."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest

from pytest_mlperf.core.baseline import BaselineRun, HistoryEntry, Record, unknown_facts
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.core.recording import (
    Action,
    acceptance_text,
    baseline_run,
    changes,
    detectable_effects,
    detectable_notes,
    empty_baseline,
    new_record,
    one_day_note,
    recording_obstacle,
)
from pytest_mlperf.core.verdict import Gate, GateState, MetricBaseline, MetricVerdict, Outcome
from pytest_mlperf.judge.rule_r import RuleR
from tests.core.made import make_baseline_run, make_run
from tests.reports.verdicts import OK, run

RULE = RuleR(prior_sd=0.007)
SUBJECT = Subject(
    identity={"gpu": "NVIDIA H200", "mig": None},
    fingerprint={"engine": "onnxruntime", "engine.version": "1.20.1"},
)
RUN = make_run(
    metrics={"throughput": 100.0, "latency_p50": 0.01},
    within_se={"throughput": 0.002},
    samples=24_576,
    session="20261120-ab12",
    started="2026-11-20T10:11:12+00:00",
    commit="9d0e77a1b2c3",
    folder="/somewhere/else",
    ids="0a1b2c3d",
)


def fresh(*values: float) -> list[BaselineRun]:
    return [baseline_run(replace(RUN, metrics={"throughput": value})) for value in values]


def recorded(
    values: tuple[float, ...], old: Record | None = None, action: Action = "record", **fields: Any
) -> Record:
    record_fields: dict[str, Any] = {
        "reason": "first",
        "subject": SUBJECT,
        "target_qps": 120.0,
        "qps_source": "suite",
        "limits": {"throughput": 0.03},
        "rule": RULE,
    }
    return new_record(fresh(*values), old, action=action, **{**record_fields, **fields})


def test_a_baseline_keeps_the_compared_fields_of_a_run() -> None:
    """An energy that may not be judged is not kept."""
    assert baseline_run(RUN) == make_baseline_run(
        metrics={"throughput": 100.0, "latency_p50": 0.01},
        within_se={"throughput": 0.002},
        session="20261120-ab12",
        started="2026-11-20T10:11:12+00:00",
        samples=24_576,
        commit="9d0e77a1b2c3",
        machine="0a1b2c3d",
    )

    per_joule = [f"samples_per_joule{suffix}" for suffix in ("", "_wall", "_dcgm")]
    for gated, metric in product((True, False), (*per_joule, "net_joules_per_sample")):
        run = replace(
            RUN,
            metrics={"throughput": 100.0, metric: 11.0},
            energy={
                source: EnergyReading(source=source, joules=9.0, window_s=3.0, gated=gated)
                for source in Source
            },
        )
        kept = baseline_run(run).metrics
        assert kept == {"throughput": 100.0, **({metric: 11.0} if gated else {})}


def test_the_first_record_has_one_entry_of_history_and_a_new_file_is_named_as_its_case() -> None:
    case = Case(
        workload="resnet50",
        scenario=Scenario.SERVER,
        engine="ort",
        precision="fp16",
        accelerator="H200",
    )
    empty = empty_baseline(case, round_name="v5.0", profile="official")
    record = recorded((100.0, 102.01))

    assert (empty.round, empty.profile, empty.records) == ("v5.0", "official", ())
    assert {name: getattr(empty, name) for name in asdict(case)} == asdict(case)
    assert record.identity == {"gpu": "NVIDIA H200", "mig": None}
    assert record.fingerprint == SUBJECT.fingerprint
    assert (record.target_qps, record.qps_source) == (120.0, "suite")
    (entry,) = record.history
    assert entry.new == pytest.approx({"throughput": 101.0})
    first: dict[str, Any] = {"date": "2026-11-20", "commit": "9d0e77a1b2c3", "reason": "first"}
    assert entry == HistoryEntry(**first, action="record", runs=2, old={}, new=entry.new)


def test_a_replaced_record_keeps_its_history_and_an_appended_session_adds_to_the_runs() -> None:
    old, few = recorded((100.0,) * 8), recorded((100.0,) * 4)

    new = recorded((90.0,) * 5, old, "replace", reason="slower but right")
    more = recorded((102.0,) * 4, few, "append", reason="second session")

    assert [run.metrics["throughput"] for run in new.runs] == [90.0] * 5
    assert [(h.action, h.reason, h.runs) for h in new.history] == [
        ("record", "first", 8),
        ("replace", "slower but right", 5),
    ]
    assert new.history[1].old["throughput"] == pytest.approx(100.0)
    assert new.history[1].new["throughput"] == pytest.approx(90.0)
    assert len(more.runs) == 8
    assert (more.history[-1].action, more.history[-1].runs) == ("append", 8)
    assert more.history[-1].new["throughput"] == pytest.approx(100.995, abs=0.001)


def test_a_longer_baseline_detects_smaller_changes_of_measured_metrics() -> None:
    """Runs of another engine version are not appended."""
    old = recorded((100.0,) * 4)
    other = replace(SUBJECT, fingerprint={**SUBJECT.fingerprint, "engine.version": "1.21.0"})

    with pytest.raises(BaselineError, match=r"engine\.version"):
        recorded((100.0,), old, "append", subject=other)
    assert len(recorded((100.0,), old, "replace", subject=other).runs) == 1

    short, long = recorded((100.0, 101.0)), recorded((100.0, 101.0) * 4)
    detectable, smaller = short.minimum_detectable_change, long.minimum_detectable_change
    lacking = recorded((100.0,), limits={"throughput": 0.03, "latency_p50": 0.05})

    assert set(detectable) == set(lacking.minimum_detectable_change) == {"throughput"}
    assert 0 < smaller["throughput"] < detectable["throughput"]
    least = {"share": detectable["throughput"], "metric": "throughput", "limit": None}
    assert detectable_effects(short) == Note.of(
        "provable", shares=(Note.of("detectable", **least),)
    )
    assert detectable_effects(recorded((1.0, 1.01), limits={})) == Note.of("nothing_provable")


SMALLER: tuple[NoteKey, ...] = ("smaller_days", "smaller_interleaved")


def test_changes_that_fail_on_the_first_day_are_listed_until_there_are_more_days() -> None:
    """Fewer than five runs gate nothing."""
    first, few = recorded((100.0, 101.0) * 4), recorded((100.0, 101.0))
    other = replace(first.runs[0], session="20261121-cd34", started="2026-11-21T10:11:12+00:00")
    limits = {"throughput": 0.03, "latency_p50": 0.05}

    warnings = [
        one_day_note(record, limits, RULE, interleaves=interleaves)
        for record in (first, few, replace(first, runs=(*first.runs, other)))
        for interleaves in (False, True)
    ]

    drop = {"metric": "throughput", "change": pytest.approx(-0.105, abs=5e-4)}
    assert warnings == [
        *(
            Note.of(
                "fails_today", drops=(Note.of("change_in", **drop),), note=Note.of(key, needed=4)
            )
            for key in SMALLER
        ),
        *[None] * 4,
    ]
    times: dict[str, Any] = {"metrics": {"latency_p50": 0.01}, "within_se": {}}
    slower = replace(
        first,
        runs=tuple(replace(run, **times) for run in first.runs),
        minimum_detectable_change={"latency_p50": 0.02},
    )
    note = one_day_note(slower, limits, RULE, interleaves=False)
    rise = {"metric": "latency_p50", "change": pytest.approx(0.074, abs=5e-4)}
    assert note is not None
    assert note.values["drops"] == (Note.of("change_in", **rise),)


def test_changes_since_the_baseline_are_listed_by_key() -> None:
    """A record says when, at which commit and why it was set."""
    fingerprint = recorded((100.0,)).fingerprint
    same = {"engine": "onnxruntime", "engine.version": "1.20.1"}

    upgraded = changes(fingerprint, {**same, "engine.version": "1.21.0"})
    other = changes(fingerprint, {"engine": "null"})

    assert changes(fingerprint, same) == ()
    assert upgraded == ("engine.version 1.20.1 → 1.21.0",)
    assert other == ("engine onnxruntime → null", "engine.version 1.20.1 → absent")
    assert changes(fingerprint, {**same, "dataset": "ab12"}) == ("dataset absent → ab12",)

    record = recorded((100.0,))

    assert acceptance_text(record.history) == 'set 2026-11-20 at 9d0e77a1b2c3: "first"'
    assert acceptance_text(()) is None
    outside_git = replace(record.history[0], commit=None)
    assert acceptance_text((outside_git,)) == 'set 2026-11-20: "first"'


def test_facts_that_one_side_lacks_are_neither_equal_nor_changed() -> None:
    """A server behind a url has weights that no local folder has; dummy weights are known."""
    whole = {
        "dataset": "ab",
        "engine.weights_sha256": "1",
        "engine.model_files_sha256": "2",
        "inputs.first": "3",
        "inputs.first_16": "4",
    }
    less = {n: {k: v for k, v in whole.items() if k != n} for n in whole}
    served = {**less["engine.weights_sha256"], "options": '{"url": "http://127.0.0.1:8000"}'}
    behind = "weights: unknown, the server at the url does not report them"
    no_inputs = {key: value for key, value in whole.items() if not key.startswith("inputs.")}
    of_a_kind = "inputs: not compared, because inputs of this type have no checksum"
    cases: list[tuple[dict[str, str], dict[str, str], tuple[str, ...]]] = [
        (whole, whole, ()),
        ({"engine": "pytest-benchmark"}, {"engine": "pytest-benchmark"}, ()),
        (less["engine.model_files_sha256"], whole, ("model files: not recorded in the baseline",)),
        (whole, less["engine.model_files_sha256"], ("model files: not recorded in this run",)),
        (no_inputs, whole, ("inputs: not recorded in the baseline",)),
        (less["inputs.first_16"], whole, ("inputs after the first: not recorded in the baseline",)),
        (whole, no_inputs, (of_a_kind,)),
        (no_inputs, no_inputs, (of_a_kind,)),
        (served, served, (behind,)),
        (whole, served, (behind,)),
        (served, {**served, "engine.weights": "dummy"}, ()),
        (served, {**whole, **served, "engine.weights_sha256": "1"},
         ("weights: not recorded in the baseline",)),
        *(({"options": text}, {"options": text}, ()) for text in ("", "{", "[]", "[" * 9**5, "{}")),
    ]  # fmt: skip
    for old_facts, new_facts, expected in cases:
        assert unknown_facts(old_facts, new_facts) == expected
        assert {text.split(" ")[0] for text in changes(old_facts, new_facts)} <= {
            "engine.weights"
        } | {"options"}
    assert unknown_facts({}, whole, "A")[0] == "weights: not recorded in A"
    assert changes(whole, {**whole, "inputs.first": "5"}) == ("inputs.first 3 → 5",)


def test_a_baseline_that_cannot_prove_its_own_limit_says_so() -> None:
    pairs = [(0.041, 0.03), (0.03, 0.03), (0.02, 0.03), (None, 0.03), (0.041, None)]
    metrics = [
        MetricVerdict(
            metric="throughput",
            outcome=Outcome.RECORDED,
            now=1.0,
            limit=limit,
            baseline=MetricBaseline(detectable=least),
        )
        for least, limit in pairs
    ]

    def unprovable(*names: str) -> tuple[Note, ...]:
        shares = [Note.of("detectable", share=0.041, metric=name, limit=0.03) for name in names]
        return (Note.of("not_provable", shares=tuple(shares)),)

    noted, *others = [detectable_notes([metric]) for metric in metrics]

    assert others == [()] * 4
    assert noted == unprovable("throughput")
    names = [f"tokens_per_second@{point}" for point in (1, 8)]
    at_points = [replace(metrics[0], metric=name) for name in names]
    assert detectable_notes(at_points) == unprovable(*names)


def test_scores_whose_gate_failed_and_a_latency_limit_missed_twice_are_not_recorded() -> None:
    expected, ok, drop = Outcome.EXPECTED, Outcome.OK, Outcome.PERF_DROP
    for outcome, state in product((ok, expected, Outcome.NO_BASELINE), GateState):
        gate = Gate(state=state, samples=400, total=50_000)
        reason = recording_obstacle(replace(OK, outcome=outcome, gate=gate))
        failed = state is GateState.FAILED
        assert reason == (gate.note if failed else None)
    for outcome, missed in product((expected, drop), range(4)):
        runs = tuple(replace(run(n), limit_missed=n < missed) for n in range(4))
        reason = recording_obstacle(replace(OK, outcome=outcome, runs=runs))
        note = Note.of("limit_missed", count=missed, of=4)
        assert reason == (note if missed > 1 else None)
