"""Format untrusted text for terminals, files and messages, so that it cannot do harm."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

BROKEN_COLONS = ":\u200b:"
"""Two colons that start no workflow command of a CI, as written by `broken`."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

_MARKDOWN = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_{}[]()#+!|~$"}
    | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", "\n": " ", "\r": " "}
)

_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


def visible(text: str, keep: str = "") -> str:
    r"""Return text with control, format and separator characters escaped.

    ESC becomes "\x1b", a right-to-left override "\u202e", which cannot affect a terminal.
    Characters in `keep` are not escaped.
    """
    if text.isprintable():
        return text
    return BROKEN_COLONS.join(
        "".join(_shown(c, keep) for c in part) for part in text.split(BROKEN_COLONS)
    )


def broken(text: str) -> str:
    """Return visible text in which no CI workflow command ("::error") can begin."""
    return visible(text).replace("::", BROKEN_COLONS)


def encodable(value: T) -> T:
    """Return a text, or nested data with texts, with lone surrogates escaped for UTF-8."""
    return every_text(value, _escaped)


def every_text(value: T, change: Callable[[str], str]) -> T:
    """Return a value with `change` applied to every text in it, also to keys of mappings."""
    result: Any = value
    match result:
        case str():
            result = change(result)
        case Mapping():
            result = {every_text(k, change): every_text(v, change) for k, v in result.items()}
        case list() | tuple():
            result = type(result)(every_text(item, change) for item in result)
        case _ if dataclasses.is_dataclass(result) and not isinstance(result, type):
            fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.init}
            changed = {name: every_text(item, change) for name, item in fields.items()}
            result = dataclasses.replace(result, **changed) if changed != fields else result
    return result  # type: ignore[no-any-return]


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a value at any depth, without keys of mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def json_text(content: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return readable JSON with invisible and control characters as JSON escapes."""
    return escaped(json.dumps(encodable(content), indent=1, ensure_ascii=False, default=default))


def escaped(text: str) -> str:
    """Return JSON text with invisible and control characters, except newlines, escaped."""
    if text.isprintable():
        return text
    return "\n".join(
        line
        if line.isprintable()
        else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
        for line in text.split("\n")
    )


def _shown(character: str, keep: str) -> str:
    if character.isprintable() or character in keep:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _escaped(text: str) -> str:
    if not _SURROGATE.search(text):
        return text  # unchanged, because it may be a subclass such as a StrEnum member
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clean(line: str) -> str:
    """Return a line with control characters escaped and no CI workflow command at its start."""
    text = visible(line)
    start = len(text) - len(text.lstrip())
    if text.startswith(("::", "##["), start):
        return f"{text[:start]}\\{text[start:]}"
    return text


def csv_cell(value: object) -> object:
    """Return a CSV cell that no spreadsheet evaluates as a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(FORMULA_STARTS) else visible(value)


def markdown_text(text: str) -> str:
    """Return untrusted text for a Markdown table cell: no markup, HTML, mention or new line."""
    return visible(text, keep="\n\r").translate(_MARKDOWN)


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are: "a, b, c and 2 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def merge_conflict(text: str) -> tuple[int, str, str] | None:
    """Return (line number of the first git conflict marker, both branch names), or None."""
    match = re.search(r"^<{7} ([^\n]*)\n.*?^>{7} ([^\n]*)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        return None
    return (
        text.count("\n", 0, match.start()) + 1,
        quoted(match[1].strip()),
        quoted(match[2].strip()),
    )


def nearest(word: str, words: Iterable[str]) -> str:
    """Return a hint for an unknown word: "; did you mean 'x'?", or the list of known words."""
    names = list(words)
    return spelling_hint(word, names) or f"; known: {', '.join(names) or 'none'}"


def spelling_hint(word: str, words: Iterable[str]) -> str:
    """Return a hint for an unknown word: "; did you mean 'x'?", or "" if no word is similar."""
    close = closest(word, words)
    return f"; did you mean {close!r}?" if close else ""


def closest(word: str, words: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the most similar word, or "" if none is similar; dashes of options do not count."""
    plain = {one.lstrip("-"): one for one in words}
    close = difflib.get_close_matches(word.lstrip("-"), list(plain), n=1, cutoff=cutoff)
    return plain[close[0]] if close else ""


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def quoted(value: object) -> str:
    """Return the repr of a value for a message, shortened if long."""
    return _REPR.repr(value)
