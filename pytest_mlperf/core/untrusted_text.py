"""Text that others wrote, for terminals, files and messages."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

BROKEN_COLONS = ":\u200b:"
"""Two colons that begin no workflow command of a CI: `broken` makes them."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

_MARKDOWN = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_{}[]()#+!|~$"}
    | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", "\n": " ", "\r": " "}
)

_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


def visible(text: str, keep: str = "") -> str:
    r"""Return text whose control, format and separator characters are shown and not obeyed.

    ESC becomes "\x1b", a right-to-left override "\u202e": no terminal is cleared or recoloured by
    it, nothing is hidden, and no line is ended or turned round. Kept are newlines of our own
    layout.
    """
    if text.isprintable():
        return text
    return BROKEN_COLONS.join(
        "".join(_shown(c, keep) for c in part) for part in text.split(BROKEN_COLONS)
    )


def broken(text: str) -> str:
    """Return visible text in which no workflow command of a CI can begin."""
    return visible(text).replace("::", BROKEN_COLONS)


def encodable(value: T) -> T:
    r"""Return text, or data that holds some, that can be written as UTF-8; all else stays as is.

    A lone surrogate, as Python makes it from a file name that is no UTF-8, becomes "\udcff".
    """
    return every_text(value, _escaped)


def every_text(value: T, change: Callable[[str], str]) -> T:
    """Return a value with every text in it changed, keys of mappings among them."""
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
    """Yield every text in a value, however deep inside; keys of mappings are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def json_text(content: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return JSON as people read it, in which no character is invisible or obeyed by a terminal.

    It says the same to a program: such characters stand as JSON's escapes.
    """
    return escaped(json.dumps(encodable(content), indent=1, ensure_ascii=False, default=default))


def escaped(text: str) -> str:
    """Return JSON in lines with every character escaped that is invisible or obeyed."""
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
        return text  # also what is more than a text, such as a word of an enumeration
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clean(line: str) -> str:
    """Return a line with its control characters escaped and no workflow command at its start.

    Test ids hold "::" and are there to be copied, so only a line that begins so is broken up.
    """
    shown = visible(line)
    start = len(shown) - len(shown.lstrip())
    if shown.startswith(("::", "##["), start):
        return f"{shown[:start]}\\{shown[start:]}"
    return shown


def csv_cell(value: object) -> object:
    """Return what a cell of CSV holds: text that a spreadsheet takes for no formula."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    return f"'{visible(value)}" if value.startswith(FORMULA_STARTS) else visible(value)


def markdown_text(text: str) -> str:
    """Return foreign text as plain words in a cell: no markup, HTML, mention or new line."""
    return visible(text, keep="\n\r").translate(_MARKDOWN)


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are: "a, b, c and 2 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def merge_conflict(text: str) -> tuple[int, str, str] | None:
    """Return the line of git's first conflict marker, and the names of both sides, if any."""
    match = re.search(r"^<{7} ([^\n]*)\n.*?^>{7} ([^\n]*)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        return None
    return text.count("\n", 0, match.start()) + 1, shown(match[1].strip()), shown(match[2].strip())


def nearest(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean 'x'?", or the list of what is known."""
    names = list(words)
    return meant(word, names) or f"; known: {', '.join(names) or 'none'}"


def meant(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean 'x'?", or "" where nothing is like it."""
    close = closest(word, words)
    return f"; did you mean {close!r}?" if close else ""


def closest(word: str, words: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the word that is most like another one, or "" where none is like it."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), "")


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def shown(value: object) -> str:
    """Return a value as messages show it: its repr, a long one cut."""
    return _REPR.repr(value)
