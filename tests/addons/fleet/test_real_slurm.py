"""The script of `pytest-mlperf slurm` on a real Slurm: arrays, a node, a job that joins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf.stores.results import read_results
from tests.addons.fleet import slurm
from tests.addons.fleet.test_slurm import script, submit, suite
from tests.cli.text import Say
from tests.conftest import LEAN

pytestmark = [
    pytest.mark.process,
    pytest.mark.quiet,
    pytest.mark.skipif(bool(slurm.missing()), reason=f"needs {', '.join(slurm.missing())}"),
]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What its users need to reach it."""
    with slurm.running(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def project(variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project; its results go to `out`."""
    (tmp_path / "suites").mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLPERF_RESULTS", "out")
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{LEAN} -omlperf_control=off")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted() -> str:
    """Submit the script; return the state of its last job once that is over."""
    done = submit()
    assert done.returncode == 0, done.stderr
    job = re.search(r"and job (\d+), which joins them", done.stdout)
    assert job, done.stdout
    return slurm.state_of(job[1])


def logs() -> str:
    return "\n".join(f"{log}:\n{log.read_text('utf-8')}" for log in Path("out").glob("*.log"))


def test_two_suites_are_measured_and_joined(project: Path, say: Say) -> None:
    suite("a.mlperf.toml", "a")
    suite("b.mlperf.toml", "b")
    script(say)
    state = submitted()
    assert state == "COMPLETED", logs()
    merged = read_results(project / "out/results.json")
    assert [result.verdict.case.workload for result in merged.cases] == ["a", "b"]
    assert "2 tests: 2 NO BASELINE" in (project / "out/merge.log").read_text("utf-8")
    assert (project / "out/junit.xml").is_file()


def test_a_node_without_its_gpu_fails_the_last_job(project: Path, say: Say) -> None:
    """Slurm grants the GPU by the suite's word; the job ends with exit code 3 and is named."""
    suite("a.mlperf.toml", "a", '["cpu", "H200"]')
    script(say)
    state = submitted()
    assert state == "FAILED", logs()
    merge_log = (project / "out/merge.log").read_text("utf-8")
    assert "INCOMPLETE: 1 of 2 planned tests have no result" in merge_log
    assert "[a-Offline-null-fp32-H200]" in merge_log
    assert (
        "accelerator H200 is required, but not on this machine"
        in (project / "out/H200.0.log").read_text()
    )
