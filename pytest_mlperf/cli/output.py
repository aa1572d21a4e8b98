"""How every command speaks: what it takes, and lines that cannot be forged."""

from __future__ import annotations

import argparse
import io
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping

from pytest_mlperf.core.untrusted_text import clean

MAX_COLUMNS = 120


def whole(fits: Callable[[int], bool], expected: str) -> Callable[[str], int]:
    """Return the type of an argument: a fitting whole number; else `expected` is said of "{!r}"."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not fits(number):
            raise argparse.ArgumentTypeError(expected.format(text))
        return number

    return convert


def as_typed(command: str, files: Iterable[object], options: Mapping[str, object]) -> str:
    """Return a command as a user types it; options of None, False or nothing are left out."""
    words = ["pytest-mlperf", command, *map(str, files)]
    for option, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if each not in (None, False):
                words += [option] if each is True else [option, str(each)]
    return shlex.join(words)


def width() -> int:
    """Return the columns to fill: the terminal's, 80 where there is none."""
    return min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS)


def show(lines: Iterable[str]) -> None:
    """Print lines; whatever foreign text they hold cannot pose as control sequences."""
    for line in lines:
        print(clean(line))


def complain(message: str) -> None:
    """Print an error of one or more lines to standard error."""
    print("\n".join(map(clean, f"pytest-mlperf: {message}".splitlines())), file=sys.stderr)


def progress(line: str) -> None:
    """Show a line that the next one replaces, where there is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(line)[: width() - 1]}", end="", file=sys.stderr, flush=True)


def print_what_the_terminal_can() -> None:
    """Let a terminal without "−" or "µ" show "?" in their place instead of ending in an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
