"""Write a session's results to a journal, from which another session can resume.

The journal has one JSON line for the session's settings, then one per result. It is locked while
its session runs, and removed when the session completes.
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
from pytest_mlperf.stores.foreign import MAX_FILE_BYTES, StrictValidator, read_regular

SCHEMA_VERSION = 2
JOURNAL_KIND = "pytest-mlperf journal"
JOURNAL_FILE = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Hold the first line of a journal.

    Attributes:
        run: Id of the session.
        resumes: Id of the session that it resumes, or "".
        settings: Settings that a resuming session must share, by their names in messages.
    """

    schema: int = SCHEMA_VERSION
    kind: str = JOURNAL_KIND
    run: str
    resumes: str = ""
    settings: Mapping[str, str]


_BEGUN, _RESULT = StrictValidator(Begun), StrictValidator(CaseResult)
_WRITTEN = {Begun: TypeAdapter(Begun), CaseResult: TypeAdapter(CaseResult)}


class Journal:
    """Write a session's journal, which is locked until it is closed."""

    def __init__(self, folder: Path, begun: Begun, results: Iterable[CaseResult] = ()) -> None:
        """Create a session's journal; `results` are those of the session that it resumes."""
        self.path = folder / JOURNAL_FILE
        atomic.write_text(self.path, _line(begun) + "".join(map(_line, results)))
        self._file: IO[bytes] = self.path.open("ab")
        _locked(self._file)

    def add(self, result: CaseResult) -> None:
        """Write a result and flush it to disk."""
        with atomic.explain_full_disk(self.path):
            self._file.write(_line(result).encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        """Unlock the journal; remove it if the session is complete."""
        if remove:
            self.path.unlink(missing_ok=True)
        self._file.close()


def newest(runs: Path, besides: str) -> str | None:
    """Return the id of the newest session with a journal, except the session `besides`; or None."""
    ids = sorted(path.parent.name for path in runs.glob(f"*/{JOURNAL_FILE}"))
    return next((one for one in reversed(ids) if one != besides), None)


def read(folder: Path) -> tuple[Begun, dict[str, CaseResult]]:
    """Return the first line of a journal, and the last result of each test.

    An incomplete last line of a killed session is ignored. Raises MlperfError if the journal is
    missing, damaged, or of another release.
    """
    path = folder / JOURNAL_FILE
    try:
        first, *lines = read_regular(path, MAX_FILE_BYTES).split(b"\n")
        begun = _BEGUN.check(parse_json(first))
        if (begun.schema, begun.kind) != (SCHEMA_VERSION, JOURNAL_KIND):
            raise MlperfError(
                f"{path}: written by another release of pytest-mlperf (schema {begun.schema}, this "
                f"one reads {SCHEMA_VERSION}): resume it with that release"
            )
        results = [_RESULT.check(parse_json(line)) for line in lines[:-1]]
    except FileNotFoundError:
        raise MlperfError(
            f"{folder} has no {JOURNAL_FILE}: no interrupted session of that name"
        ) from None
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise MlperfError(f"{path}: damaged, or written by another release") from None
    return begun, {result.test: result for result in results}


@contextlib.contextmanager
def interrupted_journal(folder: Path) -> Iterator[Path]:
    """Lock and yield an interrupted session's journal; raise MlperfError if it still runs."""
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
    try:
        atomic.lock(file.fileno())
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
