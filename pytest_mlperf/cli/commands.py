"""Subcommands of `pytest-mlperf`: the line of each in `--help`, and its module.

This module imports nothing else of the package, so `--help` loads no command.
"""

COMMANDS = {
    "init": "write a first suite, and a folder for baselines",
    "doctor": "what this machine can run, and why not",
    "plan": "cases, runs, minutes and accelerator-hours",
    "explain": "how a verdict was reached, run by run",
    "compare": "two sessions, commits or versions: what dropped",
    "turns": "two engine entries or builds, measured now in turns",
    "bisect": "the commit or version that made a test slower",
    "history": "a case over its accepted baselines in git, and over sessions",
    "update": "accept a session as baselines, with the runs that it lacks",
    "calibrate": "learn this machine's noise from repeats of unchanged code",
    "merge": "results of several machines as one, with nothing missing",
    "import": "results of MLPerf submissions, LoadGen and endpoints",
    "export": "a curve as a submission that MLPerf Endpoints' checker takes",
    "store": "results of sessions into the store that keeps them, or out",
    "submission": "results as a tree that MLPerf's submission checker takes",
    "report": "results as text, HTML, Markdown, CSV and for other tools",
    "options": "options of engines, data sets and scorers",
    "round": "what an MLPerf round asks: gates, limits, counts",
    "limits": "what is physically possible, and official results against it",
    "published": "official results of MLPerf Inference, to list and to filter",
    "schema": "print a JSON Schema, for editors and tools",
}
"""Summary by name, in the order of use."""


def module_of(command: str) -> str:
    """Return a command's module: `HELP` (description and examples), `add_arguments` and `run`."""
    # No statement could import a module that is called `import`.
    return f"pytest_mlperf.cli.{'imports' if command == 'import' else command}"
