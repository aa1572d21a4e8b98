"""Run `pytest-mlperf history`: list a case's sessions, and its accepted baselines in git."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.history.session_table import ROWS, session_lines
from pytest_mlperf.addons.history.trend import grouped, trend, trend_of
from pytest_mlperf.bench.files import points_of, tracked_baselines
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import integer_type, show, width
from pytest_mlperf.cli.stored_results import calibrated_roots, case_named, rule_here, store_here
from pytest_mlperf.core.history import CaseHistory, histories_of
from pytest_mlperf.core.metrics import COUNTS
from pytest_mlperf.core.trend import TrendPoint
from pytest_mlperf.extension import METRICS, Kind, nearest, plural
from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.sessions import Sessions

HELP = """\
Lists the accepted baselines of a case, each with its change from the previous
one and the interval of that change, and the total change. If each version has
its own engine entry, name the cases of all: they make one history. Baselines
that cannot be compared have no change, and the reason is printed.

Below, the sessions of each case are shown, from the store (pytest
--mlperf-store), else from the results files here: a table, a plot, and where
the level changed. Every session is one value; an unchanged case shows a
change at most once in 100 histories of 100 sessions (docs/history.md).

Exit 2 if nothing can be compared with the newest baseline.

needs: a baseline file, and git for earlier ones; or sessions

examples:
  $ pytest-mlperf history resnet50-Offline-onnxruntime-fp16-H200
      what each engine version gained: the case's accepted baselines in git
  $ pytest-mlperf history llama-Offline-trtllm --metric latency_p99
      a part of the case's id is enough where it fits one; another metric
  $ pytest-mlperf history llama-Offline-trtllm --store postgresql://ci@db/perf
      the sessions of all machines that write there
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "cases",
        metavar="CASE",
        nargs="+",
        help="id of a case, a part of it that fits one case, or a baseline file",
    )
    parser.add_argument(
        "--metric",
        type=_metric,
        metavar="NAME",
        help="metric to show (default: the first that the newest baseline gates)",
    )
    text = "folder of this machine's calibration (default: the baselines' folders)"
    add(parser, "--baselines", help=text)
    text = "results database (default: the one in the runs folder, else the results files)"
    add(parser, "--store", help=text)
    parser.add_argument(
        "--rows",
        type=integer_type(1),
        default=ROWS,
        metavar="N",
        help=f"number of newest sessions in each table (default {ROWS})",
    )
    add(parser, "--runs-dir")


def _metric(name: str) -> str:
    if name in COUNTS or METRICS.get(name) is None:
        raise argparse.ArgumentTypeError(f"no metric {name!r}{nearest(name, METRICS)}")
    return name


def run(parsed: argparse.Namespace) -> int:
    """Print the accepted baselines of the named cases, and their sessions; return the exit code."""
    notes: list[str] = []
    histories = histories_here(parsed.cases, parsed.store, parsed.runs_dir, notes)
    selected = select_metric(histories, parsed.metric)
    code = 0
    lines: list[str] = []
    try:
        code, lines = _baselines(parsed)
    except MlperfError:
        if not selected:
            raise
    show(lines)
    for number, history in enumerate(selected):
        show([""] if lines or number else [])
        show(session_lines(history, width(), rows=parsed.rows))
    show(f"note      {note}" for note in (notes if selected else ()))
    return code


def _baselines(parsed: argparse.Namespace) -> tuple[int, list[str]]:
    names = ", ".join(parsed.cases)
    notes: list[str] = []
    points: list[TrendPoint] = []
    files = list(dict.fromkeys(find(text) for text in parsed.cases))
    for file in files:
        points += points_of(file, notes)
    if not points:
        raise MlperfError("\n".join([f"no baseline in {names}", *notes]))
    if parsed.metric and not any(parsed.metric in point.means for point in points):
        metrics = ", ".join(dict.fromkeys(name for point in points for name in point.means))
        raise MlperfError(f"no baseline of {names} has {parsed.metric}; known: {metrics}")
    points = grouped(points)
    roots = calibrated_roots(parsed.baselines, (), files)
    rule, source = rule_here(roots, points[-1].case.accelerator, points[-1].identity)
    moved = trend_of(points, parsed.metric, rule, notes, source)
    code = 2 if len(points) > 1 and moved.since is None else 0
    return code, trend(moved, width())


def find(text: str) -> Path:
    """Return the baseline file that a path, a case id or a unique part of a case id names."""
    if Path(text).is_file():
        return Path(text)
    files = {file: case.id for file, case in tracked_baselines()}
    case = case_named(text, sorted(files.values()), " with a baseline in git or a session here")
    of_case = sorted(file for file in files if files[file] == case)
    if len(of_case) > 1:
        names = ", ".join(map(str, of_case))
        raise MlperfError(f"{case} has {len(of_case)} baseline files, name one: {names}")
    return of_case[0]


def histories_here(
    names: Sequence[str], url: str, runs_dir: Path, notes: list[str]
) -> list[CaseHistory]:
    """Return the histories of the named cases, sorted by the time of their last session.

    A name is a case id or a unique part of one. Histories are read from the database `url`; if that
    is the default one and does not exist, from the results files in `runs_dir`. Unreadable files
    are added to `notes`.
    """
    sessions = Sessions(runs_dir)
    if url := store_here(url):
        with opened(url) as store:
            cases = _fitting(names, store.cases())
            histories = [history for case in cases for history in store.histories(case)]
            kept = set(store.sessions())
        files = [file for file in sessions.files if file.parent.name not in kept]
        if files:
            notes.append(
                f"the store lacks {plural(len(files), 'session')} of {runs_dir}/runs; add with: "
                f"pytest-mlperf store import {runs_dir}/runs/*/results.json"
            )
    else:
        every = histories_of(results for _, results in sessions)
        notes += sessions.notes
        cases = _fitting(names, list(dict.fromkeys(history.series.case.id for history in every)))
        histories = [history for history in every if history.series.case.id in cases]
    return sorted(histories, key=lambda history: history.points[-1].started)


def _fitting(names: Sequence[str], cases: Sequence[str]) -> list[str]:
    """Return the case id for each name that equals one or is part of exactly one; skip others."""
    fitting = []
    for name in names:
        with suppress(MlperfError):
            fitting.append(case_named(name, cases))
    return list(dict.fromkeys(fitting))


def select_metric(histories: Sequence[CaseHistory], metric: str | None) -> list[CaseHistory]:
    """Return the histories of a metric; None selects the first performance metric."""
    if metric is None:
        kinds = sorted(histories, key=lambda history: history.series.kind != Kind.PERFORMANCE)
        metric = kinds[0].series.metric if kinds else ""
    return [history for history in histories if history.series.metric == metric]
