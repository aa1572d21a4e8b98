"""Read the results in MLPerf submissions, or in single folders of LoadGen logs."""

from __future__ import annotations

from pytest_mlperf.addons.official.results._folders import ResultPlace, Scenarios, result_folders
from pytest_mlperf.addons.official.results._logs import count_of, queries_of
from pytest_mlperf.addons.official.results._results import RecordedResult, read_result

__all__ = [
    "RecordedResult",
    "ResultPlace",
    "Scenarios",
    "count_of",
    "queries_of",
    "read_result",
    "result_folders",
]
