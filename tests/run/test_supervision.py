"""Whatever a worker does, its parent ends up with one clear error and no process left over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.run.child import process as supervisor
from pytest_mlperf.run.child.process import Patience, WorkerProcess
from pytest_mlperf.run.child.protocol import Event, WorkerSpec
from tests.children import is_gone
from tests.run.harness import FAILING, LIMIT_S, ROOT, settings, spec

pytestmark = pytest.mark.process

PATIENT = Patience(progress_s=LIMIT_S)
IMPATIENT = Patience(progress_s=3.0)


def supervise(worker_spec: WorkerSpec, patience: Patience = PATIENT) -> list[Event]:
    """Run a worker to its end the way a case does, and return its events."""
    events: list[Event] = []
    with WorkerProcess(worker_spec, patience, events.append) as worker:
        worker.wait_for("loaded")
        worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "stop"})
    return events


@pytest.fixture(autouse=True)
def importable_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize(
    ("engine", "code", "note", "logged"),
    [
        ("Sound", 0, "", ""),
        ("LeavesAProcess", None, "", ""),
        ("ExitsVerySlowly", 0, "", "engine has exited"),
        ("RaisesOnExit", None, "raised RuntimeError: example failure (in __exit", ""),
        ("CrashesOnExit", None, "ended the process: it was killed by SIGSEGV", ""),
        ("LeavesOnExit", None, "ended the process: it ended with exit code 3", ""),
        ("HangsOnExit", None, "did not end in 1 s; killed, its thread stacks are", "in __exit__"),
    ],
)
def test_errors_while_an_engine_leaves_are_noted_and_its_results_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    code: int | None,
    note: str,
    logged: str,
) -> None:
    if engine == "HangsOnExit":
        monkeypatch.setattr(supervisor, "STOP_SECONDS", 1.0)
    worker = WorkerProcess(spec(tmp_path, engine=FAILING + engine), PATIENT, lambda _: None)
    with worker:
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "stop"})

    assert finished["result"]["faults"] == []
    assert len(worker.notes) == bool(note)
    assert all(text.startswith(f"the engine's __exit__ {note}") for text in worker.notes)
    assert logged in worker.log.read_text("utf-8")
    assert code in (None, worker._process.returncode)


def test_samples_completed_after_the_last_run_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    monkeypatch.setenv("MLPERF_TEST_LATE_FILE", str(late))
    worker = WorkerProcess(spec(tmp_path, engine=f"{FAILING}CompletesAfterTheEnd"), PATIENT, print)
    with worker:
        worker.wait_for("ready")
        late.touch()
        while late.read_text() != "completed":
            assert worker._process.poll() is None
            time.sleep(0.01)
        worker.send({"command": "stop"})

    (note,) = worker.notes
    assert note.startswith("the engine, after its last run, raised done() was given id ")


@pytest.mark.parametrize(
    ("engine", "layer", "parts"),
    [
        ("RaisesInWarmUp", "engine", ["RuntimeError: example failure", "during warm-up"]),
        ("RaisesInSubmit", "engine", ["example failure", "during the performance run"]),
        ("DeletesFolder", "loadgen", ["cannot read"]),
        ("LeavesADaemonAndEnds", "worker", ["ended with exit code 3 during the performance"]),
        ("KillsItself", "worker", ["killed by SIGKILL", "out of memory"]),
        ("Segfaults", "worker", ["killed by SIGSEGV", "threads that live until the end"]),
        ("LacksItsModel", "", ["example model is not here; set MODELS"]),
    ],
)
def test_a_broken_engine_is_one_run_error_that_names_layer_cause_and_log(
    tmp_path: Path, engine: str, layer: str, parts: list[str]
) -> None:
    """A model that the worker misses is unavailable, and no error."""
    options = {"folder": str(tmp_path / "performance")} if engine == "DeletesFolder" else {}
    pids: list[int] = []

    with (
        pytest.raises(RunError if layer else UnavailableError) as raised,
        WorkerProcess(
            spec(tmp_path, engine=FAILING + engine, options=options),
            PATIENT,
            lambda event: pids.extend([event["pid"]] if event["event"] == "started" else []),
        ) as worker,
    ):
        worker.wait_for("ready")

    assert [part for part in parts if part not in str(raised.value)] == []
    if isinstance(raised.value, RunError):
        assert (raised.value.layer, raised.value.log) == (layer, str(tmp_path / "engine.log"))
    assert is_gone(pids[0])


def test_writes_of_an_engine_to_the_descriptor_of_events_are_one_error(tmp_path: Path) -> None:
    """Stdin is empty for an engine and its processes."""
    for number, (text, message) in enumerate(
        (
            ("x" * 65_536, "bytes without the end of a line"),
            ("[]\n", "not an object that names an event"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(RunError, match=message) as raised:
            supervise(spec(folder, engine=f"{FAILING}WritesToEvents", options={"text": text}))
        assert raised.value.layer == "worker"

    supervise(spec(tmp_path, engine=FAILING + "ReadsStdin"))
    assert "read '' b'' b''" in (tmp_path / "engine.log").read_text("utf-8")


@pytest.mark.parametrize(
    ("engine", "layer", "message", "logged"),
    [
        ("HangsOnEnter", "worker", "no progress for 3 s during load", ""),
        (
            "PrintsForEver",
            "worker",
            "took longer than 12 s during load; .*ini setting mlperf_t",
            "",
        ),
        ("HangsInWarmUp", "worker", "no progress for 3 s during warm-up", ""),
        ("StopsItself", "worker", r"a signal \(SIGSTOP\) stopped its process during warm-up", ""),
        (
            "NeverCompletes",
            "worker",
            r"no progress for 3 s during the performance run.*[\d,]+ samples submitted and not "
            "completed.*stacks are in the log",
            "most recent call first",
        ),
        (
            "KeepsResultsByIndex",
            "engine",
            (
                r"\d+ samples submitted and not completed; each has the index of another sample "
                r"in the run \(first: index \d+\): the engine must store results by id"
            ),
            "",
        ),
        (
            "CompletesOnlyUnknown",
            "engine",
            r"done\(\) was given id -1, which is not outstanding",
            "",
        ),
    ],
)
def test_an_engine_that_stands_still_is_killed_with_the_phase_it_hung_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    layer: str,
    message: str,
    logged: str,
) -> None:
    """It leaves its stacks; after a fault that is named."""
    monkeypatch.setattr(supervisor, "MAX_STOPPED_SECONDS", 1.0)
    with pytest.raises(RunError, match=message) as raised:
        supervise(spec(tmp_path, engine=FAILING + engine), IMPATIENT)

    assert raised.value.layer == layer
    assert logged in (tmp_path / "engine.log").read_text("utf-8")


def test_long_phases_with_progress_do_not_count_as_hanging(tmp_path: Path) -> None:
    """A load of large weights, a warm-up and a probe."""
    loads = tmp_path / "loads"
    loads.mkdir()
    events = supervise(spec(loads, engine=FAILING + "LoadsForLongAndSaysSo"), IMPATIENT)
    assert events[-1]["event"] == "ready"

    case = settings("SingleStream", target_qps=None, fixed_work_s=0.1, min_query_count=64)
    events = supervise(spec(tmp_path, options={"latency_s": 0.01}, settings=case, warmup_s=1.2))
    progress = [event for event in events if event["event"] == "progress"]
    assert {event["phase"] for event in progress} >= {"warm-up", "probe"}
    assert len({(event["phase"], event["done"]) for event in progress}) == len(progress) > 1


PARENT = """
import sys
from pathlib import Path
from pytest_mlperf.run.child.protocol import WorkerSpec
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.child.process import WorkerProcess

spec = WorkerSpec.from_json(Path(sys.argv[1]).read_text("utf-8"))
with WorkerProcess(spec, Patience(), lambda _: None) as worker:
    pid = worker.wait_for("started")["pid"]
    print(pid, worker.wait_for("loaded")["engine"]["server"], flush=True)
    worker.wait_for("nothing of this name")
"""


def test_a_killed_parent_takes_the_worker_and_its_servers_along(tmp_path: Path) -> None:
    """Even one that hangs with the interpreter's lock."""
    file = tmp_path / "given.json"
    engine = f"{FAILING}StartsAServerAndHangs"
    file.write_text(spec(tmp_path, engine=engine).to_json(), "utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker, server = map(int, parent.stdout.readline().split())
        parent.send_signal(signal.SIGKILL)

    assert is_gone(worker)
    assert is_gone(server)
