"""tools/subjects.py: a commit's subject has a type, an imperative and at most 72 characters."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sources import ROOT

GIT = ("git", "-c", "user.email=a@example.org")


@pytest.fixture(scope="module")
def tool(lib: Any) -> Any:
    return lib("subjects")


GOOD = (
    "feat: add a reader",
    "fix(openai): close idle connections",
    "perf(core/judge)!: cache the quantiles",
    "refactor(cli,plugin): speed up imports",
    "docs: process pages one by one",
    "build(deps): need ruff 0.14",
    "test: " + "a" * 66,
)
BAD = {
    "Add a reader": "not of the form",
    "feature: add a reader": "not of the form",
    "feat : add a reader": "not of the form",
    "feat(Core): add a reader": "not of the form",
    "feat:add a reader": "not of the form",
    "feat: ": "not of the form",
    "feat: Add a reader": "lower-case",
    "fix: closed idle connections": "imperative",
    "fix: closing idle connections": "imperative",
    "fix: closes idle connections": "imperative",
    "docs: write less.": "full stop",
    "test: " + "a" * 67: "73 characters",
}


def test_a_subject_keeps_all_rules_or_is_told_which_it_breaks(tool: Any) -> None:
    assert [subject for subject in GOOD if list(tool.defects(subject))] == []
    wrong = {
        subject: defects
        for subject, text in BAD.items()
        if text not in (defects := "; ".join(tool.defects(subject)))
    }
    assert wrong == {}


@pytest.mark.process
def test_new_commits_are_checked_without_merges_and_bots(tool: Any, tmp_path: Path) -> None:
    def commit(author: str, subject: str) -> str:
        options = ("-c", f"user.name={author}", "commit", "--quiet", "--allow-empty")
        subprocess.run([*GIT, *options, "-m", subject], cwd=tmp_path, check=True)
        head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tmp_path, text=True)
        return head.strip()

    subprocess.run([*GIT, "init", "--quiet", "--initial-branch=main"], cwd=tmp_path, check=True)
    base = commit("a", "Old style")
    commit("a", "feat: add one")
    commit("dependabot[bot]", "Bump ruff")
    head = commit("a", "Wrong")

    assert tool.subjects(base, head, tmp_path) == ["Wrong", "feat: add one"]
    assert tool.subjects("0" * 40, head, tmp_path) == ["Wrong"]


def test_ci_checks_the_commits_of_a_pull_request_and_of_a_push() -> None:
    """Revisions reach the script by the environment, and the whole history is there."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    checkout, script = jobs["commits"]["steps"]

    assert checkout["with"]["fetch-depth"] == 0
    assert script["run"] == 'python3 tools/subjects.py "$BASE" "$HEAD"'
    assert set(script["env"]) == {"BASE", "HEAD"}
