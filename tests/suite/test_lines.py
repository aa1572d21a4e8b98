"""Defects are found at their line, whatever stands around them."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.suite.load import line_of, load_suite
from tests.suite.texts import SUITE

KEYS = ["schema", "workload", "engines", "options", "name", "a b", "it's", "x.y", "[z]", "#", "é=ü"]
VALUES = [
    "1",
    '"text"',
    "'[[engines]]'",
    '"""\n[engines]\nname = 1\n"""',
    "'''\n[[engines]]\n# '''",
    '"a\\"# b"',
    "[\n  1, # one\n  2,\n]",
    "[\n  [1],\n  [2],\n]",
    '{ a = [1, 2], b = "]" }',
    "2027-01-31",
]


def quoted(key: str) -> str:
    return key if key.isalnum() and key.isascii() else json.dumps(key, ensure_ascii=False)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, list[tuple[tuple[str | int, ...], int]]]:
    """Return a TOML text with the key path and the line of each of its statements."""
    lines: list[str] = []
    places: list[tuple[tuple[str | int, ...], int]] = []
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=5))
    tables: list[tuple[str, ...]] = [(), *((key,) for key in keys)]
    for table in tables:
        count = draw(st.integers(0, 3)) if table else 0
        for index in range(count or 1):
            path: tuple[str | int, ...] = (*table, index) if count else table
            noise = draw(st.sampled_from(["", '  # it\'s [a] comment = "x"', "\t"]))
            if table:
                places.append((path, len(lines) + 1))
                name = quoted(str(table[0]))
                lines.append((f"[[ {name} ]]" if count else f"[{name}]") + noise)
            for key in draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3)):
                own_key = f"own {key}" if not table else key
                places.append(((*path, own_key), len(lines) + 1))
                value = draw(st.sampled_from(VALUES))
                lines += f"{quoted(own_key)} = {value}{noise}".split("\n")
            lines += draw(st.sampled_from([[], [""], ["# name = 1", "   "]]))
    return "\n".join(lines), places


@given(documents())
def test_every_key_is_found_at_its_line(
    document: tuple[str, list[tuple[tuple[str | int, ...], int]]],
) -> None:
    text, places = document
    raw = tomllib.loads(text)

    for path, line in places:
        assert line_of(text, path) == line
        assert line_of(text, (*path, "absent")) == line
        value: Any = raw
        for part in path:
            value = value[part]  # the path is one of the document's


@given(
    st.text(st.sampled_from("[]{}\"'=.#\\\n\r ax1\u2028")),
    st.lists(st.sampled_from(["a", "x", 0, 1])),
)
@example('[a]\n"x" = """', ["a", "x"])
@example("[a\n]\nx=1", ["a", "x"])
@example("[a = 1\nx]", ["a", "x"])
def test_a_line_of_a_broken_file_is_still_one_of_its_lines(
    text: str, path: list[str | int]
) -> None:
    assert 1 <= line_of(text, path) <= text.count("\n") + 1


def test_lines_are_counted_as_toml_counts_them() -> None:
    cases: list[tuple[str, tuple[str | int, ...], int]] = [
        ("a.b.c = 1\nd = 2", ("a", "b", "c"), 1),
        ("[t]\na.b = 1\na.c = 2", ("t", "a", "c"), 3),
        ("[[e]]\n[e.o]\nx = 1\n[[e]]\n[e.o]\nx = 1", ("e", 1, "o", "x"), 6),
        ("[[e]]\n[[e.s]]\nx = 1\n[[e.s]]\n[[e]]\n[[e.s]]\nx = 2", ("e", 1, "s", 0, "x"), 7),
        ('[p."8 x"]\nd = 1', ("p", "8 x", "d"), 2),
        ('["\\u0061"]\nd = 1', ("a", "d"), 2),
        ("[ a . b ]\nd = 1", ("a", "b", "d"), 2),
        ("x = 1 # \u2028 no line ends here for TOML\ny = 2", ("y",), 2),
        ("x = 1\r\ny = 2\r\n", ("y",), 2),
        ("[a]\nx = { y = 1 }", ("a", "x", "y"), 2),
        ("[a]\n", ("b", "c"), 1),
        ("[a]\n", (), 1),
    ]
    assert [line_of(text, path) for text, path, _ in cases] == [line for *_, line in cases]


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "s.mlperf.toml"


def loads(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        load_suite(file)
    except SuiteError as error:
        lines = content.count(b"\n") + 1
        for line in str(error).split("\n"):
            line_number = line.removeprefix(f"{file}:").split(":")[0]
            assert line.startswith(f"{file}:")
            assert not line_number.isdigit() or 1 <= int(line_number) <= lines
            assert line.isprintable()


@given(st.binary(max_size=200))
@example(b"\xff\xfe[\0a\0")
def test_any_bytes_give_a_suite_or_a_suite_error(file: Path, content: bytes) -> None:
    loads(file, content)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
).filter(lambda value: value is not None)
VALUES_OF_ALL_KINDS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def toml(value: Any) -> str:
    """Return a value as inline TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


@given(st.data())
def test_any_value_at_any_key_gives_a_suite_or_a_suite_error(
    file: Path, data: st.DataObject
) -> None:
    lines = SUITE.splitlines()
    number = data.draw(st.sampled_from([n for n, line in enumerate(lines) if " = " in line]))
    key = lines[number].split(" = ")[0]
    value = data.draw(VALUES_OF_ALL_KINDS)
    lines[number] = f"{key} = {toml(value)}"

    loads(file, "\n".join(lines).encode("utf-8", "surrogatepass"))
