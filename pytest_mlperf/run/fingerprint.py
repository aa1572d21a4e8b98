"""What was measured: the machine's identity, and what is shown under "what changed"."""

from __future__ import annotations

import dataclasses
import hashlib
import json

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
) -> Subject:
    """Return machine, engine and data of a process.

    Args:
        planned: The case.
        machine: Where it runs.
        loaded: What the worker said once engine and data set were there.
        build: Another build that the worker was of, or None.
        python: What that worker said of its Python.
    """
    beside = {"build": build.title} if build else {}
    if python:
        beside |= {"python": str(python["version"]), "python.prefix": str(python["prefix"])}
    return Subject(
        identity=machine.identity(planned.case.accelerator),
        fingerprint={**_fingerprint(planned, loaded), **beside},
        surroundings={
            **machine.surroundings(planned.case.accelerator),
            "requests": _requests(planned),
        },
    )


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
        **({"techniques": ", ".join(planned.techniques)} if planned.techniques else {}),
    }
