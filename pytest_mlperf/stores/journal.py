"""The journal of a session: what it has decided so far, so that another one may go on from there.

A line of JSON each: how the session was set, then one result after another, as they are reported.
It is locked while its session runs, and gone once that has run to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import encodable
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.foreign import MAX_FILE_BYTES, Shape, read_regular

SCHEMA_VERSION = 2
JOURNAL_KIND = "pytest-mlperf journal"
JOURNAL_FILE = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The first line.

    Attributes:
        run: Id of the session.
        resumes: Id of the one that it goes on with; "": none.
        settings: What must be equal in a session that goes on, in words by what it is called.
    """

    schema: int = SCHEMA_VERSION
    kind: str = JOURNAL_KIND
    run: str
    resumes: str = ""
    settings: Mapping[str, str]


_BEGUN, _RESULT = Shape(Begun), Shape(CaseResult)
_WRITTEN = {Begun: TypeAdapter(Begun), CaseResult: TypeAdapter(CaseResult)}


class Journal:
    """A journal that this process writes; it stays locked until it is closed."""

    def __init__(self, folder: Path, begun: Begun, results: Iterable[CaseResult] = ()) -> None:
        """Begin one in the folder of a session, at once with results that are taken over."""
        self.path = folder / JOURNAL_FILE
        atomic.write_text(self.path, _line(begun) + "".join(map(_line, results)))
        self._file: IO[bytes] = self.path.open("ab")
        _locked(self._file)

    def add(self, result: CaseResult) -> None:
        """Write a result, so that it outlasts a power cut."""
        with atomic.naming_disk(self.path):
            self._file.write(_line(result).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        """Let it go; where the session is over there is nothing to go on with."""
        if remove:
            self.path.unlink(missing_ok=True)
        self._file.close()


def newest(runs: Path, besides: str) -> str | None:
    """Return the id of the newest session that left a journal, but for one; None: there is none."""
    ids = sorted(path.parent.name for path in runs.glob(f"*/{JOURNAL_FILE}"))
    return next((one for one in reversed(ids) if one != besides), None)


def read(folder: Path) -> tuple[Begun, dict[str, CaseResult]]:
    """Return how a session was set and its results by test, of two the later one.

    A last line that a killed session did not finish is left out.

    Raises:
        MlperfError: There is none, it is damaged, or of another release.
    """
    path = folder / JOURNAL_FILE
    try:
        first, *lines = read_regular(path, MAX_FILE_BYTES).split(b"\n")
        begun = _BEGUN.check(parse_json(first))
        if (begun.schema, begun.kind) != (SCHEMA_VERSION, JOURNAL_KIND):
            raise MlperfError(f"{path}: written by another pytest-mlperf (schema {begun.schema})")
        results = [_RESULT.check(parse_json(line)) for line in lines[:-1]]
    except FileNotFoundError:
        raise MlperfError(
            f"{folder} has no {JOURNAL_FILE}: no session of that name was interrupted"
        ) from None
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise MlperfError(f"{path}: damaged, or of another release") from None
    return begun, {result.test: result for result in results}


@contextlib.contextmanager
def left(folder: Path) -> Iterator[Path]:
    """Keep others from a journal that its session left; an MlperfError where that still runs."""
    path = folder / JOURNAL_FILE
    try:
        file = path.open("ab")
    except OSError as error:
        raise MlperfError(f"{path}: cannot be opened: {error.strerror}") from None
    with file:
        if not _locked(file):
            raise MlperfError(f"session {folder.name} is still running")
        yield path


def _line(value: Begun | CaseResult) -> str:
    content: Any = _WRITTEN[type(value)].dump_python(encodable(value), mode="json")  # type: ignore[attr-defined]
    return json.dumps(content, ensure_ascii=True) + "\n"


def _locked(file: IO[bytes]) -> bool:
    """Lock a file until it is closed; platforms without locks keep no process out."""
    try:
        atomic.lock(file.fileno())
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
