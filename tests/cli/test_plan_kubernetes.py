"""`plan --format kubernetes`: jobs that a cluster accepts, and that do what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli.across import read_prices
from pytest_mlperf.cli.plan import money
from pytest_mlperf.cli.suites import read_suites
from pytest_mlperf.reports.terminal.selection import CaseCost
from pytest_mlperf.stores.results import read_results
from tests.cli.test_plan_slurm import suite
from tests.cli.text import Say, differing
from tests.conftest import LEAN

WHERE = ("--image", "lab/mlperf:7", "--claim", "results")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "suites").mkdir(parents=True)
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{LEAN} -omlperf_control=off")
    monkeypatch.chdir(folder)
    return folder


def made(say: Say, *options: str) -> list[dict[str, Any]]:
    text = say.ends(0, "plan", "--format", "kubernetes", *WHERE, *options)
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items


def test_a_part_has_its_accelerator_time_and_options(project: Path, say: Say) -> None:
    suite("a.mlperf.toml", "a", '["cpu", "8xH100", "H200_1g.18gb"]')
    suite("b.mlperf.toml", "b", '["8xH100"]')
    items = made(say, "--mount", "models:/models")
    assert [item["kind"] for item in items] == ["ConfigMap", *["Job"] * 4]
    _, gpus, mig, cpu, _ = items
    spec, pod = gpus["spec"], gpus["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 2)
    assert pod["nodeSelector"] == {"pytest-mlperf/accelerator": "8xH100"}
    assert pod["activeDeadlineSeconds"] >= 1800
    of = {job["metadata"]["name"].rpartition("-2")[0]: job for job in (gpus, mig, cpu)}
    asked = {
        name: job["spec"]["template"]["spec"]["containers"][0]["resources"]
        for name, job in of.items()
    }
    assert list(asked.values()) == [
        {"limits": {"nvidia.com/gpu": 8}},
        {"limits": {"nvidia.com/mig-1g.18gb": 1}},
        {},
    ]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "mount-0"]
    assert mount == {"name": "mount-0", "mountPath": "/models", "readOnly": True}

    _, part, *_ = made(say, "--profile", "official", "--max-runs", "7", "--compliance")

    (container,) = part["spec"]["template"]["spec"]["containers"]
    assert " --mlperf-profile=official --mlperf-max-runs=7 --mlperf-compliance " in str(container)

    validator = pytest.importorskip("kubernetes_validate")
    for version in ("1.29", "1.37"):
        for item in items:
            validator.validate(item, version, strict=True)


def test_what_is_for_kubernetes_is_refused_elsewhere(project: Path, say: Say) -> None:
    suite("a.mlperf.toml", "a")
    message = "pytest-mlperf: --image, --claim and --mount are for --format kubernetes"
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("plan", "--format", form, option, "models:/models"), 2, (message,))
        for form in ("table", "json", "github", "slurm")
        for option in ("--image", "--claim", "--mount")
    ]
    kubernetes = ("plan", "--format", "kubernetes")
    rows.append((kubernetes, 2, ("needs --image",)))
    rows.append(((*kubernetes, *WHERE, "--mount", "x"), 2, ("write CLAIM:/path",)))
    assert differing(say, rows) == []


def apply(items: list[dict[str, Any]], folder: Path, *lost: str) -> dict[str, int]:
    """Do what a cluster does with some objects; the pods of lost parts never begin.

    Returns:
        Exit codes by job and index.
    """
    (plan,) = [one for one in items if one["kind"] == "ConfigMap"]
    tools = folder / "tools"
    tools.mkdir(parents=True)
    (folder / "plan.json").write_text(plan["data"]["plan.json"], "utf-8")
    (tools / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "utf-8")
    (tools / "python3").chmod(0o755)
    codes = {}
    for job in (one for one in items if one["kind"] == "Job"):
        container = job["spec"]["template"]["spec"]["containers"][0]
        for index in range(job["spec"].get("completions", 1)):
            name = f"{job['metadata']['name'].split('-')[1]}.{index}"
            if name in lost:
                continue
            done = subprocess.run(
                [word.replace("sleep 5", "until=0") for word in container["command"]],
                env={
                    **os.environ,
                    **{one["name"]: one["value"] for one in container["env"]},
                    "MLPERF_RESULTS": str(folder / "out"),
                    "MLPERF_PLAN": str(folder / "plan.json"),
                    "JOB_COMPLETION_INDEX": str(index),
                    "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=300,
            )
            print(name, done.stdout)  # the log of a pod; shown where a test fails
            codes[name] = done.returncode
    return codes


@pytest.mark.process
def test_every_part_measures_a_suite_and_the_last_job_judges_them_all(
    project: Path, say: Say, tmp_path: Path
) -> None:
    """A part whose node never came back is no silent gap.

    What they share is outside of the project, as in a pod, and the project configures no pytest.
    """
    hostile = "it's $(touch pwned) b.mlperf.toml"
    suite("a.mlperf.toml", "a")
    suite(hostile, "b")
    assert apply(made(say), tmp_path / "part", "cpu.0") == {"cpu.1": 0, "merge.0": 1}
    (measured,) = (tmp_path / "part/out").rglob("cpu.1.json")
    merged = read_results(tmp_path / "part/out/results.json")
    assert [result.verdict.case.workload for result in merged.cases] == ["b"]
    assert not Path("pwned").exists()
    parts = tmp_path / "all/out/parts"
    parts.mkdir(parents=True)
    shutil.copy(measured, parts / "cpu.0.json")
    assert apply(made(say, f"suites/{hostile}"), tmp_path / "all", "cpu.0") == {"merge.0": 0}


PRICED = """\
[prices]
H100 = { usd_per_gpu_hour = 2.5, as_of = 2026-11-01, source = "our contract" }
"""


def test_the_price_is_that_of_a_file_else_of_the_suite(project: Path, say: Say) -> None:
    suite("a.mlperf.toml", "a", '["cpu", "8xH100", "H200"]')
    with Path("suites/a.mlperf.toml").open("a", encoding="utf-8") as file:
        file.write("[prices]\nH200 = { usd_per_gpu_hour = 4, as_of = 2026-10-01 }\n")
        file.write("H100 = { usd_per_gpu_hour = 9, as_of = 2026-10-01 }\n")
    Path("prices.toml").write_text(PRICED, "utf-8")
    planned = read_suites([Path("suites/a.mlperf.toml")], None)
    measured = {
        (case.path, case.case.id): CaseCost(first_s=3600.0, more_s=900.0) for case in planned
    }
    of_file = read_prices(Path("prices.toml"))
    assert money(planned, measured, 5, of_file) == [
        "cost: 24.00 to 48.00 USD; without cpu, of which no price is known",
        "prices: H100 2.5 USD an hour, 2026-11-01, our contract; H200 4 USD an hour, 2026-10-01",
    ]
    assert money(planned[:1], measured, 5, of_file) == ["cost: no price of cpu"]
    assert money(planned[:1], measured, 5, {}) == []
    assert "our contract" in say("plan", "--prices", "prices.toml")[1]
    refused = say("plan", "--prices", "prices.toml", "--format", "json")
    assert refused == (2, "pytest-mlperf: --prices is for the table, --format table\n")
