"""The command `pytest-mlperf`. Exit codes: 0 fine, 1 verdicts failed, 2 usage, 3 environment."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from pytest_mlperf import __version__
from pytest_mlperf.cli import (
    bisect,
    calibrate,
    compare,
    doctor,
    explain,
    export,
    history,
    imports,
    init,
    limits,
    merge,
    options,
    plan,
    published,
    report,
    schema,
    store,
    submission,
    turns,
    update,
)
from pytest_mlperf.cli import round as rules
from pytest_mlperf.cli.output import complain, print_what_the_terminal_can
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.removed import find_removed

COMMANDS = {
    "init": init,
    "doctor": doctor,
    "plan": plan,
    "explain": explain,
    "compare": compare,
    "turns": turns,
    "bisect": bisect,
    "history": history,
    "update": update,
    "calibrate": calibrate,
    "merge": merge,
    "import": imports,
    "export": export,
    "store": store,
    "submission": submission,
    "report": report,
    "options": options,
    "round": rules,
    "limits": limits,
    "published": published,
    "schema": schema,
}
"""Each has a HELP, `add_arguments` and `run`; in the order in which they are needed."""

DESCRIPTION = """\
What stands around the tests: pytest itself measures and judges (pytest suites),
this command prepares, explains, compares and accepts.
"""

FLOW = """\
a first hour:
  $ pytest-mlperf init                      a suite that runs anywhere, to edit
  $ pytest-mlperf doctor                    what this machine can run, and why not
  $ pytest suites --mlperf-update=missing   measure, and record baselines to commit
  $ pytest suites                           after a change: did anything drop?
  $ pytest-mlperf explain CASE              how a verdict was reached, in numbers
  $ pytest-mlperf update                    accept new values, with a reason

exit codes: 0 fine, 1 verdicts failed, 2 usage, 3 environment
examples: pytest-mlperf COMMAND --help; the --mlperf options: pytest --help
"""


def add_commands(commands: Any) -> None:
    """Add every subcommand, with a help that says what it does, what it needs, and examples.

    A description is printed as it stands, so it is at most 80 columns wide.
    """
    for name, module in COMMANDS.items():
        summary, _, about = module.HELP.partition("\n\n")
        description, heading, examples = about.partition("examples:\n")
        parser = commands.add_parser(
            name,
            help=summary,
            description=description.removesuffix("\n\n"),
            epilog=f"{heading}{examples}".removesuffix("\n"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(run=module.run)
        module.add_arguments(parser)


def _removed(words: Sequence[str]) -> str:
    """Return what to use instead of a removed command or option, "" if there is none."""
    command, *rest = words or [""]
    options = (word.partition("=")[0] for word in rest)
    entries = [find_removed("command", "", command)]
    entries += [find_removed("option", command, option) for option in options]
    return str(next(filter(None, entries), ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="pytest-mlperf",
        description=DESCRIPTION,
        epilog=FLOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # With a short form too, the column of options is wide enough for the names of all commands.
    parser.add_argument("-V", "--version", action="version", version=f"pytest-mlperf {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands"
    )
    add_commands(commands)
    words = sys.argv[1:] if arguments is None else arguments
    if removed := _removed(words):
        complain(removed)
        return 2
    parsed = parser.parse_args(words)
    print_what_the_terminal_can()
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except MlperfError as error:
        complain(str(error))
        return 3 if isinstance(error, EnvironmentFault) else 2
    except BrokenPipeError:
        # Whoever read us had enough, as `head` does; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
