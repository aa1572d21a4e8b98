"""What else is promised, simulated: many cases, curves, two sides, breaks of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decisions_lib import (
    curves,
    many_cases,
    many_days,
    rare,
    two_sides,
    whole_data,
)
from decisions_lib.promises import above
from decisions_lib.tables import Table, percent

CURVES = 20_000
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


def broken(found: Further) -> list[tuple[str, int, list[str]]]:
    """Return what is promised, of how many rows, and the rows that do not keep it."""
    red = [row for row in found.many if row.interval is not None]
    every: list[rare.Row | whole_data.Row] = [*found.rare, *found.whole]
    scores = [
        f"{row.what}, {row.samples:,} samples"
        for row in every
        if above(row.passed, 0.05, row.passes) or above(row.failed, 0.01, row.passes)
    ]
    missed = [row.text for row in found.two if not row.met]
    return [
        ("a false red in a session of 200 cases", len(red), [r.name for r in red if not r.holds]),
        (
            "a false red in a session of 200 cases, with suspects of the last",
            len(found.days),
            [f"one pair falls by {day.drop:.0%}" for day in found.days if not day.holds],
        ),
        (
            "curves: false drops, and drops of the limit",
            len(found.curves),
            [row.noise for row in found.curves if not row.holds],
        ),
        ("compare, trends, runs in turns", len(found.two), missed),
        ("accuracy, rare breaks, groups, mAP and AUC", len(found.rare) + len(found.whole), scores),
    ]


# --- tables --------------------------------------------------------------------------------------


def tables(found: Further) -> dict[str, Table]:
    """Return the tables by name."""
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
