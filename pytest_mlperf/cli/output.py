"""Define argument types, and print to the terminal with control sequences escaped."""

from __future__ import annotations

import argparse
import io
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping

from pytest_mlperf.core.untrusted_text import clean

MAX_COLUMNS = 120


def integer_type(
    minimum: int, maximum: int = 1_000_000, *, or_zero: bool = False
) -> Callable[[str], int]:
    """Return an argparse type for an integer within bounds (0 too, if `or_zero`)."""

    def convert(text: str) -> int:
        number = int(text) if re.fullmatch(r"[0-9]{1,7}", text) else -1
        if not (minimum <= number <= maximum or (or_zero and number == 0)):
            bounds = f"{'0 or ' * or_zero}a whole number from {minimum} to {maximum:,}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}")
        return number

    return convert


def as_typed(command: str, files: Iterable[object], options: Mapping[str, object]) -> str:
    """Return a command line to paste; leave out options that are None or False."""
    words = ["pytest-mlperf", command, *map(str, files)]
    for option, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            if item not in (None, False):
                words += [option] if item is True else [option, str(item)]
    return shlex.join(words)


def width() -> int:
    """Return the terminal's width in columns, at most 120; 80 without a terminal."""
    return min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS)


def show(lines: Iterable[str]) -> None:
    """Print lines with their control sequences escaped."""
    for line in lines:
        print(clean(line))


def print_error(message: str) -> None:
    """Print an error, of one or more lines, to standard error."""
    print("\n".join(map(clean, f"pytest-mlperf: {message}".splitlines())), file=sys.stderr)


def progress(line: str) -> None:
    """Show a progress line, overwritten by the next one, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{clean(line)[: width() - 1]}", end="", file=sys.stderr, flush=True)


def replace_unencodable_characters() -> None:
    """Configure stdout and stderr to print "?" for characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
