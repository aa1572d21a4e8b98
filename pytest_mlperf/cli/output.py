"""How every command speaks: parsers whose help teaches, and lines that cannot be forged."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import visible
from pytest_mlperf.stores import atomic

WIDEST = 120
"""Columns of prose and tables at most, however wide the terminal is."""

Example = tuple[str, str]
"""A command line without the program's name, and what it does."""


def add_parser(
    commands: Any,
    name: str,
    *,
    summary: str,
    description: str,
    needs: str,
    examples: Sequence[Example],
) -> argparse.ArgumentParser:
    """Add a subcommand whose help says what it does, what it needs, and shows examples.

    Args:
        commands: What `add_subparsers` returned.
        name: The subcommand.
        summary: Its line in the list of commands.
        description: What it does; printed as it stands, so at most 80 columns wide.
        needs: What must be there.
        examples: Command lines with their outcome.
    """
    shown = [f"  $ pytest-mlperf {command}\n      {outcome}" for command, outcome in examples]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{description}\n\nneeds: {needs}",
        epilog="\n".join(["examples:", *shown]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def width() -> int:
    """Return the columns to fill: the terminal's, 80 where there is none."""
    return min(shutil.get_terminal_size((80, 24)).columns, WIDEST)


def show(lines: Iterable[str]) -> None:
    """Print lines; whatever foreign text they hold cannot pose as control sequences."""
    for line in lines:
        print(clean(line))


def complain(message: str) -> None:
    """Print an error of one or more lines to standard error."""
    lines = f"pytest-mlperf: {message}".splitlines()
    print("\n".join(map(clean, lines)), file=sys.stderr)


def write(path: Path, content: str | bytes) -> None:
    """Write a file that a command was asked for, whole or not at all; missing folders are made.

    Raises:
        MlperfError: It cannot be written.
    """
    try:
        if isinstance(content, str):
            atomic.write_text(path, content)
        else:
            atomic.write_bytes(path, content)
    except OSError as error:
        raise MlperfError(f"{path} cannot be written: {error.strerror}") from None


def clean(line: str) -> str:
    """Return a line with its control characters escaped and no workflow command at its start.

    Test ids hold "::" and are there to be copied, so only a line that begins so is broken up.
    """
    shown = visible(line)
    start = len(shown) - len(shown.lstrip())
    if shown.startswith(("::", "##["), start):
        return f"{shown[:start]}\\{shown[start:]}"
    return shown


def print_what_the_terminal_can() -> None:
    """Let a terminal without "−" or "µ" show "?" in their place instead of ending in an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
