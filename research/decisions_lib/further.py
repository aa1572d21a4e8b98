"""What else is promised, simulated: many cases, curves, two sides, breaks of accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from decisions_lib import (
    curves,
    many_cases,
    many_days,
    rare,
    two_sides,
    whole_data,
)
from decisions_lib.required import Figure, Required, of_rows, one
from decisions_lib.rule import RULE
from decisions_lib.tables import Prose, Table, percent, span

CURVES = 20_000
FALSE_RED = "200 unchanged cases: a session has a red one"
UNCHANGED_FAILS = "accuracy: unchanged scores fail"
MARGIN_PASSES = "accuracy: a drop of the margin passes"
"""Lines of the page that other requirements share."""

DAYS = (0.0, 0.02, 0.03)
"""Drops of one pair of many that are followed from day to day; 0: of none."""


@dataclass(frozen=True, kw_only=True)
class Further:
    """Rows of each.

    Attributes:
        many: Sessions of 200 cases.
        days: A drop of one pair of many, day by day.
        curves: Throughput at several concurrencies, judged as one.
        two: `compare`, trends, runs in turns.
        rare: Accuracy where few samples break, or share an effect.
        whole: Scores of a whole data set, mAP and AUC.
    """

    many: Sequence[many_cases.Row]
    days: Sequence[many_days.Days]
    curves: Sequence[curves.Row]
    two: Sequence[two_sides.Row]
    rare: Sequence[rare.Row]
    whole: Sequence[whole_data.Row]


def many(scale: float) -> list[many_cases.Row]:
    """Simulate sessions of many cases."""
    return list(many_cases.rows(scale))


def of_days(scale: float) -> list[many_days.Days]:
    """Simulate one drop among many, day by day."""
    return [many_days.days(drop, scale) for drop in DAYS]


def of_curves(scale: float) -> list[curves.Row]:
    """Simulate curves."""
    return curves.rows(max(100, round(scale * CURVES)))


def two(scale: float) -> list[two_sides.Row]:
    """Simulate commands that compare two sides."""
    return two_sides.rows(scale)


def rare_breaks(scale: float) -> list[rare.Row]:
    """Simulate accuracy of rare breaks."""
    passes, listed = (max(100, round(scale * most)) for most in (rare.PASSES, rare.LISTED))
    return rare.rows(passes, listed)


def whole(scale: float) -> list[whole_data.Row]:
    """Simulate scores of a whole data set."""
    return whole_data.rows(max(50, round(scale * whole_data.PASSES)))


def required(found: Further) -> Iterator[Required]:
    """Yield what is promised of them, as it was found."""
    yield from _of_many(found.many, found.days)
    yield from _of_curves(found.curves)
    for line, promised in (
        ("`compare`, interleaving, `[[pairs]]`: false drop", RULE.alpha),
        ("the same: false ok, or truth outside the interval", RULE.beta),
    ):
        yield from of_rows(
            line,
            (
                Figure(
                    name=f"{row.command}, {row.noise}",
                    found=row.found,
                    bound=promised,
                    cases=row.cases,
                    kept=row.met,
                )
                for row in found.two
                if row.promised == promised
            ),
        )
    every: list[rare.Row | whole_data.Row] = [*found.rare, *found.whole]
    names = {row: f"{row.what}, {row.samples:,} samples, {row.passes} passes" for row in every}
    for line, bound, shares in (
        (UNCHANGED_FAILS, 0.01, {row: row.failed for row in every}),
        (MARGIN_PASSES, 0.05, {row: row.passed for row in every}),
    ):
        yield from of_rows(
            line,
            (
                Figure(name=names[row], found=share, bound=bound, cases=row.passes)
                for row, share in shares.items()
            ),
        )


def _of_many(many: Sequence[many_cases.Row], days: Sequence[many_days.Days]) -> Iterator[Required]:
    quiet = [row for row in many if row.interval is not None]
    figures = [
        Figure(
            name=row.name,
            found=row.red or 0.0,
            bound=many_cases.PROMISED,
            cases=row.count,
            kept=row.holds,
        )
        for row in quiet
    ]
    figures += [
        Figure(
            name=f"one pair falls by {day.drop:.0%}, suspects of the last day",
            found=day.red,
            bound=many_cases.PROMISED,
            cases=day.count,
            kept=day.holds,
        )
        for day in days
    ]
    yield from of_rows(FALSE_RED, figures)


def _of_curves(rows: Sequence[curves.Row]) -> Iterator[Required]:
    for line, bound, shares in (
        ("curves: unchanged is a drop", RULE.alpha, {r: r.failed for r in rows}),
        ("curves: -5 % at one point is ok", RULE.beta, {r: r.missed for r in rows}),
    ):
        yield from of_rows(
            line,
            (
                Figure(name=row.noise, found=share, bound=bound, cases=row.cases)
                for row, share in shares.items()
            ),
        )
    for row in rows:
        if row.noise == curves.TOO_NOISY:
            continue
        for where, share, bound in (
            ("-3 % at all points", row.everywhere, 0.95),
            ("-5 % at one point", row.at_one, 0.90),
        ):
            line = "curves: drops are found, noisy machine left out"
            text = f"curves, {row.noise}: {where} is found"
            yield one(line, text, share, bound, at_most=False, cases=row.cases)


# --- the page ------------------------------------------------------------------------------------


def page(found: Further) -> dict[str, Prose]:
    """Return the sentences of the page by name."""
    return {
        "curves": Prose(_curves(found.curves)),
        "two-sides": Prose(_two_sides(found.two)),
    }


def _curves(rows: Sequence[curves.Row]) -> str:
    (noisy,) = (row for row in rows if row.noise == curves.TOO_NOISY)
    sure = [row for row in rows if row is not noisy]
    return (
        f"Curves of {curves.POINTS} points, five noises: {span(r.failed for r in rows)} % of the "
        f"unchanged ones are a drop. A drop of 5 % at one point is ok in "
        f"{span(row.missed for row in rows)} %. If runs vary by up to 1 %, a drop of 3 % at all "
        f"points is found in {span(row.everywhere for row in sure)} %, and one of 5 % at one point "
        f"in {span(row.at_one for row in sure)} %. At 2.2 % it is {percent(noisy.everywhere)} and "
        f"{percent(noisy.at_one)} %. PROVISIONAL verdicts are included."
    )


def _two_sides(rows: Sequence[two_sides.Row]) -> str:
    def of(*words: str) -> str:
        return span(row.found for row in rows if any(word in row.command for word in words))

    pairs = [row.runs for row in rows if row.runs is not None and row.command.startswith("A/B")]
    medians = [
        row.runs
        for row in rows
        if row.runs is not None and row.command.startswith(two_sides.AGAINST)
    ]
    return (
        f"`pytest-mlperf compare` calls unchanged builds a drop in {of('unchanged is a drop')} % "
        f"and a drop of the limit ok in {of('drop of the limit is ok')} %. With 200 unchanged "
        f"cases it exits with 1 in {of('exit 1')} %. Interleaving confirms unchanged builds in "
        f"{of('is confirmed')} %, and rules out a drop of the limit in {of('is excluded')} %, with "
        f"{min(pairs):.1f} to {max(pairs):.1f} pairs, on drifting machines too. `[[pairs]]` "
        f"refutes a claim that is just true in {of('is refuted')} %, and proves one that is just "
        f"false in {of('is proven')} %. `--mlperf-against` fails unchanged builds in "
        f"{of('unchanged fails')} %, and passes a drop of the limit in {of('limit passes')} %, "
        f"with {min(medians):g} to {max(medians):g} pairs at the median."
    )


def of_scores(few: Sequence[rare.Row], whole: Sequence[whole_data.Row]) -> str:
    """Return what is found of few broken outputs, of groups, and of whole data sets, in words."""
    groups = [row for row in few if row.what.startswith("groups")]
    others = [row for row in few if row not in groups]
    return (
        f"If the other outputs hardly change, a drop of the margin passes in "
        f"{span(row.passed for row in others)} %, and unchanged scores fail in "
        f"{span(row.failed for row in others)} %. If groups of samples share an effect, it is "
        f"{span(row.passed for row in groups)} and {span(row.failed for row in groups)} % (of "
        f"{groups[0].passes} passes). For mAP and AUC of few or unequal samples it is "
        f"{span(row.passed for row in whole)} and {span(row.failed for row in whole)} % (of "
        f"{whole[0].passes})."
    )


# --- every row -----------------------------------------------------------------------------------


def tables(found: Further) -> dict[str, Table]:
    """Return every row by the name of its table."""
    return {
        "many cases": Table(
            ("200 cases x 3 metrics", "sessions with a false red", "by rule R and BH alone",
             "false suspects", "found", "by rule R and BH alone", "suspect"),
            [
                (
                    row.name,
                    percent(row.red),
                    percent(row.red_by_rule_alone),
                    f"{row.suspects:.2f}",
                    percent(row.found),
                    percent(row.found_by_rule_alone),
                    percent(row.suspected),
                )
                for row in found.many
            ],
        ),
        "days": Table(
            ("one pair of 600 falls for good by", "red on the first day", "not red in 10 days",
             "were suspects judged among all again", "sessions with a false red"),
            [
                tuple(map(percent, (one.drop, one.first, one.never, one.never_without, one.red)))
                for one in found.days
            ],
        ),
        "curves": Table(
            (
                f"{curves.POINTS} points",
                "unchanged: drop",
                "unchanged: ok",
                "runs, unchanged",
                f"found: -{percent(curves.EVERYWHERE)} % at all",
                f"found: -{percent(curves.AT_ONE)} % at one",
                f"ok: -{percent(curves.AT_ONE)} % at one",
            ),
            [
                (
                    row.noise,
                    percent(row.failed),
                    percent(row.passed),
                    f"{row.runs:.2f}",
                    percent(row.everywhere),
                    percent(row.at_one),
                    percent(row.missed),
                )
                for row in found.curves
            ],
        ),
        "two sides": Table(
            ("what", "under", "found", "promised", "runs of a side"),
            [
                (
                    row.command,
                    row.noise,
                    percent(row.found),
                    percent(row.promised),
                    f"{row.runs:.2f}" if row.runs is not None else "",
                )
                for row in found.two
            ],
        ),
        "rare breaks": Table(
            ("what", "samples", "margin", "a drop of the margin passes", "unchanged fails",
             "samples used, unchanged"),
            [
                (
                    row.what,
                    f"{row.samples:,}",
                    f"{row.margin:g}",
                    percent(row.passed),
                    percent(row.failed),
                    percent(row.used),
                )
                for row in found.rare
            ],
        ),
        "whole data": Table(
            (
                "score and data",
                "samples",
                "error told / true",
                "a drop of the margin passes",
                "unchanged fails",
                "too little to decide",
            ),
            [
                (
                    row.what,
                    f"{row.samples:,}",
                    f"{row.told:.2f}" if row.told is not None else "",
                    percent(row.passed),
                    percent(row.failed),
                    percent(row.unseen),
                )
                for row in found.whole
            ],
        ),
    }  # fmt: skip
