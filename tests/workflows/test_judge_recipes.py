"""docs/judge.md: the recipes for GitLab, Buildkite and Jenkins, their commands run by a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.addons.judge.recorded import serving
from tests.children import PYTHON
from tests.workflows.github import Runner

yaml = pytest.importorskip("yaml")

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "judge.md").read_text("utf-8")


def block(file: str) -> str:
    """Return the fenced block of a page whose first line names a file."""
    match = re.search(rf"```\w+\n(?:#|//) {re.escape(file)}\n(.*?)```", PAGE, re.DOTALL)
    assert match, file
    return match[1]


def gitlab() -> str:
    job: Any = yaml.safe_load(block(".gitlab-ci.yml"))["judge"]
    assert job["artifacts"] == {"when": "always", "reports": {"junit": "judge.xml"}}
    return str(job["script"])


def buildkite() -> str:
    (step,) = yaml.safe_load(block(".buildkite/pipeline.yml"))["steps"]
    assert step["artifact_paths"] == "judge.xml"
    return str(step["command"]).replace("$$", "$")  # as `buildkite-agent pipeline upload` does


def jenkins() -> str:
    text = block("Jenkinsfile")
    assert "post { always { junit 'judge.xml' } }" in text
    (command,) = re.findall(r"sh '(.*)'", text)
    return str(command)


@pytest.fixture
def job(tmp_path: Path) -> Runner:
    """A job with an accepted baseline; its results are of a slower build."""
    runner = Runner(tmp_path, in_process=False)
    runner.put("pytest-mlperf", f'#!/bin/sh\nexec "{PYTHON}" -m pytest_mlperf "$@"\n')
    serving(runner.workspace / "old", side=0, slower=1.0, first_day=1)
    accept = "pytest-mlperf judge old --baseline llama --update missing --reason first"
    assert runner.run(accept).returncode == 0
    return runner


def judged(job: Runner, command: str, slower: float) -> subprocess.CompletedProcess[str]:
    serving(job.workspace / "results", side=1, slower=slower, first_day=11)
    return job.run(command)


@pytest.mark.parametrize("recipe", [gitlab, buildkite, jenkins])
def test_a_recipe_passes_an_equal_build_and_fails_a_slower_one(job: Runner, recipe: Any) -> None:
    notes = job.folder / "annotation"
    job.put("buildkite-agent", f'#!/bin/sh\necho "$@" > "{notes}"\ncat >> "{notes}"\n')

    assert judged(job, recipe(), 1.0).returncode == 0
    done = judged(job, recipe(), 1.12)

    assert done.returncode == 1, done.stdout + done.stderr
    report = ET.fromstring((job.workspace / "judge.xml").read_text("utf-8"))
    failed = [
        case.get("name", "") for case in report.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["concurrency 64"]
    if recipe is buildkite:
        text = notes.read_text("utf-8")
        assert text.startswith("annotate --style error --context judge\n")
        assert "PERF DROP" in text
