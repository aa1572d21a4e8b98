"""What the command loads before it works: help and version load no subcommand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import json, sys
sys.argv = ["pytest-mlperf", sys.argv[1]]
from pytest_mlperf.cli import main
try:
    main()
except SystemExit as error:
    print("\\n" + json.dumps([error.code, list(sys.modules)]))
"""
HEAVY = {"numpy", "pydantic", "pytest", "torch"}


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_few_modules(option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, option], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])

    assert code == 0
    assert "pytest_mlperf.cli.commands" in modules
    assert len([name for name in modules if name.startswith("pytest_mlperf")]) <= 15
    assert not HEAVY & set(modules)
