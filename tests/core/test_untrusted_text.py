"""Text is shown and never obeyed, every file can hold it, and it names no folder of its machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.paths import placeless
from pytest_mlperf.core.untrusted_text import (
    BROKEN_COLONS,
    broken,
    closest,
    encodable,
    json_text,
    some,
    texts_in,
    visible,
)

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
    displayed, written = visible(text.replace(BROKEN_COLONS, "")), json_text(value)

    assert displayed.isprintable()
    assert visible(displayed) == displayed
    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == encodable(value)
    assert (displayed + written).encode()


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
    assert broken("::error::\x07") == f"{BROKEN_COLONS}error{BROKEN_COLONS}\\x07"
    assert visible(broken("a::b\x07")) == f"a{BROKEN_COLONS}b\\x07"


def test_text_that_utf8_cannot_encode_is_escaped_everywhere() -> None:
    words = Words("a\udcff", ("b", "\ud800"))

    escaped = encodable({"\udc80": [words, MappingProxyType({"k": "\udcff"})], "n": 3})

    assert escaped == {"\\udc80": [Words("a\\udcff", ("b", "\\ud800")), {"k": "\\udcff"}], "n": 3}
    clean = Words("ü")
    assert encodable(clean) is clean


ADMIN = "root"
"""Whose home is no folder below /home."""

ROOTS = ("/srv/code/proj", "/w/p")


def test_a_path_is_shortened() -> None:
    stored = {
        "/srv/code/proj/suites/a.toml": "suites/a.toml",
        "/srv/code/proj": ".",
        "/w/p/.mlperf/runs/x: is gone": ".mlperf/runs/x: is gone",
        "/srv/code/project/b": "…/project/b",
        "see /home/ann/m/x.onnx: gone": "see ~/m/x.onnx: gone",
        "/home/ann": "~",
        "/Users/ann/m.pt": "~/m.pt",
        f"/{ADMIN}/.cache": "~/.cache",
        "/rooted/x/y": "…/x/y",
        "/people/ann/m/x.onnx": "~/m/x.onnx",
        'File "/usr/lib/python3.11/json/d.py", line 3': 'File "…/json/d.py", line 3',
        "--mlperf-runs-dir=/tmp/q/r/s": "--mlperf-runs-dir=…/r/s",
        "A=/a/b/c:/c/d/e": "A=…/b/c:…/d/e",
        "cc -L/usr/lib/foo": "cc -L…/lib/foo",
        "python /opt/envs/vllm/bin/python (3.11)": "python …/vllm/bin/python (3.11)",
        "/usr/bin/git": "…/usr/bin/git",
        "/bin/sh": "…/bin/sh",
        "file:///home/ann/x": "file://~/x",
        '{"lib": "/opt/v1/lib/x.so"}': '{"lib": "…/lib/x.so"}',
    }

    assert {text: placeless(text, ROOTS, "/people/ann") for text in stored} == stored
    again = [placeless(text, ROOTS, "/people/ann") for text in stored.values()]
    assert again == [*stored.values()]


def test_paths_of_other_machines_stay_and_all_text_of_a_value_is_examined() -> None:
    texts = [
        "tokens/s and J/sample",
        "2/3 of them; 1 / 2",
        "http://host:8000/v1/chat/completions",
        "POST /v1/chat/completions",
        "../a/b and ./c/d and ~/x/y",
        "suites/a.mlperf.toml::test_performance[x]",
        "/sys/class/powercap/intel-rapl:0 cannot be read",
    ]
    value = {"/w/p/a": ("/w/p/b", ["/home/ann/c"])}

    assert [placeless(text, ROOTS, "/people/ann") for text in texts] == texts
    assert placeless(value, ROOTS) == {"a": ("b", ["~/c"])}


def test_names_are_listed_found_and_counted() -> None:
    assert some([]) == ""
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some(["a", "b", "c", "d", "e"], 2) == "a, b and 3 more"
    assert closest("ofline", ["Server", "offline"]) == "offline"
    assert closest("ofline", ["Server", "offline"], cutoff=0.99) == ""
    assert [*texts_in({"key": ["a", ("b", {"key": "c"})], "n": 1, "none": None})] == ["a", "b", "c"]
