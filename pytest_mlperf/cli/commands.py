"""Subcommands of `pytest-mlperf`: the module of each, and its line in `--help`.

This module imports nothing else of the package, so `--help` loads no command.
"""

COMMANDS = {
    "init": ("pytest_mlperf.cli.init", "write a first suite, and a folder for baselines"),
    "doctor": ("pytest_mlperf.cli.doctor", "what this machine can run, and why not"),
    "plan": ("pytest_mlperf.cli.plan", "cases, runs, minutes and accelerator-hours"),
    "explain": ("pytest_mlperf.cli.explain", "how a verdict was reached, run by run"),
    "compare": ("pytest_mlperf.cli.compare", "two sessions, commits or versions: what dropped"),
    "turns": ("pytest_mlperf.cli.turns", "two engine entries or builds, measured now in turns"),
    "bisect": ("pytest_mlperf.cli.bisect", "the commit or version that made a test slower"),
    "history": (
        "pytest_mlperf.cli.history",
        "a case over its accepted baselines in git, and over sessions",
    ),
    "update": (
        "pytest_mlperf.cli.update",
        "accept a session as baselines, with the runs that it lacks",
    ),
    "calibrate": (
        "pytest_mlperf.cli.calibrate",
        "learn this machine's noise from repeats of unchanged code",
    ),
    "merge": (
        "pytest_mlperf.cli.merge",
        "results of several machines as one, with nothing missing",
    ),
    "import": ("pytest_mlperf.cli.imports", "results of MLPerf submissions, LoadGen and endpoints"),
    "export": (
        "pytest_mlperf.cli.export",
        "a curve as a submission that MLPerf Endpoints' checker takes",
    ),
    "store": (
        "pytest_mlperf.cli.store",
        "results of sessions into the store that keeps them, or out",
    ),
    "submission": (
        "pytest_mlperf.cli.submission",
        "results as a tree that MLPerf's submission checker takes",
    ),
    "report": (
        "pytest_mlperf.cli.report",
        "results as text, HTML, Markdown, CSV and for other tools",
    ),
    "options": ("pytest_mlperf.cli.options", "options of engines, data sets and scorers"),
    "round": ("pytest_mlperf.cli.round", "what an MLPerf round asks: gates, limits, counts"),
    "limits": (
        "pytest_mlperf.cli.limits",
        "what is physically possible, and official results against it",
    ),
    "published": (
        "pytest_mlperf.cli.published",
        "official results of MLPerf Inference, to list and to filter",
    ),
    "schema": ("pytest_mlperf.cli.schema", "print a JSON Schema, for editors and tools"),
}
"""Module and summary by name, in the order of use.

A module has `HELP` (description and examples), `add_arguments` and `run`.
"""
