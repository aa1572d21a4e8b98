"""Post the one comment of a pull request, or replace it: it is found by its hidden first line."""

from __future__ import annotations

import os

from api import Refused, call, fail, pages
from pull_request import is_head

MARKER = "<!-- pytest-mlperf -->"
"""First line of the comment, as `pytest-mlperf report --format comment` writes it."""

JUDGE_MARKER = "<!-- pytest-mlperf judge -->"
"""First line of the comment of the action `judge`, which does not replace that of a suite."""

AUTHOR = "github-actions[bot]"
"""Who posts with a workflow's token; a stranger's comment with the same line is not ours."""


def post(repository: str, number: int, sha: str, text: str) -> str:
    """Post or replace the comment.

    Args:
        repository: "OWNER/NAME".
        number: Of the pull request.
        sha: The commit that the text is about; "" posts whatever commit is the newest.
        text: Markdown; its first line is the marker.

    Returns:
        What was done.

    Raises:
        Refused: GitHub does not answer, or the text is not a report.
    """
    marker = text.partition("\n")[0]
    if marker not in (MARKER, JUDGE_MARKER):
        raise Refused("the text is not a report's: its first line is not the marker")
    if sha and not is_head(repository, number, sha):
        return f"pull request {number} has moved on from {sha}: nothing is posted"
    for one in pages(f"repos/{repository}/issues/{number}/comments"):
        if one["user"]["login"] == AUTHOR and one["body"].partition("\n")[0].strip() == marker:
            path = f"repos/{repository}/issues/comments/{one['id']}"
            call(path, method="PATCH", body={"body": text})
            return f"replaced the comment of pull request {number}"
    call(f"repos/{repository}/issues/{number}/comments", method="POST", body={"body": text})
    return f"commented on pull request {number}"


if __name__ == "__main__":
    try:
        print(
            post(
                os.environ["GITHUB_REPOSITORY"],
                int(os.environ["NUMBER"]),
                os.environ["SHA"],
                os.environ["TEXT"],
            )
        )
    except (Refused, ValueError) as error:
        fail(str(error))
