"""Run `pytest-mlperf store`: import results files into a database, and export them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.cli.output import show
from pytest_mlperf.cli.stored_results import add_store
from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.extension import read_results, write_results
from pytest_mlperf.stores.database import opened, shown_url

HELP = """\
pytest --mlperf-store URL keeps every session in a SQLite file or a PostgreSQL
database. This puts results files of earlier sessions in, each once, however
often it is named; and writes sessions out, as the files that they were.

Exit 2 when a file could not be imported; all others are.

needs: for PostgreSQL: pip install 'pytest-mlperf[store]'

examples:
  $ pytest-mlperf store import .mlperf/runs/*/results.json
      what was measured before there was a store
  $ pytest-mlperf store export -o out --store postgresql://ci@db/perf
      out/RUN/results.json of every session
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", help="import or export"
    )
    importing = actions.add_parser("import", help="put results files into the store")
    importing.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results.json")
    exporting = actions.add_parser("export", help="write sessions as results files")
    exporting.add_argument("runs", nargs="*", metavar="RUN", help="session ids (default: all)")
    exporting.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write into"
    )
    for subparser in (importing, exporting):
        add_store(subparser)


def run(parsed: argparse.Namespace) -> int:
    """Import or export."""
    if parsed.action == "import":
        return _import(parsed.store, parsed.results)
    _export(parsed.store, parsed.runs, parsed.output)
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
    again = f", {there} were there already" if there else ""
    show([f"{shown_url(url)}: {plural(new, 'session')} more{again}"])
    show(f"not imported: {reason}" for reason in refused)
    return 2 if refused else 0


def _export(url: str, runs: Iterable[str], folder: Path) -> None:
    count = 0
    with opened(url) as store:
        for name in list(runs) or store.sessions():
            write_results(folder / path_part("session", name) / "results.json", store.session(name))
            count += 1
    show([f"wrote {plural(count, 'session')} below {folder}"])
