"""Pytest ended in the middle of a measurement: nothing of ours is left behind."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from pytest_mlperf.core.extension import REPLICA_NUMBER
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.processes import OUT_OF_MEMORY
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import LIGHT, PERFORMANCE, Project, case, last_line

pytestmark = pytest.mark.quiet

LIMIT_S = 60.0
"""A pytest process that needs longer hangs."""

GONE_S = 20.0
"""Time for everything to be gone after a signal: two seconds by design; execnet takes six more."""

SERVES = """
import subprocess, time
from pytest_mlperf.core.extension import Engine

class Serves(Engine):
    \"\"\"Starts a server of its own, and is measured for longer than any test waits.\"\"\"

    def __init__(self, dataset, model, precision):
        pass

    def __enter__(self):
        self.server = subprocess.Popen(["sleep", "1000"])
        return self

    def __exit__(self, *error):
        self.server.kill()

    def submit(self, ids, indices, sink):
        for id in ids:
            time.sleep(0.002)
            sink.done([id])
"""

LONG = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "10min"
"""


def write(project: Project, replicas: int = 1) -> None:
    """Write a suite that breaks at once, and one whose measurement is interrupted."""
    project.pytester.makepyfile(serves=SERVES)
    project.suite("suites/a.mlperf.toml", name="broken")
    project.breaks(case(workload="broken"))
    project.suite(
        "suites/b.mlperf.toml",
        name="long",
        engines=f'[[engines]]\nuse = "serves:Serves"\nname = "serves"\nreplicas = {replicas}\n',
        scenarios=LONG,
    )


@contextlib.contextmanager
def measuring(
    project: Project, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """Run pytest in a process of its own until LoadGen runs and all other tests have ended.

    Yields:
        The process, and it with all that came from it.
    """
    with (project.path / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *LIGHT, "-p", "no:benchmark", "-v", *arguments],
            cwd=project.path,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    everyone: list[psutil.Process] = []
    try:
        wait_for_measurement(project, process, broken="suites" in arguments)
        everyone = family(process.pid)
        yield process, everyone
    finally:
        for process_to_kill in everyone or family(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process_to_kill.kill()
        process.wait()


def wait_for_measurement(
    project: Project, process: subprocess.Popen[bytes], *, broken: bool
) -> None:
    deadline = time.monotonic() + LIMIT_S
    begun = over = False
    while not (begun and over):
        output = (project.path / "output.txt").read_text("utf-8", "replace")
        assert process.poll() is None, output
        assert time.monotonic() < deadline, output
        begun = any(project.path.glob(".mlperf/runs/*/long-*/performance/mlperf_log_detail.txt"))
        over = not broken or bool(
            re.search(r"^.*\[broken-.* ERROR|^.* ERROR .*\[broken-", output, re.M)
        )
        time.sleep(0.02)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that came from it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait, and return the processes that do not end; a zombie counts as ended."""
    deadline = time.monotonic() + GONE_S
    left = processes
    while left and time.monotonic() < deadline:
        left = [process for process in left if is_alive(process)]
        time.sleep(0.02)
    return left


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def accelerator_is_free(project: Project) -> None:
    """Measure once more, with little patience for a lease that was not given back."""
    project.suite("suites/first.mlperf.toml")

    result = project.run(PERFORMANCE, "-omlperf_lease_timeout=5", "--mlperf-runs-dir=next")

    assert last_line(result) == "1 no baseline"


@pytest.mark.parametrize(
    ("number", "distribution", "replicas"),
    [
        (signal.SIGINT, [], 1),
        (signal.SIGINT, ["-n", "2"], 1),
        (signal.SIGINT, [], 8),
        (signal.SIGTERM, [], 1),
        (signal.SIGKILL, [], 1),
        (signal.SIGKILL, ["-n", "1"], 1),
        (signal.SIGKILL, [], 8),
    ],
)
def test_a_pytest_that_is_ended_leaves_no_process_and_no_lease(
    project: Project, number: signal.Signals, distribution: list[str], replicas: int
) -> None:
    """Ctrl-C keeps finished results, too."""
    write(project, replicas)
    interrupted = number is signal.SIGINT
    suite = "suites" if interrupted else "suites/b.mlperf.toml"

    with measuring(project, suite, *distribution) as (process, everyone):
        names = [" ".join(p.cmdline()) for p in everyone]
        process.send_signal(number)
        code = process.wait(LIMIT_S)

        assert left_of(everyone) == []

    assert len(everyone) >= 4  # pytest, the worker, its guard, the engine's server
    assert any("pytest_mlperf.run.worker" in name for name in names)
    assert names.count("sleep 1000") == replicas
    assert code == (pytest.ExitCode.INTERRUPTED if interrupted else -number)
    if interrupted:
        (result,) = project.results().cases
        assert (result.verdict.case.workload, result.verdict.outcome) == ("broken", Outcome.ERROR)
        assert "KeyboardInterrupt" in (project.path / "output.txt").read_text("utf-8")
    accelerator_is_free(project)


@pytest.mark.parametrize(
    ("replicas", "headline"),
    [
        (1, "worker: the worker was killed by SIGKILL during "),
        (8, f"engine: replica 5 was killed by SIGKILL; {OUT_OF_MEMORY} (during the performance"),
    ],
    ids=["worker", "replica"],
)
def test_a_killed_process_is_an_error_of_its_case_only(
    project: Project, replicas: int, headline: str
) -> None:
    write(project, replicas)

    with measuring(project, "suites") as (process, everyone):
        if replicas == 1:
            children = psutil.Process(process.pid).children()
            names = {child: " ".join(child.cmdline()) for child in children}
            (victim,) = (p for p, name in names.items() if "pytest_mlperf.run.worker" in name)
        else:
            numbers = {p: p.environ().get(REPLICA_NUMBER) for p in everyone if p.children()}
            (victim,) = (p for p, number in numbers.items() if number == "5")
        victim.kill()
        code = process.wait(LIMIT_S)

        assert left_of(everyone) == []

    assert code == pytest.ExitCode.TESTS_FAILED
    verdicts = {r.verdict.case.workload: r.verdict for r in project.results().cases}
    assert sentence(verdicts["long"].headline).startswith(headline)
    accelerator_is_free(project)


def test_an_engine_that_hangs_is_ended_after_its_patience(project: Project) -> None:
    project.pytester.makepyfile(hangs=SERVES.replace("sink.done([id])", "time.sleep(1000)"))
    project.suite(engines='[[engines]]\nuse = "hangs:Serves"\nname = "hangs"\n')
    children_at_start = {child.pid for child in psutil.Process().children(recursive=True)}

    project.run("suites", "-omlperf_timeout=1")

    verdict = project.verdicts()["performance"]
    assert verdict.outcome is Outcome.ERROR
    assert sentence(verdict.headline).startswith("worker: no progress for 1 s during ")
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in children_at_start]
    assert left_of(left) == []


def test_a_second_interrupt_ends_pytest_without_a_traceback(project: Project) -> None:
    """The first one comes in a test, the second while the session ends."""
    project.suite("suites/a.mlperf.toml")
    project.pytester.makeconftest(
        """
        import os, signal, pytest

        def pytest_runtest_call(item):
            os.kill(os.getpid(), signal.SIGINT)

        def pytest_sessionfinish():
            os.kill(os.getpid(), signal.SIGINT)
        """
    )

    result = project.pytester.runpytest_subprocess(*LIGHT, "suites")

    assert result.ret == -signal.SIGINT
    assert "Traceback" not in f"{result.stdout}{result.stderr}"
