"""Define the tests of every suite, which are parametrized with the suite's cases.

A test makes only the measurements that earlier tests did not make, so tests may run in any order.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_mlperf.core.case import AUDITS, Kind
from pytest_mlperf.plugin.fixture import Mlperf
from pytest_mlperf.rounds.compliance import TESTS
from pytest_mlperf.suite.pairs import PlannedPair
from pytest_mlperf.suite.plan import Planned


def test_accuracy(mlperf: Mlperf, case: Planned) -> None:
    """Fail if a score misses its gate: MLPerf's for its workloads, the suite's for tiny twins."""
    mlperf.judge(case, Kind.ACCURACY).check()


def test_performance(mlperf: Mlperf, case: Planned) -> None:
    """Fail if a gated metric is worse than the baseline in git by its limit, or accuracy fails."""
    mlperf.judge(case, Kind.PERFORMANCE).check()


def test_efficiency(mlperf: Mlperf, case: Planned) -> None:
    """Fail on a proven drop of samples or tokens per joule from the baseline in git."""
    mlperf.judge(case, Kind.EFFICIENCY).check()


def test_pair(mlperf: Mlperf, case: PlannedPair) -> None:
    """Fail unless one engine entry is better than another by the factor that the suite claims."""
    mlperf.judge(case, Kind.PAIR).check()


def _compliance(test: Kind) -> Callable[[Mlperf, Planned], None]:
    def check(mlperf: Mlperf, case: Planned) -> None:
        mlperf.judge(case, test).check()

    check.__name__, check.__doc__ = f"test_{test.lower()}", f"Check that {TESTS[test].shows}."
    return check


globals().update({f"test_{kind.lower()}": _compliance(kind) for kind in AUDITS})
