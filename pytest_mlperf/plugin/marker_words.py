"""Suggest corrections for misspelt markers in pytest's option `-m`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from pytest_mlperf.core.case import SUITE_SCENARIOS
from pytest_mlperf.core.untrusted_text import closest

MARKER_KEYS = (
    *("workload", "scenario", "engine", "precision", "accelerator", "power_limit_w"),
    *("kind", "round"),
)
VALUES = {"scenario": SUITE_SCENARIOS, "kind": ("accuracy", "performance")}
MARKER_WORDS = {
    "mlperf": "mlperf",
    "mlperf_benchmark": "mlperf_benchmark",
    **{v.lower(): f"mlperf({key}={v!r})" for key, values in VALUES.items() for v in values},
}
"""Correct marker expression by the lower-case word that a user may write instead."""

MIN_SIMILARITY = 0.75


def misspelt(expression: str, markers: Collection[str]) -> Iterator[str]:
    """Yield a suggestion per misspelt word; `markers` are all registered markers."""
    calls = re.findall(r"\bmlperf\s*\(([^)]*)\)", expression)
    words = re.findall(r"[A-Za-z_]\w*", re.sub(r"\([^()]*=[^()]*\)", "", expression))
    known_words = {*markers, "and", "or", "not", "True", "False", "None"}
    for word in dict.fromkeys(words):
        if word not in known_words and (
            near := closest(word.lower(), MARKER_WORDS, MIN_SIMILARITY)
        ):
            yield f"-m: no test has the marker {word}; did you mean {MARKER_WORDS[near]}?"
    for key, value in re.findall(r"""(\w+)\s*=\s*['"]([^'"]*)['"]""", " ".join(calls)):
        if key not in MARKER_KEYS and (near := closest(key, MARKER_KEYS, MIN_SIMILARITY)):
            yield f"-m: the marker mlperf has no argument {key}; did you mean {near}?"
        elif value not in VALUES.get(key, (value,)) and (
            near := closest(value, VALUES[key], MIN_SIMILARITY)
        ):
            yield f"-m: no case has {key}={value!r}; did you mean {near!r}?"
