"""Rule A on simulated scores of a whole data set, beside an unpaired test.

Scores are those of ROUGE: between 0 and 100, mean 44, standard deviation 22. A build that is
unchanged gives most samples the same output as before, and a share 1 - r of them another output of
the same quality: then the scores of the two passes are correlated with r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from scipy import stats

from decisions_lib.noise import Bools, Floats
from decisions_lib.performance import SEED
from decisions_lib.rare_bound import excluded
from decisions_lib.rule import FAIL, INCONCLUSIVE, PASS, Decided
from pytest_mlperf.judge.formulas import t_isf
from pytest_mlperf.judge.mean_change import usual_loss
from pytest_mlperf.judge.rule_a import DEFAULT, RuleA, analysis_sizes, errors_at

SAMPLES = 24_576
MEAN, SD = 44.0, 22.0
CORRELATION = 0.95
DROPS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
MARGINS = (0.5, 0.25)
CHUNK = 500
BINS = 256

TRT_SETTINGS = {"ROUGE": (11.06, 0.002), "default": (50.0, 0.05)}
"""TensorRT-LLM's sigma, points, and alpha: of CNN/DailyMail, and where nothing else is given."""


@dataclass(frozen=True)
class Differences:
    """What the pairs of many passes come to: sums over the first samples, as many as at each look.

    Attributes:
        at: Samples at each look.
        sums: Of now - before, shape (passes, looks), points.
        squares: Shape (passes, looks).
        values: Changes that some samples have, shape (1 or passes, values).
        counts: How many have each, shape (passes, looks, values).
        unseen: Loss that a sample is taken to have where none was seen, shape (1 or passes, 1 or
            looks).
        rest: What all other samples changed by.
    """

    at: tuple[int, ...]
    sums: Floats
    squares: Floats
    values: Floats
    counts: np.ndarray
    unseen: Floats
    rest: float = 0.0

    def shifted(self, drop: float) -> Differences:
        """Return the same where every sample lost so many points besides."""
        n = np.array(self.at)
        squares = self.squares - 2 * drop * self.sums + n * drop**2
        return replace(
            self,
            sums=self.sums - n * drop,
            squares=squares,
            values=self.values - drop,
            rest=self.rest - drop,
        )


def scores(rng: np.random.Generator, count: int) -> Floats:
    """Return scores of samples: a beta distribution with the mean and sd stated."""
    m = MEAN / 100
    weight = m * (1 - m) / (SD / 100) ** 2 - 1
    return 100 * rng.beta(m * weight, (1 - m) * weight, count)


def differences(
    rng: np.random.Generator, passes: int, *, broken: float = 0.0, correlation: float = CORRELATION
) -> Differences:
    """Return what the pairs of many passes add up to.

    Args:
        rng: Draws.
        passes: How many.
        broken: Share of samples whose output is broken and scores 0.
        correlation: Of the scores of two passes of one build.
    """
    return drawn(
        rng,
        passes,
        analysis_sizes(SAMPLES, sequential=True),
        lambda count: -scores(rng, count),
        lambda count: scores(rng, count) - scores(rng, count),
        (broken, 1 - correlation),
        unseen=usual_loss(dict.fromkeys(scores(np.random.default_rng(0), 50_000).tolist(), 1)),
    )


def drawn(
    rng: np.random.Generator,
    passes: int,
    at: tuple[int, ...],
    lost: Callable[[int], Floats],
    other: Callable[[int], Floats],
    shares: tuple[float, float],
    *,
    unseen: float,
) -> Differences:
    """Return what the pairs of many passes add up to.

    Args:
        rng: Draws how many samples change.
        passes: How many.
        at: Samples at each look; the last is the data set.
        lost: Draws the changes of so many broken samples.
        other: Draws the changes of so many others that changed.
        shares: Of all samples, those that are broken; of the rest, those that changed.
        unseen: Of the differences.
    """
    sizes = np.diff((0, *at))
    edges = np.linspace(-100, 100, BINS + 1)
    parts = []
    for start in range(0, passes, CHUNK):
        shape = (min(CHUNK, passes - start), len(at))
        broken = rng.binomial(sizes, shares[0], shape)
        changed = rng.binomial(sizes - broken, shares[1], shape)
        kinds = [(lost(int(broken.sum())), broken), (other(int(changed.sum())), changed)]
        sums, squares = (sum(by_look(own**q, n) for own, n in kinds) for q in (1, 2))
        parts.append((sums, squares, sum(by_bin(own, n, edges) for own, n in kinds)))
    sums, squares, counts = (np.concatenate([part[i] for part in parts]) for i in range(3))
    centres = (edges[:-1] + edges[1:])[None, :] / 2
    return Differences(at, sums, squares, centres, counts, np.array([[unseen]]))


def by_bin(changes: Floats, counts: np.ndarray, edges: Floats) -> np.ndarray:
    """Return how many consecutive changes, so many for each pass and look, are in each bin."""
    of = np.repeat(np.arange(counts.size), counts.ravel())
    place = np.clip(np.searchsorted(edges, changes, side="right") - 1, 0, BINS - 1)
    found = np.bincount(of * BINS + place, minlength=counts.size * BINS)
    return found.reshape(*counts.shape, BINS).cumsum(axis=1).astype(np.int32)


def by_look(drawn: Floats, counts: np.ndarray) -> Floats:
    """Return sums of consecutive values, so many for each pass and look, added up over looks."""
    ends = np.cumsum(counts)
    total = np.concatenate([[0.0], np.cumsum(drawn)])
    parts = (total[ends] - total[ends - counts.ravel()]).reshape(counts.shape)
    found: Floats = parts.cumsum(axis=1)
    return found


def decide(found: Differences, margin: float, rule: RuleA = DEFAULT) -> Decided:
    """Judge graded scores of one metric as rule A does; `runs` holds the look that decided."""
    shape = len(found.sums)
    decision, at = np.full(shape, INCONCLUSIVE, np.int8), np.full(shape, len(found.at), np.int8)
    is_open = np.ones(shape, bool)
    for look, n in enumerate(found.at):
        errors = errors_at(look, found.at, rule)
        mean, se = mean_and_se(found, look)
        passed = is_open & (mean - t_isf(errors.beta, n - 1) * se > -margin)
        of = np.flatnonzero(passed)
        for start in range(0, len(of), CHUNK):
            part = of[start : start + CHUNK]
            passed[part] = _no_rare_loss(found, part, look, margin, errors.rare)
        failed = is_open & ~passed & (mean < 0)
        failed &= mean + t_isf(errors.alpha, n - 1) * se <= 0
        decision[passed], decision[failed] = PASS, FAIL
        at[passed | failed] = look + 1
        is_open &= ~(passed | failed)
    return Decided(decision, at, np.empty(0), np.zeros(shape, bool))


def _no_rare_loss(
    found: Differences, part: np.ndarray, look: int, margin: float, error: float
) -> Bools:
    """Return whether losses of few samples are no drop of the margin, for some passes."""
    counts = found.counts[part, look].astype(float)
    everyone = (len(found.sums), found.values.shape[1])
    values = np.broadcast_to(found.values, everyone)[part]
    rest = found.at[look] - counts.sum(axis=1, keepdims=True)
    values = np.concatenate([values, np.full_like(rest, found.rest)], axis=1)
    counts = np.concatenate([counts, rest], axis=1)
    unseen = np.maximum(-np.where(counts > 0, values, np.inf).min(axis=1), 0.0)
    if found.at[look] < found.at[-1]:
        usual = np.broadcast_to(found.unseen, found.sums.shape)
        unseen = np.maximum(unseen, usual[part, look])
    return excluded(values, counts, unseen, margin, error)


def mean_and_se(found: Differences, look: int) -> tuple[Floats, Floats]:
    """Return the mean difference and its standard error after a look's samples."""
    n, mean = found.at[look], found.sums[:, look] / found.at[look]
    variance = np.maximum(found.squares[:, look] - n * mean**2, 0.0) / (n - 1)
    return mean, np.sqrt(variance / n)


def plain(found: Differences, alpha: float = DEFAULT.alpha) -> Bools:
    """Return whether the paired t-test over all samples sees a drop: reported, not the verdict."""
    mean, se = mean_and_se(found, -1)
    seen: Bools = stats.t.sf(-mean / np.maximum(se, 1e-300), found.at[-1] - 1) < alpha
    return seen


def tensorrt_llm(change: Floats, samples: int, sigma: float, alpha: float) -> Bools:
    """Return whether a mean score falls below the threshold of TensorRT-LLM's accuracy tests.

    Args:
        change: Mean score now - the reference, points.
        samples: Of the data set.
        sigma: Standard deviation of a sample's score that the tests assume, points.
        alpha: Their level.

    Source: tests/integration/defs/accuracy/accuracy_core.py of NVIDIA/TensorRT-LLM: threshold =
        reference + z(alpha) · sigma · √(2/n), an unpaired test of known variance.
    """
    threshold = NormalDist().inv_cdf(alpha) * sigma * math.sqrt(2 / samples)
    found: Bools = change < threshold
    return found


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is said at one drop, as shares of passes.

    Attributes:
        drop: Points.
        fail, passed: By margin.
        samples: Share of the samples used, by margin.
        plain: The plain paired test on all samples.
        trt: TensorRT-LLM's rule, by its settings.
        passes: How many.
    """

    drop: float
    fail: Mapping[float, float]
    passed: Mapping[float, float]
    samples: Mapping[float, float]
    plain: float
    trt: Mapping[str, float]
    passes: int


def row(found: Differences, drop: float) -> Row:
    """Return what every rule says of these passes."""
    decided = {margin: decide(found, margin) for margin in MARGINS}
    at = np.array(found.at) / found.at[-1]
    change = found.sums[:, -1] / found.at[-1]
    return Row(
        drop=drop,
        fail={margin: own.share(FAIL) for margin, own in decided.items()},
        passed={margin: own.share(PASS) for margin, own in decided.items()},
        samples={margin: float(at[own.runs - 1].mean()) for margin, own in decided.items()},
        plain=float(plain(found).mean()),
        trt={
            name: float(tensorrt_llm(change, found.at[-1], *settings).mean())
            for name, settings in TRT_SETTINGS.items()
        },
        passes=len(found.sums),
    )


def rows(passes: int, *, broken: bool) -> list[Row]:
    """Return a row for each drop: of every sample a little, or of few outputs that are broken."""
    rng = np.random.default_rng([SEED, 6, int(broken)])
    if broken:
        return [row(differences(rng, passes, broken=drop / MEAN), drop) for drop in DROPS]
    unchanged = differences(rng, passes)
    return [row(unchanged.shifted(drop), drop) for drop in DROPS]
