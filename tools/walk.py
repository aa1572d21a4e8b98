"""Show the way of one failing case: which modules of the package run in pytest's own process.

    python tools/walk.py [--list]

Sessions with the null engine are made in a folder of their own: all but the last record a baseline,
the last is slower and fails. Of the last, from the first test's set-up to the end of
the session, every function of the package that is called is counted by its module and its name, and
where the first argument of `measure`, the case, goes: how many functions take that very object as
an argument (stays), in how many files, and how often it comes back to a file that it had left
(climbs). Another version of the package is looked at by PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
[[engines]]
use = "null"
options = {{ latency_s = {latency_s} }}
[[scenarios]]
name = "Offline"
target_qps = {qps}
min_duration = "500ms"
"""

OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "mlperf_control=off")

PACKAGE = "pytest_mlperf"

SESSIONS = 4
"""So many make a baseline from which a drop is no provisional one."""


class Walk:
    """Takes note of calls in this process; a pytest plugin of its own.

    Attributes:
        functions: Calls by module and function.
        stays: Modules of the functions that took the case, in order.
    """

    def __init__(self) -> None:
        """Wait for the first test."""
        self.functions: Counter[tuple[str, str]] = Counter()
        self.stays: list[tuple[str, str]] = []
        self._cases: set[int] = set()
        self._kept: list[object] = []  # or another object could get the same id

    def pytest_runtest_setup(self) -> None:
        """Begin."""
        sys.setprofile(self._called)

    def pytest_unconfigure(self) -> None:
        """End; hooks of the end of a session have run."""
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if event != "call" or module.partition(".")[0] != PACKAGE:
            return
        code = frame.f_code
        if code.co_name == "<module>":  # an import is no step of a case
            return
        self.functions[module, code.co_qualname] += 1
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if module == f"{PACKAGE}.run.measure" and code.co_name == "measure":
            case = frame.f_locals[names[0]]
            self._cases.add(id(case))
            self._kept.append(case)
        if any(id(frame.f_locals.get(name)) in self._cases for name in names):
            self.stays.append((module, code.co_qualname))

    def told(self) -> dict[str, Any]:
        """Return the figures, as JSON."""
        modules = [module for module, _ in dict.fromkeys(self.stays)]
        turns = [m for number, m in enumerate(modules) if number == 0 or modules[number - 1] != m]
        return {
            "modules": sorted({module for module, _ in self.functions}),
            "functions": len(self.functions),
            "stays": len(dict.fromkeys(self.stays)),
            "files": len(set(modules)),
            "climbs": len(turns) - len(set(turns)),
            "way": [".".join(stay) for stay in dict.fromkeys(self.stays)],
        }


def session(folder: Path, out: Path) -> None:
    """Make the session that fails, in this process, and write what was seen of it."""
    import pytest

    walk = Walk()
    code = pytest.main([*OPTIONS, str(folder)], plugins=[walk])
    out.write_text(json.dumps({"exit": int(code), **walk.told()}), "utf-8")


def walked() -> dict[str, Any]:
    """Return what is seen of a failing case.

    Raises:
        RuntimeError: The sessions did not end as they should.
    """
    with tempfile.TemporaryDirectory(prefix="walk-") as made:
        folder, out = Path(made), Path(made) / "walk.json"
        (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
        suite = folder / "s.mlperf.toml"
        suite.write_text(SUITE.format(latency_s=0.001, qps=2000), "utf-8")
        for _ in range(SESSIONS):
            record = [sys.executable, "-m", "pytest", *OPTIONS, "--mlperf-update=missing", "."]
            done = subprocess.run(record, cwd=folder, check=False, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
        suite.write_text(SUITE.format(latency_s=0.002, qps=2000), "utf-8")
        second = [sys.executable, __file__, "--session", str(folder), str(out)]
        done = subprocess.run(second, cwd=folder, check=False, capture_output=True, text=True)
        if not out.exists():
            raise RuntimeError(done.stdout + done.stderr)
        told: dict[str, Any] = json.loads(out.read_text("utf-8"))
        if told["exit"] != 1:
            raise RuntimeError(f"the case did not fail:\n{done.stdout}{done.stderr}")
        return told


def main() -> None:
    """Walk once, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="name every module, and the way")
    parser.add_argument("--session", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.session:
        session(*options.session)
        return
    told = walked()
    print(f"{len(told['modules'])} modules, {told['functions']} functions")
    print(f"the case: {told['stays']} stays in {told['files']} files, {told['climbs']} climbs")
    if options.list:
        print("\n".join(["", *told["modules"], "", *told["way"]]))


if __name__ == "__main__":
    main()
