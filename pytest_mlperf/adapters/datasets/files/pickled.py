"""Read NumPy arrays and columns of pandas tables from pickles, without executing them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BufferedIOBase
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files.arrays import StoredArray, damaged
from pytest_mlperf.adapters.datasets.files.pickles import (
    Name,
    PickledObject,
    PickleError,
    SkippedBytes,
    UnsupportedPickleError,
    parse,
    parse_outline,
)

Array = NDArray[np.generic]

_ARRAYS = {
    "numpy": "ndarray dtype",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "numpy._core.numeric": "_frombuffer",
    "_codecs": "encode",
}
"""Names in pickled arrays of numbers of NumPy 1 and 2, by module."""

_FRAMES = {
    "pandas": "DataFrame Series Index RangeIndex MultiIndex NA StringDtype",
    "pandas.arrays": "StringArray ArrowStringArray",
    "pandas.core.frame": "DataFrame",
    "pandas.core.series": "Series",
    "pandas.core.internals.managers": "BlockManager SingleBlockManager",
    "pandas.core.internals.blocks": "new_block",
    "pandas.core.indexes.base": "_new_Index Index",
    "pandas.core.indexes.range": "RangeIndex",
    "pandas.core.indexes.multi": "MultiIndex",
    "pandas.core.indexes.numeric": "Int64Index UInt64Index Float64Index",
    "pandas.core.arrays.string_": "StringDtype StringArray StringArrayNumpySemantics",
    "pandas.core.arrays.string_arrow": "ArrowStringArray ArrowStringArrayNumpySemantics",
    "pandas._libs.arrays": "__pyx_unpickle_NDArrayBacked",
    "pandas._libs.internals": "_unpickle_block",
    "pandas._libs.missing": "NA",
    "pyarrow.lib": "_restore_array type_for_alias py_buffer",
    "builtins": "slice bytes bytearray",
    "__builtin__": "slice bytes bytearray",
}
"""Further names in tables of text, numbers and lists of pandas 1.3 to 3.

They are only labels: nothing of pandas, NumPy or Arrow is called for them. Dates and categories
have other names, and are refused.
"""

ARRAY_NAMES, PICKLE_NAMES = (
    frozenset((module, name) for module, names in table.items() for name in names.split())
    for table in (_ARRAYS, _ARRAYS | _FRAMES)
)

_NUMPY_ARRAYS = ("_reconstruct", "_frombuffer")
_TEXT_TYPE = re.compile(r"U[1-9]\d{0,3}")

_MALFORMED = (
    *(AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError),
)


def find_arrays(path: Path) -> list[StoredArray]:
    """Locate the arrays of a pickled list or tuple (NumPy, protocols 3 to 5); read no values."""
    try:
        with path.open("rb") as file:
            tree = parse_outline(file, ARRAY_NAMES)
        if not isinstance(tree, list | tuple):
            raise PickleError(f"it holds {_named(tree)}, not a list of arrays")
        return [_array(path, place, item) for place, item in enumerate(tree)]
    except UnsupportedPickleError as error:
        raise RunError("dataset", f"{path}: {error}") from error
    except PickleError as error:
        raise damaged(path, f"{error}") from error


def _array(path: Path, index: int, item: Any) -> StoredArray:
    try:
        kind, shape, order, raw = _parts(item)
        if not isinstance(raw, SkippedBytes):
            raise TypeError("no numbers")
        array = StoredArray(
            file=path,
            name=f"its array {index}",
            offset=raw.offset,
            shape=tuple(int(length) for length in shape),
            dtype=_dtype(kind, orders="<|"),
            fortran=order == "F",
        )
    except _MALFORMED as error:
        raise PickleError(f"item {index} is {_named(item)}, not an array of numbers") from error
    if any(length < 0 for length in array.shape) or array.size != raw.size:
        raise PickleError(
            f"array {index} of shape {array.shape} and type {array.dtype} needs {array.size:,} "
            f"bytes, but {raw.size:,} are there"
        )
    return array


def _parts(array: PickledObject) -> tuple[PickledObject, tuple[int, ...], Literal["C", "F"], Any]:
    if array.name == "_frombuffer":
        raw, kind, shape, order, *_ = array.args
        if order not in ("C", "F"):
            raise ValueError("an order of axes that is not supported")
        return kind, shape, order, raw
    if array.name != "_reconstruct":
        raise TypeError("no array")
    _, shape, kind, fortran, raw = array.state
    return kind, shape, "F" if fortran else "C", raw


def _dtype(kind: PickledObject, *, orders: str = "<>=|") -> str:
    code, order = kind.args[0], kind.state[1] if kind.state else "<"
    unsupported = "" if re.fullmatch(r"[iufb][1248]", code) else ascii(code)
    if not unsupported and order not in [*orders]:
        unsupported = ascii(f"{order}{code}")[1:-1]
    if unsupported:
        raise UnsupportedPickleError(
            f"it holds values of NumPy's type {unsupported}, which is not supported; convert them "
            "to little-endian numbers or to text, and save the file again"
        )
    return f"{order}{code}"


def _named(item: Any) -> str:
    kind = item.name if isinstance(item, Name | PickledObject) else type(item).__name__
    return f"an object of type {kind}"


class PickledFrame:
    """Read columns from a pickled DataFrame of pandas."""

    def __init__(self, file: BufferedIOBase, *, max_bytes: int) -> None:
        tree = parse(file, PICKLE_NAMES, max_bytes=max_bytes)
        if not isinstance(tree, PickledObject) or tree.name != "DataFrame":
            raise PickleError(f"it holds {_named(tree)}, not a pandas DataFrame")
        try:
            manager = tree.state.get("_mgr")
            if not isinstance(manager, PickledObject) or len(manager.args) != 2:
                raise UnsupportedPickleError(
                    "its DataFrame was written by a pandas older than 1.3; load it with that "
                    "version, save it as Parquet, and set the data set's path to the new file"
                )
            self._blocks, axes = manager.args
            self.labels = _labels(axes[0])
        except _MALFORMED as error:
            raise PickleError(f"its DataFrame is malformed ({error})") from error

    def column(self, number: int) -> list[Any]:
        """Return the cells of a column by its number; raise PickleError for unsupported cells."""
        try:
            for block in self._blocks:
                values, placement, *_ = block.args
                positions = _positions(placement)
                if number in positions:
                    raw = _row(values, positions.index(number), len(positions))
                    return [_cell(item) for item in raw]
        except _MALFORMED as error:
            raise PickleError(f"its DataFrame is malformed ({error})") from error
        raise PickleError(f"its DataFrame is malformed (column {number} has no cells)")


def read_records(file: BufferedIOBase, *, max_bytes: int) -> list[Any]:
    """Return a pickled list of dictionaries, lists, text, numbers, and NumPy arrays.

    Arrays may hold numbers or text, in any number of dimensions. Raises PickleError for other
    content.
    """
    tree = parse(file, ARRAY_NAMES, max_bytes=max_bytes)
    if type(tree) is not list:
        raise PickleError(f"it holds {_named(tree)}, not a list of records")
    try:
        return [_plain(item) for item in tree]
    except _MALFORMED as error:
        raise PickleError(f"a record is malformed ({error})") from error


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(each) for each in _unpacked(item)]
    if isinstance(item, PickledObject) and item.name in _NUMPY_ARRAYS:
        kind, shape, order, raw = _parts(item)
        if text := _TEXT_TYPE.fullmatch(kind.args[0]):
            code = f"{kind.state[1] if kind.state else '<'}{text[0]}"
            return np.frombuffer(_buffer(raw), code).reshape(shape, order=order).tolist()
        shape, contents = _contents(item)
        return (
            [_atom(one) for one in contents]
            if isinstance(contents, list)
            else (contents.reshape(shape))
        )
    return _atom(item)


def _labels(axis: PickledObject) -> list[Any]:
    fields = axis.args[1]
    if "data" not in fields:
        raise UnsupportedPickleError(
            "its columns have numbers or several levels instead of names; give each column a text "
            "as its name, and save the table again"
        )
    return [_cell(label) for label in _items(fields["data"])]


def _positions(placement: PickledObject) -> Sequence[int]:
    if placement.name == "slice":
        start, stop, step = placement.args
        return range(start, stop, 1 if step is None else step)
    return _items(placement)


def _row(values: PickledObject, row: int, rows: int) -> list[Any]:
    if values.name not in _NUMPY_ARRAYS:
        return _items(values)
    (height, width), contents = _contents(values)
    if height != rows:
        raise ValueError("a block does not fit its columns")
    cells = contents[row * width : (row + 1) * width]
    return cells if isinstance(cells, list) else cells.tolist()


def _items(values: PickledObject) -> list[Any]:
    if values.name in _NUMPY_ARRAYS:
        contents = _contents(values)[1]
        return contents if isinstance(contents, list) else contents.tolist()
    if values.name.startswith("ArrowStringArray"):
        fields = values.state
        return _arrow_texts(fields["_pa_array"] if "_pa_array" in fields else fields["_data"])
    if values.name == "__pyx_unpickle_NDArrayBacked":
        # pandas 3 writes a missing text as NaN, the only value that differs from itself.
        return [item if item == item else None for item in _items(values.state[1])]  # noqa: PLR0124
    raise UnsupportedPickleError(
        f"a column is of the kind {values.name}, which is not supported; convert it to text, "
        "numbers or lists, and save the table again"
    )


def _contents(array: PickledObject) -> tuple[tuple[int, ...], list[Any] | Array]:
    kind, shape, order, raw = _parts(array)
    if not kind.args[0].startswith("O"):
        numbers: Array = np.frombuffer(_buffer(raw), _dtype(kind)).reshape(shape, order=order)
        return shape, numbers.ravel()
    objects = _unpacked(raw)
    if len(objects) != math.prod(shape):
        raise ValueError("an array does not fit its shape")
    return shape, objects


def _buffer(raw: Any) -> bytes:
    if isinstance(raw, bytes):
        return raw
    if raw.name == "encode":
        text: str = raw.args[0]
        return text.encode("latin-1")
    return _buffer(raw.args[0]) if raw.args else b""


def _unpacked(items: Sequence[Any]) -> list[Any]:
    single: list[Any] = []
    for item in items:
        single.extend(item.tolist() if isinstance(item, np.ndarray) else (item,))
    return single


def _cell(cell: Any) -> Any:
    if isinstance(cell, list | tuple):
        if cell and all(isinstance(item, np.ndarray) for item in cell):
            return np.concatenate(cell)
        return pack([_atom(item) for item in _unpacked(cell)])
    if isinstance(cell, PickledObject) and cell.name in _NUMPY_ARRAYS:
        shape, contents = _contents(cell)
        if len(shape) != 1:
            raise UnsupportedPickleError(
                "a cell is an array of several dimensions, which is not supported; convert it to a "
                "list, and save the table again"
            )
        return [_atom(item) for item in contents] if isinstance(contents, list) else contents
    return _atom(cell)


def pack(items: list[Any]) -> list[Any] | NDArray[np.int64]:
    """Return a list of int64 numbers as an array, and any other list unchanged."""
    if not items or any(type(item) is not int for item in items):
        return items
    try:
        return np.array(items, np.int64)
    except OverflowError:
        return items


def _atom(cell: Any) -> Any:
    if cell is None or isinstance(cell, str | int | float | bytes):
        return cell
    if isinstance(cell, Name) and cell.name == "NA":
        return None
    if isinstance(cell, PickledObject) and cell.name == "scalar":
        kind, raw = cell.args
        return np.frombuffer(_buffer(raw), _dtype(kind)).item()
    if isinstance(cell, PickledObject) and cell.name in ("bytes", "encode"):
        return _buffer(cell)
    raise UnsupportedPickleError(
        f"a cell holds {_named(cell)}, which is not supported; convert it to text, numbers or "
        "lists, and save the file again"
    )


def _arrow_texts(array: PickledObject) -> list[str | None]:
    kind, length, _, offset, (valid, ends, texts), *_ = array.args[0]
    if length == 0:
        return []
    width = {"string": "<i4", "large_string": "<i8"}[kind.args[0]]
    bounds = np.frombuffer(_buffer(ends), width)[offset : offset + length + 1].tolist()
    if len(bounds) != length + 1 or bounds != sorted(bounds) or bounds[0] < 0:
        raise ValueError("texts without their bounds")
    raw = _buffer(texts) if texts is not None else b""
    decoded: list[str | None] = [raw[start:end].decode() for start, end in pairwise(bounds)]
    if valid is None:
        return decoded
    bits = np.unpackbits(np.frombuffer(_buffer(valid), np.uint8), bitorder="little")
    kept = bits[offset : offset + length].tolist()
    return [text if bit else None for text, bit in zip(decoded, kept, strict=True)]
