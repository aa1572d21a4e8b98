"""Parse untrusted data: JSON, TOML and compressed data, each bounded before parsing."""

from __future__ import annotations

import json
import re
import tomllib
import zlib
from itertools import accumulate, chain
from typing import Any

MAX_DEPTH = 50

MAX_KEY_PARTS = 16
"""Parts of one dotted TOML key: the parser's time grows with their square."""

MAX_VALUES = 1_000_000
"""Lists, objects and commas of one JSON text: an empty object takes 24 times its text in memory."""

MAX_KEYS = 100_000

PIECE_BYTES = 2**20

_TOO_DEEP = f"nested too deeply (more than {MAX_DEPTH} levels)"

_STRINGS = re.compile(rb'"[^"]*"?')

_OPEN, _CLOSE = b"[{", b"]}"
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(_OPEN + _CLOSE))

_TOML_QUOTED = re.compile(
    r'"""(?s:.*?)"{3,5}' + r"|'''(?s:.*?)'{3,5}" + r"""|"[^"\n]*"|'[^'\n]*'|#[^\n]*"""
)
_DEEP_KEY = re.compile(rf"\.(?:[\w \t-]*\.){{{MAX_KEY_PARTS - 1}}}")


def parse_json(
    content: bytes | str, *, max_values: int = MAX_VALUES, repeated_keys: bool = False
) -> Any:
    """Return the value of a JSON text in UTF-8; raise ValueError if it is malformed.

    Depth and number of values are bounded. With `repeated_keys` the last of equal keys counts.
    """
    require_bounded(content, max_values)
    text = content if isinstance(content, str) else content.decode("utf-8")
    try:
        return json.loads(text, object_pairs_hook=_bounded if repeated_keys else _once_each)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def require_bounded(content: bytes | str, max_values: int) -> None:
    """Raise ValueError if JSON has over `max_values` values or `MAX_DEPTH` nested levels."""
    values = depth = 0
    kept, in_string = b"", False
    for begin in range(0, len(content), PIECE_BYTES):
        part = content[begin : begin + PIECE_BYTES]
        piece = kept + (part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        # Do not split a backslash from the escaped character.
        odd = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        kept, piece = (b"\\", piece[:-1]) if odd else (b"", piece)
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        piece = b'"' + piece if in_string else piece
        in_string = piece.count(b'"') % 2 == 1
        outside = _STRINGS.sub(b"", piece)
        brackets = outside.translate(_STEPS, _NO_BRACKETS)
        levels = list(accumulate(memoryview(brackets).cast("b"), initial=depth))
        depth = levels[-1]
        if max(levels) > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        values += outside.count(b",") + brackets.count(b"\x01")
        if values > max_values:
            raise ValueError(f"more than {max_values:,} values")


def _bounded(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise ValueError(f"an object has more than {MAX_KEYS:,} keys")
    return dict(pairs)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = _bounded(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in content if names.count(name) > 1)
        raise ValueError(f"key {twice!r} occurs twice in one object")
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text of bounded depth; raise ValueError if it is malformed."""
    plain = _TOML_QUOTED.sub("", text.replace("\\\\", "").replace('\\"', ""))
    if _DEEP_KEY.search(plain):
        raise ValueError(f"a dotted key has more than {MAX_KEY_PARTS} parts")
    brackets = plain.encode("utf-8", "replace").translate(_STEPS, _NO_BRACKETS)
    if max(accumulate(memoryview(brackets).cast("b"), initial=0)) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    content = tomllib.loads(text)
    if is_deeper(content, MAX_DEPTH):
        raise ValueError(_TOO_DEEP)
    return content


def is_deeper(value: object, levels: int) -> bool:
    """Check whether lists and objects are nested in more than `levels` levels."""
    inside = [value]
    for _ in range(levels):
        objects = [one for one in inside if isinstance(one, dict)]
        lists = [one for one in inside if isinstance(one, list | tuple)]
        inside = list(chain(*(one.values() for one in objects), *lists))
    return any(isinstance(one, dict | list | tuple) for one in inside)


def inflate(content: bytes, max_bytes: int) -> bytes:
    """Return data that zlib or gzip compressed; raise ValueError if damaged or too large.

    The data are unpacked twice, first to learn the size, so that rejected data take no memory.
    """
    form = zlib.MAX_WBITS | 32  # either format
    try:
        return zlib.decompress(content, form, _inflated_size(content, form, max_bytes) or 1)
    except zlib.error as error:
        raise ValueError(f"not compressed data: {error}") from None


def _inflated_size(content: bytes, form: int, max_bytes: int) -> int:
    unpacker, packed, begin, size = zlib.decompressobj(form), b"", 0, 0
    while not unpacker.eof:
        if not packed:
            packed, begin = content[begin : begin + PIECE_BYTES], begin + PIECE_BYTES
        plain = unpacker.decompress(packed, PIECE_BYTES)
        if not packed and not plain:
            raise ValueError("compressed data that is truncated")
        packed, size = unpacker.unconsumed_tail, size + len(plain)
        if size > max_bytes:
            raise ValueError(f"unpacks to more than {max_bytes:,} bytes")
    return size
