"""The results file, and the manifest of a plan: every test that must report, wherever it runs."""

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

_SHAPE, _CASE = foreign.Shape(Results), foreign.Shape(CaseResult)


@cache
def _results() -> TypeAdapter[Results]:
    """Made when it is first needed: building it takes longer than collecting a suite."""
    return TypeAdapter(Results)


@cache
def _verdict() -> TypeAdapter[Verdict]:
    return TypeAdapter(Verdict)


def write_results(path: Path, results: Results, *, readable: bool = True) -> str:
    """Write a results file atomically; return why no command will read it, or "".

    Args:
        path: Where to.
        results: The session.
        readable: Refuse one that no command will read; what is nowhere else is written anyway.
    """
    text = as_text(results)
    reason = foreign.unreadable(text.encode("utf-8", "backslashreplace"))
    if reason and readable:
        raise MlperfError(f"{path}: not written: {reason}; merge or import fewer files at a time")
    try:
        atomic.write_text(path, text)
    except OSError as error:
        raise MlperfError(f"{path}: the results cannot be written: {error.strerror}") from None
    return reason


def as_text(results: Results) -> str:
    """Return what a results file of this session holds."""
    return json_text(sealed(_results().dump_python(encodable(results), mode="json"))) + "\n"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a results file with the digest that belongs to it, as its last key."""
    rest = {key: value for key, value in content.items() if key != DIGEST}
    return {**rest, DIGEST: _digest(rest)}


def as_bytes(results: Results) -> bytes:
    """Return a session as JSON without layout; equal sessions give equal bytes."""
    try:
        return _results().dump_json(results)
    except ValueError:  # a text that no file can hold, as a file name that is no UTF-8
        return _results().dump_json(encodable(results))


CURE = "take the results.json that pytest wrote, or measure again: pytest suites"


def from_bytes(place: str, content: bytes, title: str = TITLE, cure: str = CURE) -> Results:
    """Return the session that `as_bytes` made; what is none is an MlperfError."""
    return _checked(place, foreign.json_of(place, title, content), title, cure)


DIGEST = "digest"
"""The key of a results file whose value vouches for all others."""


def _digest(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def read_results(path: Path, content: bytes | None = None) -> Results:
    """Read a results file, or its content, and check the digest; old releases wrote none.

    Raises:
        MlperfError: It is none, was changed since it was written, or holds what no run can measure.
    """
    raw = foreign.json_of(
        path, TITLE, foreign.content_of(path, TITLE) if content is None else content
    )
    results = _checked(path, raw)
    if DIGEST in raw and raw[DIGEST] != _digest(raw):
        raise MlperfError(
            f"{path}: changed since it was written, as its digest says; take the file that pytest "
            "wrote"
        )
    return results


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; "": it is not there, or cannot be read."""
    try:
        return hashlib.sha256(foreign.read_regular(path, foreign.MAX_FILE_BYTES)).hexdigest()
    except (OSError, foreign.UnfitError):
        return ""


def require_readable(verdict: Verdict) -> None:
    """Make sure that a verdict can be read back: a ValueError is a defect of ours."""
    _verdict().validate_python(_verdict().dump_python(encodable(verdict), mode="json"))


def _checked(place: Path | str, raw: Any, title: str = TITLE, cure: str = CURE) -> Results:
    return _completed(
        foreign.as_document(
            place, raw, title, _SHAPE, SCHEMA_VERSION, cure, MIGRATIONS, ("cases", _CASE)
        )
    )


def _completed(results: Results) -> Results:
    """Return results with what verdicts of older releases left to the test that they are of."""
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
        "description": "SHA-256 of the rest as JSON without spaces, its keys sorted",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pytest-mlperf results",
        **schema,
    }


# --- plans ---------------------------------------------------------------------------------

MANIFEST_SCHEMA = 1
"""Version of the manifest that `pytest-mlperf plan --format json` prints."""

MANIFEST_KIND = "pytest-mlperf plan"
"""What the document says it is."""


@dataclass(frozen=True, kw_only=True)
class PlannedTest:
    """One test that must report, by its node id; `pairs` are those judged together with others."""

    test: str
    kind: Kind
    case: str
    accelerator: str
    pairs: Count = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A plan, as far as those need it that run or join its parts: in the order of the suites.

    Attributes:
        jobs: By accelerator and suite file, the minutes after which a part counts as hung.
        options: Options of pytest that every part needs.
    """

    schema: int
    kind: str
    tests: tuple[PlannedTest, ...]
    jobs: Mapping[str, Mapping[str, Count]] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """Gated pairs of all tests."""
        return sum(one.pairs for one in self.tests)


_MANIFEST = foreign.Shape(Manifest)


def read_manifest(path: Path, content: bytes | None = None) -> Manifest:
    """Read a manifest, or its content; what is none of a known schema is an MlperfError."""
    cure = "make one: pytest-mlperf plan --format json"
    title = "manifest of a plan"
    raw = foreign.json_of(
        path, title, foreign.content_of(path, title) if content is None else content
    )
    if not isinstance(raw, dict) or raw.get("kind") != MANIFEST_KIND:
        raise MlperfError(f"{path}: not a manifest of a plan; {cure}")
    return foreign.as_document(path, raw, title, _MANIFEST, MANIFEST_SCHEMA, cure)
