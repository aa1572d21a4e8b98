"""Arrays in NumPy's files: where each lies is read from headers, its values when they are needed.

Nothing is unpickled: arrays of objects are refused.
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_mlperf.core.errors import RunError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PIECE = 2**20
"""Bytes read at a time for a digest."""

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a zip's member: signature, and the lengths of its name and extra field, which follow."""

_BROKEN = (
    *(EOFError, MemoryError, OSError, RuntimeError, TypeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""What reading a damaged file raises."""

UNPACKED_LIMIT = 2 * 2**30
"""Bytes of one compressed array when unpacked; the largest volume of KiTS19 has 0.5e9."""

MEMBERS_LIMIT = 1_000
"""Arrays of one archive."""

AXES_LIMIT = 32
"""Axes of an array; NumPy 1 had no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArray:
    """Where an array lies.

    Attributes:
        file: The file.
        what: What the array is called, for messages.
        offset: Where its values start: in the file, or in the unpacked member.
        shape: Its shape.
        dtype: Type of its values, as NumPy's `dtype.str`, e.g. "<f4".
        fortran: Whether the first axis runs fastest.
        packed: Name of the zip's member that it is compressed in; None where it is not.
    """

    file: Path
    what: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    fortran: bool = False
    packed: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * int(self.dtype[2:])

    def load(self) -> NDArray[Any]:
        """Read the values.

        Raises:
            RunError: The file is not what it was, or damaged.
        """
        import numpy as np

        try:
            values = np.empty(math.prod(self.shape), self.dtype)
        except MemoryError:
            raise RunError(
                "dataset", f"{self.file}: there is no memory for {self.what}: {self.size:,} bytes"
            ) from None
        view, filled = values.view(np.uint8).data, 0
        try:
            with self._open() as file:
                while filled < len(view) and (count := _read_into(file, view[filled:])):
                    filled += count
        except _BROKEN as error:
            raise damaged(self.file, f"{self.what}: {error}") from error
        if filled < len(view):
            raise damaged(self.file, f"{self.what} ends after {filled:,} of {len(view):,} bytes")
        return values.reshape(self.shape, order="F" if self.fortran else "C")

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the values in C order, a little at a time."""
        if self.fortran or self.packed:
            yield self.load().tobytes()
            return
        left = self.size
        with self.file.open("rb") as file:
            file.seek(self.offset)
            while left > 0:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise damaged(self.file, f"{self.what} ends {left:,} bytes too early")
                left -= len(piece)
                yield piece

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """Open the file where the values start."""
        if self.packed is None:
            with self.file.open("rb", buffering=0) as file:
                file.seek(self.offset)
                yield file
            return
        with zipfile.ZipFile(self.file) as archive, archive.open(self.packed) as member:
            member.read(self.offset)
            yield member


def _read_into(file: IO[bytes], view: memoryview) -> int:
    """Read some bytes; zip members unpack into memory of their own, so only a part each time."""
    return int(file.readinto(view[:_PIECE]))  # type: ignore[attr-defined] # every open file has it


def damaged(file: Path, what: str) -> RunError:
    """Return the error for a file that cannot be used."""
    return RunError(
        "dataset",
        f"{file}: {what}; the file is damaged or incomplete, get it from its source again",
    )


def find_npy(path: Path) -> StoredArray:
    """Read the header of a .npy file.

    Raises:
        RunError: It is no such file, is cut, or its values are no numbers.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        return _find(file, path, what="the array", size=size)


def find_npz(path: Path) -> dict[str, StoredArray]:
    """Read the headers of all arrays of a .npz file.

    Returns:
        Arrays by name, without the ending .npy that they have in the archive.

    Raises:
        RunError: It is no such file, is cut, or the values of an array are no numbers.
    """
    found = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            members = archive.infolist()
            if len(members) > MEMBERS_LIMIT:
                raise ValueError(
                    f"{len(members):,} members, and at most {MEMBERS_LIMIT:,} are read"
                )
            for member in members:
                if member.filename.endswith(".npy"):
                    name = member.filename.removesuffix(".npy")
                    found[name] = _find_member(archive, member, raw, path)
    except _BROKEN as error:
        raise damaged(path, f"it is no .npz archive of arrays ({error})") from error
    return found


def _find_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, raw: IO[bytes], path: Path
) -> StoredArray:
    what = f"its member {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED:
        if member.file_size > UNPACKED_LIMIT:
            raise ValueError(
                f"{what} unpacks to {member.file_size:,} bytes, and at most {UNPACKED_LIMIT:,} are "
                "read"
            )
        with archive.open(member) as unpacked:
            return _find(unpacked, path, what=what, size=member.file_size, packed=member.filename)
    raw.seek(member.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise ValueError(f"{member.filename} is not where its index says")
    start = raw.seek(name + extra, 1)
    end = start + member.file_size
    if end > path.stat().st_size:
        raise ValueError(f"{member.filename} ends behind the file's end")
    return _find(raw, path, what=what, size=end)


def _find(
    file: IO[bytes], path: Path, *, what: str, size: int, packed: str | None = None
) -> StoredArray:
    """Read the header that comes next in a file.

    Args:
        file: The open file.
        path: Where it lies.
        what: What the array is called.
        size: Where the array must end.
        packed: See StoredArray.
    """
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(file)
        if version not in readers:
            raise ValueError(f"its format {version} is not read")
        shape, fortran, dtype = readers[version](file)
    except _BROKEN as error:
        first = str(error).partition("\n")[0]  # what follows advises to trust the file
        raise damaged(path, f"{what} is no array in NumPy's format ({first})") from error
    # A header is an expression: a truth value or a negative number are lengths to Python.
    if len(shape) > AXES_LIMIT or any(type(axis) is not int or axis < 0 for axis in shape):
        shown = f"{len(shape):,} axes" if len(shape) > AXES_LIMIT else f"the shape {shape}"
        raise damaged(path, f"{what} has {shown}, which no array has")
    found = StoredArray(
        file=path,
        what=what,
        offset=file.tell(),
        shape=shape,
        dtype=checked_dtype(path, what, dtype),
        # An array of one axis, and of one column, is both.
        fortran=fortran and sum(length != 1 for length in shape) > 1,
        packed=packed,
    )
    if found.offset + found.size != size:
        raise damaged(
            path,
            f"{what} of shape {shape} and type {dtype} needs {found.size:,} bytes after its "
            f"header, but {size - found.offset:,} are there",
        )
    return found


def checked_dtype(path: Path, what: str, dtype: np.dtype[Any]) -> str:
    """Return the name of a type of numbers in this machine's byte order.

    Raises:
        RunError: It is another type.
    """
    if not re.fullmatch(r"[<|][biuf][1248]", dtype.str):
        raise RunError(
            "dataset",
            f"{path}: {what} has values of type {dtype}, which is not read: only little-endian "
            "numbers are; convert it",
        )
    return str(dtype.str)
