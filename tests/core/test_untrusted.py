"""JSON, TOML and compressed data are bounded before they are parsed."""

from __future__ import annotations

import gzip
import json
import random
import tomllib
import tracemalloc
import zlib

import pytest

from pytest_mlperf.core.untrusted import (
    MAX_DEPTH,
    MAX_KEY_PARTS,
    PIECE_BYTES,
    inflate,
    parse_json,
    parse_toml,
)

DEEP = "nested too deeply (more than 50 levels)"

PARTS = "a dotted key has more than 16 parts"

JSON_DEFECTS = {
    "[" * 5_000_000: DEEP,
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1): DEEP,
    '{"a":' * 200_000: DEEP,
    '["\\\\",' + "[" * (MAX_DEPTH + 1): DEEP,
    "[" + "0," * 1_000_000 + "0]": "more than 1,000,000 values",
    "[" + "{}," * 600_000 + "0]": "more than 1,000,000 values",
    '{"failed": true, "failed": false}': "key 'failed' occurs twice in one object",
    '[{"a": {"b": 1, "b": 1}}]': "key 'b' occurs twice in one object",
    "": "Expecting value",
    '"' + '\\"' * 100_000: "Unterminated string",
    "9" * 5000: "Exceeds the limit",
}


def test_json_is_bounded_before_it_is_parsed() -> None:
    for text, defect in JSON_DEFECTS.items():
        for content in (text, text.encode()):
            with pytest.raises(ValueError, match=f"^{defect[:20]}".replace("(", r"\(")):
                parse_json(content)
    for content in (b"\xff\xfe", json.dumps([1]).encode("utf-16"), b"\xed\xa0\x80"):
        with pytest.raises(ValueError, match="codec can't decode"):
            parse_json(content)


def test_brackets_inside_of_strings_are_not_structure() -> None:
    """Also where a string or an escape lies across two pieces."""
    rows = ["[" * 100, "," * 2_000_000, '\\"[' * 100, "\\" * 101 + "[" * 60, "é" * PIECE_BYTES]
    rows += [" " * (PIECE_BYTES - n) + '\\"' + "[" * 60 for n in range(5)]
    for value in rows:
        text = json.dumps([value, {"a": value}], ensure_ascii=False)
        assert parse_json(text) == parse_json(text.encode()) == [value, {"a": value}]


KEYS = ".".join(["a"] * (MAX_KEY_PARTS + 1))

TOML_DEFECTS = {
    ".".join(["a"] * 200_000) + " = 1": PARTS,
    "\n".join(".".join(["a"] * i) + ".b = 1" for i in range(1, 1500)): PARTS,
    f"{KEYS} = 1": PARTS,
    f"[{KEYS}]": PARTS,
    KEYS.replace(".", " . ") + " = 1": PARTS,
    KEYS.replace("a", '"="') + " = 1": PARTS,
    f'x = {{a = """\n""", {KEYS} = 1}} #"': PARTS,
    f"x = {{a = '\\\"', b = 1, {KEYS} = 1}}": PARTS,
    "a = " + "[" * 100_000: DEEP,
    "a = [" + '"]",' * 100 + "[" * 60: DEEP,
    "a = " + "{b.c = " * 30 + "1" + "}" * 30: DEEP,
    "a = 1\na = 2": "Cannot overwrite a value",
}


def test_toml_is_bounded_before_it_is_parsed() -> None:
    for text, defect in TOML_DEFECTS.items():
        with pytest.raises(ValueError, match=f"^{defect}".replace("(", r"\(").replace(")", r"\)")):
            parse_toml(text)
    rows = [
        '"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s" = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s"',
        f"a = '''\n[[[[{KEYS}\n''' # {KEYS}\nb = [1.5, 2.5]",
        "a = [" + "0.5, " * 100 + "]",
        f'a = """\n\\"{"[" * 60}\\""""\nb.c = 1',
    ]
    assert [parse_toml(text) for text in rows] == [tomllib.loads(text) for text in rows]


def test_compressed_data_is_unpacked_up_to_a_limit() -> None:
    for pack in (zlib.compress, gzip.compress):
        content = pack(b"x" * 1000)
        assert inflate(content, 1000) == b"x" * 1000
        with pytest.raises(ValueError, match="unpacks to more than 999 bytes"):
            inflate(content, 999)
        with pytest.raises(ValueError, match="truncated"):
            inflate(content[:-5], 1000)
    assert inflate(zlib.compress(b""), 0) == b""
    with pytest.raises(ValueError, match="not compressed data"):
        inflate(b"no such data", 10)


def test_compressed_data_takes_no_more_memory_than_is_returned() -> None:
    """A bomb takes that of a piece."""
    size = 16 * PIECE_BYTES
    for content in (zlib.compress(bytes(size)), zlib.compress(random.Random(1).randbytes(size))):
        tracemalloc.start()
        with pytest.raises(ValueError, match="unpacks to more than"):
            inflate(content, size - 1)
        _, refused = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert len(inflate(content, size)) == size
        _, taken = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert refused < 5 * PIECE_BYTES
        assert taken < size + 5 * PIECE_BYTES
