"""A comment by somebody who may write starts gpu.yml for exactly the commit that it names.

Runs with a token that may start workflows, so it reads facts from GitHub and runs nothing of the
pull request. Nothing but the comment says which commit is approved: the head of the pull request
may have moved since a person read it.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

from api import Refused, call, event, fail, plain

WRITERS = frozenset({"admin", "write"})
"""What GitHub calls those who may push; "maintain" is told as "write", "triage" as "read"."""

WORKFLOW = "gpu.yml"

COMMAND = re.compile(r"/run-gpu ([0-9a-f]{40})")
"""The whole comment: one commit with all its digits. Branches and shortened ids can move."""


def approve(commented: dict[str, Any], repository: str) -> str:
    """Check who wrote the comment and what it names, and start the run.

    Args:
        commented: The event `issue_comment: created`.
        repository: "OWNER/NAME".

    Returns:
        What was started, as one line.

    Raises:
        Refused: GitHub does not answer, or an answer forbids it.
    """
    issue, comment = commented["issue"], commented["comment"]
    number, author = int(issue["number"]), comment["user"]
    if not issue.get("pull_request"):
        raise Refused(f"issue {number} is no pull request")
    command = COMMAND.fullmatch(str(comment["body"]).strip(" \t\r\n"))
    if command is None:
        raise Refused("the comment must be `/run-gpu` and one commit id of 40 digits, nothing else")
    sha, login = command[1], str(author["login"])
    if author["type"] != "User" or comment.get("performed_via_github_app"):
        raise Refused(f"{login} wrote this through a program: a person must approve a commit")
    permission = call(f"repos/{repository}/collaborators/{quote(login, safe='')}/permission")
    if permission["permission"] not in WRITERS:
        raise Refused(f"{login} may not write to {repository}: only those who may approve a commit")
    now = call(f"repos/{repository}/issues/comments/{int(comment['id'])}")
    if now["body"] != comment["body"] or now["user"]["login"] != login:
        raise Refused("the comment was edited: write a new one")
    pull = call(f"repos/{repository}/pulls/{number}")
    if pull["state"] != "open":
        raise Refused(f"pull request {number} is {pull['state']}")
    if pull["head"]["sha"] != sha:
        raise Refused(
            f"pull request {number} is at {pull['head']['sha']}, the comment names {sha}: read the "
            "commit that it is at, and name that one"
        )
    call(
        f"repos/{repository}/actions/workflows/{WORKFLOW}/dispatches",
        method="POST",
        body={
            "ref": commented["repository"]["default_branch"],
            "inputs": {"sha": sha, "pr": str(number)},
        },
    )
    return f"{login} approved {sha} of pull request {number}: {WORKFLOW} is started"


def react(commented: dict[str, Any], repository: str, content: str) -> None:
    """Show below the comment what became of it; the run's log has the reason."""
    path = f"repos/{repository}/issues/comments/{int(commented['comment']['id'])}/reactions"
    try:
        call(path, method="POST", body={"content": content})
    except Refused as error:  # the comment is gone, or its conversation is locked
        print(plain(f"no reaction to the comment: {error}"))


if __name__ == "__main__":
    found, ours = event(), os.environ["GITHUB_REPOSITORY"]
    try:
        print(plain(approve(found, ours)))
    except Refused as error:
        react(found, ours, "confused")
        fail(str(error))
    react(found, ours, "rocket")
