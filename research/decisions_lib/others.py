"""Other tools' rules, each written anew from what the tool publishes; True is "a regression".

Times are better when lower; all arrays have one row per case. Where a tool has settings they are
its defaults, unless the name says otherwise.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from scipy import stats

from decisions_lib.noise import Bools, Floats


def pytest_benchmark(before: Floats, now: Floats, *, percent: int = 5) -> Bools:
    """Return whether `--benchmark-compare-fail=mean:N%` fails.

    Args:
        before: Times of the saved run, shape (cases, rounds).
        now: Times of this run.
        percent: N.

    Source: https://pytest-benchmark.readthedocs.io/en/latest/usage.html: the mean rose by more than
        N per cent; nothing is tested.
    """
    found: Bools = now.mean(axis=1) / before.mean(axis=1) * 100 - 100 > percent
    return found


def asv(before: Floats, now: Floats, *, factor: float = 1.1) -> Bools:
    """Return whether `asv continuous` calls a benchmark worse.

    The median must have grown by the factor, and the Mann-Whitney U test, two-sided and exact, must
    say p < 0.002 where so few samples can give that.

    Source: https://asv.readthedocs.io/en/stable/commands.html#asv-continuous; asv/_stats.py.
    """
    m, n = before.shape[1], now.shape[1]
    if 1 / math.comb(m + n, m) >= 0.002:
        raise ValueError(f"{m} and {n} samples cannot give p < 0.002; asv then compares intervals")
    u = (before[:, :, None] > now[:, None, :]).sum(axis=(1, 2))
    different = np.minimum(u, m * n - u) <= _critical_u(m, n, 0.002)
    found: Bools = different & (np.median(now, axis=1) > factor * np.median(before, axis=1))
    return found


@lru_cache
def _critical_u(m: int, n: int, p: float) -> int:
    """Return the largest U whose two-sided exact p is below p, without ties; -1 if none."""
    counts = np.zeros(m * n + 1)
    counts[0] = 1.0
    # The number of ways to reach each U: the coefficients of the Gaussian binomial.
    for i in range(1, m + 1):
        for j in range(m * n, n + i - 1, -1):
            counts[j] -= counts[j - n - i]
        for j in range(i, m * n + 1):
            counts[j] += counts[j - i]
    below = 2 * np.cumsum(counts) / math.comb(m + n, m) < p
    return int(below.sum()) - 1


def reframe(references: Floats, now: Floats, *, lower: float = -0.05) -> Bools:
    """Return whether a speed fails its reference.

    Args:
        references: Speeds that the reference was taken from, as their mean, shape (cases, runs).
        now: Speed of one run, shape (cases,).
        lower: The signed lower threshold of `reference = {...: (value, lower, upper, unit)}`.

    Source: https://reframe-hpc.readthedocs.io/en/stable/regression_test_api.html: a value is kept
        from reference * (1 + lower) on. The tool takes one number; its users take means.
    """
    found: Bools = now < references.mean(axis=1) * (1 + lower)
    return found


def tensorrt_llm(history: Floats, now: Floats, *, drop: float) -> Bools:
    """Return whether a throughput fails: 10 % before, 5 % after a merge.

    Args:
        history: Throughput of each of the last days, oldest first, shape (cases, days).
        now: Throughput of one run, shape (cases,).
        drop: The gate.

    Source: tests/integration/defs/perf/README_perf_regression_system.md of NVIDIA/TensorRT-LLM: the
        baseline is the 95th percentile of the mean over three days each.
    """
    rolling = (history[:, :-2] + history[:, 1:-1] + history[:, 2:]) / 3
    found: Bools = now < np.percentile(rolling, 95, axis=1) * (1 - drop)
    return found


def bencher(history: Floats, now: Floats, *, boundary: float = 0.99) -> Bools:
    """Return whether a throughput falls below the lower boundary of a t-test threshold.

    Args:
        history: Earlier values of the branch, shape (cases, runs).
        now: The new value, shape (cases,).
        boundary: The lower boundary, a one-sided level.

    Source: https://bencher.dev/docs/explanation/thresholds/#t-test-threshold-t_test; release notes
        of 0.6.3: the sample standard deviation, widened by √(1 + 1/n).
    """
    n = history.shape[1]
    if n < 2:
        return np.zeros(len(history), bool)  # no boundary, no alert
    sd = history.std(axis=1, ddof=1)
    reach = stats.t.ppf(boundary, n - 1) * sd * math.sqrt(1 + 1 / n)
    found: Bools = (now < history.mean(axis=1) - reach) & (sd > 0)
    return found


def criterion(
    before: Floats, now: Floats, rng: np.random.Generator, *, resamples: int, noise: float = 0.01
) -> Bools:
    """Return whether criterion.rs says "Performance has regressed".

    The bootstrap of Welch's t from the pooled times must say p < 0.05, and the 95 % percentile
    interval of the relative change of the mean must lie beyond the noise threshold.

    Args:
        before: Times, shape (cases, samples).
        now: Times, same shape.
        rng: Draws the resamples; the same serve every case.
        resamples: Of each bootstrap; criterion draws 100,000.
        noise: The threshold; 1 % in the code.

    Source: https://bheisler.github.io/criterion.rs/book/analysis.html#comparison.
    """
    n = before.shape[1]
    first, second = (_picks(rng, resamples, n, n) for _ in range(2))
    change = (now @ second.T) / (before @ first.T) - 1
    moved = np.percentile(change, 2.5, axis=1) > noise
    found: Bools = np.zeros(len(now), bool)
    if moved.any():
        p = _bootstrap_p(before[moved], now[moved], rng, resamples)
        found[moved] = p < 0.05
    return found


def _picks(rng: np.random.Generator, resamples: int, drawn: int, out_of: int) -> Floats:
    """Return how often each value is drawn, shape (resamples, out_of)."""
    found: Floats = rng.multinomial(drawn, np.full(out_of, 1 / out_of), resamples).astype(float)
    return found


def _bootstrap_p(before: Floats, now: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    n = before.shape[1]
    # Moments about the mean: their differences cancel fewer digits.
    pooled = np.concatenate([now, before], axis=1)
    pooled = pooled - pooled.mean(axis=1, keepdims=True)
    means, variances = [], []
    for _ in range(2):
        picks = _picks(rng, resamples, n, 2 * n).T
        mean = pooled @ picks / n
        means.append(mean)
        variances.append((pooled**2 @ picks / n - mean**2) * n / (n - 1))
    t = (means[0] - means[1]) / np.sqrt((variances[0] + variances[1]) / n)
    own = (now.mean(axis=1) - before.mean(axis=1)) / np.sqrt(
        (now.var(axis=1, ddof=1) + before.var(axis=1, ddof=1)) / n
    )
    hits = (t < own[:, None]).sum(axis=1)
    found: Floats = 2 * np.minimum(hits, resamples - hits) / resamples
    return found


def google_benchmark(before: Floats, now: Floats, *, alpha: float = 0.05) -> Bools:
    """Return whether compare.py finds repetitions slower by its U test.

    Two-sided Mann-Whitney with scipy's default method, that is the normal approximation with
    continuity correction above eight repetitions.

    Source: https://google.github.io/benchmark/tools.html#note-interpreting-the-output.
    """
    m, n = before.shape[1], now.shape[1]
    if min(m, n) <= 8:
        raise ValueError(f"{m} and {n} repetitions: the tool recommends nine or more of each")
    above = (now[:, :, None] > before[:, None, :]).sum(axis=(1, 2))
    z = (np.maximum(above, m * n - above) - m * n / 2 - 0.5) / math.sqrt(m * n * (m + n + 1) / 12)
    slower = np.median(now, axis=1) > np.median(before, axis=1)
    found: Bools = (z > NormalDist().inv_cdf(1 - alpha / 2)) & slower
    return found


def welch(before: Floats, now: Floats, *, alpha: float = 0.01) -> Bools:
    """Return whether Welch's one-sided t-test on windows says that a speed fell.

    No tool's rule, but what is often written by hand: windows are taken as independent.
    """
    m, n = before.shape[1], now.shape[1]
    a, b = before.var(axis=1, ddof=1) / m, now.var(axis=1, ddof=1) / n
    df = (a + b) ** 2 / (a**2 / (m - 1) + b**2 / (n - 1))
    t = (now.mean(axis=1) - before.mean(axis=1)) / np.sqrt(a + b)
    found: Bools = stats.t.cdf(t, df) < alpha
    return found
