"""Support MLCommons' formats: submissions, imports and official results; and hardware limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_mlperf.core.addons import Command

if TYPE_CHECKING:
    from pytest_mlperf.extension import CaseResult

API = 1

EXPORT = Command(
    "write a curve as an MLPerf Endpoints submission", f"{__name__}.commands.export", "MLPerf"
)
IMPORT = Command(
    "read results of MLPerf submissions, LoadGen and endpoints",
    f"{__name__}.commands.imports",
    "MLPerf",
)
LIMITS = Command(
    "show physical limits, and compare official results with them",
    f"{__name__}.commands.limits",
    "MLPerf",
)
PUBLISHED = Command(
    "list official results of MLPerf Inference", f"{__name__}.commands.published", "MLPerf"
)
ROUND = Command(
    "show the requirements of a round: gates, limits, counts",
    f"{__name__}.commands.round",
    "MLPerf",
)
SHARE = Command(
    "show how close cases come to the best official results", f"{__name__}.commands.share", "MLPerf"
)
SUBMISSION = Command(
    "write and check a tree for MLPerf's submission checker",
    f"{__name__}.commands.submission",
    "MLPerf",
)


def mlperf_case_facts(result: CaseResult) -> Mapping[str, str]:
    """Return result / best official result as a fact of the case; empty if not comparable."""
    from pytest_mlperf.addons.official.placing import in_words, placing_of

    placing = placing_of(result)
    return {"official": in_words(placing)} if placing else {}
