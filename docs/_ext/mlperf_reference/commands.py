"""Describe every subcommand of `pytest-mlperf`, from its argument parser."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby

from mlperf_reference.markdown import definitions, named, slug, text
from pytest_mlperf.cli import build_parser


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand, in the order of use."""
    _, commands = build_parser()
    return {name: command.load() for name, command in commands.items()}


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a subcommand but its `--help`."""
    return [action for action in parser._actions if action.dest != "help"]


def anchor(command: str, action: argparse.Action) -> str:
    """Return the id of an argument on the page."""
    return slug("command", command, action.dest)


def markdown() -> str:
    """Return a section per subcommand."""
    return "\n\n".join(
        block for name, parser in parsers().items() for block in _section(name, parser)
    )


def _section(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}"
    with _columns(80):
        yield f"```text\n{parser.format_usage().rstrip()}\n```"
    about, _, needs = (parser.description or "").partition("\n\nneeds: ")
    yield from _paragraphs(about)
    yield f"Needs {text(' '.join(needs.split()))}."
    if found := arguments(parser):
        yield definitions(
            (named(_title(action), anchor(name, action)), text(_help(action))) for action in found
        )
    examples = (parser.epilog or "").removeprefix("examples:\n")
    yield f"```text\n{_dedented(examples)}\n```"


def _paragraphs(about: str) -> Iterator[str]:
    """Yield prose as paragraphs, and indented lines unchanged."""
    for block in about.split("\n\n"):
        for indented, lines in groupby(block.splitlines(), key=lambda line: line.startswith(" ")):
            if indented:
                yield "\n".join(["```text", *(line.strip() for line in lines), "```"])
            else:
                yield text(" ".join(lines))


def _title(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    return ", ".join(f"{name}{value}" for name in action.option_strings) or _metavar(action)


def _metavar(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _help(action: argparse.Action) -> str:
    words = (action.help or "") % {"default": action.default} if action.help else ""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _dedented(lines: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in lines.splitlines())


@contextmanager
def _columns(width: int) -> Iterator[None]:
    """Set the width at which argparse wraps its usage."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
