"""What a session notes of how it was called, and of the commit that it measured."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_mlperf.invocation import commit_of
from tests.stores.killed import git


def test_a_changed_file_whose_name_is_no_utf8_costs_no_commit(tmp_path: Path) -> None:
    """With core.quotePath off git prints such names as they are."""
    file = tmp_path / os.fsdecode(b"model-\xff.bin")
    file.write_text("first")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "core.quotePath", "false")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    before = commit_of(tmp_path)
    file.write_text("changed")

    assert before
    assert commit_of(tmp_path) == f"{before}+"
