"""What others know of workflows: zizmor, GitHub's schemas, shellcheck on every script."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflows.github import ACTIONS, ROOT, WORKFLOWS, scripts

pytestmark = pytest.mark.process

BESIDE = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def tool(name: str, *arguments: str | Path, stdin: str | None = None) -> tuple[int, str, str]:
    """Run a tool; skip if it is missing.

    Returns:
        Exit code, standard output and standard error.
    """
    path = shutil.which(name, path=BESIDE)
    if path is None:
        pytest.skip(f"{name} is not here: pip install 'pytest-mlperf[dev]'")
    done = subprocess.run(
        [path, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return done.returncode, done.stdout, done.stderr


ZIZMOR = ("--offline", "--persona", "auditor", "--no-progress", "--strict-collection")


def findings(*arguments: str | Path) -> list[str]:
    code, output, errors = tool("zizmor", *ZIZMOR, "--format", "json", *arguments)
    assert code in {0, 10, 11, 12, 13, 14}, errors
    return sorted(one["ident"] for one in json.loads(output))


def test_every_ignored_finding_of_zizmor_has_a_reason_and_is_needed() -> None:
    """Each ignore names one audit, gives a reason behind it, and hides exactly one finding."""
    texts = "\n".join(path.read_text("utf-8") for path in (*WORKFLOWS, *ACTIONS))
    ignored = re.findall(r"zizmor: ignore\[([a-z-]+)\] (\w.{15,})", texts)

    assert findings(".github") == []
    assert texts.count("zizmor:") == len(ignored)
    assert findings("--no-ignores", ".github") == sorted(name for name, _ in ignored)

    other = findings("tests/workflows/bad/rule-4.yml")

    assert {"template-injection", "unpinned-uses", "artipacked", "excessive-permissions"} <= set(
        other
    )


def test_files_follow_the_schemas(tmp_path: Path) -> None:
    """And a misspelt key is found."""
    text = (ROOT / ".github/workflows/gpu.yml").read_text("utf-8")
    misspelt = tmp_path / "gpu.yml"
    misspelt.write_text(text.replace("fail-fast:", "failfast:"), "utf-8")
    for schema, files, expected in (
        ("vendor.github-workflows", WORKFLOWS, 0),
        ("vendor.github-actions", ACTIONS, 0),
        ("vendor.github-workflows", [misspelt], 1),
    ):
        code, output, errors = tool("check-jsonschema", "--builtin-schema", schema, *files)
        assert code == expected, output + errors


def test_ci_runs_public_checks_of_workflows_and_vulnerabilities() -> None:
    """With the persona that the tests use, and over all pinned versions."""
    ran = "\n".join(script for name, script in scripts() if name.startswith("ci."))

    assert f"zizmor {' '.join(ZIZMOR)} .github" in ran
    assert "actionlint" in ran
    assert "pip-audit --disable-pip --no-deps" in ran
    for file in ("constraints.txt", ".github/requirements/build.txt"):
        assert f"--requirement {file}" in ran


def test_no_script_has_a_fault_that_shellcheck_knows(tmp_path: Path) -> None:
    """Every `run:` block, as bash, each under its own name; and a faulty one is found."""
    for name, script in scripts():
        (tmp_path / name).write_text(f"set -eo pipefail\n{script}", "utf-8")
    files = sorted(tmp_path.iterdir())
    options = ("--shell=bash", "--severity=style", "--format=gcc")
    code, output, _ = tool("shellcheck", *options, *files)
    assert files
    assert (code, output) == (0, "")

    code, output, _ = tool("shellcheck", *options, "-", stdin="rm -rf $HOME/$x\n")
    assert code == 1
    assert "SC2086" in output
