"""Find the columns of a table by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pytest_mlperf.adapters.datasets.files import wrong
from pytest_mlperf.extension import some


def places(
    path: object,
    labels: Sequence[Any],
    columns: Sequence[str],
    advice: str = "Rename its columns, or set the data set's path to another table",
    whole: str = "table",
) -> dict[str, int]:
    """Return the position of each column; raise RunError for a missing or repeated one."""
    named = [label if isinstance(label, str) else repr(label) for label in labels]
    for name in columns:
        if named.count(name) == 1:
            continue
        near = get_close_matches(name, named, n=1, cutoff=0)
        defect = f"more than one column {name!r}" if name in named else f"no column {name!r}"
        hint = f", the nearest is {_shown(near[0])}" if near and name not in named else ""
        raise wrong(
            path,
            f"the {whole} has {defect}{hint}",
            f"needed are {_listing(columns)}, it has {_listing(named)}. {advice}",
        )
    return {name: named.index(name) for name in columns}


def _listing(names: Sequence[str]) -> str:
    return some([*map(_shown, names)], 20) or "none"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}…"
