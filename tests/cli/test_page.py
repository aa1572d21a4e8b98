"""docs/cli.md shows commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pytest_mlperf.cli import build_parser
from tests.cli.test_commands import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def test_the_page_names_every_command_in_the_order_of_use() -> None:
    assert re.findall(r"^\| `([a-z]+)", PAGE, re.MULTILINE) == list(NAMES)


def test_every_command_line_on_the_page_is_accepted() -> None:
    lines = re.findall(r"^\$ pytest-mlperf (.+)$", PAGE, re.MULTILINE)

    assert lines
    for line in lines:
        parser, _ = build_parser()
        parser.parse_args(shlex.split(line.partition(" > ")[0]))


def test_outputs_on_the_page_fit_a_terminal() -> None:
    shown = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in shown for line in block.splitlines()]

    assert [line for line in lines if len(line) > 80 and not line.startswith(("$", "{"))] == []
