"""What this machine offers: tools, LoadGen, accelerators, space, engines and their libraries.

Nothing heavy is loaded here: LoadGen, NVML, pytest and the engines' libraries are each asked in a
child process, because that is where they are used and where they may crash.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_mlperf import registry
from pytest_mlperf.cli.checks import Check, cpu, gpus, leases, memory, space
from pytest_mlperf.cli.libraries import Failures, importing, lacking, needs, outline
from pytest_mlperf.cli.requirements import library_trouble
from pytest_mlperf.cli.tools import installed, loadgen, plugin, python
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.suite.libraries import extras, is_here


def look(machine: Machine, runs_dir: Path) -> tuple[list[Check], Failures]:
    """Return every check, and which libraries of engines are installed and cannot be imported.

    Args:
        machine: This machine, GPUs included.
        runs_dir: Where results and logs will be written.
    """
    engines = sorted(registry.registered("engines"))
    libraries = dict.fromkeys(one for name in engines for one in needs("engines", name))
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(plugin), pool.submit(loadgen)]
        failures = pool.submit(importing, [one for one in libraries if is_here(one)])
        found = [
            python(),
            *(answer.result() for answer in asked),
            installed("pytest-benchmark"),
            gpus(machine),
            cpu(machine),
            memory(),
            space(runs_dir),
            leases(),
            *(_engine(name, failures.result()) for name in engines),
            *(_extra(name, needed) for name, needed in extras().items()),
        ]
        return found, failures.result()


def _engine(name: str, failures: Failures) -> Check:
    """Return whether a registered engine has here what it needs whatever its options."""
    found = lacking("engines", name, failures)
    if found:
        return Check(group="engines", name=name, state="missing", text=found[0], do=found[1])
    if trouble := library_trouble(name):
        return Check(group="engines", name=name, state="missing", text=trouble)
    return Check(group="engines", name=name, state="ok", text="can be used")


def _extra(name: str, needed: list[str]) -> Check:
    """Return which libraries of an extra are installed."""
    found, absent = outline(needed)
    if absent:
        return Check(
            group="libraries",
            name=name,
            state="missing",
            text=f"not installed: {', '.join(absent)}",
            do=f"pip install 'pytest-mlperf[{name}]'",
        )
    return Check(group="libraries", name=name, state="ok", text=", ".join(found))
