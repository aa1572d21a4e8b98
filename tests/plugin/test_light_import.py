"""What the plugin loads into a pytest process: next to nothing, and never an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.plugin.project import Project

MODULES = """
import json, sys
import pytest

code = pytest.main(["-p", "pytest_mlperf.plugin.hooks", *sys.argv[1:]])
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""

HEAVY = {"torch", "numpy", "mlperf_loadgen", "onnxruntime", "pynvml", "tensorrt_llm"}


def modules_after(project: Project, *arguments: str) -> tuple[int, set[str]]:
    """Return pytest's exit code and the modules that its process had imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES, *arguments],
        cwd=project.path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


def test_a_project_without_suites_loads_small_modules_and_no_library(
    project: Project,
) -> None:
    project.pytester.makepyfile("def test_own(): pass")

    code, modules = modules_after(project)

    assert code == 0
    assert {name for name in modules if name.startswith("pytest_mlperf")} == {
        "pytest_mlperf",
        "pytest_mlperf.addons",
        "pytest_mlperf.addons.fleet",
        "pytest_mlperf.addons.history",
        "pytest_mlperf.addons.judge",
        "pytest_mlperf.addons.official",
        "pytest_mlperf.addons.signing",
        "pytest_mlperf.core",
        "pytest_mlperf.core.addons",
        "pytest_mlperf.core.errors",
        "pytest_mlperf.hookspecs",
        "pytest_mlperf.plugin",
        "pytest_mlperf.plugin.addons",
        "pytest_mlperf.plugin._unchanged",
        "pytest_mlperf.plugin.hooks",
        "pytest_mlperf.plugin.options",
    }
    assert not modules & {*HEAVY, "pydantic", "rich", "filelock", "pytest_benchmark"}


def test_a_project_that_measures_loads_no_engine_into_the_pytest_process(project: Project) -> None:
    project.suite(top1=100.0)

    code, modules = modules_after(project, "suites")

    assert code == 0
    assert len(project.results().cases) == 2
    assert not modules & HEAVY
