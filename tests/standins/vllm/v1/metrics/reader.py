from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ACCEPTED = "vllm:spec_decode_num_accepted_tokens"


@dataclass
class Counter:
    name: str
    value: int = 0
    labels: dict[str, str] = field(default_factory=lambda: {"engine": "0"})


@dataclass
class Vector:
    """A counter with a list, and no value."""

    name: str
    values: list[int] = field(default_factory=list)


COUNTED = Counter(ACCEPTED)


def get_metrics_snapshot() -> list[Any]:
    return [Counter("vllm:generation_tokens"), COUNTED, Vector(f"{ACCEPTED}_per_pos")]
