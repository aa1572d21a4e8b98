"""Parse and run the command `pytest-mlperf`, and map errors to exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from pytest_mlperf import __version__
from pytest_mlperf.core.addons import Command
from pytest_mlperf.registry import declared

DESCRIPTION = """\
Tools around the tests: prepare, explain, compare, accept. pytest itself measures
and judges: pytest suites
"""

FLOW = """\
a first hour:
  $ pytest-mlperf init             write a suite that runs anywhere
  $ pytest-mlperf doctor           check what this machine can run
  $ pytest suites --mlperf-update  measure and record baselines; commit them
  $ pytest suites                  after a change: did anything regress?
  $ pytest-mlperf explain CASE     show how a verdict was reached
  $ pytest-mlperf update           show what accepting new values would change

CASE is a case id, or a part of it that matches only one case.
RESULTS is a results.json, its folder or a session id; default: the newest session.
exit codes: 0 ok, 1 a test failed, 2 usage, 3 environment, 130 interrupted
more: pytest-mlperf COMMAND --help; options of pytest: pytest --help
"""

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
        "turns": "measure two engine entries now, interleaved",
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

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class CommandParser(argparse.ArgumentParser):
    """Parse one subcommand; import its module on the first parse."""

    module = ""

    def load(self) -> CommandParser:
        """Add the subcommand's description, examples and arguments to the parser."""
        if self.module:
            try:
                command = import_module(self.module)
                description, heading, examples = command.HELP.partition("examples:\n")
                self.description = description.removesuffix("\n\n")
                self.epilog = f"{heading}{examples}".removesuffix("\n")
                self.set_defaults(run=command.run, module=self.module)
                command.add_arguments(self)
            except (Exception, SystemExit) as error:  # an add-on may raise anything
                reason = f"{type(error).__name__}: {error}"
                self.exit(3, f"{self.prog}: {self.module} cannot be used: {reason}\n")
            self.module = ""
        return self

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        from pytest_mlperf.core.untrusted_text import nearest

        if action.choices is not None and value not in action.choices:
            hint = nearest(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Import the subcommand's module, then parse."""
        return super(CommandParser, self.load()).parse_known_args(args, namespace)


def build_parser() -> tuple[argparse.ArgumentParser, Mapping[str, CommandParser]]:
    """Return the parser of the command line, and the subcommands' parsers by name."""
    lines_by_group: dict[str, list[str]] = {group: [] for group in COMMANDS}
    parser = argparse.ArgumentParser(
        prog="pytest-mlperf",
        usage="pytest-mlperf [-h] [-V] COMMAND ...",
        epilog=FLOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"pytest-mlperf {__version__}")
    parsers = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        help=argparse.SUPPRESS,  # argparse lists commands in one group only
        prog="pytest-mlperf",
        parser_class=CommandParser,
    )
    for name, command in commands().items():
        added = parsers.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter)
        added.module = command.module
        lines_by_group.setdefault(command.group, []).append(f"  {name:<12} {command.summary}")
    blocks = ("\n".join([f"{group}:", *lines]) for group, lines in lines_by_group.items())
    parser.description = "\n\n".join([DESCRIPTION.strip(), *blocks]).replace("%", "%%")
    return parser, parsers.choices


def _removed(words: Sequence[str]) -> str:
    from pytest_mlperf.core.removed import find_removed

    command, *rest = words or [""]
    parts = [part for word in rest for part in word.split("=", 1)]
    options = [*parts, *map(" ".join, pairwise(parts))]
    entries = [find_removed("command", "", command)]
    entries += [find_removed("option", command, option) for option in options]
    return str(next(filter(None, entries), ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code; a second Ctrl-C ends the process at once."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt as interrupt:
        from pytest_mlperf.cli.output import print_error, progress
        from pytest_mlperf.processes import end_on_next_interrupt

        undo = end_on_next_interrupt()
        progress("")
        print_error("; ".join(("interrupted", *map(str, interrupt.args))))
        if arguments is not None:
            undo()
        return 130


def _run(words: Sequence[str]) -> int:
    from pytest_mlperf.cli.output import print_error, replace_unencodable_characters
    from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
    from pytest_mlperf.core.untrusted_text import nearest, spelling_hint

    parser, choices = build_parser()
    if removed := _removed(words):
        print_error(removed)
        return 2
    if words and not words[0].startswith("-") and words[0] not in choices:
        parser.error(f"no command {words[0]!r}{nearest(words[0], choices)}")
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        command = choices[parsed.command]
        hint = spelling_hint(unknown[0], command._option_string_actions)
        command.error(f"unknown argument {unknown[0]!r}{hint}; see {command.prog} --help")
    replace_unencodable_characters()
    try:
        code = _code_of(parsed)
        sys.stdout.flush()
        return code
    except MlperfError as error:
        print_error(str(error))
        return 3 if isinstance(error, EnvironmentFault) else 2
    except BrokenPipeError:
        # The reader, e.g. `head`, closed the pipe; flushing at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # Errors of input files have a name; sockets have other error numbers.
        if error.filename is not None or error.errno not in DISK_ERRORS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print_error(f"the output is incomplete: writing failed: {error.strerror}")
        return 2


def _code_of(parsed: argparse.Namespace) -> int:
    from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, text_of

    try:
        code = parsed.run(parsed)
        if type(code) is not int or not 0 <= code < 256:
            raise TypeError(f"run() must return an exit code from 0 to 255, not {code!r}")
    except (MlperfError, BrokenPipeError):
        raise
    except (Exception, SystemExit) as error:
        if parsed.module.partition(".")[0] == "pytest_mlperf":
            raise
        reason = f"{type(error).__name__}: {text_of(error)}"
        raise EnvironmentFault(f"{parsed.module} failed: {reason}") from error
    return code


def commands() -> Mapping[str, Command]:
    """Return all subcommands by name, those of this package before those of add-ons."""
    ours = {
        name: Command(text, f"pytest_mlperf.cli.{name}", group)
        for group, summaries in COMMANDS.items()
        for name, text in summaries.items()
    }
    of_addons = declared(
        "commands", Command, lambda reason, module: Command(f"cannot be loaded: {reason}", module)
    )
    return {**ours, **{name: of_addons[name] for name in sorted(of_addons.keys() - ours.keys())}}
