"""Output of commands as text to compare: what differs from run to run is masked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_NUMBER = re.compile(r"(?<![A-Za-z])[−+]?\d+(?:[ ,]\d{3})*(?:\.\d+)?")


def masked(text: str) -> str:
    """Return text with run ids, commits and numbers masked, and its columns closed up."""
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", text)
    text = re.sub(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d)?", "TIME", text)
    text = re.sub(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{12,64}\b", "HASH", text)
    kept = {"fp32": "fpXX", "mlperf_": "mlperf_"}
    for word, shield in kept.items():
        text = text.replace(word, shield)
    text = _NUMBER.sub("N", text).replace("fpXX", "fp32")
    return "\n".join(re.sub(r"(?<=\S) {2,}", " ", line).rstrip() for line in text.splitlines())


def flat(text: str) -> str:
    """Return masked text on one line: numbers of other widths fold it elsewhere."""
    return " ".join(masked(text).split())


def widest(text: str) -> int:
    """Return the columns of the widest line that may be folded: none with a command or a path."""
    lines = [line for line in text.splitlines() if "/" not in line and '"' not in line]
    return max(map(len, lines), default=0)


Say = Callable[..., tuple[int, str]]
"""Runs the command; returns its exit code and all that it printed."""


def differing(
    say: Say, rows: Iterable[tuple[tuple[object, ...], int, tuple[str, ...]]]
) -> list[tuple[tuple[object, ...], int, str]]:
    """Run command lines; return those with another exit code, or without the expected texts.

    Args:
        say: The fixture.
        rows: Words of a command line, its exit code, texts of its output as one line.
    """
    failures = []
    for arguments, code, texts in rows:
        ended, shown = say(*arguments)
        line = " ".join(shown.split())
        if ended != code or not all(text in line for text in texts):
            failures.append((arguments, ended, shown))
    return failures
