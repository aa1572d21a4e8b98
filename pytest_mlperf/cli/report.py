"""`pytest-mlperf report`: write results as text, HTML and for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.stored_results import results_path, store_here
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import unjudged_tests
from pytest_mlperf.reports.formats import ReportedSession, call, formats, make_report
from pytest_mlperf.stores.atomic import write_whole
from pytest_mlperf.stores.results import read_manifest, read_results

HELP = """\
Writes the results of a session in another format:
  text              the summary that pytest printed
  json              the results, checked, in the newest schema
  html              one self-contained page with plots, baselines and logs
  markdown          summary of a GitHub job; comment: of a pull request
  annotations       GitHub workflow commands at the lines of the suite
  csv, prometheus   one line per metric
  custom...         input of github-action-benchmark
  pytest-benchmark  as --benchmark-json: a round per run, in seconds (Offline:
                    1 / throughput, else p50 latency)
  site              a folder of searchable pages from the results database, to
                    publish with GitHub Pages; takes no RESULTS

needs: results of a session; for site, a results database

examples:
  $ pytest-mlperf report
      the verdicts of the newest session, as in the terminal
  $ pytest-mlperf report r.json --format pytest-benchmark -o now.json
      then: pytest-benchmark compare before.json now.json
  $ pytest-mlperf report r.json --format html -o report.html
      the page for the artifacts of a CI job
  $ pytest-mlperf report r.json --format markdown -o summary.md
      append it to $GITHUB_STEP_SUMMARY
  $ pytest-mlperf report --format site -o site
      open site/index.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add(parser, "results", "--output", "--runs-dir", "--store")
    parser.add_argument(
        "--format",
        choices=sorted(formats()),
        default="text",
        metavar="FORMAT",
        help=f"{', '.join(formats())} (default: text)",
    )
    gaps = "to report planned tests without a result (html, markdown, comment, annotations)"
    add(parser, "--manifest", help=f"output of `plan --format json`, {gaps}")
    parser.add_argument(
        "--branch",
        type=Path,
        metavar="FOLDER",
        help="comment: checkout of the target branch; the comment first names suites and baselines "
        "that differ from it",
    )
    parser.add_argument(
        "--judged-by",
        type=Path,
        metavar="FILE",
        help="comment: list of further files to compare, as written by the plan job of gpu.yml",
    )
    parser.add_argument("--run-url", metavar="URL", help="comment: address of the CI run")
    parser.add_argument("--report-url", metavar="URL", help="comment: address of the HTML report")


def run(parsed: argparse.Namespace) -> int:
    """Write the report to a file or stdout; return the exit code, which no verdict affects."""
    if formats()[parsed.format].of_store:
        return _of_store(parsed)
    if (parsed.branch or parsed.judged_by) and parsed.format != "comment":
        raise MlperfError("--branch and --judged-by need --format comment")
    path = results_path(parsed.results, parsed.runs_dir)
    results = read_results(path)
    planned = read_manifest(parsed.manifest).tests if parsed.manifest else ()
    session = ReportedSession(
        results=results,
        file=path,
        absent=unjudged_tests((one.test for one in planned), results),
        options={"store": store_here(parsed.store)},
        arguments=vars(parsed),
        columns=width(),
    )
    content = make_report(parsed.format, session)
    if parsed.output is None:
        print(content, end="")
    else:
        write_whole(parsed.output, content)
        show([f"wrote {parsed.output}"])
    return 0


def _of_store(parsed: argparse.Namespace) -> int:
    if parsed.results or not parsed.output:
        raise MlperfError(
            f"--format {parsed.format} takes no RESULTS, but a results database and a folder: "
            "--store URL -o FOLDER"
        )
    pages = call(parsed.format, "write", int, parsed.store, parsed.output)
    show([f"wrote {parsed.output / 'index.html'}: {plural(pages, 'page')}"])
    return 0
