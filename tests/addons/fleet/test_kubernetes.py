"""Test `pytest-mlperf kubernetes`: a cluster accepts its jobs, and they measure and merge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.stores.results import read_results
from tests.addons.fleet.test_slurm import suite
from tests.cli.text import Say
from tests.conftest import LEAN

WHERE = ("--image", "lab/mlperf:7", "--claim", "results")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "suites").mkdir(parents=True)
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{LEAN} -omlperf_control=off")
    monkeypatch.chdir(folder)
    return folder


def made(say: Say, *options: str, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    Path("plan.json").write_text(say.ends(0, "plan", "--format", "json", *options), "utf-8")
    text = say.ends(0, "kubernetes", "plan.json", *WHERE, *more)
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items


def test_a_part_has_its_accelerator_time_and_options(cluster: Path, say: Say) -> None:
    suite("a.mlperf.toml", "a", '["cpu", "8xH100", "H200_1g.18gb"]')
    suite("b.mlperf.toml", "b", '["8xH100"]')
    items = made(say, more=("--mount", "models:/models"))
    assert [item["kind"] for item in items] == ["ConfigMap", *["Job"] * 4]
    _, gpus, mig, cpu, _ = items
    spec, pod = gpus["spec"], gpus["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 2)
    assert pod["nodeSelector"] == {"pytest-mlperf/accelerator": "8xH100"}
    assert pod["activeDeadlineSeconds"] >= 1800
    of = {job["metadata"]["name"].rpartition("-2")[0]: job for job in (gpus, mig, cpu)}
    resources = {
        name: job["spec"]["template"]["spec"]["containers"][0]["resources"]
        for name, job in of.items()
    }
    assert list(resources.values()) == [
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


def test_plans_that_no_cluster_accepts_are_wrong_usage(
    cluster: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    suite("a.mlperf.toml", "a")
    Path("plan.json").write_text(say.ends(0, "plan", "--format", "json"), "utf-8")

    for more, message in (((), "--claim"), ((*WHERE, "--mount", "x"), "is not CLAIM:/PATH")):
        with pytest.raises(SystemExit, match="2"):
            say("kubernetes", "plan.json", *more)
        assert message in capsys.readouterr().err


def apply(items: list[dict[str, Any]], folder: Path, *lost: str) -> dict[str, int]:
    """Apply objects as a cluster would; the pods of lost parts never start.

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
    cluster: Path, say: Say, tmp_path: Path
) -> None:
    """A part whose node never came back is reported.

    The shared folder is outside of the cluster, as in a pod, and the project configures no pytest.
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
