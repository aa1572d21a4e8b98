"""Text that others wrote is shown and never obeyed, and every file can hold it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.foreign_text import BROKEN, broken, encodable, json_text, visible

HOSTILE = st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs", "L", "So"]))


@dataclass(frozen=True)
class Words:
    first: str
    rest: tuple[str, ...] = ()


values = st.recursive(
    HOSTILE | st.none() | st.integers() | st.booleans(),
    lambda inner: st.lists(inner) | st.dictionaries(HOSTILE, inner),
    max_leaves=8,
)


@settings(max_examples=40)
@given(HOSTILE, values)
def test_nothing_that_a_terminal_obeys_is_left_and_every_value_becomes_text(
    text: str, value: Any
) -> None:
    shown, written = visible(text.replace(BROKEN, "")), json_text(value)

    assert shown.isprintable()
    assert visible(shown) == shown
    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == encodable(value)
    assert (shown + written).encode()


def test_a_control_character_is_shown_and_broken_colons_begin_no_command() -> None:
    texts = {
        "\x1b[2J\x1b[32m1 passed": "\\x1b[2J\\x1b[32m1 passed",
        "a\rb\x9b31m": "a\\rb\\x9b31m",
        "\u202eright\u2066": "\\u202eright\\u2066",
        "model-\udcff.bin": "model-\\udcff.bin",
        "tag\U000e0041": "tag\\U000e0041",
        "−3 % exceeded, 22 µs → ok": "−3 % exceeded, 22 µs → ok",
        "\u200b": "\\u200b",
    }

    assert {text: visible(text) for text in texts} == texts
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert broken("::error::\x07") == f"{BROKEN}error{BROKEN}\\x07"
    assert visible(broken("a::b\x07")) == f"a{BROKEN}b\\x07"


def test_what_utf8_cannot_hold_is_an_escape_wherever_it_stands() -> None:
    words = Words("a\udcff", ("b", "\ud800"))

    found = encodable({"\udc80": [words, MappingProxyType({"k": "\udcff"})], "n": 3})

    assert found == {
        "\\udc80": [Words("a\\udcff", ("b", "\\ud800")), {"k": "\\udcff"}],
        "n": 3,
    }
    clean = Words("ü")
    assert encodable(clean) is clean
