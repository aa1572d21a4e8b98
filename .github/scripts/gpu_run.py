"""What GitHub itself knows of a run of gpu.yml; nothing here comes from what the run wrote."""

from __future__ import annotations

import re
from typing import Any

from api import Refused

WORKFLOW = ".github/workflows/gpu.yml"

TITLE = re.compile(r"gpu: ([0-9a-f]{40}) of pull request ([1-9][0-9]{0,9})")
"""How gpu.yml, as it is on the default branch, names a run for an approved commit."""


def check(run: dict[str, Any], repository: str) -> None:
    """Refuse a run of anything but this repository's gpu.yml.

    Args:
        run: As GitHub's API describes it.
        repository: "OWNER/NAME".

    Raises:
        Refused: It is another workflow's, another repository's, or not finished.
    """
    if str(run["path"]).partition("@")[0] != WORKFLOW:
        raise Refused(f"run {run['id']} is of {run['path']}, not of {WORKFLOW}")
    if run["head_repository"]["full_name"] != repository:
        raise Refused(f"run {run['id']} is of {run['head_repository']['full_name']}")
    if run["status"] != "completed":
        raise Refused(f"run {run['id']} is {run['status']}: wait for its end")


def approved(run: dict[str, Any]) -> tuple[str, int] | None:
    """Return commit and pull request that a maintainer approved, or None for a branch of ours.

    Both are in the run's title, which the workflow on the default branch made from the inputs.
    """
    found = TITLE.fullmatch(str(run["display_title"]))
    return (found[1], int(found[2])) if found else None
