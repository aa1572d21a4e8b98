"""Find result files of known tools, and check accepted baselines, for `pytest-mlperf doctor`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge import accepted
from pytest_mlperf.addons.judge.files import READ_SUFFIXES, reader_of_file
from pytest_mlperf.addons.judge.rows import session_of
from pytest_mlperf.extension import plural

MAX_SEARCHED, MAX_SEARCH_DEPTH, MAX_READ_BYTES = 300, 4, 2 * 2**20
"""Bounds of the search, so that it takes at most seconds in any folder."""


def checks() -> Iterator[tuple[str, str, str, str]]:
    """Check result files and baselines; yield (name, "ok" or "defective", text, command or "")."""
    tools = Counter(filter(None, map(reader_of_file, islice(_candidates(Path()), MAX_SEARCHED))))
    if tools:
        listed = ", ".join(f"{count} of {title}" for title, count in sorted(tools.items()))
        yield "result files", "ok", listed, "pytest-mlperf judge NEW... --against OLD..."
    for file in sorted(accepted.FOLDER.glob("*.json")):
        try:
            runs = accepted.load(file.stem)
        except MlperfError as error:
            yield file.stem, "defective", str(error), ""
        else:
            sessions = plural(len({session_of(run, None) for run in runs}), "session")
            yield file.stem, "ok", f"judged baseline: {plural(len(runs), 'run')} of {sessions}", ""


def _candidates(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        place = Path(folder)
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        if len(place.parts) >= MAX_SEARCH_DEPTH or place == accepted.FOLDER.parent:
            folders.clear()
        for name in sorted(names):
            file = place / name
            is_readable = file.suffix in READ_SUFFIXES and file.is_file()
            if is_readable and file.stat().st_size < MAX_READ_BYTES:
                yield file
