"""Locate the arrays in NumPy files by their headers, and read values on demand.

NumPy's own readers parse the headers. numpy.load with mmap_mode would read each array of an archive
as a whole, keep files open, and crash the process if a mapped file is truncated. Arrays of Python
objects are rejected, so nothing is unpickled.
"""

from __future__ import annotations

import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files import wrong
from pytest_mlperf.adapters.lazy import NDArray, np

_PIECE = 2**20

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Local header of a zip member: signature, lengths of its name and its extra field."""

_BROKEN = (
    *(EOFError, MemoryError, OSError, RuntimeError, TypeError, ValueError),
    *(struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)

UNPACKED_LIMIT = 2 * 2**30
"""Maximum bytes of an unpacked array; the largest volume of KiTS19 has 0.5e9."""

MEMBERS_LIMIT = 1_000

CHECK_PATH = "check that the data set's path is that of the right data"

AXES_LIMIT = 32
"""Maximum number of axes of an array, as in NumPy 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArray:
    """Describe the location and layout of an array in a file.

    Attributes:
        name: Name of the array in error messages.
        offset: Position of the first value in the file, or in the unpacked zip member [bytes].
        dtype: NumPy's `dtype.str`, e.g. "<f4".
        fortran: Whether the first axis varies fastest.
        packed: Name of the compressed zip member; None if not compressed.
    """

    file: Path
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    fortran: bool = False
    packed: str | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape) * int(self.dtype[2:])

    def load(self) -> NDArray[Any]:
        try:
            values = np.empty(math.prod(self.shape), self.dtype)
        except MemoryError:
            raise RunError(
                "dataset",
                f"{self.file}: not enough memory for {self.name}, which needs {self.size:,} bytes",
            ) from None
        view, filled = values.view(np.uint8).data, 0
        try:
            with self._open() as file:
                # In pieces, since zipfile unpacks each read into memory of its own.
                while filled < len(view) and (
                    count := file.readinto(view[filled : filled + _PIECE])
                ):
                    filled += count
        except _BROKEN as error:
            raise damaged(self.file, f"{self.name}: {error}") from error
        if filled < len(view):
            raise damaged(self.file, f"{self.name} ends after {filled:,} of {len(view):,} bytes")
        return values.reshape(self.shape, order="F" if self.fortran else "C")

    @contextmanager
    def _open(self) -> Iterator[BufferedIOBase]:
        if self.packed is None:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                yield file
            return
        with zipfile.ZipFile(self.file) as archive, archive.open(self.packed) as member:
            assert isinstance(member, BufferedIOBase)
            member.read(self.offset)
            yield member


def damaged(file: Path, defect: str) -> RunError:
    """Return the error for a damaged file."""
    return wrong(file, defect, "the file is damaged or incomplete, get it from its source again")


def find_npy(path: Path) -> StoredArray:
    """Locate the array in a .npy file by its header."""
    with path.open("rb") as file:
        return _find(file, path, name="the array", size=path.stat().st_size)


def find_npz(path: Path) -> dict[str, StoredArray]:
    """Locate the arrays in a .npz file by their headers; their names have no ending .npy."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            members = archive.infolist()
            if len(members) > MEMBERS_LIMIT:
                raise wrong(
                    path,
                    f"the archive has {len(members):,} members; at most {MEMBERS_LIMIT:,} are read",
                    CHECK_PATH,
                )
            for member in members:
                if member.filename.endswith(".npy"):
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = _find_member(archive, member, raw, path)
    except _BROKEN as error:
        raise damaged(path, f"it is not a .npz archive of arrays ({error})") from error
    return arrays


def _find_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, raw: IO[bytes], path: Path
) -> StoredArray:
    title = f"its member {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED:
        if member.file_size > UNPACKED_LIMIT:
            raise wrong(
                path,
                f"{title} is compressed and has {member.file_size:,} bytes when unpacked; at most "
                f"{UNPACKED_LIMIT:,} are unpacked",
                f"save the arrays without compression (numpy.savez), or {CHECK_PATH}",
            )
        with archive.open(member) as unpacked:
            return _find(unpacked, path, name=title, size=member.file_size, packed=member.filename)
    raw.seek(member.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise ValueError(f"{member.filename} is not at the position that the archive's index says")
    start = raw.seek(name + extra, 1)
    end = start + member.file_size
    if end > path.stat().st_size:
        raise ValueError(f"{member.filename} ends after the end of the file")
    return _find(raw, path, name=title, size=end)


def _find(
    file: IO[bytes], path: Path, *, name: str, size: int, packed: str | None = None
) -> StoredArray:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(file)
        if version not in readers:
            numbers = ".".join(map(str, version))
            raise wrong(
                path,
                f"{name} has version {numbers} of NumPy's format; only 1.0 and 2.0 are supported",
                "save it again as a plain array of numbers",
            )
        shape, fortran, dtype = readers[version](file)
    except _BROKEN as error:
        first = str(error).partition("\n")[0]  # further lines advise to trust the file
        raise damaged(path, f"{name} is not an array in NumPy's format ({first})") from error
    # A header is a Python literal, whose lengths may be booleans or negative.
    if len(shape) > AXES_LIMIT or any(type(axis) is not int or axis < 0 for axis in shape):
        shape_text = f"{len(shape):,} axes" if len(shape) > AXES_LIMIT else f"the shape {shape}"
        raise damaged(path, f"{name} has {shape_text}, which is invalid for an array")
    if not re.fullmatch(r"[<|][biuf][1248]", dtype.str):
        raise wrong(
            path,
            f"{name} has values of type {dtype}; only little-endian numbers are supported",
            "convert the array, e.g. with array.astype('<f4'), and save it again",
        )
    array = StoredArray(
        file=path,
        name=name,
        offset=file.tell(),
        shape=shape,
        dtype=dtype.str,
        # With at most one axis longer than 1, both orders are equal.
        fortran=fortran and sum(length != 1 for length in shape) > 1,
        packed=packed,
    )
    if array.offset + array.size != size:
        raise damaged(
            path,
            f"{name} of shape {shape} and type {dtype} needs {array.size:,} bytes after its "
            f"header, but {size - array.offset:,} are there",
        )
    return array
