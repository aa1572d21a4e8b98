"""Variables of the repository reach doctor and pytest as data, one kind of accelerator's first."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.imports import distribution, normal
from pytest_mlperf.suite.libraries import declared_libraries
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import loaded_extensions
from tests.children import PYTHON, shebang
from tests.workflows import composite
from tests.workflows.conftest import SUITE, Measured, inputs_of
from tests.workflows.github import ROOT, Runner, fill, workflow

pytestmark = pytest.mark.process

GIVEN: dict[str, str] = workflow("gpu").step("run", "Measure and judge")["with"]

FROM_REPOSITORY = re.compile(r"vars\.(\w+)(?: \|\| '([^']*)')?")
"""What gpu.yml takes of the repository, else a default."""


def evaluated(name: str, variables: Mapping[str, str]) -> str:
    values = {}
    for text in re.findall(r"\$\{\{ (.*?) \}\}", GIVEN[name]):
        match = FROM_REPOSITORY.fullmatch(text)
        assert match, text
        values[text] = variables.get(match[1]) or match[2] or ""
    return fill(GIVEN[name], values)


@cache
def cases_of(folder: str) -> list[Any]:
    return [case for file in (ROOT / folder).rglob("*.mlperf.toml") for case in plan_suite(file)]


def test_every_variable_that_our_suites_name_is_passed() -> None:
    """Whatever stands as ${NAME} in a suite of this repository is a variable to set."""
    files = (ROOT / "suites").rglob("*.mlperf.toml")
    named = {name for file in files for name in re.findall(r"\$\{(\w+)\}", file.read_text("utf-8"))}

    passed = {line.partition("=")[0] for line in GIVEN["variables"].splitlines() if "=" in line}

    assert {"MLPERF_MODELS", "MLPERF_DATA", "VLLM_PYTHON", "TRTLLM_PYTHON"} <= named
    assert named <= passed


def brought(extras: str) -> set[str]:
    """Return the distributions that extras of this project bring, those of other extras too."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    libraries = {normal(re.split(r"[\[><=~]", one)[0]) for one in table["dependencies"]}
    for extra in extras.split(","):
        for requirement in table["optional-dependencies"][extra]:
            inner = re.fullmatch(r"pytest-mlperf\[(.+)\]", requirement)
            libraries |= (
                brought(inner[1]) if inner else {normal(re.split(r"[\[><=~]", requirement)[0])}
            )
    return libraries


def needed(case: Any) -> set[str]:
    """Return the distributions that a case needs in this Python, on a GPU."""
    libraries = {
        one
        for _, group, use, _ in loaded_extensions(case, scorer=True)
        for one in declared_libraries(group, use)
    }
    if not case.elsewhere:
        if case.engine.use == "torch" and case.case.precision == "int8":
            libraries.add("torchao")
        if "tensorrt" in case.engine.options.get("providers", ()):
            libraries.add("tensorrt_cu13_libs")
    names = {distribution(library) for library in libraries}
    return {"onnxruntime-gpu" if name == "onnxruntime" else name for name in names}


def test_the_default_suites_need_the_default_extras_models_and_data() -> None:
    """Cases of v4.1 for an H100 run in the Python of their job, but for two engines' own."""
    extras = evaluated("extras", {})

    needed_libraries = set[str]().union(*map(needed, cases_of("suites/datacenter")))
    assert {"torch", "onnxruntime-gpu", "pycocotools", "torchao"} <= needed_libraries
    assert needed_libraries <= brought(extras)
    assert "onnxruntime" not in brought(extras)

    cases = [case for case in cases_of("suites/datacenter") if case.case.accelerator == "H100"]
    first = [case for case in cases if case.suite.round == "v4.1"]

    assert len({case.path for case in first}) >= 4
    own_python = {"vllm": "python ${VLLM_PYTHON}", "tensorrt_llm": "python ${TRTLLM_PYTHON}"}
    assert {case.elsewhere for case in first} >= {""}
    assert {
        case.case.id for case in first if case.elsewhere != own_python.get(case.engine.use, "")
    } == set()
    others = {"", "python ${TRTLLM_PYTHON}", "python ${VLLM_PYTHON}"}
    assert {case.elsewhere for case in cases} <= others


RECORDED = """{shebang}
import json, os, pathlib, shutil, sys
if sys.argv[1:3] == ["-m", "venv"]:
    folder = pathlib.Path(sys.argv[3], "bin")
    folder.mkdir(parents=True)
    for name in ("python", "pytest-mlperf"):
        shutil.copy(sys.argv[0], folder / name)
elif "--accelerator=8xH100" in sys.argv or "--mlperf-accelerator=8xH100" in sys.argv:
    with open({record!r}, "a") as file:
        file.write(json.dumps(dict(os.environ)) + "\\n")
"""
"""A Python that writes down which variables doctor and pytest see."""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a runner whose own environment names engines too."""
    own_variables = {"VLLM_PYTHON": "/own/vllm", "TRTLLM_PYTHON": "/own/trtllm"}
    runner = Runner(tmp_path, env=own_variables)
    record = str(tmp_path / "seen")
    runner.put("own-python", RECORDED.format(shebang=shebang(), record=record))
    return runner


def seen(runner: Runner, variables: str) -> list[dict[str, str]]:
    inputs = {"suite": "a", "accelerator": "8xH100", "python": "own-python", "variables": variables}
    outcome = composite.run(runner, inputs)
    assert outcome.failed == [], outcome.log()
    lines = (runner.folder / "seen").read_text("utf-8").splitlines()
    (runner.folder / "seen").unlink()
    shutil.rmtree(runner.temp / "mlperf-venv")
    return [json.loads(line) for line in lines]


def test_one_kind_s_variable_is_first_and_the_machine_s_own_is_last(runner: Runner) -> None:
    """Doctor and pytest see the same, whether they judge or record."""
    text = evaluated(
        "variables",
        {
            "MLPERF_MODELS": "/models",
            "MLPERF_DATA": "/data",
            "VLLM_PYTHON": "/opt/vllm/bin/python",
            "MLPERF_VARIABLES": (
                "# of ours\r\n8xH100: MLPERF_DATA=/fast/data\r\nMLPERF_DATA=/slow/data\r\n\r\n"
                "H100:VLLM_PYTHON=/opt/h100/bin/python\r\n8xH100:TRTLLM_PYTHON=\r\n"
                "TRTLLM_IMAGE=nvcr.io/x:1.2.1"
            ),
        },
    )

    both = seen(runner, text)

    names = ("MLPERF_MODELS", "MLPERF_DATA", "VLLM_PYTHON", "TRTLLM_PYTHON", "TRTLLM_IMAGE")
    for variables in both:
        assert [variables[name] for name in names] == [
            *("/models", "/fast/data", "/opt/vllm/bin/python", "/own/trtllm", "nvcr.io/x:1.2.1")
        ]
    assert len(both) == 2


HOSTILE = (
    *("$(touch pwned)", "`touch pwned`", "; touch pwned; #", "'\"", "--version", "${HOME}*"),
    " x ",
)


def test_a_value_that_is_a_command_stays_a_value(runner: Runner) -> None:
    names = [f"NAME{number}" for number in range(len(HOSTILE))]
    lines = [f"{name}={text}" for name, text in zip(names, HOSTILE, strict=True)]

    variables = seen(runner, "\n".join([*lines, "MLPERF_MODELS="]))

    assert [[one[name] for name in names] for one in variables] == [list(HOSTILE)] * 2
    assert all("MLPERF_MODELS" not in one for one in variables)
    assert list(runner.folder.rglob("pwned*")) == []


def test_a_line_that_names_nothing_is_refused_and_not_repeated(runner: Runner) -> None:
    for line in ("hf_0123secret", "A B=hf_0123secret", "=hf_0123secret", "-i"):
        inputs = {"suite": "a", "accelerator": "8xH100", "variables": f"A=1\n{line}\n"}

        outcome = composite.run(runner, inputs)

        assert outcome.failed == ["Prepare"]
        message = "::error::line 2 of the input variables is neither NAME=VALUE nor"
        assert message in outcome.log()
        assert "secret" not in outcome.log()


WRAPPER = """#!/bin/sh
# As a container does: nothing of the job's environment goes with it but its three streams.
exec env -i PATH=/usr/bin:/bin {python} "$@"
"""


@pytest.mark.nightly
def test_an_engine_in_a_container_is_named_by_a_variable(measured: Measured, job: Runner) -> None:
    """A program on the runner that starts one takes the place of a Python; the suite stays."""
    text = SUITE.replace('use = "null"', 'use = "null"\npython = "${TRTLLM_PYTHON}"')
    (job.workspace / "change" / "suites" / "first.mlperf.toml").write_text(text, "utf-8")
    container = job.put("in-container", WRAPPER.format(python=PYTHON))
    own_inputs = {
        "python": "linking-python",
        "variables": f"TRTLLM_PYTHON={container}",
        "update": "",
    }

    outcome = composite.run(job, inputs_of(job, measured.wheel) | own_inputs)

    doctor, run = (
        outcome.steps[name] for name in ("What this machine can run", "Measure and judge")
    )
    assert "runs in python ${TRTLLM_PYTHON}: Python 3." in doctor.stdout, outcome.log()
    assert outcome.outputs["exit-code"] == "0", outcome.log()
    assert "1 case in python ${TRTLLM_PYTHON}" in run.stdout or "runs in python" in run.stdout
    assert str(container) not in run.stdout
