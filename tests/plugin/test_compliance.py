"""--mlperf-compliance: honest engines pass MLPerf's compliance tests, and cheating ones do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

import pytest

from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.cli.lab import LIGHT, ROOT
from tests.plugin import cheats

pytestmark = [pytest.mark.process, pytest.mark.quiet]

RESNET = ("TEST01", "TEST04", "TEST05")
"""What v4.1 asks for of ResNet-50."""

MADE = (
    "(Honest and test_test0) or (Keeper and test_test04) or (Guesser and test_test01) "
    "or test_test06"
)

Audits = Mapping[tuple[str, str], CaseResult]


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> Audits:
    """The results of one session, by engine and test."""
    path = tmp_path_factory.mktemp("audits")
    (path / "suites").mkdir()
    (path / "suites/pictures.mlperf.toml").write_text(cheats.PICTURES, "utf-8")
    (path / "suites/texts.mlperf.toml").write_text(cheats.TEXTS, "utf-8")
    shutil.copy(cheats.__file__, path / "cheats.py")
    command = [sys.executable, "-m", "pytest", *LIGHT, "suites", "-omlperf_control=off"]
    command += ["--mlperf-compliance", "-k", MADE]
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(path), "PYTHONPATH": str(ROOT)}
    environment.pop("CI", None)
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=path, env=environment, capture_output=True, text=True, check=False
    )
    (file,) = path.glob(".mlperf/runs/*/results.json")
    results = read_results(file)
    assert results.cases, done.stdout + done.stderr
    return {
        (one.verdict.case.engine.rpartition(":")[2], one.verdict.kind): one for one in results.cases
    }


CAUGHT = {
    ("Keeper", "TEST04"): "faster, as if answers were kept",
    ("Guesser", "TEST01"): "answers differ from the accuracy run's",
    ("Cutter", "TEST06"): "answers have another length than was counted",
}


@pytest.mark.parametrize(("engine", "test"), CAUGHT)
def test_an_engine_that_cheats_fails_the_test_that_looks_for_it(
    audits: Audits, engine: str, test: str
) -> None:
    result = audits[engine, test]

    assert result.verdict.outcome is Outcome.GATE_FAIL
    assert result.verdict.headline.startswith(f"{test}: ")
    assert CAUGHT[engine, test] in result.verdict.headline
    assert any("an auditor looks whether" in note for note in result.verdict.notes)


@pytest.mark.parametrize(
    ("engine", "test"),
    [*(("Honest", test) for test in RESNET), ("Writer", "TEST06")],
)
def test_an_honest_engine_passes(audits: Audits, engine: str, test: str) -> None:
    assert audits[engine, test].verdict.outcome is Outcome.OK, audits[engine, test].verdict.headline


def test_no_other_test_is_made(audits: Audits) -> None:
    made = {test for engine, test in audits if engine == "Honest"}

    assert made == {*RESNET}
    assert {test for engine, test in audits if engine in {"Writer", "Cutter"}} == {"TEST06"}
