"""Extract the programs that a model wrote, and run them in a sandbox."""

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
