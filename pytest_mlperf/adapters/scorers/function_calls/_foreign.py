"""Read values written in Java or JavaScript, as BFCL's converters do.

A text that is not a value of the given type is returned unchanged. The regular expressions match
the same texts as BFCL's, but without catastrophic backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

MAX_VALUE_CHARACTERS = 1000
"""Maximum characters of a value; the longest in BFCL's right answers has 160."""

_LITERALS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "integer"), (r"-?\d+", int)),
    "float": (r"-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]", lambda text: float(text.rstrip("fF\n"))),
    "double": (r"-?\d+(\.\d+)?([eE][+-]?\d+)?", float),
    "long": (r"-?\d+[lL]", lambda text: int(text.rstrip("lL\n"))),
    "boolean": ("true|false", lambda text: text == "true"),
    "js integer": (r"-?\d+", int),
    "js float": (r"-?\d+(\.\d+)?", float),
    "js Bigint": (r"-?\d+n", lambda text: int(text[:-1])),
    "js Boolean": ("true|false", lambda text: text == "true"),
}
"""Literals of each type, and the function that converts them."""


def _literal(text: str, kind: str) -> Any:
    pattern, value = _LITERALS[kind]
    # BFCL's "$" allows a line break at the end, but its comparison of words does not.
    plain = text.removesuffix("\n") if "|" not in pattern else text
    return value(text) if re.fullmatch(pattern, plain) else text


def java_value(text: str, kind: str, nested: str | None = None) -> Any:
    """Convert a text to a Java value of type `kind`; raise KeyError for an unknown type.

    `nested` is the type of an array's elements. A text that is no such value is returned unchanged.

    >>> java_value("5L", "long"), java_value("5", "long")
    (5, '5')
    """
    if kind in ("String", "any", "char"):
        return text
    if kind == "ArrayList":
        return _array_list(text, nested)
    if kind == "Array":
        match = re.search(r"new\s+\w+\[\]\s*\{(.*?)\}", text)
        parts = [part.strip() for part in match[1].split(",") if part.strip()] if match else []
        return [_java_element(part, nested) for part in parts] if match else text
    return _hash_map(text) if kind == "HashMap" else _literal(text, kind)


def _array_list(text: str, nested: str | None) -> Any:
    if match := re.search(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)", text):
        parts = match[1].split(",")
    elif match := re.search(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}", text, re.DOTALL):
        parts = re.findall(r"add\((.+?)\)", match[1])
    else:
        return [] if re.search(r"new\s+ArrayList<\w*>\(\)", text) else text
    if nested in ("char", "String"):
        return [part.strip()[1:-1] for part in parts]
    return [_java_element(part.strip(), nested) for part in parts]


def _java_element(text: str, nested: str | None) -> Any:
    return java_value(text, nested) if nested else _java_guess(text)


def _hash_map(text: str) -> Any:
    if match := re.search(r"new\s+HashMap<.*?>\s*\(\)\s*+\{\s*+\{?+([^}]*+)\}", text, re.DOTALL):
        pairs = re.findall(r"put\(\"(.*?)\",\s*(.*?)\)", match[1])
        return {key: _java_guess(value.strip()) for key, value in pairs}
    return {} if re.search(r"new\s+HashMap<.*?>\s*\(\)", text) else text


def _java_guess(text: str) -> Any:
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for kind in ("boolean", "long", "float"):
        value = _literal(text, kind)
        if not isinstance(value, str):
            return value
    return _number(text)


def _number(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def js_value(text: str, kind: str, nested: str | None = None) -> Any:
    """Convert a text to a JavaScript value of type `kind`; raise KeyError for an unknown type.

    `nested` is the type of an array's elements. A text that is no such value is returned unchanged.
    """
    if kind == "any":
        return text
    if kind == "String":
        return text[1:-1] if _is_quoted(text) else text
    if kind == "dict":
        return _js_object(text)
    if kind == "array":
        try:
            return _js_array(text, nested)
        except (KeyError, ValueError, RecursionError):
            return text.strip()
    return _literal(text, f"js {kind}")


def _is_quoted(text: str) -> bool:
    return any(text.startswith(quote) and text.endswith(quote) for quote in ("'", '"'))


def _js_array(text: str, nested: str | None) -> Any:
    text = text.strip()
    if (end := _end_of_rows(text)) is not None:
        rows = re.findall(r"\[(.*?)\]", text[:end])
        rows[0] = rows[0].strip().removeprefix("[")
        return [[_js_guess(part) for part in row.strip().split(",")] for row in rows]
    match = re.match(r"\[(.*?)\]|\bnew\s+Array\((.*?)\)", text)
    if not match:
        return text
    content = (match[1] if match[1] is not None else match[2]).strip()
    parts = [part.strip() for part in content.split(",")] if content else []
    if not nested:
        return [_js_guess(part) for part in parts]
    return [js_value(part, nested, "String" if part[:1] in ("'", '"') else None) for part in parts]


def _end_of_rows(text: str) -> int | None:
    """Return where an array of arrays at the beginning of a text ends; None if there is none.

    BFCL's pattern tries every "]" as the end of every inner array, which can take exponential time.
    Here each "]" is examined once, from the last to the first: it can be an inner array's end if a
    valid rest follows.
    """
    head = re.match(r"\[\s*\[|new\s+Array\(\s*\[", text)
    if head is None:
        return None
    last = "]" if text.startswith("[") else ")"
    following = re.compile(r"\s*(,\s*\[|\]|\))")
    ends: dict[int, int] = {}
    for position in reversed([position for position, sign in enumerate(text) if sign == "]"]):
        match = following.match(text, position + 1)
        end = match.end() if match and match[1] == last else None
        if match and match[1].startswith(","):
            end = _first_end(text, match.end(), ends)
        if end is not None:
            ends[position] = end
    return _first_end(text, head.end(), ends)


def _first_end(text: str, start: int, ends: Mapping[int, int]) -> int | None:
    """Return the end of an array whose inner array ends at the first "]" after `start`.

    `ends` maps the position of each "]" that may end the inner array to the end of the outer one.
    Returns None if there is no such "]" on the line of `start`.
    """
    position = min((position for position in ends if position >= start), default=None)
    return None if position is None or "\n" in text[start:position] else ends[position]


def _js_object(text: str) -> Any:
    text = text.strip()
    if text == "{}":
        return {}
    match = re.match(r"\{(.*?)\}", text)
    if not match:
        return text
    values: dict[str, Any] = {}
    for key, value in re.findall(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)", match[1]):
        content = value.strip()
        if content.startswith("[") and content.endswith("]"):
            values[key.strip().strip("'\"")] = js_value(content, "array")
        elif content.startswith("{") and content.endswith("}"):
            values[key.strip().strip("'\"")] = _js_object(content)
        else:
            values[key.strip().strip("'\"")] = _js_guess(content.strip("'\""))
    return values


def _js_guess(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _is_quoted(text) else _number(text)
