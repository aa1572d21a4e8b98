"""Ask doctor and the run itself about suites, in a Python that lacks some libraries.

`python readiness_driver.py SUITE...`: for each suite a line of JSON with doctor's state of its
first case, its reason, and the error of a run before LoadGen is called ("" if it is ready).
`hide` is also what sitecustomize calls in the children that doctor asks.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HIDDEN = "READINESS_HIDDEN"
"""Variable with the names of the libraries that are not to be found, for children."""


class Without:
    """The finder of installed modules, less some libraries with all that is in them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:  # what else it can, as the metadata of distributions
        return getattr(importlib.machinery.PathFinder, name)


def hide() -> None:
    names = os.environ.get(HIDDEN, "").split(",")
    finders: list[Any] = [Without(names), *sys.meta_path]
    sys.meta_path[:] = [one for one in finders if one is not importlib.machinery.PathFinder]


def outcome(planned: Any) -> str:
    """Return what keeps a case from running: as a run starts, up to a loaded engine."""
    from pytest_mlperf import registry
    from pytest_mlperf.core.errors import MlperfError
    from pytest_mlperf.core.job import Job, raise_problems
    from pytest_mlperf.suite.resolve import Problems, resolve

    try:
        job = resolve(planned, scorer=True)
        problems = job.problems if isinstance(job, Problems) else job.scoring.problems
        raise_problems(problems)
        for problem in problems:
            return f"{problem.part}: {problem.error}"
        assert isinstance(job, Job)
        engine, dataset = job.engine, job.dataset
        arguments = {"model": job.model, "precision": planned.engine.precision}
        data = registry.resolve(dataset.target)(**dataset.options)
        with registry.resolve(engine.target)(dataset=data, **arguments, **engine.options) as loaded:
            loaded.load_samples([0])
    except MlperfError as error:
        return str(error)
    return ""


def main(suites: Sequence[str]) -> None:
    from pytest_mlperf.cli.doctor import suite_state
    from pytest_mlperf.hardware.machine import Machine
    from pytest_mlperf.suite.plan import plan_suite

    machine = Machine(
        cpu={"cpu": "Testium 9000", "cores": 2.0, "governor": "performance"},
        gpus=({"uuid": "GPU-0", "gpu": "NVIDIA H200"},),
    )
    for suite in suites:
        suite_report = suite_state(Path(suite), machine, Path("baselines"), {})
        assert not suite_report.error, suite_report.error
        case = suite_report.cases[0]
        ends = outcome(plan_suite(Path(suite))[0])
        print("state " + json.dumps([Path(suite).name, case.state, case.reason, ends]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
