"""Create, write and summarise the session of an import."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official import mlperf_case_facts
from pytest_mlperf.cli.output import as_typed, width
from pytest_mlperf.extension import CaseResult, Results, session_of, write_results
from pytest_mlperf.judge.rule_r import GATING_RUNS
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.run.project import ignored_in_git

MAX_FOLDER_CHARACTERS = 60


def session(cases: Sequence[CaseResult], versions: Mapping[str, str]) -> Results:
    """Create the session of an import; `versions` are those of the harness by name."""
    return session_of([replace(one, facts=mlperf_case_facts(one)) for one in cases], versions)


def name_of(text: str) -> str:
    """Return a text as part of a case's id: "Llama 2/70B" is "llama-2-70b"."""
    words = re.sub(r"[^a-z0-9._+]+", "-", text.lower())[:MAX_FOLDER_CHARACTERS]
    return re.sub(r"^[^a-z0-9]+|[-.]+$", "", words)


def write_session(results: Results, parsed: argparse.Namespace) -> Path:
    """Write a session to `--output`, or into the folder of runs; return the file's path."""
    file: Path = parsed.output or _kept(parsed.runs_dir) / "runs" / results.run / "results.json"
    write_results(file, results)
    return file


def _kept(runs_dir: Path) -> Path:
    try:
        return ignored_in_git(runs_dir)
    except OSError as error:
        raise MlperfError(
            f"{runs_dir} cannot be written: {error.strerror}; name a file with -o"
        ) from None


def summary(results: Results) -> list[str]:
    """Return the summary of a session, failures first."""
    message = text.failure_message(results, width())
    failed = [line for r in results.cases if r.failed for line in (*message(r).splitlines(), "")]
    return [*failed, *text.summary(results, width(), colour=False)]


def next_steps(file: Path, results: Results) -> list[str]:
    """Return lines: the path of an imported session, and commands to judge or to record it."""
    name, sessions = relative(file), len(results.cases[0].verdict.runs)
    if results.cases[0].failed:
        return [f"wrote {name}"]
    compare = as_typed("compare", ["git:HEAD", name], {})
    more = f" (a baseline needs {GATING_RUNS} sessions)" if sessions < GATING_RUNS else ""
    update = as_typed("update", [name], {"--baselines": "baselines", "--no-runs": True})
    return [f"wrote {name}", f"judge it: {compare}", f"as a baseline{more}: {update}"]
