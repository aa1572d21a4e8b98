"""Tables and sentences: as Markdown in a page, and tables as lines of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table; its first column is text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        """Return it as Markdown."""
        head, *rows = (f"| {' | '.join(cells)} |" for cells in (self.head, *self.rows))
        return "\n".join((head, f"|---|{'--:|' * (len(self.head) - 1)}", *rows))


@dataclass(frozen=True)
class Prose:
    """Sentences, or a list, with figures in them."""

    markdown: str


def percent(share: float | None) -> str:
    """Return a share in per cent, "" where there is none."""
    if share is None:
        return ""
    value = 100 * share
    return f"{value:.2f}" if 0 < value < 1.995 else f"{value:.1f}" if value < 99.95 else "100"


def span(shares: Iterable[float]) -> str:
    """Return the least and the largest of some shares, in per cent."""
    found = list(shares)
    return " to ".join(dict.fromkeys(map(percent, (min(found), max(found)))))


def as_csv(tables: Mapping[str, Table]) -> str:
    """Return all rows of all tables, each behind the name of its table, which its head begins."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for name, table in tables.items():
        writer.writerows([name, *cells] for cells in (table.head, *table.rows))
    return file.getvalue()


def fill(page: str, made: Mapping[str, Table | Prose]) -> str:
    """Return a page with what is between its marks replaced; all else is left as it is.

    Raises:
        ValueError: The page has no place for it.
    """
    for name, part in made.items():
        begin, end = f"<!--{name}-->", f"<!--/{name}-->"
        if begin not in page or end not in page:
            raise ValueError(f"the page has no place for {name!r}: {begin} ... {end}")
        head, rest = page.split(begin, 1)
        page = f"{head}{begin}\n{part.markdown}\n{end}{rest.split(end, 1)[1]}"
    return page
