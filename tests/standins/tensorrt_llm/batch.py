"""Sequences that are generated together, which join and leave at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.nn.functional import pad


class Row(Protocol):
    """A sequence on its way."""

    tokens: list[int]


class Batch:
    """Rows padded at their left; keys and values by layer are (rows, heads, length, size)."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._mask = torch.zeros((0, 0), dtype=torch.long)
        self.rows: list[Any] = []

    def admit(self, rows: Sequence[Any]) -> torch.Tensor:
        """Read the prompts of new rows; return their next scores (rows, vocabulary)."""
        length = max(len(row.tokens) for row in rows)
        ids = torch.zeros((len(rows), length), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, length - len(row.tokens) :] = torch.tensor(row.tokens)
            mask[place, length - len(row.tokens) :] = 1
        scores, cache = self._model(ids, mask, [])
        longest = max(length, self._mask.shape[1])
        self._mask = torch.cat([_wide(self._mask, longest), _wide(mask, longest)])
        mine: Sequence[Any] = self._cache or [(None, None)] * len(cache)
        self._cache = [
            (_joined(old[0], new[0], longest), _joined(old[1], new[1], longest))
            for old, new in zip(mine, cache, strict=True)
        ]
        self.rows.extend(rows)
        return scores

    def step(self) -> torch.Tensor:
        """Read each row's last token; return the next scores (rows, vocabulary)."""
        ids = torch.tensor([[row.tokens[-1]] for row in self.rows])
        self._mask = pad(self._mask, (0, 1), value=1)
        scores, self._cache = self._model(ids, self._mask, self._cache)
        return scores

    def keep(self, rows: Sequence[Any]) -> None:
        """Let all other rows go."""
        places = [place for place, row in enumerate(self.rows) if row in rows]
        if len(places) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in places]
        self._mask = self._mask[places]
        empty = int((self._mask.sum(0) == 0).sum()) if places else 0
        self._mask = self._mask[:, empty:]
        self._cache = [(k[places][:, :, empty:], v[places][:, :, empty:]) for k, v in self._cache]
        if not places:
            self._cache, self._mask = [], self._mask[:, :0]


def _wide(mask: torch.Tensor, length: int) -> torch.Tensor:
    return pad(mask, (length - mask.shape[1], 0))


def _joined(old: torch.Tensor | None, new: torch.Tensor, length: int) -> torch.Tensor:
    parts = [part for part in (old, new) if part is not None]
    return torch.cat([pad(part, (0, 0, length - part.shape[2], 0)) for part in parts])
