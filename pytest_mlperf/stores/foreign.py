"""Read untrusted files: regular files of bounded size, parsed with bounded memory."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import reprlib
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pytest_mlperf.core.errors import TO_MEASURE, EnvironmentFault, MlperfError, text_of
from pytest_mlperf.core.untrusted import parse_json, parse_toml, require_bounded
from pytest_mlperf.core.untrusted_text import encodable, visible

if TYPE_CHECKING:  # workers in other environments read logs without pydantic
    from pydantic import ValidationError
    from pydantic_core import SchemaValidator


def first_defect(raw: Any, error: ValidationError, title: str) -> str:
    """Return a document's first defect: "records[0].samples: must be a valid integer, not '3'"."""
    defects = error.errors(include_url=False, include_input=False)
    path, value = _resolve(raw, defects[0]["loc"][1:])
    match defects[0]["type"]:
        case "missing":
            text = "is missing"
        case "unexpected_keyword_argument":
            text = f"is not a key of the {title}"
        case "value_error":
            text = str(defects[0]["ctx"]["error"])
        case "greater_than_equal":
            text = f"must be at least {defects[0]['ctx']['ge']:g}, not {reprlib.repr(value)}"
        case "less_than_equal":
            text = f"must be at most {defects[0]['ctx']['le']:g}, not {reprlib.repr(value)}"
        case _:
            # A value that fits none of several types has one defect per type.
            here = [d["msg"] for d in defects if _resolve(raw, d["loc"][1:])[0] == path]
            expected = ", ".join(msg.removeprefix("Input should be ") for msg in here)
            text = f"must be {expected}, not {reprlib.repr(value)}"
    return f"{path}: {text}" if path else text


def _resolve(raw: Any, location: tuple[int | str, ...]) -> tuple[str, Any]:
    """Return (key path, value) in document `raw` at the location of a pydantic error."""
    path = ""
    for part in location:
        if isinstance(raw, list) and isinstance(part, int):
            path += f"[{part}]"
            raw = raw[part]
        elif isinstance(raw, dict) and isinstance(part, str):
            path += f".{part}" if part.isidentifier() else f"[{part!r}]"
            raw = raw.get(part)
        else:
            break  # the rest names members of a union
    return path.removeprefix("."), raw


Document = TypeVar("Document")

MAX_FILE_BYTES = 32 * 2**20
"""Maximum size of a file: 2,500 cases of five runs, which take up to 400 MB of memory to read."""

MAX_FILE_VALUES = 1_500_000
"""Maximum number of lists, objects and commas of such a file."""

MAX_LOG_BYTES = 256 * 2**20
"""Maximum size of a log: text, few lines of which are parsed."""

MAX_TOML_BYTES = 2**20

MAX_PARTS = 20_000
"""Maximum number of lists and objects of one test's result, or of one smaller document."""

MAX_PART_VALUES = 150_000
"""Maximum number of its values, counted as commas: a run of a curve has 500."""

MAX_PART_BYTES = 8 * 2**20
"""Maximum size of it as JSON: some defects hold a copy of it."""

READ_BYTES = 2**20  # per read: `max_bytes` would allocate its whole size at once


class UnfitError(ValueError):
    """Report that a file cannot be read safely; the text is the reason, e.g. "a pipe"."""


class PointerError(OSError):
    """Report that a file is a pointer of Git LFS, which replaces the actual file."""


POINTER, MAX_POINTER_BYTES = b"version https://git-lfs.github.com/spec/v1", 1024
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`; links are followed.

    Raise UnfitError for a pipe or a device (without waiting for it) and for a larger file, OSError
    for a file that changes during the read, and PointerError for a pointer of Git LFS.
    """
    with _opened(path) as file:
        begin = os.fstat(file.fileno())
        content = bytearray()
        while piece := file.read(min(READ_BYTES, max_bytes + 1 - len(content))):
            content += piece
            if len(content) > max_bytes:
                raise UnfitError(f"larger than {size_in_words(max_bytes)}, the maximum")
        end = os.fstat(file.fileno())
    if (begin.st_size, begin.st_mtime_ns) != (end.st_size, end.st_mtime_ns):
        raise OSError(errno.ESTALE, "it changed while it was read; try again")
    if content.startswith(POINTER) and len(content) <= MAX_POINTER_BYTES:
        advice = "a Git LFS pointer, not the file itself; run: git lfs pull"
        raise PointerError(errno.ENODATA, advice)
    return bytes(content)


def _opened(path: Path) -> io.FileIO:
    descriptor = os.open(path, getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise UnfitError(_KINDS.get(kind, "no file"))
    return io.FileIO(descriptor)


def size_in_words(count: int) -> str:
    """Format a size limit [bytes] for messages."""
    return f"{count >> 20} MiB" if count >= READ_BYTES else f"{count >> 10} KiB"


def lines_of(path: Path, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a regular file of any size; raise UnfitError if a line is too long."""
    with io.BufferedReader(_opened(path)) as file:
        while line := file.readline(max_line_bytes + 1):
            if len(line) > max_line_bytes:
                size = size_in_words(max_line_bytes)
                raise UnfitError(f"a file with a line of more than {size}, the maximum")
            yield line


class StrictValidator(Generic[Document]):
    """Validate documents of one type strictly: no value is converted, numbers are finite.

    The type is wrapped in a tuple: pydantic then applies this configuration to a dataclass, and
    domain classes stay independent of pydantic.
    """

    def __init__(
        self, kind: type[Document], *, extra: Literal["forbid", "ignore"] = "ignore"
    ) -> None:
        """Store the type; the validator is built on first use, because building it is slow."""
        self._kind, self._extra = kind, extra

    @cached_property
    def _validator(self) -> SchemaValidator:
        from pydantic import ConfigDict, TypeAdapter
        from pydantic_core import CoreConfig, SchemaValidator

        config = ConfigDict(strict=True, extra=self._extra, allow_inf_nan=False)
        shape: Any = tuple[self._kind]  # type: ignore[name-defined]
        schema = TypeAdapter(shape, config=config).core_schema
        return SchemaValidator(_failing_fast(schema), CoreConfig(strict=True))

    def check(self, raw: Any) -> Document:
        """Convert a JSON value to the document type; raise ValueError if it is too large.

        Raises ValidationError if the value does not match; for a list with its first defect only.
        """
        # Strict checks convert a JSON list to a tuple, but not a Python list.
        text = json.dumps([raw])
        if len(text) > MAX_PART_BYTES:
            size = size_in_words(MAX_PART_BYTES)
            raise ValueError(f"is larger than {size}, the maximum")
        for limit, noun, marks in (
            (MAX_PARTS, "lists and objects", "{["),
            (MAX_PART_VALUES, "values", ","),
        ):
            if sum(map(text.count, marks)) > limit:
                raise ValueError(f"has more than {limit:,} {noun}, the maximum")
        document: tuple[Document] = self._validator.validate_json(text)
        return document[0]


def _failing_fast(schema: Any) -> Any:
    """Return a schema whose lists stop at the first defect, to bound the memory for errors."""
    if isinstance(schema, list):
        return [_failing_fast(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    fast = {"fail_fast": True} if schema.get("type") in ("list", "tuple") else {}
    return {key: _failing_fast(value) for key, value in schema.items()} | fast


def content_of(path: Path, title: str, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a file; raise MlperfError if it is larger than `max_bytes`."""
    try:
        return read_regular(path, max_bytes or MAX_FILE_BYTES)
    except UnfitError as error:
        raise MlperfError(
            f"{path}: cannot be read as a {title}: it is {error}; is it the right file?"
        ) from None
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None


def json_of(path: Path | str, title: str, content: bytes, *, repeated_keys: bool = False) -> Any:
    """Parse `content` as JSON; raise MlperfError if it is invalid or, by default, repeats a key."""
    try:
        value = parse_json(content, max_values=MAX_FILE_VALUES, repeated_keys=repeated_keys)
    except ValueError as error:
        raise MlperfError(f"{path}: not a {title}: {visible(str(error))}") from None
    # Only an escape can produce a lone surrogate.
    return encodable(value) if b"\\u" in content else value


def rejection_reason(content: bytes) -> str:
    """Return why `read_foreign` would reject content that is about to be written, or ""."""
    if len(content) > MAX_FILE_BYTES:
        size = size_in_words(MAX_FILE_BYTES)
        return f"{len(content):,} bytes; at most {size} can be read"
    try:
        require_bounded(content, MAX_FILE_VALUES)
    except ValueError as error:
        return f"{error}, which cannot be read"
    return ""


def read_foreign(path: Path, title: str, content: bytes | None = None) -> Any:
    """Return the value of a JSON file, or of its `content`; `title` names the file in errors."""
    return json_of(path, title, content_of(path, title) if content is None else content)


def read_toml(path: Path, title: str) -> dict[str, Any]:
    """Return the tables of a TOML file of at most `MAX_TOML_BYTES`."""
    content = content_of(path, title, MAX_TOML_BYTES)
    try:
        return parse_toml(content.decode("utf-8"))
    except ValueError as error:
        raise MlperfError(f"{path}: cannot be read as TOML: {visible(str(error))}") from None


_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods for which zipfile bounds the unpacked bytes of a read."""


def members_of(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip archive; raise ValueError if one exceeds `max_bytes`."""
    members = archive.infolist()
    for member in members:
        if member.compress_type not in _COMPRESSIONS:
            raise ValueError(f"{member.filename!r} is compressed by an unsupported method")
        if member.file_size > max_bytes:
            name, size = member.filename.removesuffix(".npy"), member.file_size
            raise ValueError(f"{name} unpacks to {size:,} bytes (at most {max_bytes:,})")
    return {member.filename: member for member in members}


BROKEN_ARCHIVES = (
    *(ValueError, TypeError, KeyError, OSError, EOFError, RecursionError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError, OverflowError),
)
"""Exceptions that damaged archives and headers raise."""


class NumpyArchive:
    """Read arrays of an .npz archive; reject those that unpack to more than `max_bytes`."""

    def __init__(self, content: bytes, *, max_bytes: int) -> None:
        """Check the archive; raise one of `BROKEN_ARCHIVES` if it is damaged."""
        self._archive = zipfile.ZipFile(io.BytesIO(content))
        members = members_of(self._archive, max_bytes)
        self._members = {name.removesuffix(".npy"): one for name, one in members.items()}
        self.names = frozenset(self._members)

    def read(self, name: str) -> Any:
        """Return the array `name` of the archive."""
        return _array(name, self._archive.read(self._members[name]))


def read_arrays(path: Path, names: Sequence[str], *, max_bytes: int) -> list[Any]:
    """Read arrays of an .npz file; raise ValueError if it is damaged or over `max_bytes`."""
    try:
        archive = NumpyArchive(read_regular(path, max_bytes), max_bytes=max_bytes)
        return [archive.read(name) for name in names]
    except BROKEN_ARCHIVES as error:
        raise ValueError(text_of(error)) from error


def numpy() -> Any:
    """Import numpy; raise EnvironmentFault if it is not installed."""
    try:
        import numpy as np
    except ImportError:
        raise EnvironmentFault(
            f"arrays need numpy, which is not installed; try: {TO_MEASURE}"
        ) from None
    return np


def _array(name: str, content: bytes) -> Any:
    """Parse an .npy file; raise ValueError if its header and its data differ in size."""
    np = numpy()
    npy, file = np.lib.format, io.BytesIO(content)
    if npy.read_magic(file) != (1, 0):
        raise ValueError(f"{name} has an unsupported format")
    shape, by_columns, dtype = npy.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError(f"Object arrays cannot be loaded: {name}")
    values = np.frombuffer(content, dtype, offset=file.tell())
    if math.prod(shape) != len(values):
        raise ValueError(f"{name} declares the shape {shape}, but has {len(values)} values")
    return values.reshape(shape, order="F" if by_columns else "C")


Migration = Callable[[dict[str, Any]], dict[str, Any]]


def migrated(
    raw: dict[str, Any], schema: int, newest: int, migrations: Mapping[int, Migration]
) -> dict[str, Any]:
    """Migrate content to the newest schema; raise ValueError if a migration is missing."""
    for older in range(schema, newest):
        if older not in migrations:
            raise ValueError(f"schema {older} is unknown; this release reads up to {newest}")
        raw = {**migrations[older](raw), "schema": older + 1}
    return raw


def as_document(
    path: Path | str,
    raw: Any,
    title: str,
    shape: StrictValidator[Document],
    newest: int,
    cure: str,
    migrations: Mapping[int, Migration] = MappingProxyType({}),
    items: tuple[str, StrictValidator[Any]] | None = None,
) -> Document:
    """Convert a JSON value to a document; raise MlperfError if it does not fit the shape.

    `path`, `title` and `cure` (advice) are for messages. `newest` is the newest supported schema;
    `migrations` maps a schema to the function that makes the next one. `items` is the key of a list
    and the shape of its items, which are checked one by one.
    """
    where = ""
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema > newest:
        raise MlperfError(
            f"{path}: written by a newer pytest-mlperf (schema {schema}; this one reads up to "
            f"{newest}): upgrade"
        )
    from pydantic import ValidationError

    try:
        if isinstance(schema, int) and schema > 0:
            raw = migrated(raw, schema, newest, migrations)
        defective = raw
        if items is None or not isinstance(raw, dict) or not isinstance(raw.get(items[0]), list):
            return shape.check(raw)
        name, item_shape = items
        defective = {**raw, name: []}
        document = shape.check(defective)
        checked = []
        for number, defective in enumerate(raw[name]):
            where = f"{name}[{number}]"
            checked.append(item_shape.check(defective))
        return replace(document, **{name: tuple(checked)})  # type: ignore[type-var]
    except ValidationError as error:
        defect = first_defect(defective, error, title)
        if where:
            defect = f"{where}{'' if defect.startswith('[') else '.'}{defect}"
    except (ValueError, RecursionError) as error:
        defect = f"{where}: {error}" if where else str(error)
    raise MlperfError(f"{path}: not a {title}: {defect}; {cure}")
