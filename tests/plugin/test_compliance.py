"""--mlperf-compliance: honest engines pass MLPerf's compliance tests, and cheating ones do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
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

CAUGHT = {
    ("Keeper", "TEST04"): "is allowed: the engine may cache answers",
    ("Guesser", "TEST01"): "answers differ from the accuracy run's",
    ("Cutter", "TEST06"): "answers have a length other than the reported number of tokens",
}


def test_engines_that_cheat_fail_the_test_that_looks_for_it_and_honest_ones_pass(
    tmp_path: Path,
) -> None:
    """One session makes the tests that are asked for, and no other."""
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/pictures.mlperf.toml").write_text(cheats.PICTURES, "utf-8")
    (tmp_path / "suites/texts.mlperf.toml").write_text(cheats.TEXTS, "utf-8")
    shutil.copy(cheats.__file__, tmp_path / "cheats.py")
    command = [sys.executable, "-m", "pytest", *LIGHT, "suites", "-omlperf_control=off"]
    command += ["--mlperf-compliance", "-k", MADE]
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("CI", None)
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    (file,) = tmp_path.glob(".mlperf/runs/*/results.json")
    results = read_results(file)
    assert results.cases, done.stdout + done.stderr

    verdicts: dict[tuple[str, str], Verdict] = {
        (case.verdict.case.engine.rpartition(":")[2], case.verdict.kind): case.verdict
        for case in results.cases
    }
    honest = {*(("Honest", test) for test in RESNET), ("Writer", "TEST06")}
    headlines = {audit: verdict.headline for audit, verdict in verdicts.items()}
    assert verdicts.keys() == honest | CAUGHT.keys()
    passed = {audit for audit, verdict in verdicts.items() if verdict.outcome is Outcome.OK}
    assert passed == honest, headlines
    for (engine, test), reason in CAUGHT.items():
        verdict = verdicts[engine, test]
        assert verdict.outcome is Outcome.GATE_FAIL
        assert sentence(verdict.headline).startswith(f"{test}: ")
        assert reason in sentence(verdict.headline)
        assert any("MLPerf checks that" in note for note in map(sentence, verdict.notes))
