"""Test that an unforeseen exception is an ERROR of its case with a traceback in a log."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import NoReturn

from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.suite.plan import plan_suite
from tests.plugin.project import Project


def closed_terminal(line: str) -> NoReturn:
    raise OSError(errno.EIO, "Input/output error", line)


def bench(project: Project) -> Bench:
    """Return a bench whose progress cannot be shown."""
    conditions = Conditions(
        folder=project.path / "runs/now",
        session="now",
        commit=None,
        handicap=0.0,
        patience=Patience(progress_s=60),
        lease_limit_s=60,
        machine=detect(gpus=False),
        control=False,
    )
    policy = Policy(accuracy=project.path / "accuracy", root=project.path)
    return Bench(conditions, policy, closed_terminal)


def test_an_exception_in_a_measurement_is_the_verdict_of_each_of_its_tests(
    project: Project,
) -> None:
    (planned,) = plan_suite(project.suite())
    ours = bench(project)

    first, again = (ours.verdict(planned, Kind.PERFORMANCE, set()) for _ in range(2))

    assert first.outcome is Outcome.ERROR
    assert again == first
    assert sentence(first.headline).startswith(
        "pytest-mlperf: OSError: [Errno 5] Input/output error"
    )
    assert "unexpected error; please report it with this log" in sentence(first.headline)
    assert first.logs.file == f"runs/now/{planned.case.id}.1.log"
    assert "in closed_terminal" in Path(project.path / first.logs.file).read_text("utf-8")
    assert any("in closed_terminal" in line for line in first.logs.tail)
    assert len(list((project.path / "runs/now").glob("*/spec.json"))) == 1


def test_a_log_that_cannot_be_written_costs_no_verdict(project: Project) -> None:
    (planned,) = plan_suite(project.suite())
    (project.path / "runs").write_text("in the way")

    verdict = bench(project).verdict(planned, Kind.PERFORMANCE, set())

    assert (verdict.outcome, verdict.logs.file) == (Outcome.ERROR, None)


LEAVES = """
from pytest_mlperf.builtin.null import NullEngine

class Leaves(NullEngine):
    def __exit__(self, *error):
        raise RuntimeError("the server is gone")
"""

EXACT = """
class Exact:
    def __init__(self, *, model): pass
    def score(self, outputs, references):
        from pytest_mlperf.core.extension import Scores
        return Scores(per_sample={}, aggregate={"quality": 1.0})
"""


def test_an_engine_that_breaks_while_it_leaves_is_noted_in_both_tests_of_its_case(
    project: Project,
) -> None:
    (project.path / "own.py").write_text(LEAVES + EXACT, "utf-8")
    project.pytester.syspathinsert()
    path = project.suite(engines='[[engines]]\nuse = "own:Leaves"\nname = "null"\n')
    workload = '[workload]\nscorer = { use = "own:Exact" }\n'
    scored = path.read_text("utf-8").replace("[workload]\n", workload)
    path.write_text(scored, "utf-8")

    for kind in ("performance", "accuracy"):
        project.run("suites", "-k", kind)
        (verdict,) = project.verdicts().values()
        assert verdict.outcome is Outcome.NO_BASELINE
        (noted,) = (
            note
            for note in map(sentence, verdict.notes)
            if note.startswith("the engine's __exit__")
        )
        assert "raised RuntimeError: the server is gone (in __exit__, " in noted
        shutil.rmtree(project.path / ".mlperf")
