"""A label starts gpu.yml for one commit, if who set it may write and the commit still stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workflows.github import GitHub, Runner, workflow

pytestmark = pytest.mark.process

APPROVE = workflow("gpu-approve").script("approve", "Approve")

SHA, NEWER = "a" * 40, "b" * 40
LABEL = "DELETE repos/lab/bench/issues/7/labels/run-gpu"
RIGHT = "GET repos/lab/bench/collaborators/maintainer/permission"
PULL = "GET repos/lab/bench/pulls/7"
START = "POST repos/lab/bench/actions/workflows/gpu.yml/dispatches"

EVENT: dict[str, Any] = {
    "action": "labeled",
    "label": {"name": "run-gpu"},
    "sender": {"login": "maintainer"},
    "pull_request": {"number": 7, "head": {"sha": SHA}},
    "repository": {"default_branch": "main"},
}


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    runner = Runner(tmp_path)
    runner.scripts_of_ours()
    found = GitHub(runner)
    found.event(EVENT)
    return found


def answers(permission: str = "write", sha: str = SHA, state: str = "open") -> dict[str, Any]:
    return {
        LABEL: [],
        RIGHT: {"permission": permission, "role_name": permission},
        PULL: {"state": state, "head": {"sha": sha}},
        START: None,
    }


def test_who_may_write_starts_a_run_of_exactly_this_commit(github: GitHub) -> None:
    """A label that is gone already changes nothing."""
    for known in (answers("write"), answers("admin"), answers() | {LABEL: GONE}):
        github.answers({key: answer for key, answer in known.items() if answer != GONE})

        github.runner.ends(0, APPROVE)
        assert github.asked()[-4:] == [
            (LABEL, None),
            (RIGHT, None),
            (PULL, None),
            (START, {"ref": "main", "inputs": {"sha": SHA, "pr": "7"}}),
        ]
    job = workflow("gpu-approve").jobs["approve"]
    assert job["if"] == "github.event.label.name == 'run-gpu'"


GONE = "gone"


def test_nothing_starts_otherwise_and_the_label_is_used_up(github: GitHub) -> None:
    """Who may set labels, but not write, approves nothing; a later push needs a new label."""
    silent = {key: answer for key, answer in answers().items() if key != RIGHT}
    for known, message in (
        (answers("read"), "maintainer may not write to lab/bench"),
        (answers("none"), "maintainer may not write to lab/bench"),
        (answers(sha=NEWER), f"pull request 7 has moved from {SHA} to {NEWER}"),
        (answers(state="closed"), "pull request 7 is closed"),
        (silent, ""),
    ):
        github.answers(known)

        done = github.runner.ends(1, APPROVE)
        assert f"::error::{message}" in done.stdout
    asked = [key for key, _ in github.asked()]
    assert (asked[0], asked.count(LABEL), START in asked) == (LABEL, 5, False)


def test_names_cannot_ask_for_something_else(github: GitHub) -> None:
    """A label and a login are single parts of a path, whatever they hold."""
    github.event({**EVENT, "label": {"name": "../../x y?"}, "sender": {"login": "a/../../b"}})
    github.answers({})

    github.runner.ends(1, APPROVE)
    assert [key for key, _ in github.asked()] == [
        "DELETE repos/lab/bench/issues/7/labels/..%2F..%2Fx%20y%3F",
        "GET repos/lab/bench/collaborators/a%2F..%2F..%2Fb/permission",
    ]
