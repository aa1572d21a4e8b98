"""A label by somebody who may write starts gpu.yml for exactly the commit that was labelled.

Runs with a token that may start workflows, so it reads facts from GitHub and runs nothing of the
pull request.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from api import Refused, call, event, fail, plain

WRITERS = frozenset({"admin", "write"})
"""What GitHub calls those who may push; "maintain" is told as "write", "triage" as "read"."""

WORKFLOW = "gpu.yml"


def approve(labelled: dict[str, Any], repository: str) -> str:
    """Use the label up, check who set it and on what, and start the run.

    Args:
        labelled: The event `pull_request_target: labeled`.
        repository: "OWNER/NAME".

    Returns:
        What was started, as one line.

    Raises:
        Refused: GitHub does not answer, or an answer forbids it.
    """
    number = int(labelled["pull_request"]["number"])
    sha, who = str(labelled["pull_request"]["head"]["sha"]), str(labelled["sender"]["login"])
    use_up(repository, number, str(labelled["label"]["name"]))
    permission = call(f"repos/{repository}/collaborators/{quote(who, safe='')}/permission")
    if permission["permission"] not in WRITERS:
        raise Refused(f"{who} may not write to {repository}: only those who may approve a commit")
    now = call(f"repos/{repository}/pulls/{number}")
    if now["state"] != "open":
        raise Refused(f"pull request {number} is {now['state']}")
    if now["head"]["sha"] != sha:
        raise Refused(
            f"pull request {number} has moved from {sha} to {now['head']['sha']}: read the new "
            "commits, and set the label again"
        )
    call(
        f"repos/{repository}/actions/workflows/{WORKFLOW}/dispatches",
        method="POST",
        body={
            "ref": labelled["repository"]["default_branch"],
            "inputs": {"sha": sha, "pr": str(number)},
        },
    )
    return f"{who} approved {sha} of pull request {number}: {WORKFLOW} is started"


def use_up(repository: str, number: int, label: str) -> None:
    """Take the label away: what is pushed later needs a new one."""
    path = f"repos/{repository}/issues/{number}/labels/{quote(label, safe='')}"
    try:
        call(path, method="DELETE")
    except Refused as error:
        if "404" not in str(error):  # somebody else was faster
            raise


if __name__ == "__main__":
    try:
        print(plain(approve(event(), os.environ["GITHUB_REPOSITORY"])))
    except Refused as error:
        fail(str(error))
