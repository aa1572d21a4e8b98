"""Store the runs of a bisect, so that the same command line resumes it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from pytest_mlperf import MlperfError
from pytest_mlperf.extension import Run, json_text, placeless
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.foreign import StrictValidator, as_document, read_foreign

SCHEMA_VERSION = 1
STATE_FILE = "state.json"


@dataclass(frozen=True, kw_only=True)
class RunPairs:
    """Hold interleaved runs of builds `before` and `now`; `reason`: why `now` has none, or ""."""

    before: tuple[Run, ...] = ()
    now: tuple[Run, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class BisectState:
    """Define the content of a bisect's file.

    Attributes:
        settings: Settings that must not change for resuming: name in messages to value.
        sessions: Ids of the sessions that measured, oldest first.
        pairs: Runs of each comparison; the key names both builds and the test.
    """

    schema: int = SCHEMA_VERSION
    settings: Mapping[str, str]
    sessions: tuple[str, ...] = ()
    pairs: Mapping[str, RunPairs] = field(default_factory=dict)


_READ, _WRITTEN = StrictValidator(BisectState), TypeAdapter(BisectState)


class BisectStore:
    """Store the runs of a bisect in a file; it is written atomically, in a locked folder."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *, restart: bool) -> None:
        """Read the stored runs; raise MlperfError if they are damaged or `settings` differ.

        `restart` ignores stored runs and accepts a damaged file.
        """
        self.path = folder / STATE_FILE
        there = BisectState(settings=settings)
        try:
            if self.path.exists():
                raw = read_foreign(self.path, "bisect")
                there = as_document(
                    self.path, raw, "bisect", _READ, SCHEMA_VERSION, "nothing is kept"
                )
        except MlperfError as error:
            if not restart:
                raise MlperfError(f"{error}; start again with --restart") from None
        if restart:  # their leftovers must still be removed
            there = BisectState(settings=settings, sessions=there.sessions)
        self.state = there
        other = [name for name in settings if settings[name] != there.settings.get(name)]
        if other:
            raise MlperfError(
                f"the stored measurements were made with another {' and '.join(other)}; "
                "restore it, or discard the measurements with --restart"
            )

    @property
    def runs(self) -> int:
        """Total number of stored runs, in all comparisons."""
        return sum(len(one.before) + len(one.now) for one in self.state.pairs.values())

    def begin(self, session: str) -> tuple[str, ...]:
        """Add the id of this session to the file; return the ids of earlier sessions."""
        earlier = self.state.sessions
        self._write(replace(self.state, sessions=(*earlier, session)))
        return earlier

    def pairs(self, key: str) -> RunPairs:
        """Return the stored runs of two builds in one test, which `key` identifies."""
        return self.state.pairs.get(key, RunPairs())

    def keep(self, key: str, pairs: RunPairs) -> None:
        """Store the runs of two builds in one test, which `key` identifies."""
        # Absolute paths would reveal machine and user.
        pairs = placeless(pairs, roots=(str(Path.cwd()),), home=str(Path.home()))
        self._write(replace(self.state, pairs={**self.state.pairs, key: pairs}))

    def _write(self, state: BisectState) -> None:
        self.state = state
        try:
            atomic.write_text(self.path, json_text(_WRITTEN.dump_python(state, mode="json")) + "\n")
        except OSError as error:
            raise MlperfError(f"{self.path} cannot be written: {error.strerror}") from None


def folder_name(*arguments: str) -> str:
    """Return the name of a bisect's folder: a digest of the bisect's arguments."""
    return hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:12]


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock the folder (if its disk can) in a `with` block; MlperfError if another bisect has it."""
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(atomic.NoLocksError):
                stack.enter_context(atomic.locked_folder(folder, timeout_s=0))
        except atomic.BusyError:
            raise MlperfError(f"another process runs this bisect now, in {folder}") from None
        except OSError as error:
            raise MlperfError(f"{folder} cannot be written: {error.strerror}") from None
        yield
