"""`pytest-mlperf contract`: what was promised, and how far above it a session is."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mlperf.extension import read_results

from mlperf_contract.promises import margins

HELP = """\
Lists what a contract promises of each case, and what a session measured.
Exit 1 where a promise is not kept.

needs: the results of a session

examples:
  $ pytest-mlperf contract contract.toml .mlperf/runs/*/results.json
      one line for each promise, and exit 1 if one is not kept
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("contract", type=Path, metavar="CONTRACT", help="TOML file")
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results.json")


def run(parsed: argparse.Namespace) -> int:
    """Print the margins; return 1 where a promise is not kept."""
    kept = True
    for file in parsed.results:
        for result in read_results(file).cases:
            for margin in margins(parsed.contract, result.verdict):
                kept = kept and margin.measured >= margin.promised
                print(f"{result.verdict.case.id}: {margin}")
    return 0 if kept else 1
