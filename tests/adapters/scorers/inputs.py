"""Inputs that record how a scorer uses them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Once(list[Any]):
    """Items that may be read once each, as those on disk should be."""

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.reads: list[int] = []

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        self.reads.append(index)
        return item

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))


class Trap:
    """Leaves a file where a pickle of it is executed."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)
