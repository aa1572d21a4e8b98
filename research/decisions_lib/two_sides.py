"""Check the error guarantees of two sides: of complete runs, and of interleaved ones.

The shipped settings, quantiles and bounds on arrays: `compare` and `history` (core/rulings/pooled),
A/B and `[[pairs]]` (core/rulings/ratio), and all metrics of a comparison together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from decisions_lib.noise import Floats
from decisions_lib.turns import FAIL, PASS, RULE, TURNS, in_turns, turns
from pytest_mlperf.bench.against import MOST_PAIRS
from pytest_mlperf.core.rulings import sides as pooled
from pytest_mlperf.judge.multiplicity import FALSE_SHARE, benjamini_hochberg
from pytest_mlperf.judge.robustness import CANDIDATE_DF, MAX_SPREAD_RATIO
from pytest_mlperf.judge.rule_r import RuleR

AGAINST = "--mlperf-against"
LIMIT = 0.03
SEED = 20261122

Design = tuple[tuple[int, ...], tuple[int, ...]]
"""Runs of each session of both sides."""

DESIGNS: dict[str, Design] = {
    "4 x 2 with 4 x 2": ((2,) * 4, (2,) * 4),
    "4 x 2 with 1 x 3": ((2,) * 4, (3,)),
    "1 x 8 with 10 x 2": ((8,), (2,) * 10),
    "1 x 8 with 1 x 8": ((8,), (8,)),
}

NOISES = {
    "runs 0.9 %": (0.0, 0.009),
    "runs 2.1 %": (0.0, 0.021),
    "0.9 %, a quarter of it sessions": (0.0045, 0.0078),
    "2.1 %, a quarter of it sessions": (0.0105, 0.0182),
    "sessions 1 %, runs 0.5 %": (0.01, 0.005),
    "sessions 2 %, runs 0.5 %": (0.02, 0.005),
}
"""Standard deviations of sessions and of runs."""

MACHINE_WIDE = "0.8 % and a machine-wide 1 % a session"


@dataclass(frozen=True)
class Row:
    """How often something wrong was said.

    Attributes:
        command: Which promise.
        noise: Under what.
        found: How often, as a share.
        promised: At most so often.
        cases: Simulated.
        runs: Runs of a side on average where that depends on what is seen; None: all are there.
    """

    command: str
    noise: str
    found: float
    promised: float
    cases: int
    runs: float | None = None

    @property
    def lower(self) -> float:
        """Lower end of a Wilson interval: above the promise it is broken.

        It is one of 99.8 %: more than a hundred rows are looked at, and some promises are kept
        exactly and not with something to spare.
        """
        z, n, p = 3.09, self.cases, self.found
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - half) / (1 + z * z / n)

    @property
    def met(self) -> bool:
        """Whether the promise is kept as far as so many cases can tell."""
        return self.lower <= self.promised

    @property
    def text(self) -> str:
        """What the row says, for a list of what was missed."""
        return f"{self.command}, {self.noise}: {self.found:.2%}, promised {self.promised:.0%}"


def rows(scale: float = 1.0) -> list[Row]:
    """Return every row; a few seconds at full size.

    Args:
        scale: Share of the full number of cases.
    """
    count = max(400, round(20_000 * scale))
    many = many_rows(max(100, round(1000 * scale)))
    return [*pooled_rows(count), *many, *turn_rows(count), *against_rows(count)]


# --- pooled --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """`pooled.Pooled` on arrays."""

    change: Floats
    spreads: Sequence[tuple[Floats, Floats | float]]

    def reach(self, error: float) -> Floats:
        """Return how far one-sided bounds lie off."""
        found: Floats = np.max([stats.t.isf(error, df) * se for se, df in self.spreads], axis=0)
        return found

    def p(self) -> Floats:
        """Return the chance that equal sides look so bad."""
        each = [stats.t.sf(-self.change / se, df) for se, df in self.spreads]
        found: Floats = np.max(each, axis=0)
        return found


@dataclass(frozen=True)
class _Side:
    mean: Floats
    of_sessions: float
    of_runs: float
    between: tuple[Floats, float, float]
    squares: Floats
    df: int


def judged(before: Floats, now: Floats, design: Design, rule: RuleR = RULE) -> Pooled:
    """Return what `pooled.pooled` says of cases, shape (cases, runs of a side), log values."""
    expected = rule.session_share / (1 - rule.session_share)
    a, b = (_side(x, sizes, expected) for x, sizes in zip((before, now), design, strict=True))
    spare = len(design[0]) + len(design[1]) - 2
    df = rule.prior_df + before.shape[1] + now.shape[1] - spare - 2
    prior = rule.prior_df * (1 - rule.session_share) * rule.prior_sd**2
    v_r = np.maximum((prior + a.squares + b.squares) / df, rule.floor_sd**2)
    of_sessions, of_runs = a.of_sessions + b.of_sessions, a.of_runs + b.of_runs
    if spare >= pooled.SPARE_SESSIONS:
        (squares, sessions, runs), other = a.between, b.between
        sessions, runs = sessions + other[1], runs + other[2]
        mean_square = np.maximum((squares + other[0]) / sessions, rule.floor_sd**2)
        beyond = max(of_runs - of_sessions * runs / sessions, 0.0)
        spread = np.sqrt(mean_square * of_sessions + beyond * v_r), float(spare)
    else:
        spread = np.sqrt(v_r * (MAX_SPREAD_RATIO**2 * of_sessions + of_runs)), df
    least = np.sqrt(v_r * of_runs), df
    return Pooled(b.mean - a.mean, [spread, least, _own((a, b), v_r, df, prior, rule)])


def _own(
    sides: tuple[_Side, _Side], v_r: Floats, df: float, prior: float, rule: RuleR
) -> tuple[Floats, Floats]:
    """Return the spread where each side has its own noise, by `pooled._by_own_runs`."""
    parts = []
    for side, other in (sides, sides[::-1]):
        beside = np.maximum((prior + other.squares) / (rule.prior_df + other.df), rule.floor_sd**2)
        own = (CANDIDATE_DF * beside + side.squares) / (CANDIDATE_DF + side.df)
        variance = np.maximum(own, rule.floor_sd**2) if side.df else v_r
        parts.append((variance * side.of_runs, CANDIDATE_DF + side.df if side.df else df))
    total: Floats = parts[0][0] + parts[1][0]
    return np.sqrt(total), total**2 / (
        parts[0][0] ** 2 / parts[0][1] + parts[1][0] ** 2 / parts[1][1]
    )


def _side(x: Floats, sizes: Sequence[int], expected: float) -> _Side:
    m = np.array(sizes, float)
    parts = np.split(x, np.cumsum(sizes)[:-1], axis=1)
    means = np.stack([part.mean(axis=1) for part in parts], axis=1)
    squares = sum(((part - part.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) for part in parts)
    w = 1 / (expected + 1 / m)
    w /= w.sum()
    mean = means @ w
    v = len(sizes) * w * (1 - w)
    across = len(sizes) * ((means - mean[:, None]) ** 2 @ w)
    return _Side(
        mean=mean,
        of_sessions=float((w**2).sum()),
        of_runs=float((w**2 / m).sum()),
        between=(across, float(v.sum()), float((v / m).sum())),
        squares=np.asarray(squares),
        df=sum(sizes) - len(sizes),
    )


def drawn(
    rng: np.random.Generator, cases: int, sizes: Sequence[int], noise: tuple[float, float]
) -> Floats:
    """Return log values of runs about 0, shape (cases, runs)."""
    common = noise[0] * rng.standard_normal((cases, len(sizes)))
    found: Floats = np.repeat(common, sizes, axis=1)
    return found + noise[1] * rng.standard_normal((cases, sum(sizes)))


def pooled_rows(count: int) -> Iterator[Row]:
    """Yield how often `compare` is wrong, and `history`'s interval leaves the truth out."""
    rng, bound = np.random.default_rng(SEED), math.log1p(-LIMIT)
    for name, design in DESIGNS.items():
        for noise, sds in NOISES.items():
            before, now = (drawn(rng, count, sizes, sds) for sizes in design)
            found = judged(before, now, design)
            change, low = found.change, found.reach(RULE.beta)
            red = (change + found.reach(RULE.alpha) < 0) & (change - low <= bound)
            of = f"compare {name}"
            yield Row(f"{of}: unchanged is a drop", noise, float(red.mean()), RULE.alpha, count)
            passed = float((change - low > 0).mean())
            yield Row(f"{of}: a drop of the limit is ok", noise, passed, RULE.beta, count)
            outside = float((np.abs(change) > found.reach(0.025)).mean())
            yield Row(f"{of}: outside 95 % interval", noise, outside, 0.05, count)


def many_rows(count: int, metrics: int = 200) -> Iterator[Row]:
    """Yield how often `compare` of many unchanged cases exits with 1."""
    rng, design = np.random.default_rng(SEED + 1), DESIGNS["4 x 2 with 4 x 2"]
    for noise, sds in {**NOISES, MACHINE_WIDE: (0.0035, 0.007)}.items():
        before, now = (drawn(rng, count * metrics, sizes, sds) for sizes in design)
        if noise == MACHINE_WIDE:
            shared = (drawn(rng, count, sizes, (0.01, 0.0)) for sizes in design)
            extra = (np.repeat(one, metrics, axis=0) for one in shared)
            before, now = (x + more for x, more in zip((before, now), extra, strict=True))
        p_values = judged(before, now, design).p().reshape(count, metrics)
        shown = sum(
            any(p[key] < RULE.alpha for key in benjamini_hochberg(p, FALSE_SHARE))
            for p in (dict(enumerate(map(float, row))) for row in p_values)
        )
        yield Row(f"compare {metrics} unchanged: exit 1", noise, shown / count, 0.05, count)


# --- in turns ------------------------------------------------------------------------------------


def against_rows(count: int) -> Iterator[Row]:
    """Yield how often `--mlperf-against` errs, with the median of its pairs."""
    rng, bound = np.random.default_rng(SEED + 3), math.log1p(-LIMIT)
    rule = replace(RULE, max_runs=MOST_PAIRS)
    for noise in TURNS:
        logs = turns(rng, count, noise, MOST_PAIRS)
        for what, drop, wrong, promised in (
            (f"{AGAINST}: unchanged fails", 0.0, FAIL, rule.alpha),
            (f"{AGAINST}: a drop of the limit passes", bound, PASS, rule.beta),
        ):
            decision, pairs = in_turns(logs + drop, passing=bound, failing=0.0, rule=rule)
            found = float((decision == wrong).mean())
            yield Row(what, noise, found, promised, count, float(np.median(pairs)))


def turn_rows(count: int) -> Iterator[Row]:
    """Yield how often runs in turns confirm what is not there, or exclude what is."""
    rng, bound = np.random.default_rng(SEED + 2), math.log1p(-LIMIT)
    for noise in TURNS:
        logs = turns(rng, count, noise)
        for what, drop, wrong, promised in (
            ("A/B: unchanged is confirmed", 0.0, FAIL, RULE.alpha),
            ("A/B: a drop of the limit is excluded", bound, PASS, RULE.beta),
        ):
            decision, pairs = in_turns(logs + drop, passing=bound, failing=0.0)
            found = float((decision == wrong).mean())
            yield Row(what, noise, found, promised, count, float(pairs.mean()))
        decision, pairs = in_turns(logs, passing=0.0, failing=0.0)
        for what, wrong, promised in (
            ("[[pairs]]: a claim just true is refuted", FAIL, RULE.alpha),
            ("[[pairs]]: a claim just false is proven", PASS, RULE.beta),
        ):
            found = float((decision == wrong).mean())
            yield Row(what, noise, found, promised, count, float(pairs.mean()))
