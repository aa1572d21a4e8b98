"""Find the columns of a pandas DataFrame in what a pickle describes, without pandas."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BufferedIOBase
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_mlperf.datasets.pickles import Name, PickleError, Record, parse

Array = NDArray[np.generic]

_MODULES = {
    "DataFrame": ("pandas", "pandas.core.frame"),
    "Series": ("pandas", "pandas.core.series"),
    "BlockManager": ("pandas.core.internals.managers",),
    "SingleBlockManager": ("pandas.core.internals.managers",),
    "_unpickle_block": ("pandas._libs.internals",),
    "new_block": ("pandas.core.internals.blocks",),
    "_new_Index": ("pandas.core.indexes.base",),
    "Index": ("pandas", "pandas.core.indexes.base"),
    "RangeIndex": ("pandas", "pandas.core.indexes.range"),
    "MultiIndex": ("pandas", "pandas.core.indexes.multi"),
    "Int64Index": ("pandas.core.indexes.numeric",),
    "UInt64Index": ("pandas.core.indexes.numeric",),
    "Float64Index": ("pandas.core.indexes.numeric",),
    "NA": ("pandas", "pandas._libs.missing"),
    "StringDtype": ("pandas", "pandas.core.arrays.string_"),
    "StringArray": ("pandas.arrays", "pandas.core.arrays.string_"),
    "StringArrayNumpySemantics": ("pandas.core.arrays.string_",),
    "__pyx_unpickle_NDArrayBacked": ("pandas._libs.arrays",),
    "ArrowStringArray": ("pandas.arrays", "pandas.core.arrays.string_arrow"),
    "ArrowStringArrayNumpySemantics": ("pandas.core.arrays.string_arrow",),
    "_restore_array": ("pyarrow.lib",),
    "type_for_alias": ("pyarrow.lib",),
    "py_buffer": ("pyarrow.lib",),
    "ndarray": ("numpy",),
    "dtype": ("numpy",),
    "_reconstruct": ("numpy.core.multiarray", "numpy._core.multiarray"),
    "scalar": ("numpy.core.multiarray", "numpy._core.multiarray"),
    "_frombuffer": ("numpy.core.numeric", "numpy._core.numeric"),
    "slice": ("builtins", "__builtin__"),
    "bytes": ("builtins", "__builtin__"),
    "bytearray": ("builtins", "__builtin__"),
    "encode": ("_codecs",),
}
"""All that pandas 1.3 to 3 names in tables of text, numbers and lists, and where it lies.

Here these are no more than labels: nothing of pandas, NumPy or Arrow is called for them. Dates,
categories and the like bring other names, and are not read.
"""
NAMES = frozenset((module, name) for name, modules in _MODULES.items() for module in modules)

_NUMPY_ARRAYS = ("_reconstruct", "_frombuffer")
_MALFORMED = (
    *(AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError),
)
"""What a record raises that is not as pandas writes it."""


class PickledFrame:
    """A DataFrame that pandas pickled."""

    def __init__(self, file: BufferedIOBase, *, max_bytes: int) -> None:
        """Read the pickle; cells are made when a column is asked for.

        Raises:
            PickleError: It is damaged, too large, holds no DataFrame, or one that is not read.
        """
        tree = parse(file, NAMES, max_bytes=max_bytes)
        if not isinstance(tree, Record) or tree.name != "DataFrame":
            found = tree.name if isinstance(tree, Record) else type(tree).__name__
            raise PickleError(f"it holds an object of type {found}, not a pandas DataFrame")
        try:
            manager = tree.state.get("_mgr")
            if not isinstance(manager, Record) or len(manager.args) != 2:
                raise PickleError(
                    "its DataFrame was written by a pandas older than 1.3; load it with that "
                    "version and save it with a newer one"
                )
            self._blocks, axes = manager.args
            self._labels = _labels(axes[0])
        except _MALFORMED as error:
            raise PickleError(f"its DataFrame is malformed ({error})") from error

    @property
    def labels(self) -> Sequence[Any]:
        """Names of the columns."""
        return self._labels

    def column(self, place: int) -> list[Any]:
        """Return the cells of the column at one position.

        Returns:
            Text, numbers, bytes, None, arrays of shape (numbers,), and lists of the former.

        Raises:
            PickleError: A cell holds something else, or the table is malformed.
        """
        try:
            for block in self._blocks:
                values, placement, *_ = block.args
                positions = _positions(placement)
                if place in positions:
                    raw = _row(values, positions.index(place), len(positions))
                    return [_cell(item) for item in raw]
        except _MALFORMED as error:
            raise PickleError(f"its DataFrame is malformed ({error})") from error
        raise PickleError(f"its DataFrame is malformed (column {place} has no cells)")


def _labels(axis: Record) -> list[Any]:
    fields = axis.args[1]
    if "data" not in fields:
        raise PickleError("its columns have numbers or several levels instead of names")
    return [_cell(label) for label in _items(fields["data"])]


def _positions(placement: Record) -> Sequence[int]:
    """Return the positions of the columns that a block holds."""
    if placement.name == "slice":
        start, stop, step = placement.args
        return range(start, stop, 1 if step is None else step)
    return _items(placement)


def _row(values: Record, row: int, rows: int) -> list[Any]:
    """Return the cells of one column of a block: the block has a row for each of its columns."""
    if values.name not in _NUMPY_ARRAYS:
        return _items(values)
    (height, width), contents = _contents(values)
    if height != rows:
        raise ValueError("a block does not fit its columns")
    cells = contents[row * width : (row + 1) * width]
    return cells if isinstance(cells, list) else cells.tolist()


def _items(values: Record) -> list[Any]:
    """Return the items of an array of one dimension, also of one of pandas' own kinds."""
    if values.name in _NUMPY_ARRAYS:
        contents = _contents(values)[1]
        return contents if isinstance(contents, list) else contents.tolist()
    if values.name.startswith("ArrowStringArray"):
        fields = values.state
        return _arrow_texts(fields["_pa_array"] if "_pa_array" in fields else fields["_data"])
    if values.name == "__pyx_unpickle_NDArrayBacked":
        # An array of texts: pandas 3 writes a missing one as NaN, which alone is not itself.
        return [item if item == item else None for item in _items(values.state[1])]  # noqa: PLR0124
    raise PickleError(f"a column is of the kind {values.name}, which is not read")


def _contents(array: Record) -> tuple[tuple[int, ...], list[Any] | Array]:
    """Return the shape of a NumPy array, and its items in C order: objects, or numbers."""
    if array.name == "_frombuffer":
        raw, kind, shape, order = array.args
    else:
        _, shape, kind, fortran, raw = array.state
        order = "F" if fortran else "C"
    if not kind.args[0].startswith("O"):
        numbers: Array = np.frombuffer(_buffer(raw), _dtype(kind)).reshape(shape, order=order)
        return shape, numbers.ravel()
    objects = _unpacked(raw)
    if len(objects) != math.prod(shape):
        raise ValueError("an array does not fit its shape")
    return shape, objects


def _dtype(kind: Record) -> np.dtype[np.generic]:
    code, order = kind.args[0], kind.state[1] if kind.state else "="
    if not re.fullmatch(r"[iufb][1248]", code) or order not in ("<", ">", "=", "|"):
        raise PickleError(f"it holds values of NumPy's type {code!r}, which is not read")
    kind_of_number: np.dtype[np.generic] = np.dtype(code).newbyteorder(order)
    return kind_of_number


def _buffer(raw: Any) -> bytes:
    """Return the bytes of a buffer, which older protocols write as calls."""
    if isinstance(raw, bytes):
        return raw
    if raw.name == "encode":
        text: str = raw.args[0]
        return text.encode("latin-1")
    return _buffer(raw.args[0]) if raw.args else b""


def _unpacked(items: Sequence[Any]) -> list[Any]:
    """Return the items of a list one by one, also where integers came packed."""
    single: list[Any] = []
    for item in items:
        single.extend(item.tolist() if isinstance(item, np.ndarray) else (item,))
    return single


def _cell(cell: Any) -> Any:
    """Return a cell as text, number, bytes, None, array of numbers, or list of the former."""
    if isinstance(cell, list | tuple):
        if cell and all(isinstance(item, np.ndarray) for item in cell):
            return np.concatenate(cell)
        return pack([_atom(item) for item in _unpacked(cell)])
    if isinstance(cell, Record) and cell.name in _NUMPY_ARRAYS:
        shape, contents = _contents(cell)
        if len(shape) != 1:
            raise PickleError("a cell is an array of several dimensions, which is not read")
        return [_atom(item) for item in contents] if isinstance(contents, list) else contents
    return _atom(cell)


def pack(items: list[Any]) -> list[Any] | NDArray[np.int64]:
    """Return a list of whole numbers that int64 holds as an array, and others as they are."""
    if not items or any(type(item) is not int for item in items):
        return items
    try:
        return np.array(items, np.int64)
    except OverflowError:
        return items


def _atom(cell: Any) -> Any:
    """Return text, a number, bytes or None."""
    if cell is None or isinstance(cell, str | int | float | bytes):
        return cell
    if isinstance(cell, Name) and cell.name == "NA":
        return None
    if isinstance(cell, Record) and cell.name == "scalar":
        kind, raw = cell.args
        return np.frombuffer(_buffer(raw), _dtype(kind)).item()
    if isinstance(cell, Record) and cell.name in ("bytes", "encode"):
        return _buffer(cell)
    found = cell.name if isinstance(cell, Name | Record) else type(cell).__name__
    raise PickleError(f"a cell holds an object of type {found}, which is not read")


def _arrow_texts(array: Record) -> list[str | None]:
    """Return the texts of an Arrow array, None where one is missing."""
    kind, length, _, offset, (valid, ends, texts), *_ = array.args[0]
    if length == 0:
        return []
    width = {"string": "<i4", "large_string": "<i8"}[kind.args[0]]
    bounds = np.frombuffer(_buffer(ends), width)[offset : offset + length + 1].tolist()
    if len(bounds) != length + 1 or bounds != sorted(bounds) or bounds[0] < 0:
        raise ValueError("texts without their bounds")
    raw = _buffer(texts) if texts is not None else b""
    found: list[str | None] = [raw[start:end].decode() for start, end in pairwise(bounds)]
    if valid is None:
        return found
    bits = np.unpackbits(np.frombuffer(_buffer(valid), np.uint8), bitorder="little")
    kept = bits[offset : offset + length].tolist()
    return [text if bit else None for text, bit in zip(found, kept, strict=True)]
