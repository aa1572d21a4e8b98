"""A claim about two engine entries, tested by running them in turns."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import Project
from tests.stores.calibrated_here import WORDS, calibrate

ENGINES = """
[[engines]]
use = "null"
name = "fast"
techniques = ["early-exit"]
options = { latency_s = 0.001, batch_size = 16, threads = 1 }

[[engines]]
use = "null"
name = "slow"
options = { latency_s = 0.002, batch_size = 16, threads = 1 }
"""


def suite(project: Project, *pairs: str, **suite_fields: object) -> Path:
    """Write a suite whose first engine is twice as fast, with claims about it."""
    tables = "".join(f"\n[[pairs]]\n{pair}\n" for pair in pairs)
    file = project.suite(engines=ENGINES, more=tables, **suite_fields)  # type: ignore[arg-type]
    file.write_text(file.read_text("utf-8").replace("schema = 1", 'schema = 1\ndivision = "open"'))
    return file


def claim(least: float, a: str = "fast", b: str = "slow") -> str:
    return f'a = "{a}"\nb = "{b}"\nexpect = ">= {least}x"'


def test_a_claim_that_holds_is_proven_from_runs_in_turns(project: Project) -> None:
    file = suite(project, claim(1.3))
    calibrate(project.path / "baselines")

    result = project.run(file, "-k", "pair")

    result.assert_outcomes(passed=1, deselected=2)
    (case_result,) = project.results().cases
    assert case_result.test.endswith("::test_pair[first-Offline-fast-vs-slow-fp32-cpu]")
    assert (case_result.verdict.outcome, case_result.division) == (Outcome.OK, "open")
    assert case_result.techniques == ("early-exit",)
    ratio = case_result.verdict.ratio
    assert ratio is not None
    assert 1.3 <= ratio.low < ratio.ratio < ratio.high
    assert WORDS in case_result.verdict.notes
    sides = [re.search(r"-(fast|slow)-", run.folder) for run in case_result.verdict.runs]
    assert {side[1] for side in sides if side} == {"fast", "slow"}
    assert len(sides) == 2 * ratio.pairs
    started = sorted(case_result.verdict.runs, key=lambda run: Path(run.folder).stat().st_mtime)
    turns = [re.search(r"-(fast|slow)-", run.folder) for run in started]
    order = [side[1] for side in turns if side][:4]
    assert order[:2] == order[3:1:-1] != order[2:4]
    result.stdout.re_match_lines(
        [
            r"  test  verdict  metric +now  vs base +interval    limit",
            r"first-Offline-fast-vs-slow-fp32-cpu",
            r"  open division: early-exit",
            r"  pair  ok       samples/s +[\d. ]+ +\d\.\d\dx .* to .*  >= 1\.3x",
        ]
    )


def test_a_claim_that_does_not_hold_fails_with_the_numbers(project: Project) -> None:
    result = project.run(suite(project, claim(1.5, "slow", "fast")), "-k", "pair")

    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.re_match_lines(
        [
            r"PAIR FAIL samples/s \d\.\d\dx \(.*x to .*x\); claim >= 1\.5x refuted",
            r'reproduce pytest "suites/first.mlperf.toml::test_pair\[',
            r"case      first-Offline-slow-vs-fast-fp32-cpu  suites/first.mlperf.toml:\d+",
            r"division  open division: early-exit",
            r"side +metric +now  ratio .* claim  verdict",
            r"slow-fp32-cpu  samples/s .* >= 1\.5x  PAIR FAIL",
            r"fast-fp32-cpu  samples/s +\d+",
            r"rule      \d runs of each entry, interleaved, in fresh processes;",
        ],
        consecutive=False,
    )


def test_a_fast_side_with_wrong_answers_proves_nothing(project: Project) -> None:
    file = suite(project, claim(1.3), top1=150.0)

    result = project.run(file, "-k", "test_pair or (accuracy and fast)")

    result.assert_outcomes(failed=2, deselected=3)
    (pair,) = [each for each in project.results().cases if each.verdict.kind == "pair"]
    assert pair.verdict.outcome is Outcome.INVALID
    assert sentence(pair.verdict.headline).startswith(
        "not judged: accuracy of fast-fp32-cpu failed, GATE FAIL top1"
    )
    figures = [note.partition(": samples/s ")[0] for note in map(sentence, pair.verdict.notes[-2:])]
    assert figures == ["fast-fp32-cpu", "slow-fp32-cpu"]


def test_a_pair_is_planned_and_selected_like_any_test(project: Project) -> None:
    """A pair of two machines needs both."""
    file = suite(project, claim(1.3))
    arguments = (file, "-m", "mlperf(kind='pair')", "--mlperf-plan")
    result = project.run(*arguments)

    result.stdout.fnmatch_lines(["first-Offline-fast-vs-slow-fp32-cpu *pair", "1 case: usually *"])

    text = suite(project, claim(1.3, "fast-H200", "slow-cpu")).read_text("utf-8")
    named = text.replace('name = "fast"', 'name = "fast"\naccelerators = ["H200"]')
    file.write_text(named, "utf-8")
    result = project.run(file, "-k", "pair")

    result.stdout.fnmatch_lines(["*1 test deselected, accelerator not here: H200-vs-cpu (1)*"])


def test_the_open_division_has_baselines_of_its_own(project: Project) -> None:
    """The same case of the closed division keeps its record, and its verdict."""
    closed = project.suite(engines=ENGINES.replace('techniques = ["early-exit"]\n', ""))
    recording = ("--mlperf-update=missing", "-omlperf_baseline_runs=2")
    project.run(closed, "-k", "performance and fast", *recording)
    opened = suite(project)

    result = project.run(opened, "-k", "performance and fast")

    where = "cpu/quick/first/Offline.fast.fp32.json"
    assert (project.path / "baselines" / where).is_file()
    assert not (project.path / "baselines" / "open").exists()
    result.stdout.fnmatch_lines(["*1 no baseline*"])
    project.run(opened, "-k", "performance and fast", *recording)
    assert (project.path / "baselines" / "open" / where).is_file()
