"""Run `pytest-mlperf store`: import results files into a database, and export its sessions."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show
from pytest_mlperf.cli.stored_results import results_path
from pytest_mlperf.core.case import path_part
from pytest_mlperf.extension import plural, read_results, write_results
from pytest_mlperf.stores.database import opened, shown_url

HELP = """\
Imports results files into a results database (SQLite or PostgreSQL), each
session once, and exports sessions as results files. To store every new
session, use pytest --mlperf-store URL.

Exit 2 if a file cannot be imported; all others are imported.

needs: for PostgreSQL: pip install 'pytest-mlperf[store]'

examples:
  $ pytest-mlperf store import .mlperf/runs/*/results.json
      all sessions of the runs folder
  $ pytest-mlperf store export -o out --store postgresql://ci@db/perf
      out/RUN/results.json of every session
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", help="import or export"
    )
    importing = actions.add_parser("import", help="import results files into the database")
    text = "results files, their folders or session ids (default: newest session)"
    add(importing, "results", nargs="*", help=text)
    add(importing, "--runs-dir")
    exporting = actions.add_parser("export", help="write sessions as results files")
    exporting.add_argument("runs", nargs="*", metavar="RUN", help="session ids (default: all)")
    exporting.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write into"
    )
    for subparser in (importing, exporting):
        add(subparser, "--store")


def run(parsed: argparse.Namespace) -> int:
    """Import results files into the database, or export sessions from it."""
    if parsed.action == "import":
        named = parsed.results or [None]
        return _import(parsed.store, [results_path(text, parsed.runs_dir) for text in named])
    count = 0
    with opened(parsed.store) as store:
        for name in parsed.runs or store.sessions():
            folder = parsed.output / path_part("session", name)
            write_results(folder / "results.json", store.session(name))
            count += 1
    show([f"wrote {plural(count, 'session')} to {parsed.output}"])
    return 0


def _import(url: str, files: Iterable[Path]) -> int:
    new, there, refused = 0, 0, []
    with opened(url, write=True) as store:
        for file in files:
            try:
                if store.add(read_results(file)):
                    new += 1
                else:
                    there += 1
            except MlperfError as error:
                refused.append(str(error))
    again = f", {there} already there" if there else ""
    show([f"{shown_url(url)}: imported {plural(new, 'session')}{again}"])
    show(f"not imported: {reason}" for reason in refused)
    return 2 if refused else 0
