"""Store the tests with verdict SUSPECT or a PROVISIONAL drop, for the next session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Suspect, newest, next_suspects
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.foreign import content_of, json_of
from pytest_mlperf.stores.results import TITLE, from_bytes

SCHEMA_VERSION = 2
SUSPECTS_KIND = "mlperf-suspects"
LOCK_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class _Document:
    schema: int
    kind: str
    suspects: tuple[Suspect, ...]


_DOCUMENT = TypeAdapter(_Document)


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """Hold the suspects of earlier sessions: tests that were SUSPECT or PROVISIONAL drops.

    Attributes:
        is_any: Whether a file of suspects or results was read.
        tests: Tests of these sessions, if a results file lists them.
        defect: Why something could not be read, or "".
    """

    suspects: tuple[Suspect, ...] = ()
    is_any: bool = False
    tests: frozenset[str] = frozenset()
    defect: str = ""


def load(path: Path) -> Remembered:
    """Read SUSPECT and PROVISIONAL tests of a file (suspects or results), or a folder's *.json.

    A missing file, as before the first session, has no suspects; a damaged one sets only `defect`.
    """
    try:
        files = [path] if path.exists() else []
        if path.is_dir():
            files = [file for file in sorted(path.glob("*.json")) if file.is_file()]
        contents = [_listed(file) for file in files]
    except MlperfError as error:
        return Remembered(defect=str(error))
    except OSError as error:
        return Remembered(defect=f"{path} cannot be read: {error.strerror}")
    return Remembered(
        suspects=newest(suspect for content in contents for suspect in content.suspects),
        is_any=any(content.is_any for content in contents),
        tests=frozenset().union(*(content.tests for content in contents)),
    )


def update(path: Path, change: Callable[[tuple[Suspect, ...]], Iterable[Suspect]]) -> None:
    """Replace a file's suspects by the result of `change`, under the lock of the folder."""
    try:
        try:
            with atomic.locked_folder(path.parent, timeout_s=LOCK_TIMEOUT_SECONDS) as locked:
                _write(path, change, locked)
        except atomic.NoLocksError:
            _write(path, change, None)
    except atomic.BusyError:
        raise MlperfError(
            f"{path}: another session has kept it locked for {LOCK_TIMEOUT_SECONDS:g} s; "
            f"end it, or remove {path.parent / '.writing'}"
        ) from None
    except OSError as error:
        raise MlperfError(f"{path}: the suspects cannot be written: {error.strerror}") from None


def _write(
    path: Path,
    change: Callable[[tuple[Suspect, ...]], Iterable[Suspect]],
    locked: atomic.LockedFolder | None,
) -> None:
    stored = load(path)
    after = tuple(change(stored.suspects))
    if after != stored.suspects or not stored.is_any:
        document = _Document(schema=SCHEMA_VERSION, kind=SUSPECTS_KIND, suspects=after)
        text = json.dumps(_DOCUMENT.dump_python(document, mode="json"), indent=1) + "\n"
        atomic.write_bytes(path, text.encode("utf-8"), locked)


def _listed(file: Path) -> Remembered:
    content = content_of(file, TITLE)
    raw = json_of(file, TITLE, content)
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind is None:
        results = from_bytes(str(file), content)
        started = results.started
        earlier = (*results.suspects, *(result.suspected for result in results.cases))
        after = next_suspects(filter(None, earlier), results.cases, date=started, cleared=True)
        stated = {
            entry.key: replace(entry, seen=entry.seen or started) for entry in results.suspects
        }
        left = tuple(stated.get(entry.key, entry) for entry in after)
        tests = frozenset(result.test for result in results.cases)
        tests |= {entry.test for entry in left}
        return Remembered(suspects=left, is_any=True, tests=tests)
    if kind != SUSPECTS_KIND:
        return Remembered()  # another kind of file, such as a plan
    try:
        document = _DOCUMENT.validate_python(raw)
    except ValidationError:
        document = None
    if document is None or document.schema != SCHEMA_VERSION:
        raise MlperfError(
            f"{file}: damaged, or of another release (schema {raw.get('schema')!r}, this one reads "
            f"{SCHEMA_VERSION}); name the results.json of that session instead"
        )
    tests = frozenset(suspect.test for suspect in document.suspects)
    return Remembered(suspects=document.suspects, is_any=True, tests=tests)
