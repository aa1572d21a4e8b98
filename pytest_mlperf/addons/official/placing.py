"""Describe the ratio of a case's result to the best official result."""

from __future__ import annotations

from pytest_mlperf.bench.official import Placing, compare_with_official
from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.extension import CaseResult, plural


def placing_of(result: CaseResult) -> Placing | None:
    """Compare a case's result with official results; None if none is comparable."""
    verdict = result.verdict
    if verdict.subject is None or verdict.ratio or result.techniques or result.handicap:
        return None
    searched = all(run.search for run in verdict.runs)
    placing = compare_with_official(
        verdict.case, verdict.subject.identity, verdict.runs, searched=searched
    )
    return placing if isinstance(placing, Placing) else None


def best_system(placing: Placing) -> str:
    """Return the system of the best official result: "XE9680, 8 GPUs, fp8"."""
    best = placing.best
    return ", ".join(filter(None, (best.system, plural(best.count, "GPU"), best.precision)))


def in_words(placing: Placing) -> str:
    """Describe a share: "58 % of the best ... (v5.1, Dell): 4,414.59 tokens/s in XE9680"."""
    value = f"{rounded(placing.best_value)} {placing.best.unit}"
    return f"{placing.in_short}: {value} in {best_system(placing)}"
