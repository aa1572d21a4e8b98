"""The tests of every suite: this module's functions, parametrized with the suite's cases.

Whatever a verdict needs and is not measured yet is measured when it is asked for, so no test relies
on another one having run before it.
"""

from __future__ import annotations

from pytest_mlperf.plugin.fixture import Mlperf
from pytest_mlperf.suite.pairs import PlannedPair
from pytest_mlperf.suite.plan import Planned


def test_accuracy(mlperf: Mlperf, case: Planned) -> None:
    """The scores reach the gate: MLPerf's for its own workloads, the suite's for its twins."""
    mlperf.judge(case, "accuracy").check()


def test_performance(mlperf: Mlperf, case: Planned) -> None:
    """No gated metric fell by its limit against the baseline in git, and accuracy holds."""
    mlperf.judge(case, "performance").check()


def test_efficiency(mlperf: Mlperf, case: Planned) -> None:
    """Samples (tokens) per joule did not fall by their limit against the baseline in git."""
    mlperf.judge(case, "efficiency").check()


def test_pair(mlperf: Mlperf, case: PlannedPair) -> None:
    """One engine entry is as many times better than another as the suite claims."""
    mlperf.judge(case, "pair").check()


def test_test01(mlperf: Mlperf, case: Planned) -> None:
    """Answers of a timed run are those of the accuracy run, and as fast."""
    mlperf.judge(case, "TEST01").check()


def test_test04(mlperf: Mlperf, case: Planned) -> None:
    """One sample asked again and again is not answered faster: nothing is kept."""
    mlperf.judge(case, "TEST04").check()


def test_test05(mlperf: Mlperf, case: Planned) -> None:
    """Other seeds give the same speed."""
    mlperf.judge(case, "TEST05").check()


def test_test06(mlperf: Mlperf, case: Planned) -> None:
    """Tokens that were counted are those that were answered."""
    mlperf.judge(case, "TEST06").check()


def test_test07(mlperf: Mlperf, case: Planned) -> None:
    """A timed run answers a small set as well as it must."""
    mlperf.judge(case, "TEST07").check()


def test_test08(mlperf: Mlperf, case: Planned) -> None:
    """Predictions of a timed run are those of the accuracy run."""
    mlperf.judge(case, "TEST08").check()


def test_test09(mlperf: Mlperf, case: Planned) -> None:
    """Answers of a timed run are as long as the reference's."""
    mlperf.judge(case, "TEST09").check()
