"""Whether the tools work: pytest with the plugin, and LoadGen in a worker of its own."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pytest_mlperf.cli.checks import Check
from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.protocol import Factory, WorkerSpec
from pytest_mlperf.run.supervisor import Patience, Worker
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.plan import planned_cases

TRIAL = Suite.model_validate(
    {
        "schema": 1,
        "round": "v4.1",
        "workload": {"name": "trial"},
        "engines": [{"use": "null", "options": {"latency_s": 0.0001}}],
        "scenarios": [{"name": "Offline", "target_qps": 2000, "min_duration": "50ms"}],
    }
)
"""The shortest run that proves that a worker and LoadGen work together."""

PATIENCE = Patience(progress_s=30.0, phase_s=60.0)


def python() -> Check:
    """Return the interpreter and the system."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check(group="tools", name="Python", state="ok", text=text)


def plugin() -> Check:
    """Ask pytest itself, with this folder's configuration, whether it knows our options."""
    command = [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"]
    name, active = "pytest", "--mlperf-plan"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return Check(group="tools", name=name, state="broken", text="does not answer within 60 s")
    found = f"{version('pytest')}, plugin pytest-mlperf {version('pytest-mlperf')}"
    if active in done.stdout:
        return Check(group="tools", name=name, state="ok", text=f"{found} is active")
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return Check(
            group="tools",
            name=name,
            state="broken",
            text=f"pytest --help fails here: {' '.join(last)}",
            do="repair this folder's configuration of pytest",
        )
    return Check(
        group="tools",
        name=name,
        state="broken",
        text=f"{found} is installed and not active in this folder",
        do='remove "-p no:mlperf" from addopts, PYTEST_ADDOPTS or PYTEST_PLUGINS, and unset '
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
    )


def loadgen() -> Check:
    """Run LoadGen for a moment in a worker of its own, without taking a lease."""
    name = "LoadGen"
    try:
        wheel = version("mlcommons-loadgen")
    except PackageNotFoundError:
        return Check(
            group="tools",
            name=name,
            state="broken",
            text="mlcommons-loadgen is not installed",
            do="pip install mlcommons-loadgen",
        )
    try:
        with tempfile.TemporaryDirectory(prefix="pytest-mlperf-trial-") as folder:
            built = _trial(Path(folder))
    except (MlperfError, OSError) as error:
        layer = f"{error.layer}: " if isinstance(error, RunError) else ""
        return Check(
            group="tools",
            name=name,
            state="broken",
            text=f"wheel {wheel}: a trial run failed: {layer}{error}",
            do="pip install --force-reinstall mlcommons-loadgen",
        )
    text = f"{wheel} (library {built}), a trial run was VALID"
    return Check(group="tools", name=name, state="ok", text=text)


def _trial(folder: Path) -> str:
    """Return LoadGen's own version after a valid run.

    Raises:
        MlperfError: The run broke, or was not valid.
    """
    (planned,) = planned_cases(TRIAL, folder / "trial.mlperf.toml", lambda _: 1)
    engine, dataset = planned.factories
    spec = WorkerSpec(
        folder=str(folder),
        engine=Factory(target=engine.target, options=engine.options),
        dataset=dataset,
        model=None,
        precision="fp32",
        settings=planned.settings(target_qps=2000.0),
        warmup_s=0.01,
    )
    with Worker(spec, PATIENCE, lambda _: None) as worker:
        worker.wait_for("loaded")
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "stop"})
    detail = parse_detail(Path(finished["folder"]) / DETAIL)
    detail.require_no_errors()
    if not detail.valid:
        raise RunError("loadgen", f"it is INVALID: {'; '.join(detail.invalid_reasons)}")
    return str(detail.values.get("loadgen_version", "unknown")).split(" @ ")[0]


def installed(name: str) -> Check:
    """Return the version of an installed distribution."""
    try:
        return Check(group="tools", name=name, state="ok", text=version(name))
    except PackageNotFoundError:
        return Check(
            group="tools",
            name=name,
            state="missing",
            text="not installed",
            do=f"pip install {name}",
        )
