"""Embedding tables of a recommendation model, as they are or narrowed, and sums of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

KINDS = ("checkpoint", "fp16", "int8")

BLOCK = 1 << 18
"""Rows that are narrowed or drawn at a time, so that a table is never in memory twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of one sparse feature.

    Attributes:
        rows: Shape (rows, dim), floats or int8.
        scales: Shape (rows, 1), float32, what int8 rows are multiplied by; None for floats.
    """

    rows: Any
    scales: Any = None

    def to(self, device: Any) -> Table:
        """Return the table on a device, in the same type."""
        scales = None if self.scales is None else self.scales.to(device)
        return Table(rows=self.rows.to(device), scales=scales)

    def sums(self, lookups: Any, dtype: Any) -> Any:
        """Return the sum of the rows that each pair looks up.

        Args:
            lookups: Shape (pairs, lookups), whole numbers.
            dtype: Of what is returned.

        Returns:
            Shape (pairs, dim).
        """
        if self.scales is None:
            found = torch.nn.functional.embedding_bag(lookups.contiguous(), self.rows, mode="sum")
            return found.to(dtype)
        scales = self.scales[lookups].transpose(1, 2)
        return torch.bmm(scales, self.rows[lookups].to(scales.dtype)).squeeze(1).to(dtype)


class Tables(torch.nn.Module):
    """One table per sparse feature; moved with the module, but never changed in type."""

    def __init__(self, tables: Sequence[Table], *, on_cpu: bool) -> None:
        """Keep tables.

        Args:
            tables: One per sparse feature.
            on_cpu: They stay on the CPU.
        """
        super().__init__()
        # They are no parameters: `to(dtype)` would copy what is mapped from a file.
        self._tables = list(tables)
        self.on_cpu = on_cpu

    def forward(self, lookups: Any, hotness: Sequence[int], dtype: Any) -> Any:
        """Return the sums of all features side by side.

        Args:
            lookups: Rows to look up, the features side by side; shape (pairs, all lookups).
            hotness: Lookups of each feature.
            dtype: Of what is returned.

        Returns:
            Shape (pairs, features x dim).
        """
        parts = lookups.split(list(hotness), dim=1)
        return torch.cat(
            [table.sums(part, dtype) for table, part in zip(self._tables, parts, strict=True)],
            dim=1,
        )

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Tables:  # noqa: ARG002
        if not self.on_cpu and self._tables:
            device = fn(torch.empty(0, device=self._tables[0].rows.device)).device
            self._tables = [table.to(device) for table in self._tables]
        return self


def kept_table(rows: Any, kind: str) -> Table:
    """Return a table of a checkpoint.

    Args:
        rows: Shape (rows, dim), floats.
        kind: One of `KINDS`.
    """
    if kind == "checkpoint":
        return Table(rows=rows)
    return _fill(len(rows), rows.shape[1], kind, lambda start, stop: rows[start:stop].float())


def drawn_table(count: int, dim: int, kind: str, seed: int) -> Table:
    """Return a table of random rows, even within ±1/sqrt(rows) as the reference's.

    Args:
        count: Rows.
        dim: Numbers in a row.
        kind: One of `KINDS`; "checkpoint" is float32.
        seed: The same rows for the same seed.
    """
    drawing = torch.Generator().manual_seed(seed)
    bound = count**-0.5

    def draw(start: int, stop: int) -> Any:
        return torch.empty(stop - start, dim).uniform_(-bound, bound, generator=drawing)

    return _fill(count, dim, kind, draw)


def _fill(count: int, dim: int, kind: str, block: Callable[[int, int], Any]) -> Table:
    dtype = {"checkpoint": torch.float32, "fp16": torch.float16, "int8": torch.int8}[kind]
    rows = torch.empty(count, dim, dtype=dtype)
    scales = torch.empty(count, 1) if kind == "int8" else None
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        values = block(start, stop)
        if scales is not None:
            largest = values.abs().amax(dim=1, keepdim=True)
            scales[start:stop] = largest / 127
            # A row of zeros has no scale to divide by.
            values = (values * (127 / largest.where(largest > 0, 1))).round()
        rows[start:stop] = values
    return Table(rows=rows, scales=scales)
