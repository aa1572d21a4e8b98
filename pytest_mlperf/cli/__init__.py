"""The command `pytest-mlperf`. Exit codes: 0 fine, 1 refused, 2 usage, 3 environment."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_mlperf import __version__
from pytest_mlperf.cli import init, schema, update
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="pytest-mlperf",
        description="Keep baselines and suites; measuring is done by pytest itself.",
    )
    parser.add_argument("--version", action="version", version=f"pytest-mlperf {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (init, update, schema):
        module.add_command(commands)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except MlperfError as error:
        print(f"pytest-mlperf: {error}", file=sys.stderr)
        return 3 if isinstance(error, EnvironmentFault) else 2
    except BrokenPipeError:
        # Whoever read us had enough, as `head` does; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
