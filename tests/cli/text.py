"""Output of commands as text to compare: what differs from run to run is masked."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli import main

_NUMBER = re.compile(r"(?<![A-Za-z])[−+]?\d+(?:[ ,]\d{3})*(?:\.\d+)?")


def masked(text: str) -> str:
    """Return text with run ids, commits and numbers masked, and its columns closed up."""
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", text)
    text = re.sub(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d)?", "TIME", text)
    text = re.sub(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{12,64}\b", "HASH", text)
    kept = {"fp32": "fpXX", "mlperf_": "mlperf_"}
    for word, shield in kept.items():
        text = text.replace(word, shield)
    text = _NUMBER.sub("N", text).replace("fpXX", "fp32")
    return "\n".join(re.sub(r"(?<=\S) {2,}", " ", line).rstrip() for line in text.splitlines())


def flat(text: str) -> str:
    """Return masked text on one line: numbers of other widths fold it elsewhere."""
    return " ".join(masked(text).split())


def widest(text: str) -> int:
    """Return the columns of the widest line that may be folded: none with a command or a path."""
    lines = [line for line in text.splitlines() if "/" not in line and '"' not in line]
    return max(map(len, lines), default=0)


def page(name: str) -> str:
    """Return the expected output of a command."""
    return Path(__file__).parent.joinpath("pages", name).read_text("utf-8")


def finished(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program; return its exit code and its output."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


class Say:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str]:
        """Return the exit code and all that was printed."""
        self._capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err

    def ends(self, code: int, *arguments: object) -> str:
        """Return the output of a command that ends with this exit code."""
        ended, output = self(*arguments)
        assert ended == code, output
        return output


def one_line(text: str) -> str:
    """Return text on one line."""
    return " ".join(text.split())


def differing(
    say: Say, rows: Iterable[tuple[tuple[object, ...], int, tuple[str, ...]]]
) -> list[tuple[tuple[object, ...], int, str]]:
    """Run command lines; return those with another exit code, or without the expected texts.

    Args:
        say: The fixture.
        rows: Words of a command line, its exit code, texts of its output as one line.
    """
    failures = []
    for arguments, code, texts in rows:
        ended, output = say(*arguments)
        line = one_line(output)
        if ended != code or not all(text in line for text in texts):
            failures.append((arguments, ended, output))
    return failures
