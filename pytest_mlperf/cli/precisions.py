"""`pytest-mlperf precisions`: what each precision costs in accuracy and gives in speed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.output import WIDEST, add_parser, clean, show, width, write
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Results
from pytest_mlperf.reports.precisions import blocks_of
from pytest_mlperf.reports.precisions_model import Block
from pytest_mlperf.reports.precisions_plot import KINDS, draw
from pytest_mlperf.reports.precisions_text import document, markdown, text
from pytest_mlperf.stores.results import read_results

Sessions = Sequence[tuple[Results, Sequence[Block]]]


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "precisions",
        summary="accuracy and speed of each precision, with a plot",
        description=(
            "Prints, for each workload, scenario and accelerator, a row per engine entry and\n"
            "precision: its scores with their change against a reference precision, the word\n"
            "of the accuracy test, its throughput or latency, and how many times better that\n"
            "is than the reference's in the same session. The reference is fp32 where there\n"
            "is one, else the widest precision; of each engine that has it, its own.\n"
            "\n"
            "Ratios are shown and never judged; a claim about one is tested by [[pairs]]."
        ),
        needs=(
            "results.json files of suites with several precisions, accuracy\n"
            "and performance; --plot: pip install 'pytest-mlperf[plots]'"
        ),
        examples=[
            ("precisions r.json", "the table, as wide as the terminal"),
            ("precisions r.json --plot precisions.svg", "and a plot: a panel for each workload"),
            (
                "precisions cpu.json h200.json --format markdown -o table.md",
                "two machines, one below the other, for a page",
            ),
            ("precisions r.json --reference bf16", "where bf16 is what the others must reach"),
        ],
    )
    parser.add_argument(
        "results", type=Path, nargs="+", metavar="RESULTS", help="results.json of a session"
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help='compare with this precision ("bf16") or engine entry ("torch-bf16")',
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"also draw a plot: {' or '.join(KINDS)}"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the table here (default: print)"
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print the table, and draw the plot; the verdicts in it do not change the exit code.

    Raises:
        MlperfError: Results cannot be read or hold no such tests, or a file cannot be written.
        EnvironmentFault: A plot is wanted and matplotlib is not here.
    """
    if parsed.plot and parsed.plot.suffix not in KINDS:
        raise MlperfError(f"--plot {parsed.plot}: the file must end in {' or '.join(KINDS)}")
    sessions = read(parsed.results, parsed.reference)
    if parsed.plot:  # first, because whoever reads the table may stop, as `head` does
        _write(parsed.plot, draw(sessions, parsed.plot.suffix))
    lines = _lines(sessions, parsed.format, width() if parsed.output is None else WIDEST)
    if parsed.output is None:
        show(lines)
    else:
        _write(parsed.output, "".join(f"{clean(line)}\n" for line in lines).encode())
    return 0


def read(files: Sequence[Path], reference: str | None) -> Sessions:
    """Return each session with its blocks; a session that is named twice is read once.

    Raises:
        MlperfError: A file cannot be read, there is nothing to compare, or nothing is called as
            the reference.
    """
    every: list[Results] = []
    for results in map(read_results, files):
        every += [] if results in every else [results]
    sessions = [(results, blocks_of(results, reference)) for results in every]
    entries = [e for _, blocks in sessions for block in blocks for e in block.entries]
    if not entries:
        named = ", ".join(map(str, files))
        raise MlperfError(f"{named}: no accuracy and no performance test in it")
    names = dict.fromkeys(n for e in entries for n in (e.precision, e.engine, e.name))
    if reference is not None and reference not in names:
        raise MlperfError(
            f"--reference {reference}: nothing is called so; there are {', '.join(names)}"
        )
    return sessions


def _lines(sessions: Sessions, form: str, columns: int) -> list[str]:
    match form:
        case "markdown":
            return markdown(sessions)
        case "json":
            return document(sessions).splitlines()
        case _:
            return text(sessions, columns)


def _write(path: Path, content: bytes) -> None:
    write(path, content)
    # On standard error: on standard output the table may stand, as JSON.
    print(clean(f"wrote {path}"), file=sys.stderr)


FORMATS = ("text", "markdown", "json")
