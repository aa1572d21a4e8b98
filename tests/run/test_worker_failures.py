"""An engine that misbehaves ends as one error event, or in a way its parent can see."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from pytest_mlperf.run.child.protocol import Event, WorkerSpec
from tests.run.harness import (
    FAILING,
    RunningWorker,
    error_of,
    run_to_end,
    settings,
    spec,
)

pytestmark = pytest.mark.process

TOKENS = {"tokens": True, "ttft_limit_ns": 10**9, "tpot_limit_ns": 10**9}

NOT_OUTSTANDING = "is not outstanding"


def accuracy_to_end(worker_spec: WorkerSpec) -> tuple[list[Event], int]:
    """Ask for one accuracy block and return the events and the exit code."""
    events: list[Event] = []
    with RunningWorker(worker_spec) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(100)))
        while (event := worker.next_event()) is not None:
            events.append(event)
            if event["event"] == "ready":
                worker.send(command="stop")
        return events, worker.exit_code()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("RaisesInConstructor", "RuntimeError: example failure (in __init__, "),
        ("RaisesOnEnter", "RuntimeError: example failure (in __enter__, "),
        ("RaisesInDescribe", "RuntimeError: example failure (in describe, "),
        ("RaisesInWarmUp", "RuntimeError: example failure (in submit, "),
        ("RaisesInLoadSamples", "RuntimeError: example failure (in load_samples, "),
        ("RaisesInUnloadSamples", "RuntimeError: example failure (in unload_samples, "),
        ("RaisesInSubmit", "RuntimeError: example failure (in misbehave, "),
        ("ExitsInSubmit", "SystemExit: example failure (in misbehave, "),
        ("InterruptsInSubmit", "KeyboardInterrupt: example failure (in misbehave, "),
        ("RaisesInThread", "RuntimeError: example failure (in work, "),
        ("ExitsInThread", "SystemExit: example failure (in work, "),
        ("RaisesInQueue", "RuntimeError: example failure (in work, "),
        ("ReportsFailure", "RuntimeError: example failure"),
        ("RaisesOnExit", "RuntimeError: example failure (in __exit__, "),
        ("RaisesUnprintable", "Unprintable: (no text: its __str__ raised ValueError) (in misbehav"),
        ("ReportsNothing", "sink.failed() was given NoneType; it takes an exception object"),
        ("ReportsFromARecursion", "RecursionError: maximum recursion depth exceeded"),
        ("RunsOutOfMemory", "MemoryError (in __enter__, "),
        ("CompletesTwice", NOT_OUTSTANDING),
        ("RepeatsWithinACall", NOT_OUTSTANDING),
        ("CompletesUnknown", "done() was given id 1, which is not outstanding"),
        ("CompletesInTwoThreads", NOT_OUTSTANDING),
    ],
)
@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_the_worker_names_what_an_engine_did(
    tmp_path: Path, scenario: str, engine: str, message: str
) -> None:
    events, code = run_to_end(spec(tmp_path, engine=FAILING + engine, settings=settings(scenario)))

    error = error_of(events)
    assert (code, error["layer"]) == (70, "engine")
    assert message in error["message"]
    assert [event["event"] for event in events].count("error") == 1


@pytest.mark.parametrize("scenario", ["SingleStream", "MultiStream"])
def test_a_repeated_sample_never_reaches_loadgen(tmp_path: Path, scenario: str) -> None:
    events, _ = run_to_end(
        spec(tmp_path, engine=f"{FAILING}CompletesTwice", settings=settings(scenario))
    )

    (finished,) = (event for event in events if event["event"] == "finished")
    assert finished["result"]["completed"] == finished["result"]["issued"]
    assert len(finished["result"]["faults"]) == 21
    assert finished["result"]["faults"][-1] == "and 980 more"
    assert NOT_OUTSTANDING in error_of(events)["message"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("none", "given no outputs"),
        ("text", "an output of type 'str'; it must be bytes"),
        ("arrays", "an output of type 'memoryview'; it must be bytes"),
        ("numbers", "an output of type 'int'; it must be bytes"),
        ("few", "given 100 ids but 99 outputs"),
        ("empty", "given 100 ids but 0 outputs"),
    ],
)
def test_wrong_outputs_end_an_accuracy_run(tmp_path: Path, outputs: str, message: str) -> None:
    events, code = accuracy_to_end(
        spec(tmp_path, engine=f"{FAILING}WrongOutputs", options={"outputs": outputs})
    )

    error = error_of(events)
    assert (code, error["layer"]) == (70, "engine")
    assert message in error["message"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("none", "given no n_tokens"),
        ("zero", "n_tokens 0; LoadGen needs at least 2"),
        ("one", "n_tokens 1; LoadGen needs at least 2"),
        ("negative", "n_tokens -3; a count of tokens is at least 0"),
        ("few", "given 1 ids but 0 n_tokens"),
        ("many", "n_tokens 1180591620717411303424; no sample has more than 2,147,483,647 tokens"),
        ("no first", "done() came before first_tokens()"),
        ("first twice", "first_tokens() was given id"),
    ],
)
def test_wrong_tokens_end_a_run_that_times_tokens(tmp_path: Path, how: str, message: str) -> None:
    events, code = run_to_end(
        spec(
            tmp_path,
            engine=f"{FAILING}WrongTokens",
            options={"how": how},
            settings=settings("SingleStream", **TOKENS),
        )
    )

    error = error_of(events)
    assert (code, error["layer"]) == (70, "engine")
    assert message in error["message"]


def test_completions_after_the_run_are_dropped_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    monkeypatch.setenv("MLPERF_TEST_LATE_FILE", str(late))
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}CompletesAfterTheEnd")) as worker:
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        late.touch()
        while late.read_text() != "completed":
            assert worker.process.poll() is None
            time.sleep(0.01)
        worker.send(command="accuracy", block=0, indices=[0, 1])

        assert finished["result"]["faults"] == []
        assert NOT_OUTSTANDING in worker.wait_for("error")["message"]
        assert worker.exit_code() == 70


def test_a_folder_deleted_during_the_run_is_an_error_of_loadgen(tmp_path: Path) -> None:
    events, code = run_to_end(
        spec(
            tmp_path,
            engine=f"{FAILING}DeletesFolder",
            options={"folder": str(tmp_path / "performance")},
        )
    )

    error = error_of(events)
    assert (code, error["layer"]) == (70, "loadgen")
    assert "cannot read" in error["message"]


def test_a_full_disk_is_an_error_of_loadgen(tmp_path: Path) -> None:
    events, code = run_to_end(spec(tmp_path, engine=f"{FAILING}FillsDisk"))

    error = error_of(events)
    assert (code, error["layer"]) == (70, "loadgen")
    assert "is cut" in error["message"]


def test_a_folder_that_cannot_be_made_is_an_error_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "performance").write_text("in the way")

    events, code = run_to_end(spec(tmp_path))

    error = error_of(events)
    assert (code, error["layer"]) == (70, "worker")
    assert "performance" in error["message"]


def test_a_thread_that_dies_while_nothing_is_asked_of_the_engine_breaks_no_run(
    tmp_path: Path,
) -> None:
    events, code = run_to_end(spec(tmp_path, engine=f"{FAILING}RaisesInTelemetry"))

    assert (code, events[-1]["event"]) == (0, "leaving")
    assert "example failure" in (tmp_path / "engine.log").read_text()


@pytest.mark.parametrize(
    ("engine", "number"),
    [("KillsItself", signal.SIGKILL), ("Segfaults", signal.SIGSEGV)],
)
def test_a_signal_ends_the_events_without_a_word_and_the_exit_code_names_it(
    tmp_path: Path, engine: str, number: signal.Signals
) -> None:
    events, code = run_to_end(spec(tmp_path, engine=FAILING + engine))

    assert events[-1]["event"] == "running"
    assert code == -number


def test_a_segmentation_fault_leaves_every_threads_stack_in_the_log(tmp_path: Path) -> None:
    run_to_end(spec(tmp_path, engine=f"{FAILING}Segfaults"))

    log = (tmp_path / "engine.log").read_text()
    assert "Segmentation fault" in log
    assert "engines_that_fail.py" in log


def test_threads_that_end_during_the_run_never_give_a_wrong_result(tmp_path: Path) -> None:
    case = settings(target_qps=100_000.0)

    events, code = run_to_end(
        spec(tmp_path, engine=f"{FAILING}CompletesFromDyingThreads", settings=case)
    )

    # LoadGen survives this by chance only.
    if code == 0:
        (finished,) = (event for event in events if event["event"] == "finished")
        assert finished["result"]["completed"] == finished["result"]["issued"]
    else:
        assert (code, events[-1]["event"]) == (-signal.SIGSEGV, "running")


def test_a_lost_sample_shows_as_progress_that_stands_still(tmp_path: Path) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}NeverCompletes")) as worker:
        worker.wait_for("running")
        first, second = (worker.wait_for("progress") for _ in range(2))

        assert first["done"] == second["done"] == 999
        assert worker.process.poll() is None


def test_an_engine_that_hangs_in_load_is_silent_and_can_be_killed(tmp_path: Path) -> None:
    with RunningWorker(spec(tmp_path, engine=f"{FAILING}HangsOnEnter")) as worker:
        worker.wait_for("loading")
        os.killpg(worker.process.pid, signal.SIGKILL)

        assert worker.next_event() is None
        assert worker.exit_code() == -signal.SIGKILL
        assert worker.group_is_gone()


def test_ctrl_c_is_left_to_the_parent(tmp_path: Path) -> None:
    case = settings(target_qps=100.0, fixed_work_s=1.0, min_query_count=1)
    with RunningWorker(spec(tmp_path, options={"latency_s": 0.01}, settings=case)) as worker:
        worker.wait_for("running")
        os.killpg(worker.process.pid, signal.SIGINT)
        worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="stop")

        assert worker.exit_code() == 0
