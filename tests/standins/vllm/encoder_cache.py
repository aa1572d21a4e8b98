"""What encoders made, kept by name as long as the engine lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EncoderCache:
    """A cache of encoder outputs; `reused` counts its hits."""

    reused: int = 0
    _kept: dict[str, Any] = field(default_factory=dict)

    def of(self, name: str, make: Callable[[], Any]) -> Any:
        if name in self._kept:
            self.reused += 1
        else:
            self._kept[name] = make()
        return self._kept[name]


CACHE = EncoderCache()
