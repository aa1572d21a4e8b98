"""Hand valid measurements to pytest-benchmark, for those who keep its files."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mlperf.core.verdict import Verdict


def wanted(config: pytest.Config) -> bool:
    """Whether pytest-benchmark is active and was asked to keep or compare figures.

    Its table alone would repeat our summary; under `-n` it switches itself off.
    """
    if not config.pluginmanager.hasplugin("benchmark") or hasattr(config, "workerinput"):
        return False
    option = config.option
    names = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare")
    asked = any(bool(getattr(option, name, None)) for name in names)
    return asked and not getattr(option, "benchmark_disable", False)


class _Clock:
    """A timer for pytest-benchmark that says what LoadGen measured."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


def feed(request: pytest.FixtureRequest, verdict: Verdict) -> None:
    """Give each run's seconds per sample to the `benchmark` fixture, one round per run."""
    rounds = [1 / run.metrics["throughput"] for run in verdict.runs if "throughput" in run.metrics]
    if not rounds:
        return
    clock = _Clock()
    remaining = iter(rounds)
    marker = pytest.mark.benchmark(timer=clock, group=verdict.case.workload)
    request.node.add_marker(marker)
    fixture: Any = request.getfixturevalue("benchmark")
    fixture.extra_info["mlperf"] = {"case": verdict.case.id, "outcome": str(verdict.outcome)}
    fixture.pedantic(lambda: clock.advance(next(remaining)), rounds=len(rounds), iterations=1)
