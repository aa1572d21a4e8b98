"""`pytest-mlperf history` over sessions: from the store, and from results files."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.results import Results
from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.text import Say, one_line
from tests.stores.test_database import RECORDED

pytestmark = pytest.mark.process  # asks git


COUNT = 40


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Results]:
    """Sessions of a case whose speed falls by 4 % at the 31st; a baseline was accepted at 11."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    recorded = read_results(RECORDED)
    result = next(r for r in recorded.cases if r.verdict.kind == "performance")
    rng = random.Random(1)
    made = []
    for n in range(COUNT):
        value = 100 * math.exp(rng.gauss(0, 0.005)) * (0.96 if n >= 30 else 1)
        metric, *_ = result.verdict.metrics  # the throughput
        metric = replace(
            metric, now=value, baseline=replace(metric.baseline, value=100.0 if n < 10 else 101.0)
        )
        case_result = replace(result, verdict=replace(result.verdict, metrics=(metric,)))
        day = f"2026-{1 + n // 28:02}-{1 + n % 28:02}"
        made.append(
            replace(
                recorded,
                run=f"run-{n:02}",
                started=f"{day}T06:00:00+00:00",
                commit=f"{n:02}aaaaaaaaaa",
                cases=(case_result,),
            )
        )
    return made


def name(sessions: list[Results]) -> str:
    return sessions[0].cases[0].verdict.case.id


def test_a_store_tells_the_history_of_a_case(sessions: list[Results], say: Say) -> None:
    with opened(".mlperf/results.db", write=True) as store:
        for session in sessions:
            store.add(session)
    output = say.ends(0, "history", name(sessions), "--rows", "12")
    assert f"samples/s, {COUNT} sessions," in one_line(output)
    rows = [line for line in output.splitlines() if line.startswith("2026-")]
    assert len(rows) == 12
    assert [row for row in rows if "from here on" in row] == [rows[2]]
    assert sum(line.count("•") for line in output.splitlines()) == COUNT
    assert "A baseline accepted, ^ level changed" in output
    (changed,) = [line for line in output.splitlines() if line.startswith("changed ")]
    assert "worse: 2026-02-02 → 2026-02-03, 29aaaaaaa → 30aaaaaaa" in changed
    assert max(map(len, output.splitlines())) <= 90


def test_without_a_store_results_files_tell_it(sessions: list[Results], say: Say) -> None:
    """A part of a name that is none, and a store that is not there, say so."""
    for session in sessions:
        write_results(Path(".mlperf/runs") / session.run / "results.json", session)
    (Path(".mlperf/runs/run-05/results.json")).write_text("{", "utf-8")
    output = say.ends(0, "history", name(sessions))
    assert f"samples/s, {COUNT - 1} sessions," in one_line(output)
    assert "note      left out: .mlperf/runs/run-05/results.json: not a results file" in output
    with opened("s.db", write=True) as store:
        store.add(read_results(RECORDED))
    output = say.ends(2, "history", "speed-Offline", "--store", "s.db")
    assert "no case 'speed-Offline' with a baseline in git or a session here" in output
    assert say("history", "x", "--store", "none.db")[0] == 2
