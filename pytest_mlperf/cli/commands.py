"""List the subcommands of `pytest-mlperf` with summaries, without importing their modules."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mlperf.core.addons import Command
from pytest_mlperf.registry import declared

COMMANDS = {
    "Start": {
        "init": "write a first suite and a folder for baselines",
        "doctor": "check what this machine can run, and what is missing",
        "machine": "show the hardware of this machine, or of servers",
        "plan": "list cases with their runs, minutes and accelerator-hours",
    },
    "Judge": {
        "explain": "show how a verdict was reached, run by run",
        "compare": "compare two sessions, commits or versions: what regressed",
        "across": "compare two types of hardware: per GPU, watt and dollar",
        "turns": "measure two engine entries or builds now, interleaved",
    },
    "Accept": {
        "update": "make a session the new baseline; measure missing runs",
        "calibrate": "estimate this machine's noise from runs of unchanged code",
    },
    "Several machines": {
        "merge": "combine results of several machines; report missing ones",
        "report": "write results as text, HTML, Markdown, CSV and more",
    },
    "MLPerf": {},
    "Reference": {
        "options": "show options of engines, data sets and scorers",
        "schema": "print a JSON Schema for editors and tools",
        "new": "write a template of an engine, data set, scorer or add-on",
    },
}
"""Summary by name and by heading, in the order of use."""


def commands() -> Mapping[str, Command]:
    """Return all commands by name: those of this package, then those of add-ons."""
    ours = {
        name: Command(text, f"pytest_mlperf.cli.{name}", group)
        for group, summaries in COMMANDS.items()
        for name, text in summaries.items()
    }
    of_addons = declared(
        "commands", Command, lambda reason, module: Command(f"cannot be loaded: {reason}", module)
    )
    return {**ours, **{name: of_addons[name] for name in sorted(of_addons.keys() - ours.keys())}}
