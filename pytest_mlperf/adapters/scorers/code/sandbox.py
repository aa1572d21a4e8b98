"""Run an untrusted program in a sandbox; refuse to run it if the sandbox cannot be built.

A command in the sandbox has this environment (Linux only; sandbox_child.py builds it):

- Namespaces of its own for user, mounts, processes, network, IPC and host name. The network has
  neither a route nor a loopback.
- Readable: the system's programs and libraries (`USR`, /lib, /etc/alternatives), five devices and
  the paths that the caller gives as `readable`. Not visible: settings of the machine (/etc,
  /usr/local/etc), home and temporary folders, the project, /proc, /sys, the caller's environment.
- Writable: one folder in memory, of limited size, deleted afterwards.
- No privileges and no way to gain any; a filter denies system calls that no limit covers.
- Limits on time, memory, processes, open files and file size; see SandboxStep.
- When a command ends or its time is up, or the process that called `run_isolated` dies, the kernel
  kills every process that the command started.

The sandbox protects from faulty and malicious programs, except if they exploit kernel bugs.
Programs on the same machine can still slow each other down.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import selectors
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pytest_mlperf import EnvironmentFault, RunError
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.adapters.scorers.code import _sandbox_filter as sandbox_filter

BOX = "/box"
"""Folder of a command in the sandbox: working folder with its files, and writable."""

USR = tuple(
    f"{prefix}/{name}"
    for prefix in ("/usr", "/usr/local")
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "include", "share"]
)
"""Folders of /usr that commands see, if they exist; `readable` adds to them."""

COMMAND_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": BOX,
    "TMPDIR": BOX,
    "LANG": "C.UTF-8",
}

MIB = 2**20
DISK_BYTES = 64 * MIB
OUTPUT_BYTES = 64 * 1024
SETUP_GRACE_SECONDS = 10.0
"""Time to build and to end a sandbox, in addition to the limits of the steps."""

CHILD = Path(__file__).with_name("sandbox_child.py")

LEAVE_OUT = "score no programs (the scorer's run_generated_code = false)"
NAMESPACE_ADVICE = (
    "allow unprivileged user namespaces (Ubuntu: sudo sysctl -w "
    f"kernel.apparmor_restrict_unprivileged_userns=0), run in a container that allows them, or "
    f"{LEAVE_OUT}"
)


class UnisolatedError(EnvironmentFault):
    """Report that this machine cannot isolate programs.

    Attributes:
        reason: The reason, without advice.
    """

    def __init__(self, reason: str) -> None:
        if reason.startswith("cannot start "):
            advice = "reinstall it"
        elif reason.startswith("cannot "):
            advice = NAMESPACE_ADVICE
        else:  # the system, its processor or its limits are unsuitable
            advice = f"run on another machine, or {LEAVE_OUT}"
        super().__init__(f"generated code cannot be isolated here: {reason}; {advice}")
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxStep:
    """Hold a command and its limits.

    Attributes:
        command: Absolute path of the program, then its arguments.
        wall_s: Time until the command and all its descendants are killed [seconds].
        cpu_s: Maximum CPU time of each process [seconds].
        memory_bytes: Maximum private memory of each process (RLIMIT_DATA).
        address_bytes: Maximum address space of each process (RLIMIT_AS), which also limits shared
            memory. None sets no limit, for Node, which reserves far more than it uses.
        processes: Maximum number of processes and threads at a time.
        goes_on: Exit codes after which the next command runs.
    """

    command: Sequence[str]
    wall_s: float
    cpu_s: int
    memory_bytes: int
    address_bytes: int | None
    processes: int
    goes_on: frozenset[int] = frozenset({0})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """Hold the result of the last step that ran.

    Attributes:
        step: Number of the step, from 0.
        returncode: Exit code; -N if signal N ended it; None if its time was up.
        stdout, stderr: Output of all steps, the first OUTPUT_BYTES of each.
        truncated: Whether the output was longer.
    """

    step: int
    returncode: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool

    @property
    def timed_out(self) -> bool:
        """Whether the command was killed because it exceeded its time limit."""
        return self.returncode is None


def readable_python() -> tuple[str, dict[str, str]]:
    """Return this environment's base Python, and its paths as {path in sandbox: real path}."""
    program = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return program, visible_paths(
        program, os.path.realpath(Path(sysconfig.get_path("stdlib")).parent)
    )


def visible_paths(*paths: str) -> dict[str, str]:
    """Return the paths that must be mounted, as path in the sandbox to real path.

    Paths below `USR` are left out, as they are mounted anyway.
    """
    return {path: path for path in paths if not any(map(Path(path).is_relative_to, USR))}


def settings(
    steps: Sequence[SandboxStep],
    files: Mapping[str, str | bytes],
    readable: Mapping[str, str] | None,
    environment: Mapping[str, str] | None,
    disk_bytes: int,
) -> dict[str, Any]:
    """Return the settings for sandbox_child.py; the arguments are those of `run_isolated`."""
    if invalid := [name for name in files if "/" in name or name in {"", ".", ".."}]:
        raise ValueError(f"{invalid[0]!r} is not a file name; it must not contain a folder")
    code = sandbox_filter.program(os.uname().machine)
    if code is None:
        raise UnisolatedError(
            f"the sandbox supports the processors x86_64 and aarch64, not {os.uname().machine}"
        )
    contents = {
        name: text.encode() if isinstance(text, str) else text for name, text in files.items()
    }
    return {
        "steps": [_step(step, disk_bytes) for step in steps],
        "files": {name: base64.b64encode(text).decode() for name, text in contents.items()},
        "system": USR,
        "readable": dict(readable or {}),
        "environment": {**COMMAND_ENVIRONMENT, **(environment or {})},
        "filter": base64.b64encode(code).decode(),
        "disk_bytes": disk_bytes,
        "entries": 4096,
    }


def _step(step: SandboxStep, disk_bytes: int) -> dict[str, Any]:
    limits = {
        "RLIMIT_CPU": step.cpu_s,
        "RLIMIT_DATA": step.memory_bytes,
        "RLIMIT_NPROC": step.processes,
        "RLIMIT_FSIZE": disk_bytes,
        "RLIMIT_STACK": 8 * MIB,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_MEMLOCK": 64 * 1024,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_CORE": 0,
    }
    if step.address_bytes is not None:
        limits["RLIMIT_AS"] = step.address_bytes
    return {
        "command": list(step.command),
        "wall_s": step.wall_s,
        "goes_on": sorted(step.goes_on),
        "limits": limits,
    }


def launch(config: Mapping[str, Any]) -> StepResult:
    """Run sandbox_child.py for `run_isolated` or `why_not`; return its last command's result."""
    limit_s = SETUP_GRACE_SECONDS + sum(step["wall_s"] for step in config["steps"])
    status, status_end = os.pipe()
    with tempfile.TemporaryFile() as stream, os.fdopen(status, "rb") as report:
        try:
            stream.write(json.dumps(config).encode())
            stream.seek(0)
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(CHILD), str(status_end), str(os.getpid())],
                stdin=stream,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[status_end],
                env={},
                cwd="/",
            )
        finally:
            os.close(status_end)
        with child:
            assert child.stdout is not None
            assert child.stderr is not None
            try:
                # One more byte than is kept shows that the output was longer.
                keep = OUTPUT_BYTES + 1
                sources = {child.stdout.fileno(): keep, child.stderr.fileno(): keep}
                stdout, stderr, lines = _read({**sources, report.fileno(): MIB}, limit_s)
            finally:
                child.kill()
    return _finished(lines, stdout, stderr)


def _read(sources: Mapping[int, int], limit_s: float) -> list[bytearray]:
    texts = {source: bytearray() for source in sources}
    deadline = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                part = os.read(key.fd, MIB)
                texts[key.fd] += part[: sources[key.fd] - len(texts[key.fd])]
                if not part:
                    selector.unregister(key.fd)
    return list(texts.values())


def _finished(lines: bytearray, stdout: bytearray, stderr: bytearray) -> StepResult:
    reports = [json.loads(line) for line in lines.splitlines()]
    if trouble := [report["trouble"] for report in reports if "trouble" in report]:
        raise UnisolatedError(trouble[0])
    if not reports or "done" not in reports.pop():
        log = stderr.decode(errors="replace").strip()[-500:] or "nothing"
        raise scorer_error(
            "the sandbox for generated code ended without a result (out of memory? Last log: "
            f"{log}); set the scorer's option processes to a smaller number",
        )
    return StepResult(
        **reports[-1],
        stdout=bytes(stdout[:OUTPUT_BYTES]),
        stderr=bytes(stderr[:OUTPUT_BYTES]),
        truncated=max(len(stdout), len(stderr)) > OUTPUT_BYTES,
    )


INSIDE_SCRIPT = Path(__file__).with_name("sandbox_inside.py")

PROCESSES = 16
CPU_SECONDS = 10
MAX_MEMORY_BYTES = 256 * MIB


@cache
def why_not() -> str | None:
    """Test the sandbox once per process (0.1 s); return why it cannot isolate programs, or None."""
    if platform.system() != "Linux":
        return f"it needs the user namespaces of Linux, and this system is {platform.system()}"
    try:
        return _tried()
    except UnisolatedError as error:
        return error.reason
    except (RunError, OSError) as error:
        return str(error)


def _tried() -> str | None:
    python, readable = readable_python()
    with tempfile.NamedTemporaryFile() as secret, socket.create_server(("127.0.0.1", 0)) as server:
        expectations = {
            "port": server.getsockname()[1],
            "hidden": _hidden(secret.name, readable),
            "readable": list(readable),
            "environment": list(COMMAND_ENVIRONMENT),
            "memory_bytes": MAX_MEMORY_BYTES,
            "cpu_s": CPU_SECONDS,
            "processes": PROCESSES,
        }
        step = SandboxStep(
            command=[python, "-S", "inside.py", json.dumps(expectations)],
            wall_s=20,
            cpu_s=CPU_SECONDS,
            memory_bytes=MAX_MEMORY_BYTES,
            address_bytes=8 * MAX_MEMORY_BYTES,
            processes=PROCESSES,
        )
        script = {"inside.py": INSIDE_SCRIPT.read_bytes()}
        result = launch(settings([step], script, readable, None, DISK_BYTES))
    *sentences, last = result.stdout.decode(errors="replace").splitlines() or [""]
    if result.returncode != 0 or last != "checked":
        words = result.stderr.decode(errors="replace").strip()[-300:]
        return f"the trial program in the sandbox ended with code {result.returncode}: {words}"
    return "; ".join(sentences) or None


def _hidden(secret: str, readable: dict[str, str]) -> list[str]:
    """Return those of `secret`, system folders and home folders that contain no `readable` path."""
    paths = [
        "/old",
        "/proc/1",
        "/sys/kernel",
        "/home",
        "/root",
        "/run",
        "/var",
        "/usr/local/etc",
        str(Path.cwd()),
        secret,
    ]
    return [path for path in paths if not any(Path(r).is_relative_to(path) for r in readable)]


def require_sandbox() -> None:
    """Raise UnisolatedError if this machine cannot isolate programs."""
    if reason := why_not():
        raise UnisolatedError(reason)


def run_isolated(
    *steps: SandboxStep,
    files: Mapping[str, str | bytes],
    readable: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    disk_bytes: int = DISK_BYTES,
) -> StepResult:
    """Run commands one after another in one sandbox, see this module's description.

    Args:
        steps: Each runs only if the previous one ended with one of its `goes_on`.
        files: Contents of the files in the commands' folder, by name, without folders.
        readable: Real paths, without links, of further readable paths by path in the sandbox.
        environment: Variables besides PATH, HOME, TMPDIR and LANG.
        disk_bytes: Maximum size of the commands' folder, and of a file.
    """
    require_sandbox()
    return launch(settings(steps, files, readable, environment, disk_bytes))
