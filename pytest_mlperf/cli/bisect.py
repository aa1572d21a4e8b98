"""`pytest-mlperf bisect`: the commit or version that made a test slower."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from pytest_mlperf import __version__
from pytest_mlperf.bench.bisect import Bisection, Comparison, MetricOf, Proof
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.confirm import raw
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.cli.named_tests import performance_tests
from pytest_mlperf.cli.output import complain, progress, show, whole, width
from pytest_mlperf.cli.stored_results import add_runs_dir, not_calibrated
from pytest_mlperf.core.bisection import Mark, Speed, most_comparisons, speed_of, steps
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import change, interval
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.terminal.layout import (
    duration,
    fold,
    line,
    paragraph,
    paragraphs,
    plural,
    table,
)
from pytest_mlperf.run.builds import remove_left
from pytest_mlperf.run.conditions import NOTED, Conditions, WarmUps
from pytest_mlperf.run.lineage import BuildAt, commits, versions
from pytest_mlperf.run.project import ignored_in_git, new_id
from pytest_mlperf.stores.bisections import BisectStore, alone, folder_name
from pytest_mlperf.suite.elsewhere import elsewhere
from pytest_mlperf.suite.plan import Planned

PAIRS = 6

USAGE = """\
pytest-mlperf bisect [options] GOOD BAD -- TEST ...
       pytest-mlperf bisect [options] --versions LIB==A..B -- TEST ..."""

HELP = """\
the commit or version that made a test slower, with its interval

Measures BAD and commits between GOOD and BAD in turns with GOOD, as `turns`
does, until one commit is left, and that beside its parent. As few runs are made
as the rule needs to decide; all comparisons share its error rates: an innocent
commit is named at most 1 % of the time. What cannot run is skipped. Suites
and data are those of the working folder, the code measured is the commit's.
Every finished pair of runs is kept: after Ctrl-C the same command goes on.

Exit 0 when a commit is named, 1 when none is (BAD is not worse, the drop is
spread or undecided, interrupted), 2 when nothing could be judged.

needs: a git repository, or versions that pip can install; a test that runs here

examples:
  $ pytest-mlperf bisect v1.0 main -- suites/demo.mlperf.toml
      which commit since v1.0 made its tests slower
  $ pytest-mlperf bisect --versions vllm==0.30..0.33 -- llama2-70b-Offline
      which release of a library did
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.usage = USAGE
    parser.add_argument(
        "named",
        nargs="+",
        metavar="GOOD BAD -- TEST",
        help="two commits, the good one an ancestor of the bad one; and tests of performance: "
        "node ids, suite files, or names of cases",
    )
    parser.add_argument(
        "--versions",
        metavar="LIB==A..B",
        help="versions of a library that pip can install, in place of commits",
    )
    parser.add_argument(
        "--pairs",
        type=whole(lambda pairs: pairs >= 2, "{!r} is no whole number of at least 2"),
        default=PAIRS,
        metavar="N",
        help=f"most pairs of runs of a comparison, at least 2 (default {PAIRS})",
    )
    parser.add_argument(
        "--restart", action="store_true", help="begin anew: forget what was measured so far"
    )
    add_runs_dir(parser)


def run(parsed: argparse.Namespace) -> int:
    """Search; return 0 when a commit or version is named, 1 when none is."""
    refs, texts = ([], parsed.named) if parsed.versions else (parsed.named[:2], parsed.named[2:])
    if not texts:
        raise MlperfError("bisect needs GOOD, BAD and a test: bisect GOOD BAD -- TEST")
    tests, machine = performance_tests(texts)
    builds = _builds(refs, parsed.versions, list(tests.values()))
    run_id = new_id()
    folder = parsed.runs_dir / "runs" / run_id
    conditions = Conditions(
        folder=folder,
        session=run_id,
        machine=machine,
        power=False,
        control=False,
        watched=False,  # a busy machine slows both sides
        warmups=WarmUps("auto", folder / NOTED),
    )
    policy = Policy(max_runs=parsed.pairs, accuracy=parsed.runs_dir / "accuracy", root=Path.cwd())
    cases = {t: CaseRuns(one, conditions, policy, progress) for t, one in tests.items()}
    for test, case in cases.items():
        if not case.job.limits:
            raise MlperfError(f"{test} gates nothing: its suite has no [limits] to judge by")
    with contextlib.suppress(OSError):  # said below
        ignored_in_git(parsed.runs_dir)
    kept = parsed.runs_dir / "bisect" / folder_name(builds[0].name, builds[-1].name, *sorted(tests))
    with alone(kept):
        store = BisectStore(kept, _settings(cases, machine, parsed.pairs), restart=parsed.restart)
        for session in store.begin(run_id):
            remove_left(next(iter(tests.values())).path, folder.with_name(session))
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise EnvironmentFault(f"{folder} cannot be written: {error.strerror}") from None
        search = Bisection(builds, cases, conditions, store, progress)
        _begin(search, list(tests), store)
        try:
            with _ended_as_by_ctrl_c():
                return _searched(search, cases, folder)
        except KeyboardInterrupt:
            progress("")
            complain(f"interrupted; {store.runs} runs are kept: the same command goes on")
            return 1


def _builds(refs: Sequence[str], versions_of: str | None, tests: list[Planned]) -> list[BuildAt]:
    """Return what is searched, the good one first."""
    if versions_of:
        pythons = {elsewhere(one) for one in tests}
        if len(pythons) > 1:
            raise MlperfError("these tests run in several Pythons; bisect those of one at a time")
        return versions(versions_of, pythons.pop())
    return commits(tests[0].path.resolve().parent, *refs)


def _settings(cases: Mapping[str, CaseRuns], machine: Machine, pairs: int) -> dict[str, str]:
    """Return what must be the same where a bisect goes on, by what it is called."""
    planned = [case.planned for case in cases.values()]
    identities = [one.limited(machine).identity(one.case.accelerator) for one in planned]
    suites = {one.path: hashlib.sha256(one.path.read_bytes()).hexdigest() for one in planned}
    return {
        "machine": json.dumps(identities, sort_keys=True),
        "suite": ", ".join(suites.values()),
        "number of pairs": str(pairs),
        "calibration": str([case.rule for case in cases.values()]),
        "release of pytest-mlperf": __version__,
    }


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is under way as Ctrl-C does: nothing is left behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# --- the search ------------------------------------------------------------------------------


def _begin(search: Bisection, tests: Sequence[str], store: BisectStore) -> None:
    """Say what is searched, and what it may cost."""
    first, last = search.builds[0], search.builds[-1]
    between = search.last - 1
    usual, most = steps(search.last) + 2, most_comparisons(search.last)
    text = (
        f"{plural(between, _noun(search))} in between: {plural(usual, 'comparison')} where each "
        f"is decided, at most {most}, of 4 runs and more each"
    )
    if store.runs:
        text += f"; goes on with {plural(store.runs, 'run')} that are kept"
    lines = [
        *paragraph("good", _about(first), width()),
        *paragraph("bad", _about(last), width()),
        *(line("" if place else "test", test) for place, test in enumerate(tests)),
        *paragraph("search", text, width()),
    ]
    _say(lines)


def _searched(search: Bisection, cases: Mapping[str, CaseRuns], folder: Path) -> int:
    """Search, saying each step, and show what came of it."""
    end = search.first()
    _step(search, end)
    if end.mark is not Mark.BAD:
        _say(["", *_ending(search, _not_worse(end), cases, folder)])
        if end.reason:
            raise MlperfError(f"{end_title(search)} cannot be judged: {end.reason}")
        return 1
    for one in search.search():
        _step(search, one)
    count = len(search.log)
    proof = search.proof()
    for one in search.log[count:]:
        _step(search, one)
    _say(["", *_ending(search, _result(search, proof), cases, folder)])
    return 0 if proof.named else 1


def end_title(search: Bisection) -> str:
    """Return what the bad end is called."""
    return f"BAD, {search.builds[-1].title},"


def _step(search: Bisection, one: Comparison) -> None:
    """Say what one comparison gave, and what is left."""
    progress("")
    builds, left = search.builds, search.range
    beside = "" if one.before == 0 else f" beside {builds[one.before].title}"
    text = f"{builds[one.now].title}{beside} {one.mark}: {one.reason or _in_words(one)}"
    if left.next is not None and search.log[0].mark is Mark.BAD:
        ahead = steps(left.left + 1) + (left.good > 0)
        made = [each.runs for each in search.log if not each.reason]
        runs = round(ahead * sum(made) / len(made))
        text += f"; {plural(left.left, _noun(search))} left, about {plural(runs, 'run')}"
        if search.measured:
            text += f", {duration(runs * search.seconds / search.measured)}"
    _say(fold(text, width(), rest="  "))


def _in_words(one: Comparison) -> str:
    metric = one.headline
    assert metric is not None
    ratio = one.ratios[metric]
    return f"{_change(metric, speed_of(ratio))}, {plural(ratio.pairs, 'pair')}"


def _say(lines: Sequence[str]) -> None:
    show(lines)
    print(end="", flush=True)


# --- the page --------------------------------------------------------------------------------


def _noun(search: Bisection) -> str:
    return "version" if search.builds[0].wheel else "commit"


def _about(one: BuildAt) -> str:
    return f"{one.title} {one.date} {one.subject}".rstrip() if not one.wheel else one.wheel


def _change(metric: MetricOf, speed: Speed) -> str:
    middle, low, high = raw(metric[1], speed)
    return f"{METRICS[metric[1]].title} {change(middle)} ({interval(low, high)})"


def _ending(
    search: Bisection, result: Sequence[str], cases: Mapping[str, CaseRuns], folder: Path
) -> list[str]:
    """Return the table of all steps, and what came of them."""
    skipped = sum(one.mark is Mark.SKIPPED for one in search.log)
    runs = f"{plural(sum(one.runs for one in search.log), 'run')} in {len(search.log)} comparisons"
    if skipped:
        runs += f", {skipped} skipped"
    noise = max(cases.values(), key=lambda case: case.rule.prior_sd)
    notes = [
        "each was run in turns with the good one, a fresh process each; intervals hold for all "
        "comparisons together: the end that is better in 99 of 100 bisects, the worse one in 95",
        noise.noise or not_calibrated(noise.rule),
        "accuracy was not run",
    ]
    return [
        *_table(search),
        *paragraphs("note", notes, width()),
        *paragraph("runs", f"{runs}; those made now in {folder}", width()),
        *result,
    ]


def _table(search: Bisection) -> list[str]:
    """Return a row for each build that was compared with the good one, in the order of builds."""
    beside_good = sorted((one for one in search.log if one.before == 0), key=lambda one: one.now)
    several = len({metric for one in beside_good for metric in one.ratios}) > 1
    first = {_noun(search): search.builds[0].title, "verdict": "GOOD"}
    rows = [first, *(_row(search, one, several=several) for one in beside_good)]
    columns = [_noun(search), "verdict", "metric", "change", "interval", "pairs"]
    lines = table(columns, rows, width() - 2, left=columns[:3], spare=["pairs"])
    room = max(map(len, lines)) + 2
    texts = ["", *(search.builds[n].subject for n in (0, *(one.now for one in beside_good)))]
    if width() - 2 - room < 8:
        return [f"  {one}" for one in lines]
    cut = [t if len(t) <= width() - 2 - room else f"{t[: width() - 3 - room]}…" for t in texts]
    return [f"  {one:<{room}}{text}".rstrip() for one, text in zip(lines, cut, strict=True)]


def _row(search: Bisection, one: Comparison, *, several: bool) -> dict[str, str]:
    title = search.builds[one.now].title
    row = {_noun(search): title, "verdict": str(one.mark)}
    if one.headline is None:
        return row
    ratio = one.ratios[one.headline]
    middle, low, high = raw(one.headline[1], ratio)
    return {
        **row,
        "metric": METRICS[one.headline[1]].title if several else "",
        "change": change(middle),
        "interval": interval(low, high),
        "pairs": str(ratio.pairs),
    }


def _not_worse(end: Comparison) -> list[str]:
    if end.mark is Mark.SKIPPED:
        return []
    if end.mark is Mark.GOOD:
        text = "BAD is not worse than GOOD: a drop of the limit is excluded, so there is no search"
    else:
        text = (
            "undecided whether BAD is worse than GOOD, so there is no search; --pairs allows more"
        )
    return fold(f"{text}: {_in_words(end)}", width())


def _result(search: Bisection, proof: Proof) -> list[str]:
    """Return the commit that is named, or the range that is proven, and what else to know of it."""
    builds, columns, noun = search.builds, width(), _noun(search)
    before, now = builds[proof.before], builds[proof.now]
    beside = f"against {'its parent' if proof.named and not now.wheel else before.title}"
    changes = [f"{_change(proof.metric, proof.speed)} {beside}"]
    whole = speed_of(search.log[0].ratios[proof.metric])
    if proof.before or proof.now < search.last:
        changes.append(f"{_change(proof.metric, whole)} from GOOD to BAD")
    notes = []
    if proof.part:
        rest = [(builds[0], before)] * (proof.before > 0) + [(now, builds[-1])] * (
            proof.now < search.last
        )
        ways = " or ".join(f"{one.title} {other.title}" for one, other in rest)
        notes.append(f"it is a part of the drop only: the rest is found by bisecting {ways}")
    if proof.named:
        merge = " It is a merge: what came with it is in its second parent." * now.merged
        head = [
            line("first bad", now.wheel or now.name),
            *(paragraph("subject", now.subject, columns) if now.subject else []),
            *([line("author", f"{now.author}, {now.date}")] if now.author else []),
        ]
        see = [] if now.wheel else [line("see", f"git show {now.title}")]
        notes += [merge.strip()] * bool(merge)
        return [*head, *paragraphs("change", changes, columns), *see, *_notes(notes)]
    text = (
        f"no {noun} is named: it is one of {proof.now - proof.before}, of which those in between "
        "were skipped or undecided"
        if proof.direct
        else f"no {noun} is named: no single one is proven to be worse than the one before it; "
        f"across these {proof.now - proof.before} the drop is proven, maybe in several steps"
    )
    inside = range(proof.before + 1, proof.now + 1)
    marks = {one.now: one for one in search.log if one.before == 0}
    rows = [_one_of(builds[n], marks.get(n)) for n in inside[:MOST_SHOWN]]
    if len(inside) > MOST_SHOWN:
        rows.append(f"and {len(inside) - MOST_SHOWN} more up to {now.title}")
    return [
        *fold(text, columns),
        *(line("" if n else f"{noun}s", row) for n, row in enumerate(rows)),
        *paragraphs("change", changes, columns),
        *([] if now.wheel else [line("see", f"git log {before.title}..{now.title}")]),
        *_notes(notes),
    ]


MOST_SHOWN = 20
"""Commits of a range that are listed."""


def _one_of(build: BuildAt, one: Comparison | None) -> str:
    mark = one.mark if one else "not tried"
    reason = f": {one.reason}" if one and one.reason else ""
    return f"{build.title} {mark}{reason} {build.subject}".rstrip()


def _notes(notes: Sequence[str]) -> list[str]:
    return paragraphs("note", notes, width())
