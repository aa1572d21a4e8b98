"""Find and read suite files, and compute pytest's node ids of their tests."""

from __future__ import annotations

import configparser
import contextlib
import os
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.bench.case import clashes
from pytest_mlperf.core.case import Kind, Profile
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.suite.pairs import Testable
from pytest_mlperf.suite.plan import Planned, in_profile, plan_suite

SUFFIX = ".mlperf.toml"

DEFAULT = Path("suites")
"""Folder to search by default; if it is missing, only the current folder itself is searched."""

LEFT_OUT = frozenset({"build", "dist", "node_modules", "venv"})
"""Folders that are not searched, nor are folders whose name begins with a dot."""

OWN_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Files that pytest accepts as configuration even if empty, in its order of search."""

SHARED_FILES = {"pyproject.toml": "tool", "tox.ini": "pytest", "setup.cfg": "tool:pytest"}
"""Files that pytest accepts as configuration only if they have this table or section."""


def require_accelerators(named: Iterable[str], accelerators: Iterable[str]) -> None:
    """Raise MlperfError for names that are not among the cases' accelerators."""
    names = dict.fromkeys(accelerators)
    for name in named:
        if name not in names:
            raise MlperfError(
                f"no case runs on {name!r}; the suites use: {', '.join(names) or 'none'}"
            )


def search_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the paths to search for suites: `paths`, else `suites/`, else the working folder."""
    return list(paths) or [DEFAULT if DEFAULT.is_dir() else Path()]


def find_suites(named: Sequence[Path]) -> list[Path]:
    """Return the suite files in the given paths, in a stable order, without duplicates.

    Like pytest, this puts the folders in pytest's setting `pythonpath` first in `sys.path`.
    """
    # Not below this folder: it may be a home directory, or the root of a disk.
    if not named and not DEFAULT.is_dir() and not (named := sorted(Path().glob(f"*{SUFFIX}"))):
        raise MlperfError(
            f"no suites/ and no *{SUFFIX} in {Path.cwd()}; write a first suite: pytest-mlperf init"
        )
    files: dict[Path, None] = {}
    for path in search_paths(named):
        if not path.exists():
            raise MlperfError(f"{path} does not exist; name a suite file or a folder of suites")
        if path.is_file() and not path.name.endswith(SUFFIX):
            raise MlperfError(f"{path} is not a suite: its name must end with {SUFFIX}")
        inside = [path] if path.is_file() else sorted(_below(path))
        if not inside:
            raise MlperfError(
                f"no *{SUFFIX} in {path.absolute()}; write a first suite: pytest-mlperf init"
            )
        files |= dict.fromkeys(inside)
    root, settings = _configuration(named)
    folders = settings.get("pythonpath", [])
    words = shlex.split(folders) if isinstance(folders, str) else folders
    sys.path[:] = dict.fromkeys([*(str(root / word) for word in words), *sys.path])
    return list(files)


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in LEFT_OUT]
        yield from (Path(root) / name for name in files if name.endswith(SUFFIX))


def read_suites(
    files: Sequence[Path], profile: Profile | None = None, *, audited: bool = False
) -> list[Planned]:
    """Return the cases of suites in order; `profile` overrides the profiles of the suites.

    If `audited`, include MLPerf's compliance tests. Raises one SuiteError that lists all defects.
    """
    planned: list[Planned] = []
    defects: list[str] = []
    claimed: dict[str, tuple[Path, str]] = {}
    for file in files:
        try:
            cases = in_profile(plan_suite(file), profile, audited=audited)
        except SuiteError as error:
            defects.append(str(error))
            continue
        defects += clashes(cases, claimed, None)
        planned += cases
    if defects:
        raise SuiteError("\n".join(defects))
    return planned


def node_id(planned: Testable, kind: Kind, root: Path) -> str:
    """Return pytest's node id of a test; `root` is the result of `rootdir`."""
    path = Path(os.path.relpath(planned.path.resolve(), root)).as_posix()
    return f"{path}::test_{kind}[{planned.case.id}]"


def rootdir(named: Sequence[Path]) -> Path:
    """Return the rootdir that pytest determines for these paths.

    Source: https://docs.pytest.org/en/stable/reference/customize.html#finding-the-rootdir
    """
    return _configuration(named)[0]


def _configuration(named: Sequence[Path]) -> tuple[Path, Mapping[str, Any]]:
    resolved = [place.resolve() for place in search_paths(named)]
    folders = [place if place.is_dir() else place.parent for place in resolved]
    common = Path(os.path.commonpath(folders))
    upwards = [common, *common.parents]
    for file in (folder / name for folder in upwards for name in (*OWN_FILES, *SHARED_FILES)):
        if file.is_file() and (settings := _settings(file)) is not None:
            return file.parent, settings
    for file in (folder / name for name in ("pyproject.toml", "setup.py") for folder in upwards):
        if file.is_file():
            return file.parent, {}
    return Path(os.path.commonpath([Path.cwd(), common])), {}


def _settings(file: Path) -> Mapping[str, Any] | None:
    content: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, configparser.Error):
        if file.suffix == ".toml":
            content = tomllib.loads(file.read_text("utf-8"))
        else:
            parser = configparser.RawConfigParser(strict=False)
            parser.read_string(file.read_text("utf-8"))
            content = dict(parser)
    name = SHARED_FILES.get(file.name, "pytest")
    table: Mapping[str, Any] | None = content.get(name, {} if file.name in OWN_FILES else None)
    if table and name == "tool":
        table = table.get("pytest")
        table = table.get("ini_options", table) if table else None
    return table
