"""Read and write the results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import encodable, json_text
from pytest_mlperf.core.results import SCHEMA, Results
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.foreign import as_document, read_foreign, shape_of

_RESULTS = TypeAdapter(Results)
_VERDICT = TypeAdapter(Verdict)
_SHAPE = shape_of(Results)


def write_results(path: Path, results: Results) -> None:
    """Write a results file atomically.

    Raises:
        MlperfError: It cannot be written.
    """
    content = _RESULTS.dump_python(encodable(results), mode="json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, json_text(content) + "\n")
    except OSError as error:
        raise MlperfError(f"{path}: the results cannot be written: {error.strerror}") from None


def require_readable(verdict: Verdict) -> None:
    """Make sure that a verdict can be read back from where it will be written.

    Raises:
        ValueError: A number of it is outside its range: a defect of ours.
    """
    _VERDICT.validate_python(_VERDICT.dump_python(encodable(verdict), mode="json"))


def read_results(path: Path) -> Results:
    """Read a results file.

    Raises:
        MlperfError: It is absent, damaged, too large, of a newer schema, or holds what no run can
            measure.
    """
    raw = read_foreign(path, "results file")
    cure = "take the results.json that pytest wrote, or measure again: pytest suites"
    return as_document(path, raw, "results file", _SHAPE, SCHEMA, cure)


def results_schema() -> dict[str, Any]:
    """Return the JSON Schema of the results file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pytest-mlperf results",
        **_RESULTS.json_schema(mode="serialization"),
    }
