"""Subcommands of `pytest-mlperf`: the line of each in `--help`, and its module; none is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mlperf.core.addons import Command
from pytest_mlperf.registry import declared

COMMANDS = {
    "init": "write a first suite, and a folder for baselines",
    "new": "an engine, data set, scorer or add-on that works, to edit",
    "doctor": "what this machine can run, and why not",
    "plan": "cases, runs, minutes and accelerator-hours",
    "explain": "how a verdict was reached, run by run",
    "compare": "two sessions, commits or versions: what dropped",
    "across": "two sessions on other hardware: per GPU, watt and dollar",
    "turns": "two engine entries or builds, measured now in turns",
    "update": "accept a session as baselines, with the runs that it lacks",
    "calibrate": "learn this machine's noise from repeats of unchanged code",
    "merge": "results of several machines as one, with nothing missing",
    "report": "results as text, HTML, Markdown, CSV and for other tools",
    "options": "options of engines, data sets and scorers",
    "round": "what an MLPerf round asks: gates, limits, counts",
    "schema": "print a JSON Schema, for editors and tools",
}
"""Summary by name, in the order of use."""


def commands() -> Mapping[str, Command]:
    """Return all commands by name: those of this package, then those of add-ons."""
    ours = {name: Command(text, f"pytest_mlperf.cli.{name}") for name, text in COMMANDS.items()}
    of_addons = declared(
        "commands", Command, lambda reason, module: Command(f"cannot be loaded: {reason}", module)
    )
    return {**ours, **{name: of_addons[name] for name in sorted(of_addons.keys() - ours.keys())}}
