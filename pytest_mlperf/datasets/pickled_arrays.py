"""Find NumPy arrays in a pickle without loading their values, and without running the pickle."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import IO, Any, Self, cast

from pytest_mlperf.datasets.array_files import StoredArray, damaged
from pytest_mlperf.datasets.pickles import Name, PickleError, Record, parse

_MODULES = {
    "ndarray": ("numpy",),
    "dtype": ("numpy",),
    "_reconstruct": ("numpy.core.multiarray", "numpy._core.multiarray"),
    "scalar": ("numpy.core.multiarray", "numpy._core.multiarray"),
    "_frombuffer": ("numpy.core.numeric", "numpy._core.numeric"),
}
NAMES = frozenset((module, name) for name, modules in _MODULES.items() for module in modules)
"""All that NumPy 1 and 2 name in arrays of numbers. Nothing is called for them."""

_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_LARGE = 2**16
"""Longer strings of bytes are skipped in the file instead of read."""
_MOST = 2**20
"""Limit on the bytes of a pickle beside the values of its arrays."""


def find_arrays(path: Path) -> list[StoredArray]:
    """Return where the arrays lie that a pickled list or tuple holds; no values are read.

    Arrays of numbers as NumPy pickles them with protocol 3 to 5.

    Raises:
        RunError: The pickle is damaged, cut, or holds something else.
    """
    try:
        tree, places = _outline(path)
        if not isinstance(tree, list | tuple):
            raise PickleError(f"it holds {_named(tree)}, not a list of arrays")
        return [_array(path, place, item, places) for place, item in enumerate(tree)]
    except PickleError as error:
        raise damaged(path, f"{error}") from error


class _Skipped(bytes):
    """A long string of bytes that was not read; it is empty, but has the length of what it is for.

    Only `pickletools` sees it, which compares its length with what it asked for.
    """

    def __new__(cls, _size: int) -> Self:
        return super().__new__(cls)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class _Skipping:
    """A file that keeps the short parts that are read from it, and skips the long ones.

    Attributes:
        kept: The short parts since it was last emptied.
        last: Length of the part that was read last.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size
        self.kept = b""
        self.last = 0

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int) -> bytes:
        if size > self._size - self.tell():
            raise PickleError("the pickle ends in the middle")
        self.last = size
        if size > _LARGE:
            self._file.seek(size, io.SEEK_CUR)
            return _Skipped(size)
        self.kept += (found := self._file.read(size))
        return found

    def readline(self) -> bytes:
        self.kept += (found := self._file.readline(_LARGE))
        self.last = len(found)
        return found


def _outline(path: Path) -> tuple[Any, list[tuple[int, int]]]:
    """Read a pickle with the number of each string of bytes in the place of its contents.

    Returns:
        What it describes, as `parse` does, and offset and length of each string of bytes.
    """
    short = bytearray()
    places: list[tuple[int, int]] = []
    with path.open("rb") as file:
        skipping = _Skipping(file, path.stat().st_size)
        try:
            for opcode, _, _ in pickletools.genops(cast("IO[bytes]", skipping)):
                if opcode.name in _BYTES:
                    number = len(places).to_bytes(4, "little")
                    short += pickle.SHORT_BINBYTES + b"\x04" + number
                    places.append((file.tell() - skipping.last, skipping.last))
                elif skipping.last > _LARGE:
                    raise PickleError(
                        f"it holds a text of {skipping.last:,} bytes; only arrays that were "
                        "pickled with protocol 3 to 5 are read"
                    )
                elif opcode.name != "FRAME":  # its length is that of the contents left out
                    short += skipping.kept
                skipping.kept = b""
                if len(short) > _MOST:
                    raise PickleError("it holds much more than arrays")
        except (TypeError, ValueError) as error:
            raise PickleError(
                f"the pickle is damaged, or of a kind that is not read ({error})"
            ) from error
    return parse(io.BytesIO(bytes(short)), NAMES, max_bytes=2 * _MOST), places


def _array(path: Path, place: int, item: Any, places: list[tuple[int, int]]) -> StoredArray:
    try:
        kind, shape, fortran, raw = _parts(item)
        offset, size = places[int.from_bytes(raw, "little")]
        found = StoredArray(
            file=path,
            what=f"its array {place}",
            offset=offset,
            shape=tuple(int(length) for length in shape),
            dtype=_dtype(kind),
            fortran=fortran,
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise PickleError(f"item {place} is {_named(item)}, not an array of numbers") from error
    if any(length < 0 for length in found.shape) or found.size != size:
        raise PickleError(
            f"array {place} of shape {found.shape} and type {found.dtype} needs {found.size:,} "
            f"bytes, but {size:,} are there"
        )
    return found


def _parts(item: Record) -> tuple[Record, tuple[int, ...], bool, Any]:
    """Return type, shape, whether the first axis runs fastest, and contents of an array."""
    if item.name == "_frombuffer":
        raw, kind, shape, order, *_ = item.args
        if order not in ("C", "F"):
            raise ValueError("an order of axes that is not read")
        return kind, shape, order == "F", raw
    if item.name != "_reconstruct":
        raise TypeError("no array")
    _, shape, kind, fortran, raw = item.state
    return kind, shape, bool(fortran), raw


def _dtype(kind: Record) -> str:
    code, order = kind.args[0], kind.state[1] if kind.state else "<"
    if not re.fullmatch(r"[iufb][1248]", code) or order not in ("<", "|"):
        raise PickleError(f"it holds values of NumPy's type {order}{code}, which is not read")
    return f"{order}{code}"


def _named(item: Any) -> str:
    kind = item.name if isinstance(item, Name | Record) else type(item).__name__
    return f"an object of type {kind}"
