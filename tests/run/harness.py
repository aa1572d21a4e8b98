"""Run a real worker process and listen to it; nothing survives the `with` block."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import hypothesis
import psutil

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.job import Factory, LoadGenSettings, Seeds
from pytest_mlperf.run.child.protocol import Event, RunFinished, WorkerSpec

FEWER = hypothesis.settings(max_examples=max(1, hypothesis.settings().max_examples * 3 // 10))
"""A property has 30 examples, and more in a profile that asks for more than the usual 100."""

LIMIT_S = 60.0
"""A worker that needs longer hangs."""

ROOT = Path(__file__).parents[2]
WORKING_FOLDER = ROOT

SEEDS = Seeds(qsl=3066443479025735752, sample_index=10688027786191513374, schedule=14962580)

NULL = "pytest_mlperf.builtin.null:NullEngine"
SYNTHETIC = "pytest_mlperf.builtin.synthetic:SyntheticDataset"
FAILING = "tests.run.engines_that_fail:"


def settings(scenario: str = "Offline", **changes: Any) -> LoadGenSettings:
    """Return settings of a run that takes a few tenths of a second."""
    fields: dict[str, Any] = {
        "scenario": Scenario(scenario),
        "seeds": SEEDS,
        "target_qps": 5000.0,
        "min_duration_ms": 1,
        "min_query_count": 700,
        "fixed_work_s": 0.2,
        "performance_samples": 256,
        "latency_limit_ns": 1_000_000_000 if scenario == "Server" else None,
        "latency_percentile": 0.9 if scenario == "SingleStream" else 0.99,
    }
    return LoadGenSettings(**{**fields, **changes})


def spec(
    folder: Path,
    *,
    engine: str = NULL,
    options: Mapping[str, Any] | None = None,
    dataset: str = SYNTHETIC,
    dataset_options: Mapping[str, Any] | None = None,
    settings: LoadGenSettings = settings(),  # noqa: B008 - a frozen value
    **changes: Any,
) -> WorkerSpec:
    return WorkerSpec(
        **{
            "folder": str(folder),
            "engine": Factory(target=engine, options=options or {}),
            "dataset": Factory(target=dataset, options=dataset_options or {}),
            "model": None,
            "precision": "int8",
            "settings": settings,
            "warmup_s": 0.01,
            **changes,
        }
    )


class RunningWorker:
    """A worker process as its parent sees it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.folder = Path(spec.folder)
        self.log = self.folder / "engine.log"
        self._deadline_s = time.monotonic() + LIMIT_S
        self._spec = spec
        self._buffer = b""

    def __enter__(self) -> Self:
        file = self.folder / "spec.json"
        file.write_text(self._spec.to_json(), "utf-8")
        self.events, theirs = os.pipe()
        with self.log.open("wb") as log:
            module = "pytest_mlperf.run.worker.worker"
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, file, "--events", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                start_new_session=True,
                cwd=WORKING_FOLDER,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        os.close(theirs)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.events)

    def send(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def next_event(self) -> Event | None:
        """Return the next event, None when the worker closed its end."""
        while b"\n" not in self._buffer:
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self.events], [], [], left_s)[0]:
                raise TimeoutError(f"no event for {LIMIT_S} s; {self.log.read_text('utf-8')}")
            chunk = os.read(self.events, 65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: Event = json.loads(line)
        return event

    def wait_for(self, name: str) -> Event:
        """Return the next event of this name; any other end is a failure that says why."""
        seen = []
        while (event := self.next_event()) is not None:
            if event["event"] == name:
                return event
            seen.append(event)
        log = self.log.read_text("utf-8")
        raise AssertionError(f"no {name!r}; exit {self.exit_code()}; events {seen}; log {log}")

    def exit_code(self) -> int:
        return self.process.wait(max(0.1, self._deadline_s - time.monotonic()))

    def group_is_gone(self) -> bool:
        while time.monotonic() < self._deadline_s:
            if not any(self._in_group(process) for process in psutil.process_iter()):
                return True
            time.sleep(0.01)
        return False

    def _in_group(self, process: psutil.Process) -> bool:
        try:
            return (
                os.getpgid(process.pid) == self.process.pid
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False


def run_to_end(spec: WorkerSpec) -> tuple[list[Event], int]:
    """Run a worker, stop it when it is ready, and return its events and exit code."""
    events: list[Event] = []
    with RunningWorker(spec) as worker:
        while (event := worker.next_event()) is not None:
            events.append(event)
            if event["event"] == "ready":
                worker.send(command="stop")
        return events, worker.exit_code()


def result_of(**changes: Any) -> dict[str, Any]:
    usual = RunFinished(
        issued=125,
        completed=125,
        duration_s=10.0,
        within_se=0.0,
        token_metrics={},
        notes={},
        faults=[],
        completing_threads=1,
        replicas=[],
        answer_forms=[],
        client={},
    )
    return {**asdict(usual), **changes}


def entry(key: str, value: Any, *, is_error: bool = False, is_warning: bool = False) -> str:
    metadata = {"is_error": is_error, "is_warning": is_warning, "file": "x.cc", "line_no": 1}
    text = json.dumps({"key": key, "value": value, "time_ms": 1.5, "metadata": metadata})
    return f":::MLLOG {text}\n"


def only(events: list[Event], name: str) -> Event:
    (event,) = (event for event in events if event["event"] == name)
    return event


def error_of(events: list[Event]) -> Event:
    assert events[-1]["event"] == "error", events
    return events[-1]
