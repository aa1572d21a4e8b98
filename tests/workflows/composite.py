"""A composite action's steps, run one after another as GitHub does."""

from __future__ import annotations

import subprocess
import sysconfig
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workflows.github import ROOT, Runner, action, fill

FOLDER = ROOT / ".github" / "actions" / "run-suite"
"""Where a job finds the action, unless a test names another copy."""

Done = subprocess.CompletedProcess[str]


@dataclass
class Outcome:
    """Every script that ran by its step, the inputs of other actions, and the outputs."""

    steps: dict[str, Done] = field(default_factory=dict)
    uploads: list[dict[str, str]] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        return [name for name, done in self.steps.items() if done.returncode]

    def log(self) -> str:
        return "".join(f"## {name}\n{d.stdout}{d.stderr}" for name, d in self.steps.items())


def run(runner: Runner, inputs: Mapping[str, str], **env: str) -> Outcome:
    """Run the action `run-suite`.

    Raises:
        KeyError: It knows no such input, or a required one is not given.
    """
    definition = action("run-suite")
    defaults = {
        name: one["default"] for name, one in definition["inputs"].items() if "default" in one
    }
    expression_values = {f"inputs.{name}": value for name, value in {**defaults, **inputs}.items()}
    assert {name.removeprefix("inputs.") for name in expression_values} <= set(definition["inputs"])
    expression_values["runner.temp"] = str(runner.temp)
    outcome = Outcome()
    for step in definition["runs"]["steps"]:
        if outcome.failed and step.get("if") != "always()":
            _outputs(step, {}, expression_values)
        elif "uses" in step:
            values = {
                name: fill(str(value), expression_values) for name, value in step["with"].items()
            }
            outcome.uploads.append(values)
        else:
            _script(step, runner, expression_values, env, outcome)
    for name, output in definition["outputs"].items():
        outcome.outputs[name] = fill(output["value"], expression_values)
    return outcome


def _script(
    step: Mapping[str, Any],
    runner: Runner,
    values: dict[str, str],
    env: Mapping[str, str],
    outcome: Outcome,
) -> None:
    assert step["shell"] == "bash"
    (runner.folder / "output").unlink(missing_ok=True)
    variables_of_step = {name: fill(value, values) for name, value in step.get("env", {}).items()}
    variables = {"GITHUB_ACTION_PATH": str(FOLDER), **env, **variables_of_step}
    outcome.steps[step["name"]] = runner.run(step["run"], **variables)
    _outputs(step, runner.outputs(), values)


def _outputs(step: Mapping[str, Any], outputs: Mapping[str, str], values: dict[str, str]) -> None:
    """Pass a step's outputs to later steps; a missing one is empty, as on GitHub."""
    named = {"prepare": ("artifact", "results", "junit"), "measure": ("exit-code",)}
    for name in named.get(step.get("id", ""), ()):
        values[f"steps.{step['id']}.outputs.{name}"] = outputs.get(name, "")


def wheel(folder: Path) -> Path:
    """Return a wheel whose installation lets an environment see all that is installed here.

    So pip really installs, and needs no network.
    """
    about = "mlperf_here-1.0.dist-info"
    files = {
        "mlperf_here.pth": f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: mlperf-here\nVersion: 1.0\n"
        "Provides-Extra: fast\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\npytest-mlperf = pytest_mlperf.cli:main\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    path = folder / "mlperf_here-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path
