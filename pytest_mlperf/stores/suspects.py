"""Remember which pairs were SUSPECT: the next session measures them first, each judged alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Suspect, newest
from pytest_mlperf.stores.atomic import BusyError, NoLocksError, alone_in, write_bytes
from pytest_mlperf.stores.foreign import LARGEST, UnfitError, read_foreign, read_regular
from pytest_mlperf.stores.results import read_results

SCHEMA = 2
KIND = "mlperf-suspects"
WAIT_S = 30.0
"""Longest wait for another session that ends at the same moment."""


@dataclass(frozen=True, kw_only=True)
class _Document:
    schema: int
    kind: str
    suspects: tuple[Suspect, ...]


_DOCUMENT = TypeAdapter(_Document)


def load(path: Path) -> tuple[Suspect, ...]:
    """Return the suspects of a file, none where it is absent, damaged or of another schema.

    A file of the tool's own: a damaged one is started anew and fails nothing.
    """
    try:
        document = _DOCUMENT.validate_json(read_regular(path, LARGEST))
    except (OSError, UnfitError, ValidationError, RecursionError):
        return ()
    return document.suspects if (document.schema, document.kind) == (SCHEMA, KIND) else ()


def load_given(path: Path) -> tuple[Suspect, ...]:
    """Return the suspects that a results file lists, or every *.json of a folder.

    An absent one is the first session of all.
    """
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.json")) if file.is_file()]
    else:
        files = [path] if path.exists() else []
    return newest(one for file in files for one in _listed(file))


def update(path: Path, change: Callable[[tuple[Suspect, ...]], Iterable[Suspect]]) -> None:
    """Replace the suspects of a file by what is to remain of them; none and no file stay so.

    Sessions that end at once wait for each other: none loses what another one wrote.
    """
    try:
        try:
            with alone_in(path.parent, timeout_s=WAIT_S) as place:
                _write(path, change, place)
        except NoLocksError:
            _write(path, change, None)
    except BusyError:
        raise MlperfError(
            f"{path}: another session keeps the suspects for {WAIT_S:g} s; "
            f"end it, or remove {path.parent / '.writing'}"
        ) from None
    except OSError as error:
        raise MlperfError(f"{path}: the suspects cannot be written: {error.strerror}") from None


def _write(
    path: Path, change: Callable[[tuple[Suspect, ...]], Iterable[Suspect]], place: Path | None
) -> None:
    before = load(path)
    after = tuple(change(before))
    if after != before:
        document = _Document(schema=SCHEMA, kind=KIND, suspects=after)
        text = json.dumps(_DOCUMENT.dump_python(document, mode="json"), indent=1) + "\n"
        write_bytes(path, text.encode("utf-8"), place)


def _listed(file: Path) -> tuple[Suspect, ...]:
    raw = read_foreign(file, "results file")
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind is None:
        return read_results(file).suspects
    if kind != KIND:
        return ()  # a plan, say, that lies beside results
    try:
        document = _DOCUMENT.validate_python(raw)
    except ValidationError:
        document = None
    if document is None or document.schema != SCHEMA:
        raise MlperfError(
            f"{file}: damaged, or of another release (schema {raw.get('schema')!r}, this one reads "
            f"{SCHEMA}); name the results.json of that session instead"
        )
    return document.suspects
