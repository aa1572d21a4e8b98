"""Declare the arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.output import as_typed, integer_type
from pytest_mlperf.suite.values import checked_accelerator

RUNS_DIR = Path(".mlperf")

STORE = RUNS_DIR / "results.db"


def accelerator(text: str) -> str:
    """Return the accelerator named by an argument, in its standard spelling."""
    try:
        return checked_accelerator(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


REPEATABLE: Mapping[str, Any] = {"action": "append", "default": []}

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "results": {
        "nargs": "?",
        "metavar": "RESULTS",
        "help": "results.json, its folder, or the start of a session id (default: newest session)",
    },
    "suites": {
        "nargs": "*",
        "type": Path,
        "metavar": "SUITES",
        "help": "suite files, or folders of them (default: suites/, else those in this folder)",
    },
    "--accelerator": {
        **REPEATABLE,
        "type": accelerator,
        "metavar": "NAME",
        "help": 'only cases on this accelerator ("H200", "8xH100", "cpu"); repeatable',
    },
    "--baselines": {
        "type": Path,
        "metavar": "DIR",
        "help": "folder of baselines (default: nearest to the suite)",
    },
    "--case": {
        "metavar": "CASE",
        "help": "only this case: its id, or a part that matches only one case",
    },
    "--json": {"action": "store_true", "help": "print JSON"},
    "--manifest": {"type": Path, "metavar": "FILE", "help": "output of `plan --format json`"},
    "--output": {"type": Path, "metavar": "FILE", "help": "file to write (default: print)"},
    "--pairs": {"type": integer_type(2), "metavar": "N"},
    "--prices": {
        "type": Path,
        "metavar": "FILE",
        "help": "TOML file with a table [prices], as in suites; overrides the suites' prices",
    },
    "--runs-dir": {
        "type": Path,
        "default": RUNS_DIR,
        "metavar": "DIR",
        "help": f"folder of results and logs (default {RUNS_DIR})",
    },
    "--store": {
        "default": str(STORE),
        "metavar": "URL",
        "help": f"file, sqlite:///FILE or postgresql://USER@HOST/DATABASE (default {STORE})",
    },
    "--verify": {
        "type": Path,
        "metavar": "FILE",
        "help": "accept only results signed (pytest --mlperf-sign) by a signer in this file "
        "(format: ALLOWED SIGNERS in man ssh-keygen), with the same suite files as here",
    },
    "--write": {"action": "store_true", "help": "write files; without it a dry run"},
}


def again(parsed: argparse.Namespace, *names: str) -> str:
    """Return the user's command line with positional argument `names[0]` and the other options."""
    values = {name: getattr(parsed, name.strip("-").replace("-", "_")) for name in names}
    if values.get("--runs-dir") == RUNS_DIR:
        del values["--runs-dir"]
    positional = values.pop(names[0]) or []
    files = positional if isinstance(positional, list) else [positional]
    return as_typed(parsed.command, files, values)


def add(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add arguments from `ARGUMENTS` to a parser; `changes` override their properties."""
    for name in names:
        flags = ("-o", name) if name == "--output" else (name,)
        parser.add_argument(*flags, **{**ARGUMENTS[name], **changes})
