"""A machine is looked at before a job, and left idle after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children import shebang
from tests.workflows.github import Runner, workflow

pytestmark = pytest.mark.process

GPU = workflow("gpu")
CHECK = GPU.script("run", "Refuse a machine that is not idle")
CLEAN = GPU.script("run", "Leave nothing behind")

SMI = """{shebang}
import sys
if "--query-gpu=index,memory.used" in sys.argv:
    print({memory!r}, end="")
elif "--query-compute-apps=pid,used_memory" in sys.argv:
    print({processes!r}, end="")
else:
    sys.exit("unknown")
sys.exit({code})
"""
"""nvidia-smi as far as it is asked; its form with --format=csv,noheader,nounits."""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a job of its own name, with our scripts below `control`."""
    fake_runner = Runner(tmp_path, env={"MLPERF_JOB": f"job-{os.getpid()}-{tmp_path.name}"})
    fake_runner.scripts_of_ours("control")
    return fake_runner


def smi(runner: Runner, memory: str, processes: str = "", code: int = 0) -> None:
    text = SMI.format(shebang=shebang(), memory=memory, processes=processes, code=code)
    runner.put("nvidia-smi", text)


STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
signal.pause()
"""


def started(env: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    """Return a process that runs and does not end when it is asked to."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], env={**os.environ, **env}, text=True, stdout=-1, **options
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[str]]:
    with started({"MLPERF_JOB": "another"}) as process:
        yield process
        process.kill()


def test_processes_left_by_a_job_are_ended_and_no_others(
    runner: Runner, stranger: subprocess.Popen[str]
) -> None:
    """Even one that ignores SIGTERM; another job's is left alone. What was measured goes."""
    for name in ("change", "plan", "control/kept"):
        (runner.workspace / name / "deep").mkdir(parents=True)
    with started(runner.env, start_new_session=True) as left:
        smi(runner, "0, 4\n")
        done = runner.run(f"{CLEAN} --grace 0.3")
        assert left.wait(10) == -signal.SIGKILL

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"left running: {left.pid}\n" in done.stdout
    assert stranger.poll() is None
    assert sorted(path.name for path in runner.workspace.iterdir()) == ["control"]


def test_a_machine_that_is_not_idle_is_refused(runner: Runner) -> None:
    """Before a job and after it."""
    for memory, processes, code, message in (
        ("0, 4\n1, [N/A]\n", "", 0, ""),
        ("0, 4\n1, 80123\n", "", 0, "::error::GPU 1 has 80123 MiB in use"),
        ("0, 4\n", "4711, 300\n", 0, "::error::process 4711 is on a GPU with 300 MiB"),
        ("Failed to initialize NVML\n", "", 9, "::error::nvidia-smi says: Failed to initialize"),
    ):
        smi(runner, memory, processes, code)
        for script in (CHECK, CLEAN) if "80123" in memory or not message else (CHECK,):
            done = runner.run(f"{script} --settle 0", RUNNER_NAME="h200-a")

            assert done.returncode == bool(message)
            assert message in done.stdout + done.stderr
            assert message or done.stdout.endswith("the machine is idle\n")


def test_gpus_of_this_runner_count_and_have_time_to_become_idle(runner: Runner) -> None:
    """Two runners share a machine by CUDA_VISIBLE_DEVICES; the neighbour's load is not ours."""
    runner.put(
        "nvidia-smi", '#!/bin/sh\ncase "$*" in *--id=GPU-1*) ;; *) echo "0, 80000" ;; esac\n'
    )

    runner.ends(1, f"{CHECK} --settle 0")
    for visible in ("GPU-1", "", "-1"):
        runner.ends(0, f"{CHECK} --settle 0", CUDA_VISIBLE_DEVICES=visible)

    busy = runner.folder / "busy"
    busy.touch()
    runner.put(
        "nvidia-smi",
        f'#!/bin/sh\ncase "$*" in *memory.used*) if [ -e {busy} ]; then rm {busy}; '
        'echo "0, 9000"; else echo "0, 4"; fi;; esac\n',
    )

    runner.ends(0, f"{CHECK} --settle 20")


def test_python_files_left_by_an_earlier_job_do_not_run(runner: Runner) -> None:
    """A `usercustomize` in the home of the runner is imported by every Python that starts there."""
    smi(runner, "0, 4\n")
    home = runner.folder / "home"
    site_packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for folder in (home / ".local" / site_packages, runner.folder / "path"):
        folder.mkdir(parents=True)
        for name in ("usercustomize", "sitecustomize", "argparse"):
            text = f"open({str(runner.folder / 'pwned')!r}, 'w')\nraise SystemExit(0)\n"
            (folder / f"{name}.py").write_text(text, "utf-8")
    base = sys._base_executable  # type: ignore[attr-defined]
    runner.put("python3", f'#!/bin/sh\nexec {base} "$@"\n')

    for script in (CHECK, CLEAN):
        path = str(runner.folder / "path")
        done = runner.ends(0, f"{script} --settle 0", HOME=str(home), PYTHONPATH=path)

        assert done.stdout.endswith("the machine is idle\n")
    assert not (runner.folder / "pwned").exists()
