"""What a worker does when everything is right, each time with LoadGen itself."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import SUITE_SCENARIOS, Scenario
from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog, engine_answers, logged_answers
from pytest_mlperf.run.child.protocol import Event, RunFinished
from pytest_mlperf.run.logs import DETAIL, parse_detail
from tests.run.engines_that_fail import answers
from tests.run.harness import (
    FAILING,
    SEEDS,
    RunningWorker,
    error_of,
    only,
    run_to_end,
    settings,
    spec,
)

pytestmark = pytest.mark.process

SCENARIOS = [name for name in SUITE_SCENARIOS if name.of_loadgen is name and not name.is_curve]
"""LoadGen's own; a closed loop is in test_curve.py."""

TOKEN_LIMITS = {"tokens": True, "ttft_limit_ns": 10**9, "tpot_limit_ns": 10**9}


def names(events: list[Event]) -> list[str]:
    return [event["event"] for event in events if event["event"] != "progress"]


def finished(events: list[Event]) -> RunFinished:
    return RunFinished(**only(events, "finished")["result"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_completes_its_samples_once_in_a_performance_run_and_in_an_accuracy_run(
    tmp_path: Path, scenario: str
) -> None:
    """Inline, so as fast as can be; `accuracy` gives every output of its samples."""
    samples = {"Server": 999, "MultiStream": 8000}.get(scenario, 1000)
    events: list[Event] = []
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}Sound", settings=settings(scenario))) as w:
        while not events or events[-1]["event"] != "ready":
            event = w.next_event()
            assert event is not None
            events.append(event)
        w.send(command="accuracy", block=0, indices=ANSWERED)
        folder = Path(w.wait_for("finished")["folder"])
        w.wait_for("ready")
        w.send(command="stop")
        assert w.exit_code() == 0

    events_to_ready = ["started", "loading", "loaded", "warmed", "running", "finished", "ready"]
    assert names(events) == events_to_ready
    detail, result = parse_detail(tmp_path / "performance" / DETAIL), finished(events)
    assert (detail.valid, detail.num_errors, result.faults) == (True, 0, [])
    assert result.issued == result.completed == samples
    assert result.duration_s > 0
    assert result.completing_threads == 1
    assert folder == tmp_path / "accuracy" / "block-0"
    assert outputs(folder) == dict(zip(ANSWERED, answers(ANSWERED), strict=True))


ANSWERED = [*range(1, 600, 3), 1023, 0, 512]


def outputs(folder: Path) -> dict[int, bytes]:
    assert parse_detail(folder / DETAIL).num_errors == 0
    return {ANSWERED[i]: output for i, output in AccuracyLog(folder / ACCURACY_LOG).items()}


@pytest.mark.parametrize(
    "scenario", [pytest.param("MultiStream", marks=pytest.mark.nightly), "Offline", "Server"]
)
def test_scenarios_measure_tokens_without_errors(tmp_path: Path, scenario: str) -> None:
    case = settings(scenario, **TOKEN_LIMITS)
    options = {"tokens": 4, "latency_s": 2e-5, "threads": 3 if scenario == "Offline" else 1}

    events, code = run_to_end(spec(tmp_path, options=options, settings=case))

    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (code, names(events)[-1], detail.valid, detail.num_errors) == (0, "leaving", True, 0)
    metrics = detail.metrics(Scenario(scenario))
    assert metrics["tokens_per_second"] > 0
    assert ("ttft_p99" in metrics) is (scenario != "Offline")
    assert 1 <= finished(events).completing_threads <= options["threads"]
    ours = finished(events).token_metrics
    assert ours["tokens_per_sample"] == 4.0
    assert {"itl_p50", "itl_p99", "ttft_p50", "tpot_p99"} <= set(ours)
    assert min(ours.values()) > 0


@pytest.mark.parametrize("scenario", ["Offline", "SingleStream", "MultiStream"])
def test_a_rate_is_probed_where_none_is_given(tmp_path: Path, scenario: str) -> None:
    case = settings(scenario, target_qps=None, min_query_count=1, fixed_work_s=0.1)

    events, code = run_to_end(spec(tmp_path, options={"latency_s": 0.002}, settings=case))

    target_qps = only(events, "probed")["target_qps"]
    assert code == 0
    assert 0 < target_qps <= 500 / (8 if scenario == "MultiStream" else 1)
    assert only(events, "running")["settings"]["target_qps"] == target_qps


def test_server_probes_a_rate_that_keeps_its_latency_limit(tmp_path: Path) -> None:
    few = {"target_qps": None, "min_query_count": 1, "performance_samples": 64}
    case = settings("Server", latency_limit_ns=200_000_000, **few)
    options = {"latency_s": 0.005, "threads": 1}

    events, code = run_to_end(spec(tmp_path, options=options, settings=case))

    assert code == 0
    assert 0 < only(events, "probed")["target_qps"] <= 0.8 * 200
    tried = [parse_detail(folder / DETAIL) for folder in (tmp_path / "probe").iterdir()]
    assert min(detail.percentile_ns("latency", 0.99) or 0 for detail in tried) < 160_000_000


def test_an_engine_three_times_as_fast_as_expected_does_not_run_out_of_queries(
    tmp_path: Path,
) -> None:
    rate = {"target_qps": 330.0, "fixed_work_s": None, "min_duration_ms": 300}
    case = settings("MultiStream", samples_per_query=1, **rate)

    run_to_end(spec(tmp_path, options={"latency_s": 0.001}, settings=case))

    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (detail.valid, detail.num_errors) == (True, 0)


def test_one_run_reports_its_settings_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds, equal shares, data set and result; LoadGen ignores an audit.config in its folder."""
    (tmp_path / "audit.config").write_text("*.*.mode = 1\n")
    monkeypatch.setattr("tests.run.harness.WORKING_FOLDER", tmp_path)
    case = settings(equal_issue=True, performance_samples=300)
    data = {"samples": 300, "seed": 3}

    events, _ = run_to_end(
        spec(tmp_path, options={"latency_s": 0.0}, dataset_options=data, settings=case)
    )

    values = parse_detail(tmp_path / "performance" / DETAIL).values
    assert values["effective_qsl_rng_seed"] == SEEDS.qsl
    assert values["effective_sample_index_rng_seed"] == SEEDS.sample_index
    assert values["effective_schedule_rng_seed"] == SEEDS.schedule
    assert values["effective_test_mode"] == "PerformanceOnly"
    running, loaded = only(events, "running"), only(events, "loaded")
    assert finished(events).issued == running["expected"] == 1200
    assert loaded["engine"]["latency_s"] == "0.0"
    assert loaded["dataset"]["samples"] == 300
    assert len(loaded["dataset"]["digest"]) == 64
    kept = json.loads((tmp_path / "performance" / "run.json").read_text("utf-8"))
    assert kept.pop("spent").keys() == {"load_s", "warmup_s"}
    assert kept == {
        "phase": "performance",
        "result": dataclasses.asdict(finished(events)),
        "settings": running["settings"],
    }


def test_accuracy_blocks_of_a_language_model_return_every_output_of_their_samples(
    tmp_path: Path,
) -> None:
    case = settings("Server", performance_samples=64, **TOKEN_LIMITS)
    with RunningWorker(
        spec(tmp_path, engine=f"{FAILING}Sound", settings=case, performance=False)
    ) as worker:
        for number in range(2):
            worker.wait_for("ready")
            worker.send(command="accuracy", block=number, indices=ANSWERED)
            folder = Path(worker.wait_for("finished")["folder"])
            assert folder == tmp_path / "accuracy" / f"block-{number}"
            assert outputs(folder) == dict(zip(ANSWERED, answers(ANSWERED), strict=True))


def test_accuracy_keeps_many_outputs_whole_from_several_threads(tmp_path: Path) -> None:
    indices = list(range(4096))
    options = {"threads": 3, "batch_size": 7}
    data = {"samples": 4096}
    with RunningWorker(
        spec(tmp_path, options=options, dataset_options=data, performance=False)
    ) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=indices)
        folder = Path(worker.wait_for("finished")["folder"])

    log = AccuracyLog(folder / ACCURACY_LOG)
    assert sorted(log.items()) == [(index, index.to_bytes(8, "little")) for index in indices]


def test_a_log_has_the_type_that_the_workloads_script_reads_and_ours_reads_the_engines(
    tmp_path: Path,
) -> None:
    audit = {"mode": 2, "accuracy_log_sampling_target": 512}
    with RunningWorker(
        spec(
            tmp_path,
            settings=settings(audit=audit),
            dataset_options={"samples": 64},
            answer_forms=("int64", "int32"),
        )
    ) as worker:
        folders = [Path(worker.wait_for("finished")["folder"])]
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(64)))
        folders.append(Path(worker.wait_for("finished")["folder"]))

    for folder in folders:
        log = folder / ACCURACY_LOG
        given_answers = engine_answers(log)
        assert {one.data for one in logged_answers(log)} == {
            index.to_bytes(4, "little") for index in given_answers
        }
        assert given_answers == {index: index.to_bytes(8, "little") for index in given_answers}
        assert dict(AccuracyLog(log)) == given_answers
    assert len(given_answers) == 64


def test_progress_comes_while_a_run_lasts(tmp_path: Path) -> None:
    """One that missed its latency limit is complete, and says so."""
    case = settings("Server", latency_limit_ns=1000, target_qps=100.0, fixed_work_s=1.5)

    events, code = run_to_end(spec(tmp_path, options={"latency_s": 0.002}, settings=case))

    done = [
        event["done"]
        for event in events
        if event.get("phase") == "performance" and event["event"] == "progress"
    ]
    assert done
    assert done == sorted(done)
    assert 0 < done[0] < finished(events).issued
    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (code, names(events)[-1]) == (0, "leaving")
    late = detail.values["result_perf_constraints_met"]
    assert (detail.valid, late, detail.num_errors) == (False, False, 0)


def test_a_part_that_cannot_be_built_is_one_line_that_names_the_cause(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str, list[str]]] = [
        ({"options": {"latncy_s": 1.0}}, "engine", ["'latncy_s'", "'latency_s'"]),
        ({"options": {"zzz": 1.0}}, "engine", ["'zzz'", "batch_size", "threads"]),
        ({"dataset_options": {"sample": 5}}, "dataset", ["'sample'", "'samples'"]),
        ({"options": {"batch_size": 0}}, "engine", ["batch_size=0", "at least 1"]),
        ({"dataset_options": {"samples": 0}}, "dataset", ["samples=0"]),
        (
            {"engine": "no_such_module:Engine"},
            "engine",
            ["no module no_such_module in ", "pythonpath"],
        ),
        ({"engine": "pytest_mlperf.builtin.null:Nil"}, "engine", ["null.py has no 'Nil'"]),
        ({"settings": settings("Server", latency_limit_ns=None)}, "worker", ["latency_limit_ns"]),
        ({"dataset": f"{FAILING}BrokenDataset"}, "dataset", ["OSError: example failure"]),
    ]
    for changes, layer, parts in cases:
        events, code = run_to_end(spec(tmp_path, **changes))

        error = error_of(events)
        assert (code, error["layer"]) == (70, layer)
        assert "\n" not in error["message"]
        assert [part for part in parts if part not in error["message"]] == []
        assert error["traceback"].startswith("Traceback")


@pytest.mark.parametrize("end", ["stdin", "stop", "kill", "hang"])
def test_no_end_of_a_worker_leaves_a_server_behind(tmp_path: Path, end: str) -> None:
    """Also if it hangs with the interpreter's lock."""
    engine = f"{FAILING}StartsAServer{'AndHangs' if end == 'hang' else ''}"
    with RunningWorker(spec(tmp_path, engine=engine)) as worker:
        server = int(worker.wait_for("loaded")["engine"]["server"])
        assert os.getpgid(server) == worker.process.pid
        if end != "hang":
            worker.wait_for("ready")
        assert worker.process.stdin is not None
        match end:
            case "stdin" | "hang":
                worker.process.stdin.close()
            case "stop":
                worker.send(command="stop")
            case "kill":
                worker.process.kill()

        assert worker.exit_code() == (-signal.SIGKILL if end in ("kill", "hang") else 0)
        assert worker.group_is_gone()


def test_a_worker_without_a_reader_ends_and_an_engine_gets_time_to_exit(tmp_path: Path) -> None:
    for name in ("deaf", "slow"):
        (tmp_path / name).mkdir()
    case = settings(target_qps=100.0, fixed_work_s=1000.0)
    options = {"latency_s": 0.01}
    with RunningWorker(spec(tmp_path / "deaf", options=options, settings=case)) as worker:
        worker.wait_for("running")
        os.close(worker.events)
        assert worker.exit_code() == 70

    with RunningWorker(spec(tmp_path / "slow", engine=f"{FAILING}ExitsSlowly")) as worker:
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.exit_code() == 0
    assert "engine has exited" in worker.log.read_text("utf-8")
