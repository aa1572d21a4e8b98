"""What was measured: the machine's identity, and what is shown under "what changed"."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType

from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.protocol import Event
from pytest_mlperf.suite.plan import Planned


def subject_of(
    planned: Planned,
    machine: Machine,
    loaded: Event,
    *,
    build: Build | None = None,
    python: Event | None = None,
    built: Mapping[str, str] = MappingProxyType({}),
) -> Subject:
    """Return machine, engine and data of a process.

    Args:
        planned: The case.
        machine: Where it runs.
        loaded: What the worker said once engine and data set were there.
        build: Where the worker ran, if not in this Python.
        python: What that worker said of its Python.
        built: How its checkpoint was made, where its entry builds one.
    """
    beside = _beside(build, python) if build and python else {}
    return Subject(
        identity=machine.identity(planned.case.accelerator),
        fingerprint={**_fingerprint(planned, loaded), **beside, **built},
        surroundings={
            **machine.surroundings(planned.case.accelerator),
            "requests": _requests(planned),
        },
    )


def _beside(build: Build, python: Event) -> dict[str, str]:
    """Return what is to be known of another Python.

    Of a build of a baseline, which nobody records, also where it lies. What every run of a case is
    made in goes into baselines: they name no path of a user.
    """
    versions = {f"python.{name}": version for name, version in python["versions"].items()}
    found = {"python": str(python["version"]), **versions}
    if build.baseline:
        return {**found, "build": build.title, "python.prefix": str(python["prefix"])}
    return {**found, "python.system": str(python["system"])} if python["system"] else found


def _requests(planned: Planned) -> str:
    """Return what LoadGen is told but for the rate: its length in words, and a hash of all."""
    settings = planned.settings(target_qps=None)
    content = json.dumps(dataclasses.asdict(settings), sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    return f"{planned.seconds_per_run:g} s, {settings.min_query_count:,} queries ({digest})"


def _fingerprint(planned: Planned, loaded: Event) -> dict[str, str]:
    """Return versions, weights, options, data; options are kept as the suite writes them."""
    workload = planned.suite.workload
    return {
        **{f"engine.{key}": str(value) for key, value in sorted(loaded["engine"].items())},
        "engine": planned.engine.use,
        "options": json.dumps(planned.engine.options, sort_keys=True),
        "dataset": str(loaded["dataset"]["digest"]),
        "dataset.options": json.dumps(workload.dataset.options, sort_keys=True),
        "round": planned.suite.round,
        **({"division": "open"} if planned.suite.division == "open" else {}),
        **({"find": find.in_words} if (find := planned.scenario.find) else {}),
        **({"techniques": ", ".join(planned.techniques)} if planned.techniques else {}),
    }
