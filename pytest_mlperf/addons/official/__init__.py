"""Submissions, imports, exports, official results of MLCommons, and physical limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_mlperf.core.addons import Command

if TYPE_CHECKING:
    from pytest_mlperf.extension import CaseResult

API = 1

EXPORT = Command(
    "a curve as a submission that MLPerf Endpoints' checker takes", f"{__name__}.commands.export"
)
IMPORT = Command(
    "results of MLPerf submissions, LoadGen and endpoints", f"{__name__}.commands.imports"
)
LIMITS = Command(
    "what is physically possible, and official results against it", f"{__name__}.commands.limits"
)
PUBLISHED = Command(
    "official results of MLPerf Inference, to list and to filter", f"{__name__}.commands.published"
)
SHARE = Command("what share of the best official results was reached", f"{__name__}.commands.share")
SUBMISSION = Command(
    "results as a tree that MLPerf's submission checker takes", f"{__name__}.commands.submission"
)


def mlperf_case_facts(result: CaseResult) -> Mapping[str, str]:
    """Return the share of the best official result, if one is comparable."""
    from pytest_mlperf.addons.official.placing import in_words, placing_of

    placing = placing_of(result)
    return {"official": in_words(placing)} if placing else {}
