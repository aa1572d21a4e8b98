"""Read the results of earlier sessions from a runs folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Results
from pytest_mlperf.stores.results import read_results

MAX_SESSIONS = 50


@dataclass
class Sessions:
    """Iterate over the sessions of a runs folder, newest first, reading one at a time.

    `unreadable` has one sentence per results file that could not be read.
    """

    folder: Path
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Path, Results]]:
        """Yield each results file with its content; list damaged ones in `unreadable`."""
        self.unreadable.clear()
        for path in self.files[:MAX_SESSIONS]:
            try:
                yield path, read_results(path)
            except MlperfError as error:
                self.unreadable.append(str(error))

    @property
    def files(self) -> list[Path]:
        """Results files of all sessions, newest first; a session's name begins with its time."""
        return sorted((self.folder / "runs").glob("*/results.json"), reverse=True)

    @property
    def notes(self) -> list[str]:
        """Messages about the results files that were not read."""
        notes = [f"left out: {reason}" for reason in self.unreadable]
        if (count := len(self.files)) > MAX_SESSIONS:
            notes.append(f"only the newest {MAX_SESSIONS} of {count} sessions were read")
        return notes
