"""`pytest-mlperf report`: write results as text, HTML and for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.stored_results import (
    add_results,
    add_runs_dir,
    add_store,
    results_path,
    store_here,
)
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import absent
from pytest_mlperf.reports.formats import ReportedSession, call, formats, make_report
from pytest_mlperf.stores.atomic import write_whole
from pytest_mlperf.stores.results import read_manifest, read_results

HELP = """\
Writes a session's results in another form. text is the summary that pytest
printed; json is the file itself, checked and in the newest schema;
pytest-benchmark is what --benchmark-json writes, also for sessions under -n,
where pytest-benchmark switches itself off: one entry per performance test
that passed, one round per run, in seconds: 1 / throughput in Offline, else the
run's p50 latency; extra_info holds every metric. markdown is a GitHub job's
summary, comment a pull request's, both cut at GitHub's limits; annotations are
workflow commands at the suite's lines. csv and prometheus have a line per
metric; the two custom formats are what github-action-benchmark reads.
html is one page that loads nothing, with plots; it also reads the baselines
that the verdicts name, and the runs' logs where they lie below the results
file's folder.

site is a folder of pages made of a store: all cases with their newest
verdicts, machines, histories and where levels changed, to search, to publish
as it is with GitHub Pages. Results are not named then: the store has them.

needs: a session's results

examples:
  $ pytest-mlperf report
      the table of verdicts of the newest session, as in the terminal
  $ pytest-mlperf report r.json --format pytest-benchmark -o now.json
      then: pytest-benchmark compare before.json now.json
  $ pytest-mlperf report r.json --format html -o report.html
      the page for a CI's artifacts
  $ pytest-mlperf report r.json --format markdown -o summary.md
      append it to $GITHUB_STEP_SUMMARY
  $ pytest-mlperf report --format site -o site
      open site/index.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    add_results(parser)
    parser.add_argument(
        "--format",
        choices=sorted(formats()),
        default="text",
        metavar="FORMAT",
        help=f"{', '.join(formats())} (default: text)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write here (default: print)"
    )
    parser.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help="what `plan --format json` printed: planned tests without a result are told "
        "(html, markdown, comment, annotations)",
    )
    add_runs_dir(parser)
    add_store(parser)
    parser.add_argument(
        "--branch",
        type=Path,
        metavar="FOLDER",
        help="comment: a checkout of the branch; suites and baselines that the verdicts rest on "
        "and that differ from those in it are named first",
    )
    parser.add_argument(
        "--judged-by",
        type=Path,
        metavar="FILE",
        help="comment: more such files, as gpu.yml's plan lists them before the change runs",
    )
    parser.add_argument("--run-url", metavar="URL", help="comment: where the run is")
    parser.add_argument("--report-url", metavar="URL", help="comment: where the HTML report is")


def run(parsed: argparse.Namespace) -> int:
    """Write the report; verdicts do not change the exit code."""
    if formats()[parsed.format].of_store:
        return _of_store(parsed)
    if (parsed.branch or parsed.judged_by) and parsed.format != "comment":
        raise MlperfError("--branch and --judged-by are for --format comment")
    path = results_path(parsed.results, parsed.runs_dir)
    results = read_results(path)
    planned = read_manifest(parsed.manifest).tests if parsed.manifest else ()
    session = ReportedSession(
        results=results,
        file=path,
        absent=absent((one.test for one in planned), results),
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
        form = f"--format {parsed.format}"
        raise MlperfError(f"{form} takes a store and a folder: --store URL -o FOLDER")
    pages = call(parsed.format, "write", int, parsed.store, parsed.output)
    show([f"wrote {parsed.output / 'index.html'}: {plural(pages, 'page')}"])
    return 0
