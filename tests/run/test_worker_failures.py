"""An engine that misbehaves ends as one error event, or in a way its parent can see."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests import forked
from tests.run.harness import (
    FAILING,
    RunningWorker,
    error_of,
    only,
    run_to_end,
    settings,
    spec,
)

pytestmark = pytest.mark.process


NOT_OUTSTANDING = "is not outstanding"
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("engine", "scenario", "message"),
    [
        ("RaisesInConstructor", "Offline", "RuntimeError: example failure (in __init__, "),
        ("RaisesOnEnter", "Server", "RuntimeError: example failure (in __enter__, "),
        ("RaisesInDescribe", "Offline", "RuntimeError: example failure (in describe, "),
        ("RaisesInWarmUp", "Server", "RuntimeError: example failure (in submit, "),
        ("RaisesInLoadSamples", "Offline", "RuntimeError: example failure (in load_samples, "),
        ("RaisesInUnloadSamples", "Server", "RuntimeError: example failure (in unload_samples, "),
        ("RaisesInSubmit", "Offline", "RuntimeError: example failure (in misbehave, "),
        ("ExitsInSubmit", "Server", "SystemExit: example failure (in misbehave, "),
        ("InterruptsInSubmit", "Server", "KeyboardInterrupt: example failure (in misbehave, "),
        ("RaisesInThread", "Offline", "RuntimeError: example failure (in work, "),
        ("ExitsInThread", "Server", "SystemExit: example failure (in work, "),
        ("RaisesInQueue", "Offline", "RuntimeError: example failure (in work, "),
        ("ReportsFailure", "Server", "RuntimeError: example failure"),
        ("RaisesOnExit", "Offline", "RuntimeError: example failure (in __exit__, "),
        ("RaisesUnprintable", "Server", "Unprintable: (no text: its __str__ raised ValueError) (i"),
        ("ReportsNothing", "Offline", "sink.failed() was given NoneType; it takes an exception"),
        ("ReportsFromARecursion", "Server", "RecursionError: maximum recursion depth exceeded"),
        ("RunsOutOfMemory", "Offline", "MemoryError (in __enter__, "),
        ("CompletesTwice", "Offline", NOT_OUTSTANDING),
        ("RepeatsWithinACall", "Offline", NOT_OUTSTANDING),
        ("CompletesUnknown", "Server", "done() was given id 1, which is not outstanding"),
        ("CompletesInTwoThreads", "Offline", NOT_OUTSTANDING),
        pytest.param("CompletesInTwoThreads", "Server", NOT_OUTSTANDING, marks=NIGHTLY),
        ("WrongTokens none", "SingleStream", "given no n_tokens"),
        ("WrongTokens one", "SingleStream", "n_tokens 1; LoadGen needs at least 2"),
        ("WrongTokens no first", "SingleStream", "done() came before first_tokens()"),
        ("WrongTokens first twice", "SingleStream", "first_tokens() was given id"),
    ],
)
def test_the_worker_names_the_engines_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, scenario: str, message: str
) -> None:
    if engine == "RunsOutOfMemory":
        forked.use_no(monkeypatch)  # the audit hook of these tests needs memory as well
    name, _, how = engine.partition(" ")
    limits = dict.fromkeys(("ttft_limit_ns", "tpot_limit_ns"), 10**9) if how else {}
    case = settings(scenario, tokens=bool(how), **limits)
    options = {"how": how} if how else {}
    events, code = run_to_end(spec(tmp_path, engine=FAILING + name, options=options, settings=case))

    error = error_of(events)
    assert (code, error["layer"]) == (70, "engine")
    assert message in error["message"]
    assert [event["event"] for event in events].count("error") == 1


def test_a_repeated_sample_never_reaches_loadgen(tmp_path: Path) -> None:
    case = spec(tmp_path, engine=f"{FAILING}CompletesTwice", settings=settings("SingleStream"))
    events, _ = run_to_end(case)

    result = only(events, "finished")["result"]
    assert result["completed"] == result["issued"]
    assert len(result["faults"]) == 21
    assert result["faults"][-1] == "and 980 more"
    assert NOT_OUTSTANDING in error_of(events)["message"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("none", "given no outputs"),
        ("text", "an output of type 'str'; it must be bytes"),
        ("few", "given 100 ids but 99 outputs"),
    ],
)
def test_wrong_outputs_end_an_accuracy_run(tmp_path: Path, outputs: str, message: str) -> None:
    options = {"outputs": outputs}
    case = spec(tmp_path, engine=f"{FAILING}WrongOutputs", options=options, performance=False)
    with RunningWorker(case) as worker:
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(100)))
        error = worker.wait_for("error")
        assert (worker.next_event(), worker.exit_code()) == (None, 70)

    assert error["layer"] == "engine"
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


def test_files_that_cannot_be_kept_are_an_error_of_who_writes_them(tmp_path: Path) -> None:
    """A folder deleted during the run, a full disk, and a folder that cannot be made."""
    (tmp_path / "in the way" / "performance").parent.mkdir()
    (tmp_path / "in the way" / "performance").touch()
    deletes = {"folder": str(tmp_path / "deleted" / "performance")}
    deleting = {"engine": f"{FAILING}DeletesFolder", "options": deletes}
    for name, changes, layer, message in (
        ("deleted", deleting, "loadgen", "cannot r"),
        ("full", {"engine": f"{FAILING}FillsDisk"}, "loadgen", "is truncated"),
        ("in the way", {}, "worker", "performance"),
    ):
        (tmp_path / name).mkdir(exist_ok=True)
        events, code = run_to_end(spec(tmp_path / name, **changes))
        error = error_of(events)
        assert (code, error["layer"]) == (70, layer)
        assert message in error["message"]


@pytest.mark.parametrize(
    ("engine", "code", "last", "words"),
    [
        ("RaisesInTelemetry", 0, "leaving", ["example failure"]),
        ("KillsItself", -signal.SIGKILL, "running", []),
        (
            "Segfaults",
            -signal.SIGSEGV,
            "running",
            ["Segmentation fault", "engines_that_fail.py"],
        ),
    ],
)
def test_a_thread_that_dies_breaks_no_run_and_a_signal_is_named_by_the_exit_code(
    tmp_path: Path, engine: str, code: int, last: str, words: list[str]
) -> None:
    """A fault leaves the stack of every thread in the log."""
    events, ended = run_to_end(spec(tmp_path, engine=FAILING + engine))

    log = (tmp_path / "engine.log").read_text()
    assert (ended, events[-1]["event"]) == (code, last)
    assert [word for word in words if word not in log] == []


def test_threads_that_end_during_the_run_never_give_a_wrong_result(tmp_path: Path) -> None:
    case = settings(target_qps=100_000.0)

    events, code = run_to_end(
        spec(tmp_path, engine=f"{FAILING}CompletesFromDyingThreads", settings=case)
    )

    # LoadGen survives this by chance only.
    if code == 0:
        result = only(events, "finished")["result"]
        assert result["completed"] == result["issued"]
    else:
        assert (code, events[-1]["event"]) == (-signal.SIGSEGV, "running")


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
