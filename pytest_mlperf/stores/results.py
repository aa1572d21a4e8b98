"""Read and write the results file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import SCHEMA, Results
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.foreign import read_foreign

_RESULTS = TypeAdapter(Results)


def write_results(path: Path, results: Results) -> None:
    """Write a results file atomically.

    Raises:
        MlperfError: It cannot be written.
    """
    content = _RESULTS.dump_python(results, mode="json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise MlperfError(f"{path}: the results cannot be written: {error.strerror}") from None


def read_results(path: Path) -> Results:
    """Read a results file.

    Raises:
        MlperfError: It is absent, damaged, too large, or of a newer schema.
    """
    raw = read_foreign(path, "results file")
    found = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(found, int) and found > SCHEMA:
        raise MlperfError(
            f"{path}: written by a newer pytest-mlperf (schema {found}; this one reads up to "
            f"{SCHEMA}): upgrade"
        )
    try:
        return _RESULTS.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MlperfError(f"{path}: not a results file: {place}: {first['msg']}") from None


def results_schema() -> dict[str, Any]:
    """Return the JSON Schema of the results file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pytest-mlperf results",
        **_RESULTS.json_schema(mode="serialization"),
    }
