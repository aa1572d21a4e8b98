"""Two days in a row, judged as shipped: what is warned of, what is red, what is finally ok.

A drop is red at once where it is final. A provisional one is a warning on its first day, and red on
the next where it comes again and is likely (`standing.Seen.likely`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decisions_lib import rule, standing
from decisions_lib.noise import Bools, Floats
from decisions_lib.performance import SEED
from decisions_lib.recording import chosen, spare
from decisions_lib.worlds import DAYS_NOW, DESIGNS, NAMED, RUNS, Slots, World
from pytest_mlperf.core.noise import uncalibrated
from pytest_mlperf.judge.rule_r import RuleR


@dataclass(frozen=True)
class Shares:
    """What is said on two days, as shares of cases.

    Attributes:
        fail, seems_drop, ok, seems_ok: By word, on the first day; PROVISIONAL ones lean this way.
        ok_by_one: The part of `ok` that is said after one run.
        runs: Runs used on the first day, on average.
        again: Red on the second day.
        red: Red on either day.
    """

    fail: float
    seems_drop: float
    ok: float
    seems_ok: float
    ok_by_one: float
    runs: float
    again: float
    red: float

    @property
    def noticed(self) -> float:
        """Warned of or red on the first day."""
        return self.fail + self.seems_drop

    @property
    def ok_by_more(self) -> float:
        """The part of `ok` that is said after two runs or more."""
        return self.ok - self.ok_by_one


@dataclass(frozen=True, kw_only=True)
class Row:
    """One world with one design of a baseline.

    Attributes:
        same: Where nothing changed.
        fell: After a drop of the limit.
        cases: Simulated, each.
    """

    world: str
    design: str
    same: Shares
    fell: Shares
    cases: int

    @property
    def name(self) -> str:
        """The world and the baseline, in words."""
        return f"{self.world}, {self.design}"


def rows(name: str, cases: int) -> list[Row]:
    """Return what is said in a world, with a baseline of each of its designs."""
    return [row(name, design, cases) for design in NAMED[name].designs]


def row(name: str, design: str, cases: int) -> Row:
    """Return what is said in one world, once unchanged and once slower by the limit."""
    world = NAMED[name]
    rng = np.random.default_rng([SEED, 8, *world.name.encode(), *design.encode()])
    settings, of = rule_of(world), world.slots(DESIGNS[design])
    logs = recorded(rng, world, of, cases, settings)
    same, fell = (
        shares(days(world, of, logs + np.log1p(-drop) * of.now, settings))
        for drop in (0.0, world.limit)
    )
    return Row(world=name, design=design, same=same, fell=fell, cases=cases)


def rule_of(world: World) -> RuleR:
    """Return the rule that judges there."""
    return uncalibrated("cpu" if world.cpu else "H200").rule(RUNS)


def recorded(
    rng: np.random.Generator, world: World, of: Slots, cases: int, settings: RuleR
) -> Floats:
    """Return log values of cases whose baseline is recorded, as far as they count.

    Runs that the screen rejects are replaced, and a baseline that is refused is recorded anew.
    Where first runs do not count, those of now do not either.
    """
    numbers = np.unique(of.session[~of.now])
    sizes = [int((of.session == at).sum()) for at in numbers]
    wide = world.slots([size + spare(size) for size in sizes], runs=RUNS + 1)
    sessions = [np.flatnonzero(wide.session == at) for at in numbers]
    now = [np.flatnonzero(wide.session == at) for at in np.unique(wide.session[wide.now])]
    kept: list[Floats] = []
    while sum(map(len, kept)) < cases:
        logs = world.draw(rng, cases, wide)
        columns = chosen(world.seen(logs), sessions, sizes, settings)
        skips = (columns[:, 0] != sessions[0][0])[:, None]
        judged = [np.where(skips, own[1:], own[:-1]) for own in now]
        whole = np.concatenate([columns, *judged], axis=1)
        kept.append(np.take_along_axis(logs, whole, axis=1)[columns[:, 0] >= 0])
    return np.concatenate(kept)[:cases]


def days(world: World, of: Slots, logs: Floats, settings: RuleR) -> list[rule.Decided]:
    """Return what is decided on each day."""
    x = world.seen(logs)
    before, day = ~of.now, of.day
    x0 = x[:, before]
    base = rule.baselines(x0, np.zeros_like(x0), tuple(map(str, day[before])))
    last, keeps = day[before].max(), standing.final_for(x0, day[before])
    found = []
    for today in of.days[-DAYS_NOW:]:
        x1 = x[:, of.now & (day == today)]
        old = today - last >= keeps + 1
        found.append(
            rule.decide(base, x1, np.zeros_like(x1), limit=world.limit, rule=settings, old=old)
        )
    return found


def red(days: Sequence[rule.Decided]) -> tuple[Bools, Bools]:
    """Return what is red on the first and on the second of two days."""
    first, second = days
    final = [one.decision == rule.FAIL for one in days]
    twice = [one.decision == rule.SEEMS_DROP for one in (first, second)]
    return final[0], final[1] | twice[0] & twice[1] & second.likely


def shares(days: Sequence[rule.Decided]) -> Shares:
    """Return two days as shares of cases."""
    first, again = red(days)
    words = (rule.FAIL, rule.SEEMS_DROP, rule.PASS, rule.SEEMS_OK)
    fail, seems_drop, ok, seems_ok = map(days[0].share, words)
    return Shares(
        fail=fail,
        seems_drop=seems_drop,
        ok=ok,
        seems_ok=seems_ok,
        ok_by_one=float(((days[0].decision == rule.PASS) & (days[0].runs == 1)).mean()),
        runs=days[0].mean_runs,
        again=float(again.mean()),
        red=float((first | again).mean()),
    )
