"""A comment starts gpu.yml for the commit that it names, and for no other one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.github import GitHub, Runner, workflow

pytestmark = pytest.mark.process

FLOW = workflow("gpu-approve")
APPROVE = FLOW.script("approve", "Approve")

READ, PUSHED = "a1" * 20, "b2" * 20
"""The commit that the maintainer read, and one that was pushed before the comment was sent."""

RIGHT = "GET repos/lab/bench/collaborators/maintainer/permission"
COMMENT = "GET repos/lab/bench/issues/comments/99"
REACTION = "POST repos/lab/bench/issues/comments/99/reactions"
PULL = "GET repos/lab/bench/pulls/7"
START = "POST repos/lab/bench/actions/workflows/gpu.yml/dispatches"

EVENT: dict[str, Any] = {
    "action": "created",
    "issue": {"number": 7, "pull_request": {"url": "https://api.github.com/…/pulls/7"}},
    "comment": {
        "id": 99,
        "body": f"/run-gpu {READ}",
        "user": {"login": "maintainer", "type": "User"},
        "performed_via_github_app": None,
    },
    "sender": {"login": "maintainer", "type": "User"},
    "repository": {"default_branch": "main"},
}
"""As GitHub sends it, without what nobody reads."""


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    runner = Runner(tmp_path)
    runner.scripts_of_ours()
    fake_github = GitHub(runner)
    fake_github.event(EVENT)
    return fake_github


def event(body: str = "", **author: Any) -> dict[str, Any]:
    event_content = copy.deepcopy(EVENT)
    event_content["comment"]["body"] = body or event_content["comment"]["body"]
    event_content["comment"]["user"] |= author
    return event_content


def answers(
    permission: str = "write", sha: str = READ, state: str = "open", **comment: Any
) -> dict[str, Any]:
    return {
        RIGHT: {"permission": permission, "role_name": permission},
        COMMENT: {**EVENT["comment"], **comment},
        PULL: {"state": state, "head": {"sha": sha}},
        START: None,
        REACTION: {},
    }


def test_who_may_write_starts_a_run_of_exactly_the_named_commit(github: GitHub) -> None:
    """GitHub's editor may leave a line end; a reaction that cannot be set changes nothing."""
    for body in (f"/run-gpu {READ}", f"/run-gpu {READ}\r\n"):
        for answers_known in (answers(body=body), answers("admin", body=body)):
            github.event(event(body))
            if not body.endswith("\n"):
                del answers_known[REACTION]
            github.answers(answers_known)

            github.runner.ends(0, APPROVE)
            assert github.requests()[-5:] == [
                (RIGHT, None),
                (COMMENT, None),
                (PULL, None),
                (START, {"ref": "main", "inputs": {"sha": READ, "pr": "7"}}),
                (REACTION, {"content": "rocket"}),
            ]


def test_an_unreviewed_commit_does_not_run(github: GitHub) -> None:
    """It was pushed between the reading and the comment: the event knows only the new head."""
    github.answers(answers(sha=PUSHED))

    done = github.runner.ends(1, APPROVE)

    assert f"pull request 7 is at {PUSHED}, the comment names {READ}" in done.stdout
    assert github.requests()[-1] == (REACTION, {"content": "confused"})
    assert START not in [key for key, _ in github.requests()]


NO_COMMANDS = (
    f"/run-gpu {READ.upper()}",
    f"/run-gpu {READ[:39]}",
    f"/run-gpu {READ}a",
    f"/run-gpu {READ} {PUSHED}",
    f"/run-gpu {READ}\n/run-gpu {PUSHED}",
    f"/run-gpu {READ}; touch pwned",
    f"/run-gpu $(touch pwned){READ}",
    f"/run-gpu `touch pwned` {READ}",
    f"/run-gpu {READ[:-1]}\u0661",
    f"/run-gpu {READ}\u00a0",
    f"/run-gpu\t{READ}",
    f"/run-gpu-now {READ}",
    f"> /run-gpu {READ}",
    f"<!-- x -->\n/run-gpu {READ}",
    "/run-gpu",
    "/run-gpu HEAD",
    f"/run-gpu refs/pull/7/head@{READ}",
)


def test_a_comment_of_another_form_starts_nothing(github: GitHub) -> None:
    """One commit with all its digits is the whole comment."""
    for body in NO_COMMANDS:
        github.event(event(body))
        github.answers(answers(body=body))

        done = github.runner.ends(1, APPROVE)
        assert "must be `/run-gpu` and one commit id of 40 digits" in done.stdout, body
    assert {key for key, _ in github.requests()} == {REACTION}
    assert list(github.runner.folder.rglob("pwned*")) == []


def test_nothing_starts_by_who_may_not_write_or_where_something_changed(github: GitHub) -> None:
    issue = copy.deepcopy(EVENT)
    del issue["issue"]["pull_request"]
    through_app = copy.deepcopy(EVENT)
    through_app["comment"]["performed_via_github_app"] = {"slug": "helper"}
    for event_content, answers_known, message in (
        (EVENT, answers("read"), "maintainer may not write to lab/bench"),
        (EVENT, answers("none"), "maintainer may not write to lab/bench"),
        (EVENT, answers(body=f"/run-gpu {PUSHED}"), "the comment was edited"),
        (EVENT, answers(user={"login": "other"}), "the comment was edited"),
        (EVENT, answers(state="closed"), "pull request 7 is closed"),
        (issue, answers(), "issue 7 is no pull request"),
        (event(type="Bot"), answers(), "a person must approve a commit"),
        (through_app, answers(), "a person must approve a commit"),
    ):
        github.event(event_content)
        github.answers(answers_known)

        done = github.runner.ends(1, APPROVE)
        assert f"::error::{message}" in done.stdout or message in done.stdout, message
    for lacking in (RIGHT, COMMENT, PULL):
        github.event(EVENT)
        github.answers({key: answer for key, answer in answers().items() if key != lacking})
        github.runner.ends(1, APPROVE)
    assert START not in [key for key, _ in github.requests()]


def test_a_commit_of_another_pull_request_is_refused(github: GitHub) -> None:
    """Even if it is approved there: a report here must be about commits read here."""
    github.event(event(f"/run-gpu {PUSHED}"))
    github.answers(answers(body=f"/run-gpu {PUSHED}"))

    github.runner.ends(1, APPROVE)
    assert START not in [key for key, _ in github.requests()]


def test_a_login_cannot_ask_for_something_else(github: GitHub) -> None:
    """It is a single part of a path, whatever it holds."""
    github.event(event(login="a/../../b"))
    github.answers({})

    github.runner.ends(1, APPROVE)
    assert [key for key, _ in github.requests()] == [
        "GET repos/lab/bench/collaborators/a%2F..%2F..%2Fb/permission",
        REACTION,
    ]


def test_only_new_comments_on_pull_requests_are_looked_at() -> None:
    """An edit starts nothing, and no comment of a stranger takes the place of one that waits."""
    assert FLOW.content["on"] == {"issue_comment": {"types": ["created"]}}
    assert FLOW.content["concurrency"]["group"] == "gpu-approve-${{ github.event.comment.id }}"
    assert FLOW.jobs["approve"]["if"].startswith("github.event.issue.pull_request && ")


def test_the_nightly_run_waits_for_no_approval() -> None:
    """People may have to approve each run of the environment gpu-forks, in which it is not."""
    assert workflow("gpu").jobs["run"]["environment"] == (
        "${{ inputs.sha && 'gpu-forks' || 'gpu' }}"
    )
