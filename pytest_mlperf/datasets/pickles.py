"""Read a pickle into inert records: no name in it is ever looked up, imported or called.

Python's own unpickler runs what the file says. This one only builds text, numbers, lists, tuples,
dictionaries and records of what would have been called; names that are not expected are refused.
A hostile file can waste memory and time, no more.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function that the pickle names; it was not looked up.

    Attributes:
        name: Its name without the module, which was checked.
    """

    name: str


@dataclass(slots=True, eq=False)
class Record:
    """An object that the pickle would have made.

    Attributes:
        name: Of the class or function that would have been called.
        args: What it would have been called with.
        state: What the object would have been given afterwards; None without.
    """

    name: str
    args: tuple[Any, ...]
    state: Any = None


class PickleError(Exception):
    """The pickle is damaged, or holds what is not read; the message says which."""


def parse(file: BufferedIOBase, names: Container[tuple[str, str]], *, max_bytes: int) -> Any:
    """Return what a pickle of protocol 2 to 5 describes, with Name and Record in place of objects.

    Up to 1,000 whole numbers that follow each other in a list come packed, as one item: an array of
    shape (numbers,), int32. As Python objects the tokens of a large data set would take gigabytes.

    Args:
        file: The pickle; what follows its end is not used.
        names: The (module, name) pairs that may occur.
        max_bytes: Limit on the size of the pickle.

    Raises:
        PickleError: The pickle is damaged, too large, needs another name, or is of a kind that is
            not read. What reading the file raises goes through.

    Source: the opcodes as documented in pickletools.py of CPython.
    """
    machine = _Machine(_Window(file, max_bytes), names)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise PickleError(f"the pickle is damaged before byte {machine.position}") from error


_INTEGERS = re.compile(rb"(?:K.|M..|J....){1,1000}+e", re.DOTALL)
"""After MARK: up to as many integers as writers put into one batch, and APPENDS."""
_LONGEST_INTEGERS = 5 * 1000 + 1
_LINE = re.compile(rb"[^\n]*\n")
_LONGEST_LINE = 256
_CHUNK = 2**20

_NUMBERS = {
    pickle.BININT: struct.Struct("<i"),
    pickle.BININT1: struct.Struct("<B"),
    pickle.BININT2: struct.Struct("<H"),
    pickle.BINFLOAT: struct.Struct(">d"),
}
_BYTE, _WORD, _LONG = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q")


def _text(raw: bytes) -> str:
    return str(raw, "utf-8", "surrogatepass")


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


_SIZED: dict[bytes, tuple[struct.Struct, Callable[[bytes], Any]]] = {
    pickle.LONG1: (_BYTE, _integer),
    pickle.SHORT_BINUNICODE: (_BYTE, _text),
    pickle.BINUNICODE: (_WORD, _text),
    pickle.BINUNICODE8: (_LONG, _text),
    pickle.SHORT_BINBYTES: (_BYTE, bytes),
    pickle.BINBYTES: (_WORD, bytes),
    pickle.BINBYTES8: (_LONG, bytes),
    pickle.BYTEARRAY8: (_LONG, bytes),
}


class _Window:
    """The part of a file around the position: a large pickle never is in memory as a whole."""

    def __init__(self, file: BufferedIOBase, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._before = 0
        self._bytes = b""
        self._at = 0

    @property
    def position(self) -> int:
        """Bytes of the file that were taken."""
        return self._before + self._at

    def take(self, size: int) -> bytes:
        """Return the next bytes, and go on behind them."""
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

    def take_match(self, pattern: re.Pattern[bytes], longest: int) -> bytes | None:
        """Return the next bytes if they match a pattern, of up to `longest` bytes."""
        if self._at + longest > len(self._bytes):
            self._fill(longest)
        found = pattern.match(self._bytes, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def _fill(self, size: int) -> None:
        """Move on in the file until `size` bytes lie ahead, or up to its end."""
        self._before += self._at
        if self._before + size > self._max_bytes:  # before a long item is gathered in memory
            raise PickleError(f"it has more than {self._max_bytes:,} bytes when unpacked")
        kept = [self._bytes[self._at :]]
        ahead = len(kept[0])
        while ahead < size and (chunk := self._file.read(_CHUNK)):
            kept.append(chunk)
            ahead += len(chunk)
            if self._before + ahead > self._max_bytes:
                raise PickleError(f"it has more than {self._max_bytes:,} bytes when unpacked")
        self._bytes, self._at = b"".join(kept), 0


class _Machine:
    """The stack machine that a pickle is a program for, without the steps that could do harm."""

    def __init__(self, window: _Window, names: Container[tuple[str, str]]) -> None:
        self._window = window
        self._take = window.take
        self._names = names
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._actions = self._instructions()

    @property
    def position(self) -> int:
        """Bytes of the pickle that were read."""
        return self._window.position

    def run(self) -> Any:
        """Follow the instructions up to the first STOP, and return the object on top."""
        start = self._take(2)
        if start[:1] != pickle.PROTO or not 2 <= start[1] <= pickle.HIGHEST_PROTOCOL:
            raise PickleError("it is no pickle of protocol 2 to 5")
        while (code := self._take(1)) != pickle.STOP:
            action = self._actions.get(code)
            if action is None:
                raise PickleError(
                    f"the instruction {code!r} at byte {self.position - 1} occurs in no table that "
                    "pandas writes"
                )
            action()
        return self._stack.pop()

    def _instructions(self) -> dict[bytes, Callable[[], None]]:
        push = self._stack.append
        return {
            pickle.FRAME: lambda: self._skip(8),
            pickle.MARK: self._mark,
            pickle.NONE: lambda: push(None),
            pickle.NEWTRUE: lambda: push(True),
            pickle.NEWFALSE: lambda: push(False),
            pickle.EMPTY_LIST: lambda: push([]),
            pickle.EMPTY_TUPLE: lambda: push(()),
            pickle.EMPTY_DICT: lambda: push({}),
            pickle.APPEND: lambda: self._extend([self._stack.pop()]),
            pickle.APPENDS: lambda: self._extend(self._since_mark()),
            pickle.SETITEM: lambda: self._update(self._last(2)),
            pickle.SETITEMS: lambda: self._update(self._since_mark()),
            pickle.TUPLE1: lambda: push(tuple(self._last(1))),
            pickle.TUPLE2: lambda: push(tuple(self._last(2))),
            pickle.TUPLE3: lambda: push(tuple(self._last(3))),
            pickle.TUPLE: lambda: push(tuple(self._since_mark())),
            pickle.MEMOIZE: lambda: self._remember(len(self._memo)),
            pickle.BINPUT: lambda: self._remember(self._number(_BYTE)),
            pickle.LONG_BINPUT: lambda: self._remember(self._number(_WORD)),
            pickle.BINGET: lambda: push(self._memo[self._number(_BYTE)]),
            pickle.LONG_BINGET: lambda: push(self._memo[self._number(_WORD)]),
            pickle.GLOBAL: lambda: self._name(self._line(), self._line()),
            pickle.STACK_GLOBAL: lambda: self._name(*self._last(2)),
            pickle.REDUCE: self._call,
            pickle.NEWOBJ: self._call,
            pickle.BUILD: self._build,
            **{code: partial(self._push_number, layout) for code, layout in _NUMBERS.items()},
            **{code: partial(self._push_sized, *how) for code, how in _SIZED.items()},
        }

    def _push_number(self, layout: struct.Struct) -> None:
        self._stack.append(self._number(layout))

    def _push_sized(self, size: struct.Struct, decode: Callable[[bytes], Any]) -> None:
        self._stack.append(decode(self._take(self._number(size))))

    def _skip(self, size: int) -> None:
        self._take(size)

    def _number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _line(self) -> str:
        line = self._window.take_match(_LINE, _LONGEST_LINE)
        if line is None:
            raise PickleError("it names something that is no class or function")
        return _text(line[:-1])

    def _last(self, count: int) -> list[Any]:
        items = self._stack[-count:]
        if len(items) < count:
            raise IndexError("the stack is empty")
        del self._stack[-count:]
        return items

    def _mark(self) -> None:
        integers = self._window.take_match(_INTEGERS, _LONGEST_INTEGERS)
        if integers is None:
            self._marks.append(len(self._stack))
            return
        # Python reads such a run, which names nothing, many times faster than the loop above.
        numbers = pickle.loads(b"\x80\x02](" + integers + b".")  # noqa: S301
        self._extend([np.array(numbers, np.int32)])

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError("only lists are appended to")
        target += items

    def _update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise TypeError("only dictionaries have items")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # To hash a tuple means to hash what is in it, to any depth, on Python's C stack.
            if not isinstance(key, str | int | float | bytes | None):
                raise PickleError("a dictionary has a key that is neither text nor a number")
            target[key] = value

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _name(self, module: str, name: str) -> None:
        if (module, name) not in self._names:
            wanted = ascii(f"{module}.{name}")[1:-1][:200]
            raise PickleError(
                f"it wants to call {wanted}; such a file is never executed: only tables of text, "
                "numbers and lists are read"
            )
        self._stack.append(Name(name))

    def _call(self) -> None:
        called, args = self._last(2)
        if not isinstance(called, Name) or type(args) is not tuple:
            raise TypeError("only names are called")
        self._stack.append(Record(called.name, args))

    def _build(self) -> None:
        target, state = self._last(2)
        if not isinstance(target, Record):
            raise TypeError("only objects have a state")
        target.state = state
        self._stack.append(target)
