"""What identifies one pytest invocation: its id, the commit it tests, the options to repeat it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_mlperf import plugin
from pytest_mlperf.run.folders import new_id

_NOT_REPRODUCED = ("--mlperf-update", "--mlperf-reason", "--mlperf-json", "--mlperf-plan")

FLAGS = {"--mlperf-strict", "--mlperf-confirm"}
"""Options without a value."""


def run_id(config: pytest.Config) -> str:
    """Return the id of this run, the same in every xdist worker: UTC time and four hex digits."""
    given = getattr(config, "workerinput", {}).get("mlperf_run")
    if given:
        return str(given)
    if plugin.RUN_ID not in config.stash:
        config.stash[plugin.RUN_ID] = new_id()
    return config.stash[plugin.RUN_ID]


def commit_of(folder: Path) -> str | None:
    """Return the commit checked out in a folder, with "+" when tracked files differ, or None."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=20,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    return commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def reproducing(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return the options of ours among pytest's arguments that change what is measured or judged.

    Recording is left out: a command that is printed to be repeated must not write.
    """
    kept: list[str] = []
    takes_value = False
    for argument in map(str, arguments):
        if takes_value and not argument.startswith("-"):
            kept.append(argument)
        takes_value = False
        if argument.startswith("--mlperf-") and not argument.startswith(_NOT_REPRODUCED):
            kept.append(argument)
            takes_value = "=" not in argument and argument not in FLAGS
    return tuple(kept)
