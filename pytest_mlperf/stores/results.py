"""Read and write results files, and the manifest of a plan: all tests that must report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.numbers import Count
from pytest_mlperf.core.results import SCHEMA_VERSION, CaseResult, Results
from pytest_mlperf.core.untrusted_text import encodable, json_text
from pytest_mlperf.core.verdict import Verdict
from pytest_mlperf.stores import atomic, foreign
from pytest_mlperf.stores.migrations import MIGRATIONS

TITLE = "results file"

_SHAPE, _CASE = foreign.StrictValidator(Results), foreign.StrictValidator(CaseResult)


@cache
def _results() -> TypeAdapter[Results]:
    return TypeAdapter(Results)


@cache
def _verdict() -> TypeAdapter[Verdict]:
    return TypeAdapter(Verdict)


def write_results(path: Path, results: Results, *, readable: bool = True) -> str:
    """Write a results file atomically; return "", or why commands refuse to read the file.

    If `readable` is set, raise MlperfError instead of writing a file that commands refuse.
    """
    text = as_text(results)
    reason = foreign.rejection_reason(text.encode("utf-8", "backslashreplace"))
    if reason and readable:
        raise MlperfError(f"{path}: not written: {reason}; merge or import fewer files at a time")
    try:
        atomic.write_text(path, text)
    except OSError as error:
        raise MlperfError(f"{path}: the results cannot be written: {error.strerror}") from None
    return reason


def as_text(results: Results) -> str:
    """Return the text of a session's results file."""
    return json_text(sealed(_results().dump_python(encodable(results), mode="json"))) + "\n"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a results file with its digest as the last key."""
    rest = {key: value for key, value in content.items() if key != DIGEST}
    return {**rest, DIGEST: _digest(rest)}


def as_bytes(results: Results) -> bytes:
    """Return a session as compact JSON; equal sessions give equal bytes."""
    try:
        return _results().dump_json(results)
    except ValueError:  # text that UTF-8 cannot encode, such as a file name
        return _results().dump_json(encodable(results))


CURE = "use the results.json that pytest wrote, or measure again: pytest suites"


def from_bytes(source: str, content: bytes, title: str = TITLE, cure: str = CURE) -> Results:
    """Parse the output of `as_bytes`; raise MlperfError if it is not valid."""
    return _checked(source, foreign.json_of(source, title, content), title, cure)


DIGEST = "digest"
"""Key of the digest of all other keys of a results file."""


def _digest(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def read_results(path: Path, content: bytes | None = None) -> Results:
    """Read and check a results file; raise MlperfError if it is damaged or not valid."""
    raw = foreign.read_foreign(path, TITLE, content)
    results = _checked(path, raw)
    if DIGEST in raw and raw[DIGEST] != _digest(raw):
        raise MlperfError(
            f"{path}: changed since it was written (wrong digest); use the file that pytest wrote"
        )
    return results


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or "" if it cannot be read."""
    try:
        return hashlib.sha256(foreign.read_regular(path, foreign.MAX_FILE_BYTES)).hexdigest()
    except (OSError, foreign.UnfitError):
        return ""


def require_readable(verdict: Verdict) -> None:
    """Raise ValueError if a verdict cannot be read back, which is a bug of this package."""
    _verdict().validate_python(_verdict().dump_python(encodable(verdict), mode="json"))


def _checked(source: Path | str, raw: Any, title: str = TITLE, cure: str = CURE) -> Results:
    return _completed(
        foreign.as_document(
            source, raw, title, _SHAPE, SCHEMA_VERSION, cure, MIGRATIONS, ("cases", _CASE)
        )
    )


def _completed(results: Results) -> Results:
    """Copy each test's handicap (deliberate slowdown) to its verdict; old releases did not."""
    if not any(result.handicap > result.verdict.handicap for result in results.cases):
        return results
    cases = (
        replace(result, verdict=replace(result.verdict, handicap=result.handicap))
        for result in results.cases
    )
    return replace(results, cases=tuple(cases))


def results_schema() -> dict[str, Any]:
    """Return the JSON Schema of the results file."""
    schema = _results().json_schema(mode="serialization")
    schema["properties"][DIGEST] = {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "title": "Digest",
        "description": "SHA-256 of the other keys as JSON without spaces, with sorted keys",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pytest-mlperf results",
        **schema,
    }


MANIFEST_SCHEMA = 1
"""Version of the manifest that `pytest-mlperf plan --format json` prints."""

MANIFEST_KIND = "pytest-mlperf plan"


@dataclass(frozen=True, kw_only=True)
class PlannedTest:
    """Identify a planned test; `pairs` is how many of its metrics are judged jointly."""

    test: str
    kind: Kind
    case: str
    accelerator: str
    pairs: Count = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """List the tests that must report results, in the order of the suites.

    Attributes:
        jobs: Minutes after which a job counts as hung, by accelerator and suite file.
        options: Options of pytest for every job.
    """

    schema: int
    kind: str
    tests: tuple[PlannedTest, ...]
    jobs: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """Number of jointly judged pairs of case and metric."""
        return sum(one.pairs for one in self.tests)


_MANIFEST = foreign.StrictValidator(Manifest)


def read_manifest(path: Path, content: bytes | None = None) -> Manifest:
    """Read a manifest from `path` or `content`; raise MlperfError if kind or schema is unknown."""
    cure = "create one: pytest-mlperf plan --format json"
    title = "manifest of a plan"
    raw = foreign.read_foreign(path, title, content)
    if not isinstance(raw, dict) or raw.get("kind") != MANIFEST_KIND:
        raise MlperfError(f"{path}: not a manifest of a plan; {cure}")
    return foreign.as_document(path, raw, title, _MANIFEST, MANIFEST_SCHEMA, cure)
