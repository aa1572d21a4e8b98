"""Whether programs can be isolated on this machine, found by trying."""

from __future__ import annotations

import json
import platform
import socket
import tempfile
from functools import cache
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.scorers.sandbox_launch import (
    ENVIRONMENT,
    MIB,
    Step,
    UnisolatedError,
    launch,
    readable_python,
    settings,
)

INSIDE = Path(__file__).with_name("sandbox_inside.py")

PROCESSES = 16
CPU_S = 10
MEMORY_BYTES = 256 * MIB


@cache
def why_not() -> str | None:
    """Return why generated code cannot be isolated here, None where it can.

    Tried with a program of this project in a sandbox: it looks for a way out (network, files of the
    machine, variables, privileges, memory, processes). Once per process; takes 0.1 s.
    """
    if platform.system() != "Linux":
        return f"{platform.system()} has no namespaces; run on Linux"
    try:
        return _tried()
    except UnisolatedError as error:
        return error.reason
    except (RunError, OSError) as error:
        return str(error)


def _tried() -> str | None:
    python, readable = readable_python()
    with tempfile.NamedTemporaryFile() as secret, socket.create_server(("127.0.0.1", 0)) as server:
        asked = {
            "port": server.getsockname()[1],
            "hidden": _hidden(secret.name, readable),
            "readable": list(readable),
            "environment": list(ENVIRONMENT),
            "memory_bytes": MEMORY_BYTES,
            "cpu_s": CPU_S,
            "processes": PROCESSES,
        }
        step = Step(
            command=[python, "-S", "inside.py", json.dumps(asked)],
            wall_s=20,
            cpu_s=CPU_S,
            memory_bytes=MEMORY_BYTES,
            address_bytes=8 * MEMORY_BYTES,
            processes=PROCESSES,
        )
        finished = launch(
            settings([step], {"inside.py": INSIDE.read_bytes()}, readable), output_bytes=10_000
        )
    *sentences, last = finished.stdout.decode(errors="replace").splitlines() or [""]
    if finished.returncode != 0 or last != "checked":
        words = finished.stderr.decode(errors="replace").strip()[-300:]
        return f"a Python program ended with {finished.returncode} in the sandbox: {words}"
    return "; ".join(sentences) or None


def _hidden(secret: str, readable: dict[str, str]) -> list[str]:
    """Return what a program must not see: a file just made, and the folders of others."""
    here = [
        "/old",
        "/proc/1",
        "/sys/kernel",
        "/home",
        "/root",
        "/run",
        "/var",
        str(Path.cwd()),
        secret,
    ]
    return [path for path in here if not any(Path(one).is_relative_to(path) for one in readable)]
