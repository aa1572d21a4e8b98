"""Hand valid measurements to pytest-benchmark, for those who keep its files."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.reports.benchmark_json import entry

_FED: pytest.StashKey[bool] = pytest.StashKey()


def wanted(config: pytest.Config) -> bool:
    """Whether pytest-benchmark is active and was asked to keep or compare figures.

    Its table alone would repeat our summary; under `-n` it switches itself off.
    """
    if not config.pluginmanager.hasplugin("benchmark") or hasattr(config, "workerinput"):
        return False
    option = config.option
    names = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare")
    asked = any(bool(getattr(option, name, None)) for name in names)
    off = getattr(option, "benchmark_disable", False)
    return asked and not (off and not getattr(option, "benchmark_enable", False))


class _Clock:
    """A timer for pytest-benchmark that says what LoadGen measured."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def restart(self) -> None:
        """Go back to 0: a difference to 0 is exact, one between two sums is not."""
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        self._now += seconds


def feed(request: pytest.FixtureRequest, verdict: Verdict) -> None:
    """Give each run to the `benchmark` fixture as one round; a test has one benchmark at most."""
    found = entry(verdict)
    if found is None or request.node.stash.get(_FED, False):
        return
    request.node.stash[_FED] = True
    clock = _Clock()
    remaining = iter(found.rounds)
    request.node.add_marker(pytest.mark.benchmark(timer=clock, group=found.group))
    fixture: Any = request.getfixturevalue("benchmark")
    # A case is a large object; pytest-benchmark would keep all of it as text.
    fixture.params, fixture.param = dict(found.params), found.param
    fixture.extra_info.update(found.extra_info)
    fixture.pedantic(
        lambda: clock.advance(next(remaining)),
        setup=clock.restart,
        rounds=len(found.rounds),
        iterations=1,
    )
