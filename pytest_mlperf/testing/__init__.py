"""Check extensions against their contracts: engines, data sets, scorers, builders, add-ons.

A project calls these checks in its tests. Each uses an extension as a run does, without LoadGen and
in this process, and raises AssertionError with the problem, its location and the fix. This
package's own extensions pass the same checks.
"""

from pytest_mlperf.testing._checks import check_addon, check_builder, check_dataset, check_scorer
from pytest_mlperf.testing._engines import check_engine
from pytest_mlperf.testing._sink import RecordingSink

__all__ = [
    "RecordingSink",
    "check_addon",
    "check_builder",
    "check_dataset",
    "check_engine",
    "check_scorer",
]
