"""Read a plan, as `pytest-mlperf plan` prints it, for a batch system."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.extension import json_text, parse_json
from pytest_mlperf.stores.foreign import MAX_LOG_BYTES, content_of
from pytest_mlperf.stores.results import Manifest, read_manifest


def add_plan(parser: ArgumentParser) -> None:
    """Declare the command-line argument that names the plan."""
    parser.add_argument("plan", metavar="PLAN", help="output of `plan --format json`; - for stdin")


def read_plan(source: str) -> tuple[Manifest, str]:
    """Return the plan in a file ("-": stdin) and its JSON text; reject words unsafe for a shell."""
    path, stdin = Path(source), sys.stdin.buffer
    content = stdin.read(MAX_LOG_BYTES) if source == "-" else content_of(path, "plan")
    plan = read_manifest(path, content)
    suites = [suite for minutes in plan.jobs.values() for suite in minutes]
    suite, name, option = r"(?s)[^-].*\.mlperf\.toml", r"[\w.]+", r"--mlperf-.*"
    forms = ((suite, suites), (name, plan.jobs), (option, plan.options))
    fits = all(re.fullmatch(form, word) for form, words in forms for word in words)
    if not suites or not fits:
        defect = "has a name that is unsafe in a shell command" if suites else "has no jobs"
        cure = "write a new one: pytest-mlperf plan --format json"
        raise MlperfError(f"{source}: the plan {defect}; {cure}")
    return plan, json_text(parse_json(content))
