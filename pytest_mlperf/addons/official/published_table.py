"""Read and write files of `published --format json` and `import mlperf --rows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pytest_mlperf import MlperfError
from pytest_mlperf.rounds.published import OfficialResult, official_results
from pytest_mlperf.stores.foreign import StrictValidator, as_document, read_foreign

SCHEMA_VERSION: Literal[1] = 1
TABLE_KIND: Literal["pytest-mlperf published"] = "pytest-mlperf published"
TABLE_TITLE = "table of published results"
WRITE = "pytest-mlperf import mlperf FOLDER --rows FILE writes one"
"""Advice of error messages."""


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Define the file format of a table of published results."""

    schema: int = SCHEMA_VERSION
    kind: Literal["pytest-mlperf published"] = TABLE_KIND
    results: tuple[OfficialResult, ...]


def table_of(rows: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return rows as a JSON document with its schema version and kind."""
    return {"schema": SCHEMA_VERSION, "kind": TABLE_KIND, "results": rows}


@cache
def results_in(path: Path) -> tuple[OfficialResult, ...]:
    """Read the official results in a file of `import mlperf --rows`; refuse other files."""
    raw = read_foreign(path, TABLE_TITLE)
    if isinstance(raw, dict) and raw.get("kind") != TABLE_KIND:
        raise MlperfError(f"{path}: not a {TABLE_TITLE}; {WRITE}")
    rows = ("results", StrictValidator(OfficialResult))
    return as_document(
        path, raw, TABLE_TITLE, StrictValidator(PublishedTable), SCHEMA_VERSION, WRITE, items=rows
    ).results


def rounds_with_results() -> tuple[str, ...]:
    """Return the rounds whose official results are in the package, oldest first."""
    return tuple(dict.fromkeys(result.round for result in official_results()))
