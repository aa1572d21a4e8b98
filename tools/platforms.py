"""Ask the package index what of this package installs where; write the table of docs/install.md.

    python tools/platforms.py [--check]

Only pip is asked, which looks for wheels as if it ran on another platform. With `--check` nothing
is written; the exit code is 1 where the markers of pyproject.toml and LoadGen's wheels disagree.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "install.md"
TABLE = re.compile(r"(<!-- platforms -->\n).*?(<!-- end of platforms -->)", re.DOTALL)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform in words, as pip names it, and as markers see it."""

    title: str
    tags: tuple[str, ...]
    system: str
    machine: str


PLATFORMS = (
    Platform(
        title="Linux, x86-64",
        tags=tuple(f"manylinux_2_{minor}_x86_64" for minor in (17, 27, 28, 34)),
        system="linux",
        machine="x86_64",
    ),
    Platform(
        title="Linux, x86-64, musl (Alpine)",
        tags=("musllinux_1_1_x86_64", "musllinux_1_2_x86_64"),
        system="linux",
        machine="x86_64",
    ),
    Platform(
        title="Linux, Arm",
        tags=tuple(f"manylinux_2_{minor}_aarch64" for minor in (17, 27, 28, 34)),
        system="linux",
        machine="aarch64",
    ),
    Platform(
        title="macOS, Apple silicon",
        tags=("macosx_11_0_arm64", "macosx_14_0_arm64"),
        system="darwin",
        machine="arm64",
    ),
    Platform(
        title="macOS, Intel",
        tags=("macosx_10_13_x86_64", "macosx_14_0_x86_64"),
        system="darwin",
        machine="x86_64",
    ),
    Platform(title="Windows, x86-64", tags=("win_amd64",), system="win32", machine="AMD64"),
)


def requirements() -> tuple[list[Requirement], list[Requirement]]:
    """Return what is installed everywhere, and what measures."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    everywhere = [one for one in map(Requirement, project["dependencies"]) if not one.marker]
    measuring = [one for one in map(Requirement, project["dependencies"]) if one.marker]
    extra = [Requirement(one) for one in project["optional-dependencies"]["loadgen"]]
    if [(one.name, one.specifier) for one in measuring] != [(o.name, o.specifier) for o in extra]:
        raise SystemExit("pyproject.toml: the extra loadgen differs from what has a marker")
    return everywhere, measuring


def _pip(place: tuple[Platform, str], *arguments: str | Path) -> bool:
    """Let pip act as if it ran there; False: there is no such wheel."""
    platform, python = place
    tags = [argument for tag in platform.tags for argument in ("--platform", tag)]
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--quiet", *tags]
    command += ["--only-binary=:all:", "--python-version", python]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode and "No matching distribution" not in done.stderr:
        raise SystemExit(f"pip could not ask: {done.stderr.strip()}")
    return not done.returncode


def installs(wanted: list[Requirement], place: tuple[Platform, str]) -> bool:
    """Whether requirements, and all that they need, have wheels there."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{one.name}{one.specifier}" for one in wanted]
        return _pip(place, "install", "--dry-run", "--target", folder, *names)


def wheel_of(wanted: Requirement, place: tuple[Platform, str]) -> str | None:
    """Return the version of the wheel that pip takes there; None: there is none."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"{wanted.name}{wanted.specifier}"
        there = _pip(place, "download", "--no-deps", "--dest", folder, name)
        return next(Path(folder).iterdir()).name.split("-")[1] if there else None


def is_asked(requirement: Requirement, platform: Platform, python: str) -> bool:
    """Whether a dependency's marker holds there."""
    about = {"python_version": python, "sys_platform": platform.system}
    assert requirement.marker is not None
    return requirement.marker.evaluate({**about, "platform_machine": platform.machine})


def row(platform: Platform, python: str) -> tuple[str, bool]:
    """Return a line of the table, and whether the marker is right there."""
    everywhere, measuring = requirements()
    place = platform, python
    judges = "yes" if installs(everywhere, place) else "no"
    wheels = {one.name: wheel_of(one, place) for one in measuring}
    loadgen = wheels[measuring[0].name]
    right = all(is_asked(one, platform, python) == bool(loadgen) for one in measuring)
    found = [f"{name} {version}" if version else f"no {name}" for name, version in wheels.items()]
    gets = "the package itself" if loadgen else "extra `loadgen`, from source"
    return f"| {platform.title} | {python} | {judges} | {gets} | {', '.join(found)} |", right


def main() -> int:
    """Write the table, or check."""
    places = list(product(PLATFORMS, PYTHONS))
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda place: row(*place), places))
    head = "| platform | Python | judges | what measures comes with | wheels on the index |"
    today = dt.datetime.now(dt.UTC).date()
    lines = [f"As the index answered on {today}:", "", head, "|---|---|---|---|---|"]
    table = "\n".join([*lines, *(line for line, _ in rows)])
    if "--check" not in sys.argv:
        text = PAGE.read_text("utf-8")
        PAGE.write_text(TABLE.sub(lambda at: f"{at[1]}{table}\n{at[2]}", text), "utf-8")
    wrong = [line for line, right in rows if not right]
    for line in wrong:
        print(f"the marker is wrong here: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
