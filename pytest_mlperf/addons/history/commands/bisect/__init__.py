"""Run `pytest-mlperf bisect`: find the commit or version that made a test slower."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from pytest_mlperf import MlperfError, __version__
from pytest_mlperf.addons.history.bisect import Bisection, Comparison
from pytest_mlperf.addons.history.bisection import Mark
from pytest_mlperf.addons.history.bisections import BisectStore, folder_lock, folder_name
from pytest_mlperf.addons.history.commands.bisect._page import (
    comparison_lines,
    heading,
    log,
    result_lines,
    say,
)
from pytest_mlperf.addons.history.lineage import BuildAt, commits, versions
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.named_tests import performance_tests
from pytest_mlperf.cli.output import progress, width
from pytest_mlperf.cli.turns import InterleavedCases, interleaved
from pytest_mlperf.reports.terminal.layout import fold
from pytest_mlperf.run.builds import remove_left
from pytest_mlperf.run.project import new_id

PAIRS = 6

USAGE = """\
pytest-mlperf bisect [options] GOOD BAD -- TEST ...
       pytest-mlperf bisect [options] --versions LIB==A..B -- TEST ..."""

HELP = """\
Measures BAD, then commits between GOOD and BAD, in runs interleaved with GOOD
(as `turns` does) until one commit is left, and compares it with its parent. A
comparison ends as soon as it is decided. All comparisons share their error
rates: an innocent commit is named at most 1 % of the time. Commits that cannot
run are skipped. Suites and data come from the working folder, the measured code
from the commit. Finished pairs of runs are kept: after Ctrl-C, repeat the
command to continue.

Exit 0 when a commit is named, 1 when none is (BAD is not worse, the drop is
spread or undecided), 2 when nothing could be judged.

needs: a git repository, or versions that pip can install; a test that runs here

examples:
  $ pytest-mlperf bisect v1.0 main -- suites/demo.mlperf.toml
      which commit since v1.0 made its tests slower
  $ pytest-mlperf bisect --versions vllm==0.30..0.33 -- llama2-70b-Offline
      which release of a library did
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.usage = USAGE
    refs = [
        parser.add_argument("good", metavar="GOOD", help="an earlier commit"),
        parser.add_argument("bad", metavar="BAD", help="a later commit that is slower"),
    ]
    parser.add_argument(
        "tests",
        nargs="+",
        metavar="TEST",
        help="performance tests: node ids, suite files or case names",
    )
    parser.add_argument(
        "--versions",
        action=_InPlaceOf,
        refs=refs,
        metavar="LIB==A..B",
        help="search the versions of a library that pip can install, instead of GOOD and BAD",
    )
    text = f"maximum pairs of runs per comparison, at least 2 (default {PAIRS})"
    add(parser, "--pairs", default=PAIRS, help=text)
    parser.add_argument(
        "--restart", action="store_true", help="start again, and ignore earlier measurements"
    )
    add(parser, "--runs-dir")


class _InPlaceOf(argparse.Action):
    """Define an option that makes the positional arguments `refs` unnecessary if it is given."""

    def __init__(self, *, refs: Sequence[argparse.Action], **options: Any) -> None:
        super().__init__(**options)
        self._refs = refs

    def __call__(self, _parser: object, namespace: object, values: object, *_: object) -> None:
        setattr(namespace, self.dest, values)
        for action in self._refs:
            action.nargs, action.required = argparse.SUPPRESS, False


def run(parsed: argparse.Namespace) -> int:
    """Run the bisect; return 0 if it names a single commit or version, else 1."""
    if parsed.versions and parsed.good:
        raise MlperfError("name either GOOD and BAD, or --versions")
    run_id = new_id()
    folder = parsed.runs_dir / "runs" / run_id
    plan = interleaved(*performance_tests(parsed.tests), folder, parsed.pairs)
    builds = _builds(parsed, plan)
    for test, case in plan.cases.items():
        if not case.job.limits:
            raise MlperfError(f"{test} cannot be judged: its suite has no [limits]")
    plan.begin()
    question = (builds[0].name, builds[-1].name, parsed.versions or "", *sorted(plan.cases))
    kept = parsed.runs_dir / "bisect" / folder_name(*question)
    try:
        with _ended_as_by_ctrl_c(), folder_lock(kept):
            settings = _settings(plan, parsed.pairs)
            store = BisectStore(kept, settings, restart=parsed.restart)
            store.begin(run_id)
            remove_left(plan.noisiest.planned.path, folder.parent)
            return _searched(Bisection(builds, plan, store, progress), store)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished runs are kept; repeat the command to continue") from None


def _searched(search: Bisection, store: BisectStore) -> int:
    say(heading(search, list(search.plan.cases), store.runs))
    end = search.compare_ends()
    _tell(search, end)
    if end.reason:
        raise MlperfError(f"BAD, {search.builds[-1].title}, cannot be judged: {end.reason}")
    if end.mark is not Mark.BAD:
        words = {
            Mark.GOOD: "BAD is not worse than GOOD: a drop of the limit is excluded",
            Mark.UNDECIDED: "undecided whether BAD is worse than GOOD; allow more runs with "
            "--restart --pairs 12",
        }
        say(fold(f"{words[end.mark]}; nothing was searched", width()))
        return 1
    for comparison in search.search():
        _tell(search, comparison)
    count = len(search.log)
    proof = search.proof()
    for comparison in search.log[count:]:
        _tell(search, comparison)
    say(["", *log(search, search.plan.noise, str(search.folder)), *result_lines(search, proof)])
    return 0 if proof.is_single_build else 1


def _tell(search: Bisection, comparison: Comparison) -> None:
    progress("")
    say(comparison_lines(search, comparison))


def _builds(parsed: argparse.Namespace, plan: InterleavedCases) -> list[BuildAt]:
    pythons = {case.job.elsewhere for case in plan.cases.values()} if parsed.versions else {None}
    if len(pythons) > 1:
        raise MlperfError(
            "--versions needs tests that run in the same Python environment; name only such tests"
        )
    if parsed.versions:
        return versions(parsed.versions, pythons.pop())
    return commits(plan.noisiest.planned.path.resolve().parent, parsed.good, parsed.bad)


def _settings(plan: InterleavedCases, pairs: int) -> dict[str, str]:
    cases, machine = dict(sorted(plan.cases.items())), plan.conditions.machine
    planned = [case.of_suite for case in cases.values()]
    identities = [
        replace(machine, limit_w=one.limit_w).identity(one.case.accelerator) for one in planned
    ]
    suites = {one.path: hashlib.sha256(one.path.read_bytes()).hexdigest() for one in planned}
    return {
        "machine": json.dumps(identities, sort_keys=True),
        "suite": ", ".join(suites.values()),
        "number of pairs": str(pairs),
        "rate": str([case.rate for case in cases.values()]),
        "calibration": str([case.rule for case in cases.values()]),
        "release of pytest-mlperf": __version__,
    }


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, to clean up processes and files."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    obeyed = [number for number, handler in handlers.items() if handler is not signal.SIG_IGN]
    for number in obeyed:  # nohup ignores SIGHUP
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in obeyed:
            signal.signal(number, handlers[number])
