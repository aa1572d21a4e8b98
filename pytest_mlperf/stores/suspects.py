"""Remember which tests were SUSPECT or a PROVISIONAL drop: the next session has to know it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Suspect, newest, remaining
from pytest_mlperf.stores.atomic import BusyError, LockedFolder, NoLocksError, alone_in, write_bytes
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
    """What was read of earlier sessions.

    Attributes:
        suspects: What they left.
        is_any: There was something to read.
        tests: What they ran, where a results file tells it.
        defect: Why something could not be read, in a sentence; "": all was.
    """

    suspects: tuple[Suspect, ...] = ()
    is_any: bool = False
    tests: frozenset[str] = frozenset()
    defect: str = ""


def load(path: Path) -> Remembered:
    """Return what a file of suspects or results says, or every *.json of a folder.

    None is the first session; a damaged one says nothing but why, and fails nothing.
    """
    try:
        files = [path] if path.exists() else []
        if path.is_dir():
            files = [file for file in sorted(path.glob("*.json")) if file.is_file()]
        each = [_listed(file) for file in files]
    except MlperfError as error:
        return Remembered(defect=str(error))
    except OSError as error:
        return Remembered(defect=f"{path} cannot be read: {error.strerror}")
    return Remembered(
        suspects=newest(suspect for one in each for suspect in one.suspects),
        is_any=any(one.is_any for one in each),
        tests=frozenset().union(*(one.tests for one in each)),
    )


def update(path: Path, change: Callable[[tuple[Suspect, ...]], Iterable[Suspect]]) -> None:
    """Replace the suspects of a file by what is to remain of them; none make a file as well.

    Sessions that end at once wait for each other: none loses what another one wrote.
    """
    try:
        try:
            with alone_in(path.parent, timeout_s=LOCK_TIMEOUT_SECONDS) as place:
                _write(path, change, place)
        except NoLocksError:
            _write(path, change, None)
    except BusyError:
        raise MlperfError(
            f"{path}: another session keeps the suspects for {LOCK_TIMEOUT_SECONDS:g} s; "
            f"end it, or remove {path.parent / '.writing'}"
        ) from None
    except OSError as error:
        raise MlperfError(f"{path}: the suspects cannot be written: {error.strerror}") from None


def _write(
    path: Path,
    change: Callable[[tuple[Suspect, ...]], Iterable[Suspect]],
    place: LockedFolder | None,
) -> None:
    before = load(path)
    after = tuple(change(before.suspects))
    if after != before.suspects or not before.is_any:
        document = _Document(schema=SCHEMA_VERSION, kind=SUSPECTS_KIND, suspects=after)
        text = json.dumps(_DOCUMENT.dump_python(document, mode="json"), indent=1) + "\n"
        write_bytes(path, text.encode("utf-8"), place)


def _listed(file: Path) -> Remembered:
    content = content_of(file, TITLE)
    raw = json_of(file, TITLE, content)
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind is None:
        results = from_bytes(str(file), content)
        now = results.started
        before = (*results.suspects, *(result.suspected for result in results.cases))
        after = remaining(filter(None, before), results.cases, date=now, cleared=True)
        stated = {one.key: replace(one, seen=one.seen or now) for one in results.suspects}
        left = tuple(stated.get(one.key, one) for one in after)
        tests = frozenset(result.test for result in results.cases)
        tests |= {one.test for one in left}
        return Remembered(suspects=left, is_any=True, tests=tests)
    if kind != SUSPECTS_KIND:
        return Remembered()  # a plan, say, that lies beside results
    try:
        document = _DOCUMENT.validate_python(raw)
    except ValidationError:
        document = None
    if document is None or document.schema != SCHEMA_VERSION:
        raise MlperfError(
            f"{file}: damaged, or of another release (schema {raw.get('schema')!r}, this one reads "
            f"{SCHEMA_VERSION}); name the results.json of that session instead"
        )
    tests = frozenset(one.test for one in document.suspects)
    return Remembered(suspects=document.suspects, is_any=True, tests=tests)
