"""Read a pickle into inert records, without importing or calling a name in it.

Python's own unpickler runs with an allow-list of opcodes, and in `find_class` with one of names. A
malicious file can only waste memory and time.

The real classes of NumPy and pandas, and the unpickler in C, trust the file. `numpy.dtype`, which
every array needs, accepts flags that make NumPy treat bytes as addresses. Arrow reads a string up
to whatever end the file states. A key of 100,000 nested tuples crashes the process.
tests/adapters/datasets/test_frames.py has an example of each.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase
from typing import Any, ClassVar, NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Name:
    """Hold the name of a class or function that the pickle refers to, without its module."""

    name: str


@dataclass(slots=True, eq=False)
class PickledObject:
    """Describe an object that the pickle would create by a call: name, arguments and state."""

    name: str
    args: tuple[Any, ...]
    state: Any = None


class SkippedBytes(NamedTuple):
    """Locate a byte string that was skipped: its offset and size in the file [bytes]."""

    offset: int
    size: int


class PickleError(Exception):
    """Report that a pickle is damaged or has unsupported content."""


class UnsupportedPickleError(PickleError):
    """Report content that is valid but not supported; the message ends with advice."""


def parse(file: BufferedIOBase, names: Container[tuple[str, str]], *, max_bytes: int) -> Any:
    """Return the content of a pickle (protocols 2 to 5), with objects as Name or PickledObject.

    In a list, up to 1,000 consecutive whole numbers become one int32 array of shape (numbers,),
    because the tokens of a large data set would need gigabytes as Python objects. `names` are the
    allowed (module, name) pairs. Bytes after the end of the pickle are ignored. Exceptions that
    reading the file raises are not caught.
    """
    return _load(_Unpickler(_Window(file, max_bytes), names))


def parse_outline(file: BufferedIOBase, names: Container[tuple[str, str]]) -> Any:
    """Parse a pickle as `parse` does, but replace each byte string by its `SkippedBytes`."""
    return _load(_Outliner(_SparseWindow(file, OUTLINE_LIMIT), names))


def _load(unpickler: _Unpickler) -> Any:
    try:
        return unpickler.load()
    except _DAMAGED as error:
        position = unpickler.window.position
        raise PickleError(f"the pickle is damaged before byte {position}") from error


_INTEGERS = re.compile(rb"(?:K.|M..|J....){1,1000}+e", re.DOTALL)
"""Opcodes after MARK: up to 1,000 integers, as in a writer's batch, and APPENDS."""
_MAX_INTEGER_BYTES = 5 * 1000 + 1
_TEXT_LINE = re.compile(rb"[^\n]*\n")
_MAX_LINE_BYTES = 256
_CHUNK = 2**16
OUTLINE_LIMIT = 2**20
"""Maximum bytes of a pickle without its byte strings."""
_MAX_TEXT_BYTES = 2**16
_DAMAGED = (*(AttributeError, IndexError, KeyError, TypeError, ValueError), pickle.UnpicklingError)


class _Window:
    """Buffer a part of a file around the read position, as a pickle may be large."""

    def __init__(self, file: BufferedIOBase, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._before = 0
        self._bytes = b""
        self._at = 0
        self._excess = f"it has more than {max_bytes:,} bytes when unpacked, the maximum"

    @property
    def position(self) -> int:
        return self._before + self._at

    def read(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._bytes):
            self._fill(size)
            end = size
            if end > len(self._bytes):
                raise PickleError(
                    f"the pickle ends in the middle, at byte {self._before + len(self._bytes)}"
                )
        taken = self._bytes[self._at : end]
        self._at = end
        return taken

    def take_match(self, pattern: re.Pattern[bytes], max_bytes: int) -> bytes | None:
        """Match the next bytes, at most `max_bytes`; consume and return a match, else None."""
        if self._at + max_bytes > len(self._bytes):
            self._fill(max_bytes)
        match = pattern.match(self._bytes, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def readline(self) -> bytes:
        line = self.take_match(_TEXT_LINE, _MAX_LINE_BYTES)
        if line is None:
            raise PickleError(
                f"a text line in it is cut off or has more than {_MAX_LINE_BYTES} bytes"
            )
        return line

    def _fill(self, size: int) -> None:
        self._before += self._at
        if self._before + size > self._max_bytes:  # before a long item is gathered in memory
            raise PickleError(self._excess)
        kept = [self._bytes[self._at :]]
        ahead = len(kept[0])
        while ahead < size and (chunk := self._file.read(_CHUNK)):
            kept.append(chunk)
            ahead += len(chunk)
        self._bytes, self._at = b"".join(kept), 0


class _SparseWindow(_Window):
    """Buffer parts of a pickle file; seek past long byte strings instead of reading them."""

    def __init__(self, file: BufferedIOBase, max_bytes: int) -> None:
        super().__init__(file, max_bytes)
        self._excess = f"it has more than {OUTLINE_LIMIT >> 20} MiB of data besides its arrays"
        self._end = file.seek(0, io.SEEK_END)
        file.seek(0)

    def read(self, size: int) -> bytes:
        if size > _MAX_TEXT_BYTES:
            self._require(size)
            raise UnsupportedPickleError(
                f"it holds a text of {size:,} bytes; only arrays that were pickled with protocol 3 "
                "to 5 are read: write the file again with protocol 4"
            )
        return super().read(size)

    def skip(self, size: int) -> SkippedBytes:
        skipped = SkippedBytes(self.position, size)
        if size <= _MAX_TEXT_BYTES:
            self.read(size)
        else:
            self._require(size)
            self._before, self._bytes, self._at = self._file.seek(self.position + size), b"", 0
            self._max_bytes += size
        return skipped

    def _require(self, size: int) -> None:
        if self.position + size > self._end:
            raise PickleError("the pickle ends in the middle")


_INSTRUCTIONS = (
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE),
    *(pickle.BINUNICODE8, pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
    *(pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.EMPTY_DICT, pickle.APPEND, pickle.APPENDS),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.TUPLE),
    *(pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.STOP, pickle.BINPERSID),
)
"""Opcodes that Python's unpickler executes itself: plain values, and the methods below."""

_STEPS: dict[int, Callable[[Any], None]] = pickle._Unpickler.dispatch
_MARK = _STEPS[pickle.MARK[0]]


def _refuse(code: int, unpickler: _Unpickler) -> None:
    raise PickleError(
        f"byte {unpickler.window.position - 1} is the pickle opcode {bytes([code])!r}, which "
        "tables written by pandas never contain"
    )


class _Unpickler(pickle._Unpickler):
    """Unpickle with Python's own implementation, but reject its dangerous opcodes.

    This is the implementation in Python, not in C. Its opcodes are in a table that can be replaced,
    and its memo is a dictionary, in which a large index does not allocate memory.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, window: _Window, names: Container[tuple[str, str]]) -> None:
        super().__init__(window)
        self.window = window
        self._names = names

    def load(self) -> Any:
        start = self.window.read(2)
        if start[:1] != pickle.PROTO or not 2 <= start[1] <= pickle.HIGHEST_PROTOCOL:
            raise PickleError("it is not a pickle of protocol 2 to 5")
        return super().load()

    def find_class(self, module: str, name: str) -> Name:
        if (module, name) not in self._names:
            full_name = ascii(f"{module}.{name}")[1:-1][:200]
            raise UnsupportedPickleError(
                f"it tries to call {full_name}; such a file is never executed: convert all values "
                "to text, numbers and lists and save it again, or correct the data set's path"
            )
        return Name(name)

    def persistent_load(self, pid: Any) -> Any:
        """Return a tensor's reference to its storage, which is outside the pickle, as it is."""
        if ("torch", "LongStorage") not in self._names:
            _refuse(pickle.BINPERSID[0], self)
        return pid

    def _mark(self) -> None:
        integers = self.window.take_match(_INTEGERS, _MAX_INTEGER_BYTES)
        if integers is None:
            _MARK(self)
            return
        if type(self.stack[-1]) is not list:
            raise TypeError("it appends to something that is not a list")
        # The unpickler in C reads these opcodes, which name nothing, many times faster.
        numbers = pickle.loads(b"\x80\x02](" + integers + b".")  # noqa: S301
        self.stack[-1].append(np.array(numbers, np.int32))

    def _call(self) -> None:
        args = self.stack.pop()
        called = self.stack[-1]
        if not isinstance(called, Name) or type(args) is not tuple:
            raise TypeError("it calls something that is not a name")
        self.stack[-1] = PickledObject(called.name, args)

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], PickledObject):
            raise TypeError("it sets the state of something that is not an object")
        self.stack[-1].state = state

    def _set_item(self) -> None:
        pair = self.stack[-2:]
        del self.stack[-2:]
        self._update(pair)

    def _update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise TypeError("it adds items to something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing nested tuples recurses to any depth on the C stack.
            if not isinstance(key, str | int | float | bytes | None):
                raise UnsupportedPickleError(
                    "a dictionary has a key that is neither text nor a number; convert the keys to "
                    "text and save the file again"
                )
            target[key] = value

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: partial(_refuse, code) for code in range(256)},
        **{code[0]: _STEPS[code[0]] for code in _INSTRUCTIONS},
        pickle.FRAME[0]: lambda self: self.window.read(8),
        pickle.MARK[0]: _mark,
        # Read as bytes, so that a length in the file allocates no memory.
        pickle.BYTEARRAY8[0]: _STEPS[pickle.BINBYTES8[0]],
        pickle.REDUCE[0]: _call,
        pickle.NEWOBJ[0]: _call,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda self: self._update(self.pop_mark()),
    }


class _Outliner(_Unpickler):
    """Unpickle, but put in place of each byte string its position: `SkippedBytes`."""

    window: _SparseWindow

    def _place(self, width: int) -> None:
        size = int.from_bytes(self.window.read(width), "little")
        self.stack.append(self.window.skip(size))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_Unpickler.dispatch,
        pickle.SHORT_BINBYTES[0]: lambda self: self._place(1),
        pickle.BINBYTES[0]: lambda self: self._place(4),
        pickle.BINBYTES8[0]: lambda self: self._place(8),
        pickle.BYTEARRAY8[0]: lambda self: self._place(8),
    }
