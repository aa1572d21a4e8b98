"""Programs that a model wrote: taken out of its answer, run in a sandbox, told apart."""

from pytest_mlperf.adapters.scorers.code._programs import (
    LANGUAGES,
    REFERENCE_FIELDS,
    Problem,
    Reference,
    check_running,
    counted_programs,
    extract,
    passed,
    score_programs,
    toolchains,
)

__all__ = [
    "LANGUAGES",
    "REFERENCE_FIELDS",
    "Problem",
    "Reference",
    "check_running",
    "counted_programs",
    "extract",
    "passed",
    "score_programs",
    "toolchains",
]
