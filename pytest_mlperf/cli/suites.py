"""Find suite files, read them, and name their tests as pytest will."""

from __future__ import annotations

import argparse
import configparser
import dataclasses
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_mlperf.case_runs import baselines_root
from pytest_mlperf.core.case import Kind, Profile
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.suite.pairs import Testable
from pytest_mlperf.suite.plan import Planned, plan_suite

SUFFIX = ".mlperf.toml"

DEFAULT = Path("suites")
"""Where suites are looked for when none is named; without it only directly in this folder."""

LEFT_OUT = frozenset({"build", "dist", "node_modules", "venv"})
"""Folders that are not searched, beside those whose name begins with a dot."""

OWN_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Files whose being there is enough for pytest."""


def add_suites(parser: argparse.ArgumentParser) -> None:
    """Give a parser the argument that `find_suites` takes."""
    parser.add_argument(
        "suites",
        nargs="*",
        type=Path,
        metavar="SUITES",
        help="suite files or folders with them (default: suites/, else those directly here)",
    )


def places(named: Sequence[Path]) -> list[Path]:
    """Return the arguments to search, the default where there are none."""
    return list(named) or [DEFAULT if DEFAULT.is_dir() else Path()]


def find_suites(named: Sequence[Path]) -> list[Path]:
    """Return the suite files that arguments name, in a stable order, each once.

    Raises:
        MlperfError: A path is not there, is no suite, or holds none.
    """
    if not named and not DEFAULT.is_dir():
        # Not below this folder: it may be a home directory, or the root of a disk.
        named = sorted(Path().glob(f"*{SUFFIX}"))
    if not named and not DEFAULT.is_dir():
        raise MlperfError(
            f"no suites/ and no *{SUFFIX} in {Path.cwd()}; name a suite or a folder, or write a "
            "first one: pytest-mlperf init"
        )
    found: dict[Path, None] = {}
    for place in places(named):
        if not place.exists():
            raise MlperfError(f"{place} is not here; name a suite file or a folder with suites")
        if place.is_file() and not place.name.endswith(SUFFIX):
            raise MlperfError(f"{place} is no suite: its name must end with {SUFFIX}")
        inside = [place] if place.is_file() else sorted(_below(place))
        if not inside:
            raise MlperfError(
                f"no *{SUFFIX} in {place.absolute()}; `pytest-mlperf init` writes a first one"
            )
        found |= dict.fromkeys(inside)
    return list(found)


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in LEFT_OUT]
        yield from (Path(root) / name for name in files if name.endswith(SUFFIX))


def read_suites(files: Sequence[Path], profile: Profile | None = None) -> list[Planned]:
    """Return the cases of suites, in the order of the files.

    Args:
        files: Suite files.
        profile: Used in place of each suite's own; None leaves it.

    Raises:
        SuiteError: A suite is defective, or two describe one case; all defects are listed.
    """
    planned: list[Planned] = []
    defects: list[str] = []
    claimed: dict[tuple[Path, str, str], Path] = {}
    for file in files:
        try:
            cases = [_in_profile(case, profile) for case in plan_suite(file)]
        except SuiteError as error:
            defects.append(str(error))
            continue
        for case in cases:
            root = baselines_root(None, file, case.suite.division)
            key = (root, case.suite.profile, case.case.id)
            other = claimed.setdefault(key, file)
            if other != file:
                defects.append(
                    f"{file}:{case.line}: {case.case.id} is described by {other} too, and both "
                    "would share one baseline: rename the workload or the engine entry in one"
                )
        planned += cases
    if defects:
        raise SuiteError("\n".join(defects))
    return planned


def _in_profile(planned: Planned, profile: Profile | None) -> Planned:
    if profile is None:
        return planned
    suite = planned.suite.model_copy(update={"profile": profile})
    return dataclasses.replace(planned, suite=suite)


# --- names of tests --------------------------------------------------------------------------


def node_id(planned: Testable, kind: Kind, root: Path) -> str:
    """Return pytest's node id of one test.

    Args:
        planned: Its case.
        kind: Which test of the case.
        root: What `rootdir` gives.
    """
    path = Path(os.path.relpath(planned.path.resolve(), root)).as_posix()
    return f"{path}::test_{kind}[{planned.case.id}]"


def rootdir(named: Sequence[Path]) -> Path:
    """Return the folder that pytest's node ids start from when it is given these arguments.

    The nearest folder above them with a configuration of pytest, else with a pyproject.toml, else
    with a setup.py, else what they and the working folder have in common.
    Source: https://docs.pytest.org/en/stable/reference/customize.html#finding-the-rootdir
    """
    resolved = [place.resolve() for place in places(named)]
    folders = [place if place.is_dir() else place.parent for place in resolved]
    common = Path(os.path.commonpath(folders))
    upwards = [common, *common.parents]
    configured = [folder for folder in upwards if _configures(folder)]
    for name in ("pyproject.toml", "setup.py"):
        configured += [folder for folder in upwards if (folder / name).is_file()]
    return configured[0] if configured else Path(os.path.commonpath([Path.cwd(), common]))


def _configures(folder: Path) -> bool:
    return (
        any((folder / name).is_file() for name in OWN_FILES)
        or _toml_has_pytest(folder / "pyproject.toml")
        or _ini_has(folder / "tox.ini", "pytest")
        or _ini_has(folder / "setup.cfg", "tool:pytest")
    )


def _toml_has_pytest(path: Path) -> bool:
    try:
        return bool("pytest" in tomllib.loads(path.read_text("utf-8")).get("tool", {}))
    except (OSError, ValueError):
        return False


def _ini_has(path: Path, section: str) -> bool:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(path.read_text("utf-8"))
    except (OSError, ValueError, configparser.Error):
        return False
    return parser.has_section(section)
