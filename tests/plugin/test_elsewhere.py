"""Suites whose engines run in another Python: a whole session, from pytest to the baseline."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.paths import placeless
from tests.plugin.project import Project, case, last_line, section
from tests.run import other_python
from tests.run.other_python import ENGINE, PASSES_ON_NOTHING

ACME = case(engine="Acme")
TINY = Path(__file__).parents[2] / "suites/tiny/resnet50"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_python.environment(tmp_path_factory.mktemp("other") / "there")


def suite(project: Project, where: str, *, more: str = "") -> Path:
    """Write a suite whose engine of the project's own runs where the entry says."""
    (project.path / "acme.py").write_text(ENGINE, "utf-8")
    project.pytester.syspathinsert()
    return project.suite(
        top1=100.0, engines=f'[[engines]]\nuse = "acme:Acme"\n{where}\n', more=more
    )


def test_a_session_measures_scores_and_records_by_a_command(
    project: Project, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Performance and accuracy are made there, the scores here; the baseline names no path.

    A library of the engine is needed there only.
    The command passes on three streams and nothing else, as docker run does.
    """
    wrapper = project.path / "wrapper.py"
    wrapper.write_text(PASSES_ON_NOTHING, "utf-8")
    suite(project, f"command = {json.dumps([sys.executable, str(wrapper), '${THERE}'])}")
    (project.path / "acme.py").write_text(f"import only_there\n{ENGINE}", "utf-8")
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (packages / "only_there.py").touch()
    monkeypatch.setenv("THERE", str(python))

    result = project.run("suites", "-v", "--mlperf-update=missing", "-omlperf_baseline_runs=2")

    assert last_line(result) == "2 recorded"
    command = f"command {placeless(sys.executable)} wrapper.py ${{THERE}}"
    recorded_there(project, python, result, command)


def recorded_there(project: Project, python: Path, result: pytest.RunResult, where: str) -> None:
    facts = project.recorded(ACME).fingerprint
    assert facts["engine.prefix"] == placeless(str(python.parents[1])) != sys.prefix
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    summary = " ".join(" ".join(section(result)).split())
    assert f"runs in {where} ({facts['python']})" in summary
    # What the engine says of itself is its own affair; this one names folders on purpose.
    facts_of_machine = {key: value for key, value in facts.items() if not key.startswith("engine.")}
    assert str(python.parents[1]) not in json.dumps(facts_of_machine)
    assert str(project.path) not in json.dumps(facts_of_machine)


def test_a_change_of_the_other_python_is_reported_and_a_drop_is_found(
    project: Project, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THERE", str(python))
    suite(project, 'python = "${THERE}"\noptions = { slow = "nowhere" }')
    recorded_there(project, python, project.record("suites"), "python ${THERE}")
    project.over_days()
    suite(project, f'python = "{python}"\noptions = {{ slow = "there" }}')

    result = project.run("suites", "-k", "performance")

    text = result.stdout.str()
    assert re.search(r"PERF DROP samples/s −[45]\d", text)
    assert f"runs in python {placeless(str(python))}" in text


@pytest.mark.nightly
def test_onnx_runtime_is_needed_there_only(
    project: Project, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime cannot be imported here, but the tiny ResNet-50 is measured."""
    pytest.importorskip("onnxruntime")
    (project.path / "hidden").mkdir()
    (project.path / "hidden/onnxruntime.py").write_text("raise ImportError('not here')", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(project.path / "hidden"))
    text = (TINY.parent / "resnet50.mlperf.toml").read_text("utf-8")
    head, _, rest = text.replace('"resnet50/', f'"{TINY}/').partition("[[scenarios]]")
    head = head.replace('use = "onnxruntime"', f'use = "onnxruntime"\npython = "{python}"')
    suites = project.path / "suites"
    suites.mkdir()
    limits = rest[rest.index("[limits]") :]
    scenario = '[[scenarios]]\nname = "Offline"\nmin_duration = "500ms"\n'
    (suites / "tiny.mlperf.toml").write_text(f"{head}{scenario}{limits}", "utf-8")

    result = project.run_process("suites", "--mlperf-fail-on=skips")

    cases = project.cases()
    assert cases["accuracy"].verdict.metrics[0].now == pytest.approx(98.6, abs=1)
    assert cases["performance"].verdict.runs[0].metrics["throughput"] > 0
    assert result.ret == pytest.ExitCode.OK
    subject = cases["performance"].verdict.subject
    assert subject is not None
    assert "engine.onnxruntime" in subject.fingerprint


def test_a_missing_python_is_a_skip_with_the_remedy(project: Project) -> None:
    rows = [
        (
            'python = "../venv/bin/python"',
            "python, ../venv/bin/python, is not a program here (looked",
        ),
        ('command = ["no-such-docker", "run"]', "command, no-such-docker, is not a program here"),
        ('python = "${NO_SUCH}/python"', "python: ${NO_SUCH} is not set"),
    ]
    for where, reason in rows:
        suite(project, where)

        result = project.run("suites")

        assert last_line(result) == "2 skipped"
        output = " ".join(result.stdout.str().split())
        assert f"first.mlperf.toml:12: engines[0].{reason}" in output
    assert not project.run_folders()


def test_a_plan_names_the_other_python_and_starts_nothing(project: Project) -> None:
    trap = project.path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {project.path}/was-run\n", "utf-8")
    trap.chmod(0o755)
    suite(project, f'python = "{trap}"')

    result = project.run("suites", "--mlperf-plan")

    assert f"1 case in python {trap}" in " ".join(section(result))
    assert not (project.path / "was-run").exists()


def test_errors_in_the_other_python_name_the_key_and_the_python(
    project: Project, tmp_path: Path
) -> None:
    bare = other_python.environment(tmp_path / "bare")
    next(bare.parents[1].glob("lib/python*/site-packages/shared.pth")).unlink()
    suite(project, f'python = "{bare}"')

    project.run("suites")

    verdict = project.verdicts()["performance"]
    assert verdict.headline == (
        f"worker: {placeless(str(bare))} (engines[0].python) lacks numpy and mlcommons-loadgen: "
        "install them there"
    )
