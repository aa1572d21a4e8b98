"""What a worker does when everything is right, each time with LoadGen itself."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import get_args

import pytest

from pytest_mlperf.core.job import Scenario
from pytest_mlperf.core.metrics import LOOPS
from pytest_mlperf.run.child.protocol import Event, RunFinished
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.score import ACCURACY, AccuracyLog
from tests.run.engines_that_fail import answers
from tests.run.harness import (
    FAILING,
    SEEDS,
    RunningWorker,
    error_of,
    run_to_end,
    settings,
    spec,
)

pytestmark = pytest.mark.process

SCENARIOS = [name for name in get_args(Scenario) if name not in LOOPS]
"""LoadGen's own; a closed loop is in test_curve.py."""

TOKEN_LIMITS = {"tokens": True, "ttft_limit_ns": 10**9, "tpot_limit_ns": 10**9}


def names(events: list[Event]) -> list[str]:
    return [event["event"] for event in events if event["event"] != "progress"]


def finished(events: list[Event]) -> RunFinished:
    (event,) = (event for event in events if event["event"] == "finished")
    return RunFinished(**event["result"])


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_ends_valid_with_every_sample_completed_once(
    tmp_path: Path, scenario: str, threads: int
) -> None:
    events, code = run_to_end(
        spec(tmp_path, options={"threads": threads}, settings=settings(scenario))
    )

    assert (code, names(events)) == (
        0,
        ["started", "loading", "loaded", "warmed", "running", "finished", "ready", "leaving"],
    )
    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (detail.valid, detail.num_errors) == (True, 0)
    result = finished(events)
    assert result.issued == result.completed > 0
    assert result.faults == []
    assert result.duration_s > 0
    assert 1 <= result.completing_threads <= max(1, threads)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_measures_tokens_without_errors(tmp_path: Path, scenario: str) -> None:
    case = settings(scenario, **TOKEN_LIMITS)

    events, code = run_to_end(
        spec(tmp_path, options={"tokens": 4, "latency_s": 2e-5, "threads": 1}, settings=case)
    )

    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (code, detail.valid, detail.num_errors) == (0, True, 0)
    metrics = detail.metrics(scenario)
    assert metrics["tokens_per_second"] > 0
    assert ("ttft_p99" in metrics) is (scenario != "Offline")
    ours = finished(events).token_metrics
    assert ours["tokens_per_sample"] == 4.0
    assert {"itl_p50", "itl_p99", "ttft_p50", "tpot_p99"} <= set(ours)
    assert min(ours.values()) > 0


@pytest.mark.parametrize("scenario", ["Offline", "SingleStream", "MultiStream"])
def test_a_rate_is_probed_where_none_is_given(tmp_path: Path, scenario: str) -> None:
    events, code = run_to_end(
        spec(
            tmp_path,
            options={"latency_s": 0.002},
            settings=settings(scenario, target_qps=None, min_query_count=1, fixed_work_s=0.1),
        )
    )

    (probed,) = (event for event in events if event["event"] == "probed")
    (running,) = (event for event in events if event["event"] == "running")
    samples_per_query = 8 if scenario == "MultiStream" else 1
    assert code == 0
    assert 0 < probed["target_qps"] <= 500 / samples_per_query
    assert running["settings"]["target_qps"] == probed["target_qps"]


def test_server_probes_a_rate_that_keeps_its_latency_limit(tmp_path: Path) -> None:
    case = settings(
        "Server",
        target_qps=None,
        min_query_count=1,
        performance_samples=64,
        latency_limit_ns=200_000_000,
    )

    events, code = run_to_end(
        spec(tmp_path, options={"latency_s": 0.005, "threads": 1}, settings=case)
    )

    (probed,) = (event for event in events if event["event"] == "probed")
    assert code == 0
    assert 0 < probed["target_qps"] <= 0.8 * 200
    tried = [parse_detail(folder / DETAIL) for folder in (tmp_path / "probe").iterdir()]
    assert min(detail.percentile_ns("latency", 0.99) or 0 for detail in tried) < 160_000_000


@pytest.mark.parametrize(
    ("scenario", "samples"),
    [("Offline", 1000), ("SingleStream", 1000), ("MultiStream", 8000), ("Server", 999)],
)
def test_fixed_work_is_the_same_however_fast_the_engine_is(
    tmp_path: Path, scenario: str, samples: int
) -> None:
    counts = set()
    for name, latency_s in (("fast", 0.0), ("slow", 1e-4)):
        folder = tmp_path / name
        folder.mkdir()
        events, _ = run_to_end(
            spec(folder, options={"latency_s": latency_s}, settings=settings(scenario))
        )
        assert parse_detail(folder / "performance" / DETAIL).valid
        counts.add(finished(events).issued)

    assert counts == {samples}


@pytest.mark.parametrize("scenario", ["SingleStream", "MultiStream"])
def test_an_engine_three_times_as_fast_as_expected_does_not_run_out_of_queries(
    tmp_path: Path, scenario: str
) -> None:
    case = settings(
        scenario, target_qps=330.0, fixed_work_s=None, min_duration_ms=300, samples_per_query=1
    )

    run_to_end(spec(tmp_path, options={"latency_s": 0.001}, settings=case))

    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (detail.valid, detail.num_errors) == (True, 0)


def test_offline_issues_every_sample_equally_often_where_asked(tmp_path: Path) -> None:
    case = settings(equal_issue=True, performance_samples=300)

    events, _ = run_to_end(spec(tmp_path, settings=case))

    (running,) = (event for event in events if event["event"] == "running")
    assert finished(events).issued == running["expected"] == 1200


def test_loadgen_gets_the_seeds_of_the_spec_and_never_its_own(tmp_path: Path) -> None:
    run_to_end(spec(tmp_path))

    values = parse_detail(tmp_path / "performance" / DETAIL).values
    assert values["effective_qsl_rng_seed"] == SEEDS.qsl
    assert values["effective_sample_index_rng_seed"] == SEEDS.sample_index
    assert values["effective_schedule_rng_seed"] == SEEDS.schedule


def test_an_audit_config_in_the_working_folder_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "audit.config").write_text("*.*.mode = 1\n")
    monkeypatch.setattr("tests.run.harness.WORKING_FOLDER", tmp_path)

    run_to_end(spec(tmp_path))

    values = parse_detail(tmp_path / "performance" / DETAIL).values
    assert values["effective_test_mode"] == "PerformanceOnly"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_accuracy_blocks_return_every_output_of_their_samples(
    tmp_path: Path, scenario: str
) -> None:
    blocks = [list(range(1, 600, 3)), [1023, 0, 512], list(range(300))]
    case = settings(scenario, performance_samples=64, **TOKEN_LIMITS)

    with RunningWorker(
        spec(tmp_path, engine=f"{FAILING}Sound", settings=case, performance=False)
    ) as worker:
        for number, indices in enumerate(blocks):
            worker.wait_for("ready")
            worker.send(command="accuracy", block=number, indices=indices)
            folder = Path(worker.wait_for("finished")["folder"])
            assert folder == tmp_path / "accuracy" / f"block-{number}"
            assert parse_detail(folder / DETAIL).num_errors == 0
            log = AccuracyLog(folder / ACCURACY)
            outputs = {indices[i]: output for i, output in log.items()}
            assert outputs == dict(zip(indices, answers(indices), strict=True))
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0


def test_accuracy_keeps_large_outputs_whole_from_several_threads(tmp_path: Path) -> None:
    indices = list(range(4096))

    with RunningWorker(
        spec(
            tmp_path,
            options={"threads": 3, "batch_size": 7},
            dataset_options={"samples": 4096},
            performance=False,
        )
    ) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=indices)
        folder = Path(worker.wait_for("finished")["folder"])

    log = AccuracyLog(folder / ACCURACY)
    assert sorted(log.items()) == [(index, index.to_bytes(8, "little")) for index in indices]


def test_run_json_holds_what_the_finished_event_said(tmp_path: Path) -> None:
    events, _ = run_to_end(spec(tmp_path))

    kept = json.loads((tmp_path / "performance" / "run.json").read_text("utf-8"))
    (running,) = (event for event in events if event["event"] == "running")
    assert kept.pop("spent").keys() == {"load_s", "warmup_s"}
    assert kept == {
        "phase": "performance",
        "result": dataclasses.asdict(finished(events)),
        "settings": running["settings"],
    }


def test_progress_comes_while_a_run_lasts(tmp_path: Path) -> None:
    case = settings(target_qps=100.0, fixed_work_s=1.5, min_query_count=1)

    events, _ = run_to_end(spec(tmp_path, options={"latency_s": 0.01}, settings=case))

    progress = [
        event
        for event in events
        if event["event"] == "progress" and event["phase"] == "performance"
    ]
    assert progress
    assert [event["done"] for event in progress] == sorted(event["done"] for event in progress)
    assert 0 < progress[0]["done"] < 150


def test_the_loaded_event_describes_engine_and_data_set(tmp_path: Path) -> None:
    events, _ = run_to_end(
        spec(tmp_path, options={"latency_s": 0.0}, dataset_options={"samples": 300, "seed": 3})
    )

    (loaded,) = (event for event in events if event["event"] == "loaded")
    assert loaded["engine"]["latency_s"] == "0.0"
    assert loaded["dataset"]["samples"] == 300
    assert len(loaded["dataset"]["digest"]) == 64


def test_a_run_that_missed_its_latency_limit_is_complete_and_says_so(tmp_path: Path) -> None:
    case = settings("Server", latency_limit_ns=1000)

    events, code = run_to_end(spec(tmp_path, options={"latency_s": 1e-5}, settings=case))

    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert (code, names(events)[-1]) == (0, "leaving")
    assert (detail.valid, detail.perf_constraints_met, detail.num_errors) == (False, False, 0)


@pytest.mark.parametrize(
    ("changes", "layer", "parts"),
    [
        ({"options": {"latncy_s": 1.0}}, "engine", ["'latncy_s'", "'latency_s'"]),
        ({"options": {"zzz": 1.0}}, "engine", ["'zzz'", "batch_size", "threads"]),
        ({"dataset_options": {"sample": 5}}, "dataset", ["'sample'", "'samples'"]),
        ({"options": {"batch_size": 0}}, "engine", ["batch_size=0", "at least 1"]),
        ({"dataset_options": {"samples": 0}}, "dataset", ["samples=0"]),
        ({"engine": "no_such_module:Engine"}, "engine", ["no_such_module", "package.module:name"]),
        ({"engine": "pytest_mlperf.engines.null:Nil"}, "engine", ["Nil", "package.module:name"]),
        ({"settings": settings("Server", latency_limit_ns=None)}, "worker", ["latency_limit_ns"]),
        ({"dataset": f"{FAILING}BrokenDataset"}, "dataset", ["OSError: example failure"]),
    ],
)
def test_what_cannot_be_built_is_one_line_that_names_the_cause(
    tmp_path: Path, changes: dict[str, object], layer: str, parts: list[str]
) -> None:
    events, code = run_to_end(spec(tmp_path, **changes))  # type: ignore[arg-type]

    error = error_of(events)
    assert (code, error["layer"]) == (70, layer)
    assert "\n" not in error["message"]
    assert [part for part in parts if part not in error["message"]] == []
    assert error["traceback"].startswith("Traceback")


def test_the_end_of_stdin_ends_the_worker_and_its_whole_group(tmp_path: Path) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}StartsAServer")) as worker:
        server = int(worker.wait_for("loaded")["engine"]["server"])
        worker.wait_for("ready")
        assert os.getpgid(server) == worker.process.pid
        assert worker.process.stdin is not None
        worker.process.stdin.close()

        assert worker.exit_code() == 0
        assert worker.group_is_gone()


def test_an_engine_gets_time_to_exit_when_the_parent_lets_go_at_once(tmp_path: Path) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}ExitsSlowly")) as worker:
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.process.stdin is not None
        worker.process.stdin.close()

        assert worker.exit_code() == 0
    assert "engine has exited" in worker.log.read_text("utf-8")


def test_the_end_of_stdin_ends_a_worker_that_hangs_with_the_interpreter_lock(
    tmp_path: Path,
) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}StartsAServerAndHangs")) as worker:
        worker.wait_for("loaded")
        assert worker.process.stdin is not None
        worker.process.stdin.close()

        assert worker.exit_code() == -9
        assert worker.group_is_gone()


def test_a_killed_worker_leaves_none_of_its_servers_behind(tmp_path: Path) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}StartsAServer")) as worker:
        worker.wait_for("ready")
        worker.process.kill()

        assert worker.group_is_gone()


def test_a_stopped_worker_leaves_none_of_its_servers_behind(tmp_path: Path) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}StartsAServer")) as worker:
        worker.wait_for("ready")
        worker.send(command="stop")

        assert worker.exit_code() == 0
        assert worker.group_is_gone()


def test_a_worker_nobody_listens_to_ends(tmp_path: Path) -> None:
    case = settings(target_qps=100.0, fixed_work_s=1000.0)
    with RunningWorker(spec(tmp_path, options={"latency_s": 0.01}, settings=case)) as worker:
        worker.wait_for("running")
        os.close(worker.events)

        assert worker.exit_code() == 70
