"""A pair of many that fell for good, day after day: when it is red, and what is red beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decisions_lib import rule
from decisions_lib.many_cases import (
    CASES,
    METRICS,
    NOISES,
    PAIRS,
    PROMISED,
    baseline,
    between,
    judge,
    now,
    words,
)
from decisions_lib.noise import Bools
from decisions_lib.performance import SEED
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.multiplicity import repeat_level

DAYS = 10


@dataclass(frozen=True, kw_only=True)
class Days:
    """What becomes of one pair of 600 that fell for good; all days have one baseline.

    Attributes:
        drop: By how much; 0: nothing fell.
        never: Share of such drops that are not red in `DAYS` sessions; None where nothing fell.
        never_without: The same, if a suspect were judged among all again.
        first: Share that are red on the first day.
        red: Sessions with a false red, second suspicions among them.
        low: Lower end of its 95 % interval.
        count: Of sessions, day after day.
    """

    drop: float
    never: float | None
    never_without: float | None
    first: float | None
    red: float
    low: float
    count: int

    @property
    def holds(self) -> bool:
        """Whether at most `PROMISED` of the sessions have a false red, as far as is known."""
        return self.low <= PROMISED


def days(drop: float, scale: float = 1.0) -> Days:
    """Return how long a small drop of one pair goes unseen.

    Args:
        drop: By how much it falls on the first day.
        scale: Share of the full size.
    """
    count = max(5, round(80 * scale))
    rng = np.random.default_rng([SEED, 8, round(1000 * drop)])
    fell = np.zeros((CASES, METRICS), bool)
    fell[0, 0] = drop > 0
    runs, scales = baseline(rng, NOISES[0], count)
    apart, level = between(runs, NOISES[0].sessions), repeat_level(rule.RULE, PAIRS)
    before = np.zeros((count, PAIRS), bool)
    red, plain = (np.zeros((DAYS, count, PAIRS), bool) for _ in range(2))
    for day in range(DAYS):
        today = now(rng, NOISES[0], scales, np.log1p(-drop) * fell)
        p = judge(runs, today, NOISES[0], apart).p
        among_all = np.array([words(session) for session in p])
        plain[day], doubted = among_all == Answer.FAIL, among_all == Answer.SUSPECT
        red[day] = plain[day] | doubted & before & (p < level)
        # What was suspect and is inconclusive now stays so; a pass ends it.
        before = (doubted | before & (p < 1)) & ~red[day]
    return _summary(drop, fell.ravel(), red, plain)


def _summary(drop: float, fell: Bools, red: Bools, plain: Bools) -> Days:
    wrong = (red & ~fell).any(axis=2).mean(axis=0)  # by baseline: its days are not independent
    target = fell.argmax() if drop else None
    return Days(
        drop=drop,
        never=None if target is None else float((~red[..., target].any(axis=0)).mean()),
        never_without=None if target is None else float((~plain[..., target].any(axis=0)).mean()),
        first=None if target is None else float(red[0, :, target].mean()),
        red=float(wrong.mean()),
        low=float(wrong.mean() - 1.96 * wrong.std() / np.sqrt(len(wrong))),
        count=red.shape[0] * len(wrong),
    )
