"""Lay out lines, paragraphs and tables for the width of a terminal.

Every input text may be untrusted. The output has no control characters except the colours of
`table`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pytest_mlperf.core.untrusted_text import visible
from pytest_mlperf.core.verdict import Outcome

LABEL_COLUMNS = 10
GREEN, YELLOW, RED = "32", "33", "31"
FINE_OUTCOMES = (Outcome.OK, Outcome.IMPROVED, Outcome.RECORDED)
OPEN = (
    *(Outcome.SUSPECT, Outcome.PROVISIONAL, Outcome.INCONCLUSIVE),
    *(Outcome.NO_BASELINE, Outcome.NOT_EVALUATED, Outcome.EXPECTED),
)
COLOURS = {**dict.fromkeys(FINE_OUTCOMES, GREEN), **dict.fromkeys(OPEN, YELLOW)}

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """Hold a table that is shown on the terminal, in Markdown or in HTML.

    Attributes:
        rows: Cells by column; unknown values are left out.
        left: Left-aligned columns of words; the other columns hold figures.
        spare: Columns to leave out if the table is too wide, the most dispensable first.
        columns: Columns in their order; if empty, those of the rows.
        heading: Heading of the table; "" if the text around it is enough.
    """

    rows: Sequence[Row]
    left: Sequence[str]
    spare: Sequence[str] = ()
    columns: Sequence[str] = ()
    heading: str = ""

    @property
    def filled(self) -> tuple[list[str], list[list[str]]]:
        """Columns with at least one cell, and the cells of each row in these columns."""
        kept = _filled(self.columns, self.rows)
        return kept, [[row.get(name, "") for name in kept] for row in self.rows]

    def lines(self, width: int) -> list[str]:
        """Return the table's lines; drop columns in the order of `spare` until they fit `width`."""
        return table(self.rows, width, left=self.left, spare=self.spare, columns=self.columns)


_NO_BREAK = "\u00a0"


def line(label: str, text: str) -> str:
    """Return a labelled line that is never wrapped, so that it can be copied."""
    return f"{label:<{LABEL_COLUMNS - 1}} {visible(text)}"


def paragraphs(label: str, texts: Iterable[str | None], width: int) -> list[str]:
    """Return one paragraph per text that is not None or ""; the first has the label."""
    lines: list[str] = []
    for text in filter(None, texts):
        head = line("" if lines else label, "")
        lines += fold(text, width, first=head, rest=" " * LABEL_COLUMNS)
    return lines


def fold(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Wrap a text between words; a long word stays whole, so that it can be copied."""
    folded = textwrap.wrap(
        text.replace(" %", f"{_NO_BREAK}%"),
        max(width, 20),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [visible(line.replace(_NO_BREAK, " ")) for line in folded]


def unbroken(text: str) -> str:
    """Protect the spaces of a text, so that `fold` keeps it on one line."""
    return text.replace(" ", _NO_BREAK)


def table(
    rows: Sequence[Row],
    width: int,
    *,
    left: Sequence[str],
    spare: Sequence[str] = (),
    columns: Sequence[str] = (),
    indent: str = "",
    colour: bool = False,
) -> list[str]:
    """Format a header line and a line per row; omit empty columns.

    `left`: left-aligned columns; `spare`: columns to omit if the table is wider than `width`.
    `colour` colours "verdict" by the row's "outcome", else its own text; red if it has "failed".
    """
    rows = [{name: visible(text) for name, text in row.items()} for row in rows]
    kept, room = _filled(columns, rows), width - len(indent)
    for column in spare:
        if column in kept and sum(column_widths(kept, rows)) + 2 * len(kept) - 2 > room:
            kept.remove(column)
    widths = column_widths(kept, rows)
    lines = []
    for row in ({c: c for c in kept}, *rows):
        cells = []
        for name, needed in zip(kept, widths, strict=True):
            cell = f"{row.get(name, ''):{'<' if name in left else '>'}{needed}}"
            cells.append(_coloured(cell, row) if colour and name == "verdict" else cell)
        lines.append(indent + "  ".join(cells).rstrip())
    return lines


def _filled(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    names = columns or dict.fromkeys(chain.from_iterable(rows))
    return [name for name in names if any(row.get(name) for row in rows)]


def column_widths(columns: Sequence[str], rows: Sequence[Row]) -> list[int]:
    """Return the width that each column needs."""
    return [max(len(visible(text)) for text in (c, *(r.get(c, "") for r in rows))) for c in columns]


def _coloured(cell: str, row: Row) -> str:
    word = row.get("outcome") or cell.rstrip()
    if word not in set(Outcome):
        return cell
    code = RED if row.get("failed") else COLOURS.get(Outcome(word), RED)
    return f"\x1b[{code}m{word}\x1b[0m{cell[len(word) :]}"


def relative(path: Path) -> str:
    """Return a path relative to the working folder if the path is below that folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
