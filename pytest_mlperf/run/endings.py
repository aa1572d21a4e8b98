"""How a child process ended, in words, and what to think of it."""

from __future__ import annotations

import signal

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.run.builds import Build


def ended(code: int) -> str:
    """Return how a process ended, by its exit code as `subprocess` gives it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def hint(code: int, phase: str) -> str:
    """Return what to think of a worker that ended, "" where its code says all.

    Args:
        code: Its exit code as `subprocess` gives it.
        phase: The last event before its end, of a run the phase.
    """
    if code == -signal.SIGSEGV and phase in {"performance", "accuracy"}:
        return (
            "; the log shows where. LoadGen itself crashes when a thread that completed many "
            "samples ends during the run: complete from threads that outlive it"
        )
    if code == -signal.SIGKILL:
        return ". If nobody killed it, the machine ran out of memory (see dmesg)"
    return ""


def there(kind: str, build: Build) -> str:
    """Return what to add to an error of a worker elsewhere that does not load."""
    if kind in {EnvironmentFault.__name__, "ImportError", "ModuleNotFoundError"}:
        return f"; it runs in {build.title} ({build.key}): install it there"
    return f" (in {build.title})"
