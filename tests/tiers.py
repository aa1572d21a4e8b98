"""Define which tests are quick: they start no process, and their module does not load torch.

Python announces every start of a process to its audit hooks. A hook cannot be
removed again, so there is one, and it looks at what runs.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import NoReturn

import pytest

MARK = "process"

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""The audit events of https://docs.python.org/3/library/audit_events.html that start a process."""

STARTING_FIXTURES = (
    ("tests/addons/", "project"),
    ("tests/addons/", "pytester"),
    ("tests/addons/", "sessions"),
    ("tests/cli/", "sessions"),
    ("tests/plugin/", "project"),
    ("tests/plugin/", "pytester"),
    ("tests/run/", "real"),
)
"""Folder and name of fixtures that mark every test that asks for them: they run pytest sessions."""


HEAVY = re.compile(
    r"^(import|from) (torch|transformers|diffusers)\b"
    r"|importorskip\(\"(torch|transformers|diffusers)\""
    r"|^from tests\.adapters\.engines\.(torch|vllm\.tiny)\b"
    r"|^from tests\.adapters\.scorers\.(clip|inception)_made_here\b"
    r"|pytest\.mark\.torch\b",
    re.MULTILINE,
)
"""What a module has that loads torch, when it is collected or in a test: seconds in each worker.

Where torch is loaded a fork takes 40 ms in place of 3, so these tests run in workers of their own.
"""


@cache
def is_heavy(file: Path) -> bool:
    """Return whether a test module loads torch."""
    return file.suffix == ".py" and bool(HEAVY.search(file.read_text("utf-8")))


LIBRARIES = ("torch", "transformers", "torchao")


class NeedsTorch(pytest.Module):
    """A module that cannot be imported here: it is skipped with the name of the missing package."""

    @classmethod
    def in_place_of(cls, path: Path, parent: pytest.Collector) -> NeedsTorch | None:
        """Return one if a library is missing."""
        if all(map(importlib.util.find_spec, LIBRARIES)):
            return None
        made: NeedsTorch = cls.from_parent(parent, path=path)
        return made

    def collect(self) -> NoReturn:
        pytest.skip(f"needs {', '.join(LIBRARIES)}", allow_module_level=True)


@dataclass
class _Watch:
    """The running test, if it must not start a process, and the starts that were refused."""

    test: str | None = None
    started: list[str] = field(default_factory=list)


_WATCH = _Watch()
_INSTALLED: list[bool] = []


def install() -> None:
    """Let this process look at every start of another one; once is enough."""
    if not _INSTALLED:
        _INSTALLED.append(True)
        sys.addaudithook(_look)
        vars(util)["spawnv_passfds"] = _announced(util.spawnv_passfds)


def is_left_out(file: Path, expression: str) -> bool:
    """Return whether `-m` deselects all tests of a file; False where only pytest can say."""
    if file.suffix != ".py":
        return False
    terms = set(expression.split(" and "))  # any other expression has none of these
    if "torch" in terms:
        return file.name.startswith("test_") and not is_heavy(file)
    return bool(terms & {"not slow", "not torch"}) and is_heavy(file)


def mark(item: pytest.Item) -> None:
    """Mark a test whose module loads torch, or that asks for a fixture that starts a process."""
    if is_heavy(item.path):
        item.add_marker("slow")
        item.add_marker("torch")
    names = set(getattr(item, "fixturenames", ()))
    if any(name in names and item.nodeid.startswith(at) for at, name in STARTING_FIXTURES):
        item.add_marker(MARK)


@contextmanager
def watching(item: pytest.Item) -> Iterator[None]:
    """Refuse to start a process while a test runs that is not marked."""
    _WATCH.started.clear()
    _WATCH.test = None if item.get_closest_marker(MARK) else item.nodeid
    try:
        yield
    finally:
        _WATCH.test = None


def fail_if_started() -> None:
    """Fail a test that swallowed the refusal."""
    if _WATCH.started:
        message = _WATCH.started[0]
        _WATCH.started.clear()  # it is looked at again after the teardown
        pytest.fail(message, pytrace=False)


Start = Callable[[bytes, Sequence[str], Sequence[int]], int]


def _announced(start: Start) -> Start:
    """Return multiprocessing's way to start a process, which by itself announces nothing."""

    def announce(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        sys.audit("os.posix_spawn", path, args, None)
        return start(path, args, passfds)

    return announce


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if event not in STARTS or _WATCH.test is None:
        return
    message = (
        f"{_WATCH.test} starts a process ({event}: {str(arguments[:2])[:200]}): mark it or its "
        f"file with pytest.mark.{MARK}, so that `make quick` leaves it out"
    )
    _WATCH.started.append(message)
    pytest.fail(message)
