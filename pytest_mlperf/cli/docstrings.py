"""Google-style docstrings taken apart: what a thing is, and a text for each of its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SECTION = re.compile(r"(Args|Arguments|[A-Z][a-z]+(?: [A-Z][a-z]+)?):")
"""A line that begins a section, e.g. "Raises:"; what is below it is indented."""

ARGUMENTS = ("Args", "Arguments", "Keyword Args", "Keyword Arguments", "Other Parameters")

ARGUMENT = re.compile(r"(\*{0,2}\w+(?:, *\*{0,2}\w+)*)(?: *\([^()]*\))?:(?: |$)(.*)")
"""The first line of an argument: "size: Pixels.", "size (int): Pixels." or "height, width: ..."."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Docstring:
    """A docstring in parts.

    Attributes:
        blocks: Paragraphs and items of lists ("- ...") before the first section, a line each.
        arguments: The text of each argument, on one line, by its name without stars.
    """

    blocks: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)


def parse(text: str | None) -> Docstring:
    """Take a docstring apart; what is in no known form is left out, and is never an error."""
    prose: list[str] = []
    arguments: list[str] = []
    section = ""
    for line in inspect.cleandoc(text or "").splitlines():
        indented = not line or line[0].isspace()
        if found := SECTION.fullmatch(line):
            section = found[1]
        elif not section or not indented:
            section = ""
            prose.append(line)
        elif section in ARGUMENTS:
            arguments.append(line)
    return Docstring(blocks=tuple(_blocks(prose)), arguments=dict(_arguments(arguments)))


def _blocks(lines: list[str]) -> Iterator[str]:
    block: list[str] = []
    for line in [*lines, ""]:
        stripped = line.strip()
        if block and (not stripped or stripped.startswith("- ")):
            yield " ".join(block)
            block = []
        if stripped:
            block.append(stripped)


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text; lines that are indented further go on with the text."""
    names: list[str] = []
    words: list[str] = []
    for line in [*inspect.cleandoc("\n".join(["", *lines])).splitlines(), "end:"]:
        found = ARGUMENT.fullmatch(line)
        if found is None:
            words.append(line.strip())
            continue
        yield from ((name, " ".join(filter(None, words))) for name in names)
        names, words = re.findall(r"\w+", found[1]), [found[2].strip()]
