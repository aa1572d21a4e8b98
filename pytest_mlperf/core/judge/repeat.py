"""How far two passes of one build are apart: what a score is worth that is near its gate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from pytest_mlperf.core.accuracy_baseline import AccuracyBaseline, Rerun, kept
from pytest_mlperf.core.judge.rule_a import correlated
from pytest_mlperf.core.measurement import Scored
from pytest_mlperf.core.metrics import COUNTS

Values = Sequence[float | None]


def apart(
    baseline: AccuracyBaseline, before: Mapping[str, Values], now: Scored
) -> dict[str, Rerun]:
    """Compare a whole pass of the baseline's own build with the baseline, metric by metric.

    Args:
        baseline: The accepted scores.
        before: They by metric and data set index.
        now: A pass over the whole data set.
    """
    found = {}
    for name, values in now.per_sample.items():
        if name in before and name not in COUNTS:
            again = kept(values, baseline.steps[name])
            both = [
                (a, b)
                for a, b in zip(before[name], again, strict=True)
                if a is not None and b is not None
            ]
            if len(both) > 1:
                found[name] = _rerun([a for a, _ in both], [b for _, b in both])
    return found


def pooled(old: Mapping[str, Rerun], new: Mapping[str, Rerun]) -> dict[str, Rerun]:
    """Return what is known after some more passes: variances and correlations are averaged."""
    found = dict(old)
    for name, own in new.items():
        known = old.get(name)
        if known is None:
            found[name] = own
            continue
        passes = known.passes + own.passes
        variance = (known.passes * known.sd**2 + own.passes * own.sd**2) / passes
        there = [one for one in (known, own) if one.correlation is not None]
        weights = sum(one.passes for one in there)
        total = sum(one.passes * (one.correlation or 0.0) for one in there)
        correlation = total / weights if there else None
        found[name] = Rerun(sd=math.sqrt(variance), correlation=correlation, passes=passes)
    return found


def _rerun(before: Sequence[float], now: Sequence[float]) -> Rerun:
    """Return the figures of two passes.

    The difference of two passes has twice the variance of one, and n samples are averaged:
    sd = sd(d) / sqrt(2 n), which is sigma * sqrt((1 - r) / n) for scores of spread sigma.
    """
    n = len(before)
    differences = [b - a for a, b in zip(before, now, strict=True)]
    mean = fmean(differences)
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    return Rerun(sd=math.sqrt(variance / (2 * n)), correlation=correlated(before, now), passes=1)
