"""`pytest-mlperf compare --history`: how a case's accepted baselines moved in git."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

from pytest_mlperf.calibrated import rule_for
from pytest_mlperf.cli.committed import baseline_at, git
from pytest_mlperf.cli.measured import LOADED
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.core.baseline import Baseline, Record, geometric_means
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.metrics import COUNTS, METRICS
from pytest_mlperf.core.trend import Point, Step, distinct, grouped, step, versions
from pytest_mlperf.reports.trend import Trend, trend
from pytest_mlperf.stores import baselines

HISTORY_EXAMPLES = (
    (
        "compare --history resnet50-Offline-onnxruntime-fp16-H200",
        "what each engine version gained: the case's accepted baselines in git",
    ),
)

NOT_COMMITTED = "not committed"

SHORTEST = 5
"""Parts of the path of a baseline file: baselines/ACCELERATOR/PROFILE/WORKLOAD/FILE."""


def add_history(parser: argparse.ArgumentParser) -> None:
    """Give `compare` its options of the history."""
    parser.add_argument(
        "--history",
        action="store_true",
        help="A (and B) are cases or baseline files: how their accepted baselines moved in git",
    )
    parser.add_argument(
        "--metric",
        choices=[name for name in METRICS if name not in COUNTS],
        metavar="NAME",
        help="with --history: the metric (default: the first that the newest baseline gates)",
    )


def show_history(parsed: argparse.Namespace) -> int:
    """Show how the accepted baselines of a case moved.

    Returns:
        2 when there are several and no ratio may be formed, else 0.

    Raises:
        MlperfError: There is no such case, or no baseline of it.
    """
    given = [text for text in (parsed.a, parsed.b) if text is not None]
    notes: list[str] = []
    points: list[Point] = []
    for file in dict.fromkeys(find(text) for text in given):
        points += points_of(file, notes)
    if not points:
        raise MlperfError("\n".join([f"no baseline in {', '.join(given)}", *notes]))
    if parsed.metric and not any(parsed.metric in point.means for point in points):
        known = ", ".join(dict.fromkeys(name for point in points for name in point.means))
        raise MlperfError(f"no baseline of {', '.join(given)} has {parsed.metric}; known: {known}")
    found = trend_of(grouped(points), parsed.metric, notes)
    show(trend(found, width()))
    return 2 if len(points) > 1 and found.since is None else 0


def trend_of(points: Sequence[Point], metric: str | None, notes: Sequence[str] = ()) -> Trend:
    """Return the steps from point to point and the total.

    The total starts from the oldest point that may be compared with the last.

    Args:
        points: Oldest first, at least one.
        metric: Metric name; None: the first that the last point has, gated ones first.
        notes: Sentences about what was left out.
    """
    last = points[-1]
    name = metric or next((name for name in last.means if name in METRICS), "throughput")
    rule = rule_for(last.case.accelerator)
    totals = [step(point, last, name, rule) for point in points[:-1]]
    since = next((i for i, total in enumerate(totals) if not total.refused), None)
    return Trend(
        metric=name,
        points=points,
        versions=versions(points),
        steps=[step(a, b, name, rule) for a, b in pairwise(points)],
        since=since,
        total=Step() if since is None else totals[since],
        notes=notes,
    )


# --- which file ------------------------------------------------------------------------------


def find(text: str) -> Path:
    """Return the baseline file that a path, a case id or a unique part of one names.

    Raises:
        MlperfError: None fits, or several do.
    """
    if Path(text).is_file():
        return Path(text)
    known = dict(_known())
    fitting = [file for file, case in known.items() if case == text]
    fitting = fitting or [file for file, case in known.items() if text.lower() in case.lower()]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = [f"  {file}" for file in sorted(fitting)]
        raise MlperfError("\n".join([f"{text!r} fits {len(fitting)} baseline files:", *shown]))
    shown = [f"  {case}" for case in sorted(set(known.values()))]
    head = f"no baseline of {text!r} is in git here"
    raise MlperfError("\n".join([f"{head}; there are:", *shown] if shown else [head]))


def _known() -> Iterator[tuple[Path, str]]:
    """Yield each performance baseline below the working folder that git tracks, with its case."""
    for name in filter(None, _text("ls-files", "-z", "--", "*.json").split("\0")):
        file = Path(name)
        if len(file.parts) < SHORTEST or file.parts[-3] not in {"quick", "official"}:
            continue
        try:
            loaded = baselines.load(file)
        except BaselineError:
            continue
        if loaded:
            yield file, _case(loaded).id


# --- its past --------------------------------------------------------------------------------


def points_of(file: Path, notes: list[str]) -> list[Point]:
    """Return each accepted baseline of a file: what git has, and what the file tells beyond.

    A file holds a record for each machine; of each the oldest comes first. What only the history
    in the file knows, as in a shallow clone, has means and no runs.

    Args:
        file: The baseline file in the work tree.
        notes: Takes a sentence about each version that was left out.
    """
    by_machine: dict[str, list[tuple[Point, Record]]] = {}
    for commit, found in _versions(file, notes):
        for record in found.records:
            point = _point(found, record, commit)
            machine = repr((point.case.accelerator, sorted(record.identity.items())))
            by_machine.setdefault(machine, []).append((point, record))
    points: list[Point] = []
    for made in by_machine.values():
        kept = distinct([point for point, _ in made])
        points += [*_told(made[-1], kept), *kept]
    return points


def _versions(file: Path, notes: list[str]) -> Iterator[tuple[str, Baseline]]:
    """Yield the file's content at each commit that changed it, oldest first, and as it is now."""
    if git("rev-parse", "--is-shallow-repository") == b"true\n":
        notes.append("this clone is shallow: older baselines have no runs: git fetch --unshallow")
    for commit, name in reversed(list(_commits(file))):
        try:
            yield commit, baseline_at(commit, name)
        except BaselineError as error:
            notes.append(f"left out: {error}")
    loaded = baselines.load(file)
    if loaded:
        yield NOT_COMMITTED, loaded


def _commits(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each commit that changed a file with its name there, newest first, through renames.

    `git log --follow` takes a new file that is like an older one for its copy, and baselines of
    different cases are much alike: only a file that its commit moved away is the same.
    """
    name, before = _text("ls-files", "-z", "--full-name", "--", str(file)), "HEAD"
    while name := name.rstrip("\0"):
        top = f":(top,literal){name}"
        commits = _text("log", "--diff-filter=AMT", "--format=%H", before, "--", top).split()
        yield from ((commit, name) for commit in commits)
        if not commits:
            return
        before = f"{commits[-1]}^"
        told = _text(
            "show", "-M", "--diff-filter=R", "--name-status", "-z", "--format=", before[:-1]
        )
        parts = told.split("\0")
        moved = dict(zip(parts[2::3], parts[1::3], strict=False))
        name = moved.get(name, "")


def _text(*arguments: str) -> str:
    return (git(*arguments) or b"").decode("utf-8", "surrogateescape")


def _point(found: Baseline, record: Record, commit: str) -> Point:
    last = record.history[-1] if record.history else None
    means = geometric_means(record.runs)
    gated = [name for name in record.minimum_detectable_change if name in means]
    return Point(
        date=last.date if last else record.runs[-1].started[:10],
        commit=commit,
        reason=last.reason if last else "",
        case=_case(found),
        profile=found.profile,
        identity=record.identity,
        fingerprint=record.fingerprint,
        rate=record.target_qps if found.scenario in LOADED else None,
        means={name: means[name] for name in (*gated, *(n for n in means if n not in gated))},
        runs=record.runs,
    )


def _told(newest: tuple[Point, Record], kept: Sequence[Point]) -> Iterator[Point]:
    """Yield what the newest record's history tells beyond the points that git has."""
    point, record = newest
    known = [one.means for one in kept]
    for entry, after in zip_longest(record.history, record.history[1:]):
        # What was appended to is part of the entry after it.
        if entry.new in known or (after is not None and after.action == "append"):
            continue
        yield Point(
            date=entry.date,
            commit="",
            reason=entry.reason,
            case=point.case,
            profile=point.profile,
            identity=point.identity,
            fingerprint={},
            rate=None,
            means=entry.new,
        )


def _case(found: Baseline) -> Case:
    return Case(
        workload=found.workload,
        scenario=found.scenario,  # type: ignore[arg-type]
        engine=found.engine,
        precision=found.precision,
        accelerator=found.accelerator,
    )
