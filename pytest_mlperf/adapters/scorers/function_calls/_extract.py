"""Extract function calls: OpenAI's tool calls as JSON, a simpler list, or Python calls in text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from pytest_mlperf.adapters.conventions import json_in

MAX_ANSWER_CHARACTERS = 4096
"""Characters of an answer that are searched for calls in prose, about 1,024 tokens."""

START = re.compile(r"\b([A-Za-z_]\w*)\s*\(")

NO_CALLS = re.compile(
    "print|return|if|for|while|def|class|import|from|with|assert|raise|try|except|len|str|int|float|"
    "list|dict|set|tuple|type|isinstance|range|enumerate|zip|map|filter|Note|Example|Here|This|The|"
    "For"
)
"""Words before a parenthesis that do not begin a call."""


def tool_calls(text: str) -> list[dict[str, Any]] | None:
    """Parse an answer as OpenAI's JSON list of tool calls; return None if it is not one.

    A call is {function name: arguments}.
    """
    calls = []
    for item in _list(text):
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            return None
        arguments = function.get("arguments", "{}")
        if isinstance(arguments, str):
            arguments = json_in(arguments, arguments)
        calls.append(_call(function.get("name", ""), arguments))
    return calls or None


def calls_in(text: str) -> list[dict[str, Any]]:
    """Return the calls in an answer, each as {function name: arguments}.

    Formats are tried in order: OpenAI's tool calls, a JSON list with "name", calls within text.
    """
    text = text.strip()
    calls = tool_calls(text)
    if calls is None:
        items = _list(text)
        if items and all(isinstance(item, dict) and "name" in item for item in items):
            calls = [_call(item["name"], item.get("arguments", {})) for item in items]
    return list(_in_prose(text)) if calls is None else calls


def _list(text: str) -> list[Any]:
    value = json_in(text, None)
    return value if isinstance(value, list) else []


def _call(name: Any, arguments: Any) -> dict[str, Any]:
    parsed = json_in(arguments, {}) if isinstance(arguments, str) else arguments
    return {name if isinstance(name, str) else "": parsed}


def _in_prose(text: str) -> Iterator[dict[str, Any]]:
    """Yield unnested calls in text, e.g. `book(city="Oslo")`, by MLPerf's heuristic."""
    end = 0
    for match in START.finditer(text[:MAX_ANSWER_CHARACTERS]):
        if match.start() < end or NO_CALLS.fullmatch(match[1]):
            continue
        close = _closing(text[:MAX_ANSWER_CHARACTERS], match.end() - 1)
        if close is None:
            continue
        end = close + 1
        inside = text[match.end() : close].strip()
        if not inside or not _is_signature(inside):
            yield {match[1]: _arguments(inside)}


def _closing(text: str, start: int) -> int | None:
    depth, quote, position = 0, "", start
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character == "(") - (character == ")")
            if not depth:
                return position
        position += 1
    return None


def _is_signature(inside: str) -> bool:
    """Return whether a text between parentheses has only names, like a function's parameters."""
    parts = (part.strip() for part in inside.split(","))
    return all(re.fullmatch(r"[A-Za-z_]\w*(?:\s*:\s*\w+)?", part) for part in parts if part)


def _arguments(inside: str) -> dict[str, Any]:
    """Return the arguments in a text by name, or {"_raw": text} if Python cannot parse the text."""
    try:
        body = ast.parse(f"dict({inside})", mode="eval").body
        keywords = body.keywords if isinstance(body, ast.Call) else []
        return {word.arg: _value(word.value) for word in keywords if word.arg is not None}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {"_raw": inside}


def _value(node: ast.expr) -> Any:
    """Return a literal's value, or another expression's source text; evaluate nothing."""
    try:
        return json.loads(json.dumps(ast.literal_eval(node)))
    except (ValueError, TypeError, RecursionError, MemoryError):
        return ast.unparse(node)
