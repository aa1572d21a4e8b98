"""Put the suspects of earlier sessions first, and remember those of this one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_mlperf.carry import planned_of
from pytest_mlperf.core.judge.together import FALLS
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import suspects

UNDECIDED = {Outcome.SUSPECT, Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.ERROR}
"""After such a word a suspect remains one."""


def suspects_first(items: list[pytest.Item], runs_dir: Path) -> None:
    """Put the cases first whose tests were SUSPECT; all else keeps its order."""
    suspected = set(suspects.load(_file(runs_dir)))
    cases = {(p.path, p.case.id) for i in items if i.nodeid in suspected and (p := planned_of(i))}

    def later(item: pytest.Item) -> bool:
        planned = planned_of(item)
        return planned is None or (planned.path, planned.case.id) not in cases

    if cases:
        items.sort(key=later)


def remember(results: Iterable[CaseResult], runs_dir: Path) -> None:
    """Keep the suspects: those of this session, and of earlier ones what it did not decide.

    Raises:
        MlperfError: They cannot be written.
    """
    file = _file(runs_dir)
    judged = [result for result in results if result.verdict.kind in FALLS]
    found = [r.test for r in judged if r.verdict.outcome is Outcome.SUSPECT]
    decided = {r.test for r in judged if r.verdict.outcome not in UNDECIDED}
    kept = [test for test in suspects.load(file) if test not in decided]
    suspects.save(file, dict.fromkeys([*found, *kept]))


def _file(runs_dir: Path) -> Path:
    return runs_dir / "suspects.json"
