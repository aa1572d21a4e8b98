"""Rule A on simulated scores of a whole data set, beside an unpaired test.

Scores are those of ROUGE: between 0 and 100, mean 44, standard deviation 22. A build that is
unchanged gives most samples the same output as before, and a share 1 - r of them another output of
the same quality: then the scores of the two passes are correlated with r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy import stats

from decisions_lib.noise import Bools, Floats
from decisions_lib.performance import SEED
from decisions_lib.rule import FAIL, INCONCLUSIVE, PASS, Decided
from pytest_mlperf.core.judge.quantiles import t_isf
from pytest_mlperf.core.judge.rule_a import DEFAULT, RuleA, looks

SAMPLES = 24_576
MEAN, SD = 44.0, 22.0
CORRELATION = 0.95
DROPS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
MARGINS = (0.5, 0.25)
CHUNK = 500

TRT_SETTINGS = {"ROUGE": (11.06, 0.002), "default": (50.0, 0.05)}
"""TensorRT-LLM's sigma, points, and alpha: of CNN/DailyMail, and where nothing else is given."""


@dataclass(frozen=True)
class Differences:
    """Sums over the first samples, as many as at each look, of now - before.

    Attributes:
        at: Samples at each look.
        sums: Shape (passes, looks), points.
        squares: Shape (passes, looks).
    """

    at: tuple[int, ...]
    sums: Floats
    squares: Floats

    def shifted(self, drop: float) -> Differences:
        """Return the same where every sample lost so many points besides."""
        n = np.array(self.at)
        squares = self.squares - 2 * drop * self.sums + n * drop**2
        return Differences(self.at, self.sums - n * drop, squares)


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
    at = looks(SAMPLES, sequential=True)
    sizes = np.diff((0, *at))
    parts = []
    for start in range(0, passes, CHUNK):
        shape = (min(CHUNK, passes - start), len(at))
        lost = rng.binomial(sizes, broken, shape)
        other = rng.binomial(sizes - lost, 1 - correlation, shape)
        redrawn = scores(rng, int(other.sum())) - scores(rng, int(other.sum()))
        zeroed = -scores(rng, int(lost.sum()))
        parts.append([by_look(redrawn**q, other) + by_look(zeroed**q, lost) for q in (1, 2)])
    sums, squares = (np.concatenate([part[i] for part in parts]) for i in range(2))
    return Differences(at, sums, squares)


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
    alpha, beta = rule.alpha / len(found.at), rule.beta / len(found.at)
    for look, n in enumerate(found.at):
        mean, se = mean_and_se(found, look)
        passed = is_open & (mean - t_isf(beta, n - 1) * se > -margin)
        failed = is_open & ~passed & (mean + t_isf(alpha, n - 1) * se <= 0) & (mean < 0)
        decision[passed], decision[failed] = PASS, FAIL
        at[passed | failed] = look + 1
        is_open &= ~(passed | failed)
    return Decided(decision, at, np.empty(0))


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
    """

    drop: float
    fail: Mapping[float, float]
    passed: Mapping[float, float]
    samples: Mapping[float, float]
    plain: float
    trt: Mapping[str, float]


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
    )


def rows(passes: int, *, broken: bool) -> list[Row]:
    """Return a row for each drop: of every sample a little, or of few outputs that are broken."""
    rng = np.random.default_rng([SEED, 6, int(broken)])
    if broken:
        return [row(differences(rng, passes, broken=drop / MEAN), drop) for drop in DROPS]
    unchanged = differences(rng, passes)
    return [row(unchanged.shifted(drop), drop) for drop in DROPS]
