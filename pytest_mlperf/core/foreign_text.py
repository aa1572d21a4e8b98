"""Text that others wrote: what no terminal obeys, and what every file can hold."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

BROKEN = ":\u200b:"
"""Two colons that begin no workflow command of a CI: `broken` makes them."""

_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


def visible(text: str, keep: str = "") -> str:
    r"""Return text whose control, format and separator characters are shown and not obeyed.

    ESC becomes "\x1b", a right-to-left override "\u202e": no terminal is cleared or recoloured by
    it, nothing is hidden, and no line is ended or turned round.

    Args:
        text: Anybody's.
        keep: Characters that stay as they are, such as the newlines of our own layout.
    """
    if text.isprintable():
        return text
    return BROKEN.join("".join(_shown(c, keep) for c in part) for part in text.split(BROKEN))


def broken(text: str) -> str:
    """Return visible text in which no workflow command of a CI can begin."""
    return visible(text).replace("::", BROKEN)


def encodable(value: T) -> T:
    r"""Return a value whose texts can be written as UTF-8; all others stay as they are.

    A lone surrogate, as Python makes it from a file name that is no UTF-8, becomes "\udcff".

    Args:
        value: Text, or data that holds some: mappings, sequences and dataclasses.
    """
    return every_text(value, _escaped)


def every_text(value: T, change: Callable[[str], str]) -> T:
    """Return a value with every text in it changed, keys of mappings among them."""
    found: Any = value
    match found:
        case str():
            found = change(found)
        case Mapping():
            found = {every_text(k, change): every_text(v, change) for k, v in found.items()}
        case list() | tuple():
            found = type(found)(every_text(item, change) for item in found)
        case _ if dataclasses.is_dataclass(found) and not isinstance(found, type):
            fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.init}
            changed = {name: every_text(item, change) for name, item in fields.items()}
            found = dataclasses.replace(found, **changed) if changed != fields else found
    return found  # type: ignore[no-any-return]


def json_text(content: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return JSON as people read it, in which no character is invisible or obeyed by a terminal.

    It says the same to a program: such characters stand as JSON's escapes.

    Args:
        content: What `json.dumps` takes.
        default: As there.
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
