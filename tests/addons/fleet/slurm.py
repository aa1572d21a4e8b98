"""A real Slurm on this machine: its daemons run as the user of the tests, and end with them."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")

SYSTEM = f"{os.defpath}:/usr/sbin:/usr/local/sbin"

LIMIT_S = 60.0

OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}
SlurmctldPort={port}
SlurmdPort={node_port}
AuthInfo=socket={folder}/munge/socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,sched_interval=1
GresTypes=gpu
NodeName={host} CPUs={cpus} Gres=gpu:h200:1
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing() -> list[str]:
    """Return the daemons that are not installed."""
    return [name for name in DAEMONS if shutil.which(name, path=SYSTEM) is None]


@contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Run Slurm with one node and a GPU that it believes in; yield the variables of its users."""
    keys = folder / "munge"
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True)
    # munged wants the way to its socket open for everybody, and its key for nobody.
    for path in (keys, folder, *folder.parents[:-2]):
        if path.owner() == getpass.getuser():
            path.chmod(path.stat().st_mode | 0o111)
    (keys / "key").write_bytes(secrets.token_bytes(1024))
    (keys / "key").chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            user=getpass.getuser(),
            port=_free_port(),
            node_port=_free_port(),
            cpus=os.cpu_count(),
        ),
        "utf-8",
    )
    (folder / "gres.conf").write_text("Name=gpu Type=h200 File=/dev/null\n", "utf-8")
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    munge = ["--foreground", f"--key-file={keys}/key", f"--socket={keys}/socket"]
    munge += [f"--{name}={keys}/{name}" for name in ("pid-file", "log-file", "seed-file")]
    with ExitStack() as stack:
        for name, options in (("munged", munge), ("slurmctld", ["-D"]), ("slurmd", ["-D"])):
            stack.enter_context(_daemon(folder, name, options, environment))
            if name == "munged":
                _wait_for((keys / "socket").exists, folder)
        _wait_for(lambda: "idle" in _asked(environment, "sinfo", "-h", "-o", "%T"), folder)
        yield {"SLURM_CONF": str(configuration)}


def state_of(job: str) -> str:
    """Wait until a job is over, and return its state."""
    deadline = time.monotonic() + 2 * LIMIT_S
    while True:
        job_description = _asked(dict(os.environ), "scontrol", "show", "job", job)
        states = set(re.findall(r"JobState=(\w+)", job_description))
        if states and states <= OVER:
            return "/".join(sorted(states))
        assert time.monotonic() < deadline, job_description
        time.sleep(0.3)


@contextmanager
def _daemon(
    folder: Path, name: str, options: list[str], environment: dict[str, str]
) -> Iterator[None]:
    program = shutil.which(name, path=SYSTEM)
    assert program
    with (folder / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(
            [program, *options], env=environment, stdout=output, stderr=output, cwd=folder
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _asked(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


def _wait_for(is_so: object, folder: Path) -> None:
    assert callable(is_so)
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        logs = "\n".join(log.read_text("utf-8", "replace")[-2000:] for log in folder.glob("*.out"))
        assert time.monotonic() < deadline, logs
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
