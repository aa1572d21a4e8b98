"""The tool that refreshes the table, and the workflow that fetches what it reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
import yaml

from tests.contracts import trees
from tests.contracts.test_tensorrt_llm import FOUND, TREE, plant

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def refresh(tree: Path, table: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "refresh_contracts.py")]
    command += ["--tensorrt-llm", str(tree), "--table", str(table)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_tree_adds_its_series_or_replaces_it_and_anything_else_is_refused(
    tmp_path: Path,
) -> None:
    table = tmp_path / "table.json"
    shutil.copy(trees.TABLE, table)
    old = trees.read_table(table)

    refused = refresh(tmp_path, table)
    assert refused.returncode == 2
    assert "has no tensorrt_llm/version.py" in refused.stderr
    assert table.read_text("utf-8") == trees.TABLE.read_text("utf-8")

    added = refresh(plant(tmp_path / "tree"), table)
    assert added.returncode == 0, added.stderr
    assert trees.read_table(table) == [*old, ("1.4", FOUND)]
    assert f"TensorRT-LLM 1.4.0rc2: {len(FOUND)} classes read" in added.stdout
    assert "TimingMetrics: gone: first_scheduled_time, first_token_time" in added.stdout
    assert "TensorRT-LLM 1.4.0rc2 has no LLM.shutdown (last in 1.2)" in added.stdout

    tree = plant(tmp_path / "tree", {**TREE, "tensorrt_llm/version.py": '__version__ = "1.2.9"\n'})
    refresh(tree, table)
    assert trees.read_table(table) == [("1.2", FOUND), ("1.4", FOUND)]
    text = table.read_text("utf-8")
    refresh(tree, table)
    assert table.read_text("utf-8") == text


def test_the_workflow_fetches_every_file_that_is_read() -> None:
    text = (ROOT / ".github" / "workflows" / "contracts.yml").read_text("utf-8")
    steps = yaml.safe_load(text)["jobs"]["tensorrt_llm"]["steps"]
    (script,) = [step["run"] for step in steps if "sparse-checkout" in step.get("run", "")]
    named = script.partition("sparse-checkout set")[2].replace("\\", " ").split()
    here = {PurePosixPath(name) for name in named}
    here |= {parent for name in named for parent in PurePosixPath(name).parents}

    for file in TREE:
        assert PurePosixPath(file).parent in here, file
