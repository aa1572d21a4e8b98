"""Checks of engines, data sets, scorers, builders and add-ons, for the tests of who writes one.

Each check does with an extension what a run does with it, without LoadGen and in this process, and
raises AssertionError with what is wrong, where, and what to do. The tests of this package's own
engines, data sets, scorers and builders call the same checks.
"""

from pytest_mlperf.testing._addons import check_addon
from pytest_mlperf.testing._checks import check_builder, check_dataset, check_scorer
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
