"""List removed commands, options and suite keys, with replacements, until version 1.0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """Describe a removed command, option or key.

    Attributes:
        kind: Kind of the word; "key" is an option of an extension in a suite file.
        owner: Command or extension of the option or key; "" for a command itself.
        name: The word that a user wrote.
        instead: The replacement, as an imperative clause.
    """

    kind: Literal["command", "option", "key"]
    owner: str = ""
    name: str
    instead: str

    def __str__(self) -> str:
        owner = f"{self.owner}: " if self.owner else ""
        return f"{owner}{self.kind} {self.name} was removed: {self.instead}"


_FIGURES = 'see the table "Impossible published figures" in docs/limits.md'
_SPEED = (
    "leave it out. The engine generates with transformers' own generate; use engine vllm or "
    "tensorrt_llm to measure speed"
)

REMOVED = (
    Removed(kind="command", name="precisions", instead="run pytest-mlperf report"),
    *(
        Removed(kind="option", owner=owner, name=name, instead=f"run pytest-mlperf {command}")
        for owner, name, command in (
            ("compare", "--history", "history"),
            ("compare", "--interleave", "turns"),
            ("compare", "--published", "share"),
            ("compare", "--across-accelerators", "across"),
            ("plan", "--format kubernetes", "kubernetes"),
            ("plan", "--format slurm", "slurm"),
        )
    ),
    Removed(
        kind="option", owner="merge", name="--inconclusive", instead="set --fail-on=inconclusive"
    ),
    Removed(
        kind="command",
        name="contribute",
        instead="keep baselines in a repository of your own, and sign results with --mlperf-sign",
    ),
    Removed(kind="option", owner="published", name="--claims", instead=_FIGURES),
    Removed(kind="option", owner="limits", name="--claims", instead=_FIGURES),
    Removed(kind="key", owner="engine 'torch'", name="decode", instead=_SPEED),
    Removed(kind="key", owner="engine 'torch'", name="compile", instead=_SPEED),
)


def find_removed(kind: str, owner: str, name: str) -> Removed | None:
    """Return the entry in `REMOVED` for this kind, owner and name; None if there is none."""
    key = kind, owner, name
    return next((one for one in REMOVED if (one.kind, one.owner, one.name) == key), None)
