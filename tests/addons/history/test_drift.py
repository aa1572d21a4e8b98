"""Creep by acceptance: baselines in a real repository, each step within the limit."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.addons.history.drift import drift_of
from pytest_mlperf.bench.files import AcceptedBaselines
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.rulings.criteria import with_criterion
from pytest_mlperf.core.verdict import BaselineReference, Outcome, Verdict
from pytest_mlperf.reports.sentences import sentence
from tests.addons.history.test_history import FILE, accept, measured
from tests.cli.lab import git
from tests.reports.verdicts import CASE, metric

pytestmark = pytest.mark.process

DAYS = ("2026-03-02", "2026-05-11", "2026-08-20")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git(tmp_path, "init", "-q", "-b", "main")
    return tmp_path


def verdict(share: float = -0.005, outcome: Outcome = Outcome.OK) -> Verdict:
    """Return a verdict of a session half a per cent below the current baseline, which passes."""
    fields = {"change": share, "low": share - 0.01, "high": share + 0.01, "runs": 3}
    values = {"now": 19_000.0, "baseline": 19_000.0 / (1 + share)}
    identity: dict[str, Property] = {"gpu": "H200", "power_limit_w": 700}
    return Verdict(
        case=replace(CASE, workload="llama", engine="trtllm", precision="fp8"),
        kind=Kind.PERFORMANCE,
        outcome=outcome,
        headline="tokens/s −0.5 %",
        metrics=(metric("tokens_per_second", outcome, **fields, **values),),
        subject=Subject(identity=identity, fingerprint={}, surroundings={}),
        baseline=BaselineReference(file=str(FILE)),
    )


def accepted(*values: float) -> None:
    for day, value in zip(DAYS, values, strict=True):
        accept(FILE, day, day, measured(day, value))


def judged(accepted: Verdict, mode: str = "fail", since: str = "") -> Verdict:
    baselines = AcceptedBaselines(accepted, Path())
    criterion = drift_of(accepted, baselines, mode, since)  # type: ignore[arg-type]
    return with_criterion(accepted, criterion) if criterion else accepted


def test_steps_within_the_limit_fail_together(here: Path) -> None:
    """A warning leaves the verdict, a drop keeps its own, and a new day starts again."""
    accepted(20_000.0, 19_600.0, 19_200.0)

    failed, warned = judged(verdict()), judged(verdict(), "warn")
    fell = judged(verdict(-0.06, Outcome.PERF_DROP))

    assert (failed.outcome, failed.fails) == (Outcome.PERF_DROP, True)
    assert sentence(failed.headline).startswith("tokens/s −4.")
    assert "over 3 accepted baselines since 2026-03-02; limit −3 % exceeded" in sentence(
        failed.headline
    )
    assert sentence(failed.notes[0]) == "against the baseline alone: ok tokens/s −0.5 %"
    assert warned.outcome is Outcome.OK
    assert sentence(sentence(warned.notes[0])).startswith("drift: tokens/s −4.")
    assert sentence(fell.headline) == "tokens/s −0.5 %"
    assert sentence(sentence(fell.notes[0])).startswith("drift: ")
    assert judged(verdict(), since="2026-05-11") == verdict()


@pytest.mark.parametrize("values", [(20_000.0, 19_900.0, 19_800.0), (19_000.0, 19_400.0, 20_000.0)])
def test_a_verdict_without_a_slow_drift_stays(here: Path, values: tuple[float, ...]) -> None:
    """Less than the limit, and better."""
    accepted(*values)

    assert judged(verdict()) == verdict()


def test_other_data_start_a_new_history(here: Path) -> None:
    for day, value, data in zip(DAYS, (20_000.0, 19_600.0, 19_200.0), "aab", strict=True):
        fingerprint = {"dataset": data}
        accept(FILE, day, day, measured(day, value), action="replace", fingerprint=fingerprint)

    assert judged(verdict()) == verdict()


def test_few_noisy_runs_prove_no_drift(here: Path) -> None:
    rng = random.Random(1)
    for day, value in zip(DAYS, (20_000.0, 19_600.0, 19_200.0), strict=True):
        runs = tuple(
            replace(run, metrics={"tokens_per_second": value * math.exp(rng.gauss(0, 0.05))})
            for run in measured(day, value, count=4)
        )
        accept(FILE, day, day, runs)

    assert judged(verdict()).outcome is Outcome.OK
