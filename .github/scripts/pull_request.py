"""Find the pull request that a run of gpu.yml measured: by GitHub's word, not by an artifact's."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import gpu_run
from api import Refused, call, event, fail, output, pages


def find(run: dict[str, Any], repository: str) -> tuple[int, str] | None:
    """Return number and commit of the open pull request whose head was measured, or None.

    Args:
        run: As GitHub's API describes it.
        repository: "OWNER/NAME".

    Raises:
        Refused: GitHub does not answer, or the run is not of this repository's gpu.yml.
    """
    gpu_run.check(run, repository)
    if known := gpu_run.approved(run):
        sha, number = known
        return (number, sha) if is_head(repository, number, sha) else None
    owner, branch, sha = repository.partition("/")[0], str(run["head_branch"]), str(run["head_sha"])
    head = quote(f"{owner}:{branch}", safe="")
    for pull in pages(f"repos/{repository}/pulls?state=open&head={head}"):
        if pull["head"]["sha"] == sha and pull["head"]["ref"] == branch:
            return int(pull["number"]), sha
    return None


def is_head(repository: str, number: int, sha: str) -> bool:
    """Whether a commit is what an open pull request stands at.

    Raises:
        Refused: GitHub does not answer.
    """
    pull = call(f"repos/{repository}/pulls/{number}")
    return bool(pull["state"] == "open" and pull["head"]["sha"] == sha)


if __name__ == "__main__":
    try:
        found = find(event()["workflow_run"], os.environ["GITHUB_REPOSITORY"])
    except Refused as error:
        fail(str(error))
    number, sha = found or ("", "")
    output(number=number, sha=sha)
    print(f"pull request {number} at {sha}" if found else "no open pull request stands at this")
