"""Format the output of a bisect: its range, each comparison, and the conclusion."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mlperf.addons.history.bisect import Bisection, Comparison, MetricOf, Proof
from pytest_mlperf.addons.history.bisection import (
    Mark,
    Speed,
    comparison_count,
    is_part,
    most_comparisons,
    relative_speed,
)
from pytest_mlperf.addons.history.lineage import BuildAt
from pytest_mlperf.bench.interleaved import in_words
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.extension import METRICS, duration, plural
from pytest_mlperf.reports.terminal.layout import fold, line, paragraphs, table, unbroken

MAX_LISTED_COMMITS = 20
MIN_SUBJECT_COLUMNS = 8


def say(lines: Sequence[str]) -> None:
    """Print lines and flush stdout, so that a log can be followed."""
    show(lines)
    print(end="", flush=True)


def heading(search: Bisection, tests: Sequence[str], stored_runs: int) -> list[str]:
    """Return lines about the bisect: good and bad build, tests, comparisons, and `stored_runs`."""
    last, noun = search.last, _noun(search)
    usual = comparison_count(last) + 1 + (last > 1)
    text = (
        f"{plural(last - 1, noun)} in between: {plural(usual, 'comparison')} if each "
        f"is decided, at most {most_comparisons(last)}, with 4 or more runs each"
    )
    if stored_runs:
        text += f"; {unbroken(plural(stored_runs, 'run'))} of earlier calls are used again"
    return [
        *paragraphs("good", [_about(search.builds[0])], width()),
        *paragraphs("bad", [_about(search.builds[-1])], width()),
        *(line("" if place else "test", test) for place, test in enumerate(tests)),
        *paragraphs("search", [text], width()),
    ]


def comparison_lines(search: Bisection, comparison: Comparison) -> list[str]:
    """Return lines on the result of a comparison, and on how many may follow."""
    builds, left = search.builds, search.range
    against = "" if comparison.before == 0 else f" against {builds[comparison.before].title}"
    outcome = f"{comparison.mark}: {comparison.reason or comparison_text(comparison)}"
    text = f"{builds[comparison.now].title}{against} {outcome}"
    if left.next is not None and search.log[0].mark is Mark.BAD:
        ahead = comparison_count(left.left + 1) + (left.good > 0)
        made = [each.runs for each in search.log if not each.reason]
        runs = round(ahead * sum(made) / len(made))
        ahead_runs = unbroken(plural(runs, "run"))
        text += f"; {plural(left.left, _noun(search))} left, about {ahead_runs}"
        if search.measured:
            text += f", {unbroken(duration(runs * search.seconds / search.measured))}"
    return fold(text, width(), rest="  ")


def comparison_text(comparison: Comparison) -> str:
    """Return the change of the deciding metric: "samples/s −33.1 % (−38 to −24 %), 4 pairs"."""
    metric = comparison.headline
    assert metric is not None
    ratio = comparison.ratios[metric]
    return f"{_change(metric, ratio)}, {unbroken(plural(ratio.pairs, 'pair'))}"


def log(search: Bisection, noise: str, folder: str) -> list[str]:
    """Return a table of all comparisons, with notes on confidence and number of runs.

    `noise` names the source of the expected noise; `folder` holds the runs.
    """
    skipped = sum(one.mark is Mark.SKIPPED for one in search.log)
    count = sum(one.runs for one in search.log)
    runs = f"{plural(count, 'run')} in {plural(len(search.log), 'comparison')}"
    runs += f", {skipped} skipped" * bool(skipped)
    runs += f"; the new ones are in {folder}" * bool(search.measured)
    notes = [
        "each build ran interleaved with the good one, every run in a new process; in 99 of 100 "
        "bisects no drop is smaller, and in 95 of 100 none is larger, than its interval says",
        noise,
        "accuracy was not run",
    ]
    return [
        *_table(search),
        *paragraphs("note", notes, width()),
        *paragraphs("runs", [runs], width()),
    ]


def result_lines(search: Bisection, proof: Proof) -> list[str]:
    """Return lines on the commit that caused the drop, or on the range that contains it."""
    start, build = search.builds[proof.before], search.builds[proof.now]
    parent = start.name == build.parent
    changes = [
        f"{_change(proof.metric, proof.speed)} against {'its parent' if parent else start.title}"
        if proof.is_single_build
        else f"{_change(proof.metric, proof.speed)} from {start.title} to {build.title}"
    ]
    if proof.before or proof.now < search.last:
        whole = search.log[0].ratios[proof.metric]
        changes.append(f"{_change(proof.metric, whole)} from GOOD to BAD")
    head = _named(build) if proof.is_single_build else _range(search, proof)
    see = f"show {build.title}" if proof.is_single_build else f"log {start.title}..{build.title}"
    return [
        *head,
        *paragraphs("change", changes, width()),
        *([] if build.wheel else [line("see", f"git {see}")]),
        *paragraphs("note", _notes(search, proof), width()),
    ]


def _named(build: BuildAt) -> list[str]:
    return [
        line("first bad", build.wheel or build.name),
        *(paragraphs("subject", [build.subject], width()) if build.subject else []),
        *([line("author", f"{build.author}, {build.date}")] if build.author else []),
    ]


def _range(search: Bisection, proof: Proof) -> list[str]:
    noun, count = _noun(search), proof.now - proof.before
    if proof.direct:
        reason = f"the cause is one of these {count}; all but the last were skipped or undecided"
    elif count == 1:
        reason = (
            "the cause is probably this one: its drop from GOOD is larger than that of the one "
            "before it, but the direct comparison of these two stayed undecided"
        )
    else:
        reason = (
            "none is proven to be worse than the one before it. The drop over all of these "
            f"{count} is proven; it may consist of several small ones"
        )
    inside = range(proof.before + 1, proof.now + 1)
    marks = {n: str(one.mark) for n, one in search.comparisons_with_good.items()}
    rows = [
        f"{search.builds[n].title} {marks.get(n, 'not tried')}  {search.builds[n].subject}".strip()
        for n in inside[:MAX_LISTED_COMMITS]
    ]
    rows += [f"and {count - MAX_LISTED_COMMITS} more"] * (count > MAX_LISTED_COMMITS)
    return [
        *fold(f"no {noun} is named: {reason}", width()),
        *(line(f"{noun}s" if place == 0 else "", row) for place, row in enumerate(rows)),
    ]


def _notes(search: Bisection, proof: Proof) -> list[str]:
    builds = search.builds
    build = builds[proof.now]
    notes = []
    whole = search.log[0].ratios[proof.metric]
    if is_part(proof.speed, whole):
        notes.append(
            "this one explains only a part of the drop: fix it, then measure and bisect again"
        )
    for x, y in proof.rest:
        speed = relative_speed(*(search.speeds(proof.metric)[place] for place in (x, y)))
        notes.append(
            f"a part of the drop lies elsewhere, between {builds[x].title} and {builds[y].title}: "
            f"{_change(proof.metric, speed)}; to find it, bisect these two with a smaller limit"
        )
    if proof.is_single_build and build.merged:
        notes.append(
            f"it is a merge commit; list its commits: git log {build.title}^1..{build.title}^2"
        )
    return notes


def _table(search: Bisection) -> list[str]:
    """Return a table with a row per build that was compared with the good one, in build order."""
    beside_good = [one for _, one in sorted(search.comparisons_with_good.items())]
    several = len({metric for one in beside_good for metric in one.ratios}) > 1
    noun = _noun(search)
    rows = [{noun: search.builds[0].title, "verdict": "GOOD"}]
    rows += [{noun: search.builds[one.now].title, **_row(one)} for one in beside_good]
    columns = [noun, "verdict", *["metric"] * several, "change", "interval"]
    lines = table(rows, width() - 2, left=[noun, "verdict", "metric"], columns=columns)
    wide = max(map(len, lines)) + 2
    room = width() - 2 - wide
    if room < MIN_SUBJECT_COLUMNS:
        return [f"  {one}" for one in lines]
    subjects = [search.builds[n].subject for n in (0, *(one.now for one in beside_good))]
    cut = ["", *(text if len(text) <= room else f"{text[: room - 1]}…" for text in subjects)]
    return [f"  {one:<{wide}}{text}".rstrip() for one, text in zip(lines, cut, strict=True)]


def _row(comparison: Comparison) -> dict[str, str]:
    row = {"verdict": str(comparison.mark)}
    if comparison.headline is None:
        return row
    metric = comparison.headline[1]
    change, _, interval = in_words(metric, comparison.ratios[comparison.headline]).partition(" (")
    return {
        **row,
        "metric": METRICS[metric].title,
        "change": change,
        "interval": interval.removesuffix(")"),
    }


def _noun(search: Bisection) -> str:
    return "version" if search.builds[0].wheel else "commit"


def _about(build: BuildAt) -> str:
    return build.wheel or f"{build.title} {build.date} {build.subject}".rstrip()


def _change(metric: MetricOf, speed: Speed) -> str:
    return f"{METRICS[metric[1]].title} {in_words(metric[1], speed)}"
