"""Read, check and write versioned JSON files in git."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import escaped, merge_conflict
from pytest_mlperf.stores import atomic, foreign

LOCK_WAIT_SECONDS = 60.0

T = TypeVar("T")

RECORD = "record again: --mlperf-update=missing"

_CURES = {
    **dict.fromkeys(atomic.DISK_FULL, "free some space and run again"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "make the folder writable, or name another with --mlperf-baselines",
    ),
}


class Document(Generic[T]):
    """Read and write files whose content is a frozen dataclass with a field `schema`.

    Attributes:
        kind: Dataclass of the content.
        migrations: Functions that convert an older schema to the next one, by older schema.
    """

    def __init__(self, kind: type[T], *, schema: int, title: str, anew: str = RECORD) -> None:
        self.migrations: dict[int, foreign.Migration] = {}
        self._schema = schema
        self._title = title
        self._anew = anew
        self.kind = kind
        self._file = foreign.StrictValidator(kind, extra="forbid")

    def load(self, path: Path) -> T | None:
        """Read a file, or return None if it is missing; raise BaselineError if it is unreadable."""
        try:
            content = foreign.read_regular(path, foreign.MAX_PART_BYTES)
        except FileNotFoundError:
            return None
        except foreign.PointerError as pointer:
            raise BaselineError(f"{path} is {pointer.strerror}") from None
        except foreign.UnfitError as unfit:
            raise BaselineError(
                f"{path}: cannot be read as a {self._title} file: it is {unfit}; move it away"
            ) from None
        except OSError as error:
            denied = error.errno in (errno.EACCES, errno.EPERM)
            raise BaselineError(
                f"{path}: cannot be read: {error.strerror or error}"
                + "; make the file readable" * denied
            ) from error
        try:
            return self._parse(content)
        except _NewerError as newer:
            raise BaselineError(f"{path}: {newer}") from None
        except ValueError as defect:
            file = shlex.quote(str(path))
            if sides := merge_conflict(content.decode("utf-8", "replace")):
                line, ours, theirs = sides
                raise BaselineError(
                    f"{path}: holds a merge conflict of {ours} and {theirs}: line {line}. Keep one "
                    f"side: git checkout --ours {file} ({ours}) or --theirs ({theirs}); then git "
                    f"add {file}"
                ) from None
            raise BaselineError(
                f"{path}: {defect}. Restore it (git checkout -- {file}), or delete it and "
                f"{self._anew}"
            ) from defect

    def read(self, content: bytes, source: str) -> T:
        """Parse a document's bytes, such as from git; BaselineError names their `source`."""
        try:
            return self._parse(content)
        except ValueError as defect:
            raise BaselineError(f"{source}: {defect}") from None

    def save(self, path: Path, content: T) -> None:
        """Write a file, one value per line; on BaselineError the old file is unchanged."""
        with self.alone(path) as locked:
            self.put(path, content, locked)

    def update(self, path: Path, function: Callable[[T | None], T]) -> T:
        """Read, change and write a file under a lock; raise like `load` and `save`."""
        with self.alone(path) as locked:
            content = function(self.load(path))
            self.put(path, content, locked)
        return content

    @contextlib.contextmanager
    def alone(self, path: Path) -> Iterator[atomic.LockedFolder]:
        """Lock the folder of a file; yield the lock, which `put` needs."""
        held = contextlib.ExitStack()
        try:
            folder = write_target(path).parent
            locked = held.enter_context(atomic.locked_folder(folder, timeout_s=LOCK_WAIT_SECONDS))
        except atomic.BusyError:
            raise BaselineError(
                f"{path}: cannot be locked for writing: another process has written in {folder} "
                f"for {LOCK_WAIT_SECONDS:.0f} s; wait for it, or end it"
            ) from None
        except atomic.NoLocksError as error:
            raise BaselineError(
                f"{path}: cannot be locked for writing: the file system has no locks ({error}), "
                "and two sessions at once would lose each other's values; nothing was changed: "
                f"mount it with locks ({atomic.LOCK_HELP}), or name a folder elsewhere with "
                "--mlperf-baselines"
            ) from None
        except OSError as error:
            raise _not_written(path, error) from error
        with held:
            yield locked

    def put(self, path: Path, content: T, locked: atomic.LockedFolder) -> None:
        """Write `content` as JSON to `path`, or to its link's target, in the folder `locked`."""
        text = json.dumps(
            dataclasses.asdict(cast(Any, content)), sort_keys=True, indent=2, ensure_ascii=False
        )
        try:
            text.encode()  # refuse what UTF-8 cannot encode instead of escaping it
            # Reviewers read this file: escape invisible characters and those that reverse text.
            written = f"{escaped(text)}\n".encode()
            self._parse(written)
        except ValueError as defect:
            raise BaselineError(f"{path}: not written: {defect}") from defect
        try:
            atomic.write_bytes(write_target(path), written, locked)
        except OSError as error:
            raise _not_written(path, error) from error

    def _parse(self, content: bytes) -> T:
        try:
            raw = parse_json(content)
        except UnicodeDecodeError as error:
            raise ValueError(f"is not text in UTF-8 (byte {error.start + 1})") from None
        except json.JSONDecodeError as error:
            raise ValueError(
                f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
            ) from None
        current = self._migrate(raw)
        try:
            return self._file.check(current)
        except ValidationError as error:
            raise ValueError(foreign.first_defect(current, error, self._title)) from None

    def _migrate(self, raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise ValueError(f"must hold a JSON object, not {type(raw).__name__}")
        schema = raw.get("schema")
        if not isinstance(schema, int) or isinstance(schema, bool):
            raise ValueError(f"schema is {schema!r}; must be a whole number up to {self._schema}")
        if schema > self._schema:
            raise _NewerError(
                f"written by a newer pytest-mlperf (schema {schema}; this one reads up to "
                f"{self._schema}): upgrade pytest-mlperf"
            )
        return foreign.migrated(raw, schema, self._schema, self.migrations)


def write_target(path: Path) -> Path:
    """Return the path to write: the file, or its link target within the same repository."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise BaselineError(f"{path}: a circular link; remove it, or link it to a file")
    folder = path.parent.resolve()
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    if not target.is_relative_to(root):
        raise BaselineError(
            f"{path}: links to {target}, outside {root}, and only files in it are written; replace "
            "the link by the file, or name the folder that holds it with --mlperf-baselines"
        )
    return target


def _not_written(path: Path, error: OSError) -> BaselineError:
    cure = _CURES.get(error.errno or 0, "remove the cause, and run again")
    return BaselineError(
        f"{path}: cannot be written: {error.strerror or error}; nothing was changed: {cure}"
    )


class _NewerError(ValueError):
    """Report that a file is valid but written by a newer release."""
