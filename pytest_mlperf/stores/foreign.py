"""Read files that others wrote: regular files of a bounded size, parsed within bounds."""

from __future__ import annotations

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

if TYPE_CHECKING:  # a worker in a foreign Python reads logs, and has no pydantic
    from pydantic import ValidationError
    from pydantic_core import SchemaValidator


def first_defect(raw: Any, error: ValidationError, title: str) -> str:
    """Return "records[0].runs[2].samples: must be a valid integer, not '3'"."""
    defects = error.errors(include_url=False, include_input=False)
    path, value = _resolve(raw, defects[0]["loc"][1:])
    match defects[0]["type"]:
        case "missing":
            text = "is missing"
        case "unexpected_keyword_argument":
            text = f"is no key of the {title}"
        case "value_error":
            text = str(defects[0]["ctx"]["error"])
        case "greater_than_equal":
            text = f"must be at least {defects[0]['ctx']['ge']:g}, not {reprlib.repr(value)}"
        case "less_than_equal":
            text = f"must be at most {defects[0]['ctx']['le']:g}, not {reprlib.repr(value)}"
        case _:
            # A value of none of several types has one entry for each.
            here = [d["msg"] for d in defects if _resolve(raw, d["loc"][1:])[0] == path]
            expected = ", ".join(msg.removeprefix("Input should be ") for msg in here)
            text = f"must be {expected}, not {reprlib.repr(value)}"
    return f"{path}: {text}" if path else text


def _resolve(raw: Any, location: tuple[int | str, ...]) -> tuple[str, Any]:
    """Follow pydantic's location of an error to the key path and the value there."""
    path = ""
    for part in location:
        if isinstance(raw, list) and isinstance(part, int):
            path += f"[{part}]"
            raw = raw[part]
        elif isinstance(raw, dict) and isinstance(part, str):
            path += f".{part}" if part.isidentifier() else f"[{part!r}]"
            raw = raw.get(part)
        else:
            break  # what follows names members of a union
    return path.removeprefix("."), raw


Document = TypeVar("Document")

MAX_FILE_BYTES = 32 * 2**20
"""Bytes of a file: some 2,500 cases with five runs each. It is read within 400 MB of memory."""

MAX_FILE_VALUES = 1_500_000
"""Lists, objects and commas of such a file."""

MAX_LOG_BYTES = 256 * 2**20
"""Bytes of a log: text, of which few lines are parsed."""

MAX_TOML_BYTES = 2**20

MAX_PARTS = 20_000
"""Lists and objects of one test's result, or of one smaller document."""

MAX_PART_VALUES = 150_000
"""Values of one, counted as commas: a run of a curve has 500. Each may be a defect."""

MAX_PART_BYTES = 8 * 2**20
"""Bytes of one as JSON: some defects hold a copy of it."""

READ_BYTES = 2**20  # bytes read at a time: a limit shall not take the memory that it allows


class UnfitError(ValueError):
    """What lies there is not what is read here; its text says what it is: "a pipe"."""


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of so many bytes at most; links are followed.

    A pipe or a device is not waited for: it is an UnfitError, as is a larger file, and one that
    is written while it is read.
    """
    with _opened(path) as file:
        before = os.fstat(file.fileno())
        content = bytearray()
        while piece := file.read(min(READ_BYTES, max_bytes + 1 - len(content))):
            content += piece
            if len(content) > max_bytes:
                raise UnfitError(f"larger than {size_in_words(max_bytes)}")
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UnfitError("changed while it was read")
    return bytes(content)


def _opened(path: Path) -> io.FileIO:
    descriptor = os.open(path, getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise UnfitError(_KINDS.get(kind, "no file"))
    return io.FileIO(descriptor)


def size_in_words(count: int) -> str:
    """Return a limit of bytes as messages show it."""
    return f"{count >> 20} MiB" if count >= READ_BYTES else f"{count >> 10} KiB"


def lines_of(path: Path, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a regular file of any size; a longer line is an UnfitError."""
    with io.BufferedReader(_opened(path)) as file:
        while line := file.readline(max_line_bytes + 1):
            if len(line) > max_line_bytes:
                raise UnfitError(f"with a line of more than {size_in_words(max_line_bytes)}")
            yield line


class Shape(Generic[Document]):
    """Checks documents of a kind: no value is taken for another, no number is none.

    A dataclass takes its configuration from the type around it, hence the tuple: the pure domain
    need not know how its files are checked.
    """

    def __init__(
        self, kind: type[Document], *, extra: Literal["forbid", "ignore"] = "ignore"
    ) -> None:
        """Build nothing yet: that takes longer than collecting a suite."""
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
        """Return the document that a JSON value is.

        Raises:
            ValidationError: It is none; of a list only the first defect is there.
            ValueError: It is too large to be checked as one: each defect of pydantic has a copy.
        """
        # As JSON: strict checks take a JSON list for a tuple, a Python list not.
        text = json.dumps([raw])
        if len(text) > MAX_PART_BYTES:
            size = size_in_words(MAX_PART_BYTES)
            raise ValueError(f"more than {size} in one {self._kind.__name__}")
        for limit, noun, marks in (
            (MAX_PARTS, "lists and objects", "{["),
            (MAX_PART_VALUES, "values", ","),
        ):
            if sum(map(text.count, marks)) > limit:
                raise ValueError(f"more than {limit:,} {noun} in one {self._kind.__name__}")
        document: tuple[Document] = self._validator.validate_json(text)
        return document[0]


def _failing_fast(schema: Any) -> Any:
    """Return a schema in which lists end at their first defect: others take memory, unread."""
    if isinstance(schema, list):
        return [_failing_fast(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    fast = {"fail_fast": True} if schema.get("type") in ("list", "tuple") else {}
    return {key: _failing_fast(value) for key, value in schema.items()} | fast


def content_of(path: Path, title: str, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a file of `MAX_FILE_BYTES`, or so many; others are an MlperfError."""
    try:
        return read_regular(path, max_bytes or MAX_FILE_BYTES)
    except UnfitError as error:
        raise MlperfError(f"{path}: {error}, which no {title} is; is it the right file?") from None
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None


def json_of(path: Path | str, title: str, content: bytes, *, repeated_keys: bool = False) -> Any:
    """Return the JSON value in bytes that were read from a path."""
    try:
        value = parse_json(content, max_values=MAX_FILE_VALUES, repeated_keys=repeated_keys)
    except ValueError as error:
        raise MlperfError(f"{path}: not a {title}: {visible(str(error))}") from None
    # Only an escape can make half a character.
    return encodable(value) if b"\\u" in content else value


def unreadable(content: bytes) -> str:
    """Return why `read_foreign` would refuse JSON that is to be written; "": it would not."""
    if len(content) > MAX_FILE_BYTES:
        return f"{len(content):,} bytes, and {size_in_words(MAX_FILE_BYTES)} are read back at most"
    try:
        require_bounded(content, MAX_FILE_VALUES)
    except ValueError as error:
        return f"{error}, which are not read back"
    return ""


def read_foreign(path: Path, title: str) -> Any:
    """Return the content of a JSON file of at most `MAX_FILE_BYTES`."""
    return json_of(path, title, content_of(path, title))


def read_toml(path: Path, title: str) -> dict[str, Any]:
    """Return the tables of a TOML file of at most `MAX_TOML_BYTES`."""
    content = content_of(path, title, MAX_TOML_BYTES)
    try:
        return parse_toml(content.decode("utf-8"))
    except ValueError as error:
        raise MlperfError(f"{path}: cannot be read as TOML: {visible(str(error))}") from None


_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of others zipfile does not bound what one read unpacks to."""


def members_of(archive: zipfile.ZipFile, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip archive, of which none unpacks to more than so many bytes."""
    members = archive.infolist()
    for member in members:
        if member.compress_type not in _COMPRESSIONS:
            raise ValueError(f"{member.filename!r} is compressed in a way that is not read")
        if member.file_size > max_bytes:
            name, size = member.filename.removesuffix(".npy"), member.file_size
            raise ValueError(f"{name} unpacks to {size:,} bytes (at most {max_bytes:,})")
    return {member.filename: member for member in members}


BROKEN_ARCHIVES = (
    *(ValueError, TypeError, KeyError, OSError, EOFError, RecursionError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError, OverflowError),
)
"""What damaged archives and headers raise."""


class NumpyArchive:
    """The arrays of an .npz archive, of which none unpacks to more than `max_bytes`."""

    def __init__(self, content: bytes, *, max_bytes: int) -> None:
        """Check the archive; what is wrong with it is one of `BROKEN_ARCHIVES`."""
        self._archive = zipfile.ZipFile(io.BytesIO(content))
        members = members_of(self._archive, max_bytes)
        self._members = {name.removesuffix(".npy"): one for name, one in members.items()}
        self.names = frozenset(self._members)

    def read(self, name: str) -> Any:
        """Return an array."""
        return _array(name, self._archive.read(self._members[name]))


def read_arrays(path: Path, names: Sequence[str], *, max_bytes: int) -> list[Any]:
    """Return arrays of an .npz file, which is at most so large packed and unpacked.

    Raises:
        ValueError: It cannot be read, is no archive with these arrays, or is larger.
    """
    try:
        archive = NumpyArchive(read_regular(path, max_bytes), max_bytes=max_bytes)
        return [archive.read(name) for name in names]
    except BROKEN_ARCHIVES as error:
        raise ValueError(text_of(error)) from error


def numpy() -> Any:
    """Import numpy, which arrays of files need."""
    try:
        import numpy as np
    except ImportError:
        raise EnvironmentFault(
            f"arrays need numpy, which is not installed; try: {TO_MEASURE}"
        ) from None
    return np


def _array(name: str, content: bytes) -> Any:
    """Return an array; its header is untrusted, so nothing is allocated by it."""
    np = numpy()
    npy, file = np.lib.format, io.BytesIO(content)
    if npy.read_magic(file) != (1, 0):
        raise ValueError(f"{name} is in a format that is not read")
    shape, by_columns, dtype = npy.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError(f"Object arrays cannot be loaded: {name}")
    values = np.frombuffer(content, dtype, offset=file.tell())
    if math.prod(shape) != len(values):
        raise ValueError(f"{name} says that its shape is {shape}, and has {len(values)} values")
    return values.reshape(shape, order="F" if by_columns else "C")


Migration = Callable[[dict[str, Any]], dict[str, Any]]


def migrated(
    raw: dict[str, Any], schema: int, newest: int, migrations: Mapping[int, Migration]
) -> dict[str, Any]:
    """Return the content of an older file as the newest schema has it.

    Args:
        raw: The content.
        schema: Its schema.
        newest: The schema that is read.
        migrations: For each older schema, what turns its content into that of the next one.

    Raises:
        ValueError: A step is missing.
    """
    for older in range(schema, newest):
        if older not in migrations:
            raise ValueError(f"schema {older} is unknown; this release reads up to {newest}")
        raw = {**migrations[older](raw), "schema": older + 1}
    return raw


def as_document(
    path: Path | str,
    raw: Any,
    title: str,
    shape: Shape[Document],
    newest: int,
    cure: str,
    migrations: Mapping[int, Migration] = MappingProxyType({}),
    items: tuple[str, Shape[Any]] | None = None,
) -> Document:
    """Return what a JSON document says, if it has the shape and its schema is known here.

    Args:
        path: Where it lies, for messages.
        title: What it should be, for messages: "results file".
        newest: The newest schema that is known here.
        cure: What to do about one that is something else, for messages.
        migrations: What turns an older one into the next, see `migrated`.
        items: The key of a list whose items are checked one by one, and their shape.
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
