"""The workflows keep the rules that protect self-hosted machines, and their steps really run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    """Return a parsed workflow; YAML 1.1 reads the key `on` as true."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    found["on"] = found.pop(True)
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in workflow(path)["jobs"].values():
        yield from job["steps"]


def step(path: Path, name: str) -> str:
    """Return the script of a named step."""
    (found,) = [each["run"] for each in steps(path) if each.get("name") == name]
    return str(found)


EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


@EACH_FILE
def test_nothing_is_allowed_that_a_job_does_not_ask_for(path: Path) -> None:
    found = workflow(path)

    assert found["permissions"] == {}
    assert all(job["permissions"] == {"contents": "read"} for job in found["jobs"].values())


@EACH_FILE
def test_actions_are_pinned_and_leave_no_token_behind(path: Path) -> None:
    for each in steps(path):
        if "uses" in each:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", each["uses"])
        if each.get("uses", "").startswith("actions/checkout@"):
            assert each["with"]["persist-credentials"] is False


@EACH_FILE
def test_inputs_reach_a_script_only_through_the_environment(path: Path) -> None:
    assert [each["run"] for each in steps(path) if "${{" in each.get("run", "")] == []


@EACH_FILE
def test_every_job_ends(path: Path) -> None:
    assert all(job["timeout-minutes"] <= 720 for job in workflow(path)["jobs"].values())


def test_code_of_strangers_never_reaches_a_machine_of_ours() -> None:
    for path in FILES:
        found = workflow(path)
        hosted = all(job["runs-on"] == "ubuntu-latest" for job in found["jobs"].values())
        if not hosted:
            assert set(found["on"]) == {"workflow_dispatch", "schedule"}
            assert any(job.get("environment") == "gpu" for job in found["jobs"].values())


GPU = ROOT / ".github" / "workflows" / "gpu.yml"


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does, in the repository; `folder` holds what it writes."""
    given = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
        **environment,
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(folder: Path) -> dict[str, str]:
    lines = (folder / "output").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


LLAMA = "suites/datacenter/llama2-70b.mlperf.toml"


def test_the_plan_is_a_matrix_of_one_job_per_suite_and_accelerator(tmp_path: Path) -> None:
    done = run(step(GPU, "Plan"), tmp_path, SUITES=LLAMA, ACCELERATOR="", PROFILE="quick")

    assert done.returncode == 0, done.stderr
    found = outputs(tmp_path)
    matrix = json.loads(found["matrix"])["include"]
    assert int(found["jobs"]) == len(matrix)
    assert [(job["accelerator"], job["runner"]) for job in matrix] == [
        ("B200", ["self-hosted", "linux", "gpu-b200"]),
        ("GH200", ["self-hosted", "linux", "gpu-gh200"]),
        ("H200", ["self-hosted", "linux", "gpu-h200"]),
    ]
    assert {job["suite"] for job in matrix} == {LLAMA}
    assert "H200" in (tmp_path / "summary").read_text("utf-8")


def test_one_accelerator_can_be_named(tmp_path: Path) -> None:
    done = run(
        step(GPU, "Plan"), tmp_path, SUITES="suites/datacenter", ACCELERATOR="H200", PROFILE="quick"
    )

    assert done.returncode == 0, done.stderr
    matrix = json.loads(outputs(tmp_path)["matrix"])["include"]
    assert {job["accelerator"] for job in matrix} == {"H200"}
    assert len(matrix) == len(list((ROOT / "suites/datacenter").glob("*.toml")))


def test_an_input_that_is_a_command_stays_a_word(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    done = run(
        step(GPU, "Plan"),
        tmp_path,
        SUITES=f"$(touch {canary}) ; touch {canary}",
        ACCELERATOR=f"`touch {canary}`",
        PROFILE="quick",
    )

    assert done.returncode != 0
    assert not canary.exists()


@pytest.mark.parametrize(
    ("purpose", "reason", "code"),
    [("baseline", "", 2), ("baseline", "new driver", 0), ("gate", "", 0)],
)
def test_a_baseline_needs_a_reason(tmp_path: Path, purpose: str, reason: str, code: int) -> None:
    script = step(GPU, "Refuse a baseline without a reason")

    assert run(script, tmp_path, PURPOSE=purpose, REASON=reason).returncode == code


RECORDER = """#!/bin/sh
for word in "$@"; do echo "$word" >> "$RECORD"; done
"""


@pytest.mark.parametrize(
    ("purpose", "more"),
    [
        ("gate", []),
        ("baseline", ["--mlperf-update=replace", "--mlperf-reason", "driver 580; new $(image)"]),
    ],
)
def test_the_purpose_decides_whether_a_baseline_is_judged_or_recorded(
    tmp_path: Path, purpose: str, more: list[str]
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(RECORDER, "utf-8")
    python.chmod(0o755)

    done = run(
        step(GPU, "Measure and judge"),
        tmp_path,
        RUNNER_TEMP=str(tmp_path),
        RECORD=str(tmp_path / "words"),
        SUITE="suites/datacenter/llama2-70b.mlperf.toml",
        ACCELERATOR="H200",
        PROFILE="quick",
        PURPOSE=purpose,
        REASON="driver 580; new $(image)",
    )

    assert done.returncode == 0, done.stderr
    words = (tmp_path / "words").read_text("utf-8").splitlines()
    assert words[:2] == ["-m", "pytest"]
    assert words[2:5] == [
        "suites/datacenter/llama2-70b.mlperf.toml",
        "--mlperf-accelerator",
        "H200",
    ]
    assert words[11:] == more
