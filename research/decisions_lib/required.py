"""What is required of the figures that were found, row by row, and summed up in lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from decisions_lib.tables import Table, percent

Z95 = 1.959964

FURTHER = "further requirements not kept"
"""Line of what has none of its own."""


def above(share: float, promised: float, cases: int) -> bool:
    """Whether a share lies above what is promised by more than the simulation's error."""
    return share - error(promised, cases) > promised


def error(promised: float, cases: int) -> float:
    """Return by how much a share of so many cases may lie off; none is allowed for where 0."""
    return Z95 * math.sqrt(promised * (1 - promised) / cases) if cases else 0.0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row's figure beside its promise.

    Attributes:
        name: Of the row.
        found: The share.
        bound: The most that is promised.
        cases: Simulated.
        kept: Whether it keeps the bound; None: up to the error of so many cases.
    """

    name: str
    found: float
    bound: float
    cases: int
    kept: bool | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it keeps the bound."""
        return not above(self.found, self.bound, self.cases) if self.kept is None else self.kept


@dataclass(frozen=True, kw_only=True)
class Required:
    """One requirement of one row or of many.

    Attributes:
        line: Of the page, which sums it up with others.
        text: What exactly.
        found: The figure; of many rows the worst one.
        bound: What it must keep.
        at_most: Whether the bound is an upper one.
        share: Whether the figures are shares, shown in per cent.
        cases: Simulated for the figure; 0: not told.
        rows: How many rows it stands for.
        broken: Those that do not keep it, with their figures.
    """

    line: str
    text: str
    found: float
    bound: float
    at_most: bool = True
    share: bool = True
    cases: int = 0
    rows: int = 1
    broken: Sequence[str] = ()

    @property
    def met(self) -> bool:
        """Whether all rows keep the bound."""
        return not self.broken

    @property
    def missed(self) -> str:
        """What is said of one that is not met."""
        return f"{self.text}: {'; '.join(self.broken)}"

    @property
    def asked(self) -> str:
        """The bound in words."""
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self._shown(self.bound)}" if self.bound else "0"

    @property
    def seen(self) -> str:
        """The figure, with its cases where these excuse it, or that it is broken."""
        beyond = self.found > self.bound if self.at_most else self.found < self.bound
        told = f" of {self.cases:,}" if beyond and self.cases else ""
        return f"{self._shown(self.found)}{told}{'' if self.met else ' **broken**'}"

    def _shown(self, figure: float) -> str:
        if self.share:
            return f"{percent(figure).removesuffix('.0').removesuffix('.00')} %"
        return f"{figure:.3g}"


def one(
    line: str,
    text: str,
    found: float,
    bound: float,
    *,
    at_most: bool = True,
    share: bool = True,
    cases: int = 0,
) -> Required:
    """Return the requirement of one figure, kept up to the error of so many cases."""
    allowed = error(bound, cases) if share else 0.0
    kept = found <= bound + allowed if at_most else found >= bound - allowed
    required = Required(
        line=line,
        text=text,
        found=found,
        bound=bound,
        at_most=at_most,
        share=share,
        cases=cases,
    )
    return required if kept else replace(required, broken=[required.seen])


def of_rows(line: str, figures: Iterable[Figure]) -> Iterator[Required]:
    """Yield the requirement that none of many rows lies above one promise, if there are rows."""
    figures = list(figures)
    if not figures:
        return
    worst = max(figures, key=lambda figure: figure.found)
    yield Required(
        line=line,
        text=line,
        found=worst.found,
        bound=worst.bound,
        cases=worst.cases,
        rows=len(figures),
        broken=[f"{each.name}: {each.found:.2%}" for each in figures if not each.is_kept],
    )


def in_lines(required: Iterable[Required]) -> Table:
    """Return the page's table: a line for each promise, with the worst figure of its rows."""
    lines: dict[str, list[Required]] = {}
    for each in required:
        lines.setdefault(each.line, []).append(each)
    further = lines.pop(FURTHER, [])
    rows = [_line(same) for same in lines.values()]
    if further:
        broken = sum(not each.met for each in further)
        rows.append((FURTHER, str(len(further)), "0", f"{broken}{' **broken**' * bool(broken)}"))
    return Table(("what", "rows", "required", "worst"), rows)


def _line(same: Sequence[Required]) -> tuple[str, str, str, str]:
    worst = (max if same[0].at_most else min)(same, key=lambda each: each.found)
    bounds = sorted({each.bound: each for each in same}.items())
    asked = " and ".join(each.asked for _, each in bounds)
    broken = [text for each in same for text in each.broken]
    rows = sum(each.rows for each in same)
    return same[0].line, f"{rows:,}", asked, replace(worst, broken=broken).seen


def in_full(required: Iterable[Required]) -> Table:
    """Return every requirement as a row."""
    rows = [
        (
            each.text,
            str(each.rows),
            each.asked,
            each.seen.removesuffix(" **broken**"),
            "yes" if each.met else "no",
        )
        for each in required
    ]
    return Table(("what", "rows", "required", "found", "met"), rows)
