"""Before a job: is this machine idle? After it: end what the job left, and look again.

A machine that is not idle is refused, before and after, so one that a job left busy measures
nothing until somebody has looked at it. Standard library only: it must work where nothing else
does.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

MARK = "MLPERF_JOB"
"""Variable that every process of a job inherits; its value is the job's own."""

IDLE_MIB = 1024
"""Memory of a GPU in use, MiB, that drivers take for themselves at most."""

GRACE_S = 10.0
"""How long a process has to end, before it is killed and after."""

SETTLE_S = 60.0
"""How long a GPU has to become idle."""


def left(job: str) -> list[int]:
    """Return the processes of a job, without this one and those that wait for it."""
    mark, own = f"{MARK}={job}".encode(), set(ancestry(os.getpid()))
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        except OSError:  # another user's, or gone
            continue
        if mark in words and state != "Z" and int(folder.name) not in own:
            found.append(int(folder.name))
    return sorted(found)


def ancestry(process: int) -> Iterator[int]:
    """Yield a process, the one that started it, and so on."""
    while process > 0:
        yield process
        try:
            stat = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        except OSError:
            return
        process = int(stat.rpartition(")")[2].split()[1])


def end(processes: Collection[int], grace_s: float = GRACE_S) -> None:
    """Ask processes to end, and kill those that do not."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace_s
        handles = list(_signalled(processes, kind))
        for handle in handles:
            watch = select.poll()
            watch.register(handle, select.POLLIN)
            watch.poll(max(0.0, deadline - time.monotonic()) * 1000)
            os.close(handle)


def _signalled(processes: Collection[int], kind: signal.Signals) -> Iterator[int]:
    """Yield a handle of every process that could be signalled."""
    for process in processes:
        try:
            handle = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            signal.pidfd_send_signal(handle, kind)
        except (ProcessLookupError, PermissionError):
            os.close(handle)
            continue
        yield handle


def busy() -> list[str]:
    """Return what is wrong with the GPUs that this runner may use; nothing where there are none."""
    if shutil.which("nvidia-smi") is None or os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return []
    found = [
        f"GPU {index} has {used} MiB in use"
        for index, used in query("--query-gpu=index,memory.used")
        if used.isdigit() and int(used) > IDLE_MIB  # of memory shared with the CPU "[N/A]"
    ]
    return found + [
        f"process {process} is on a GPU with {used} MiB"
        for process, used in query("--query-compute-apps=pid,used_memory")
    ]


def query(what: str) -> list[list[str]]:
    """Return rows of nvidia-smi.

    Raises:
        SystemExit: It fails: then nothing is known of this machine.
    """
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"::error::nvidia-smi says: {' '.join(done.stdout.split())[:300]}")
    return [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line]


def settled(patience_s: float) -> list[str]:
    """Return what is still wrong with the GPUs after waiting for it to pass."""
    deadline = time.monotonic() + patience_s
    while (found := busy()) and time.monotonic() < deadline:
        time.sleep(min(1.0, patience_s))
    return found


def main() -> int:
    """Look, or clean up and look; 1 where the machine is not idle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["check", "clean"])
    parser.add_argument("--settle", type=float, default=SETTLE_S, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=GRACE_S, metavar="SECONDS")
    parser.add_argument("--remove", type=Path, action="append", default=[], metavar="FOLDER")
    parsed = parser.parse_args()
    wrong = []
    if parsed.what == "clean":
        if processes := left(os.environ[MARK]):
            print(f"ends what the job left running: {', '.join(map(str, processes))}")
            end(processes, parsed.grace)
        wrong = [f"process {one} of the job is still there" for one in left(os.environ[MARK])]
        for folder in parsed.remove:
            shutil.rmtree(folder, ignore_errors=True)
    wrong += settled(parsed.settle)
    for one in wrong:
        print(f"::error::{one}")
    if wrong:
        name = os.environ.get("RUNNER_NAME", "this runner")
        print(f"::error::{name} is not idle: it measures nothing until somebody has looked at it")
        return 1
    print("the machine is idle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
