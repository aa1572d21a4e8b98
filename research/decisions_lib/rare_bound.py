"""The bound of losses that few samples have, of many passes at once."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from decisions_lib.noise import Bools, Floats

STEPS = 60
CLOSE = 1e-10


def excluded(values: Floats, counts: Floats, unseen: Floats, margin: float, error: float) -> Bools:
    """Return whether the lower bound of the mean is above -margin.

    Args:
        values: Changes, shape (passes, values).
        counts: How many samples changed by so much, the same shape.
        unseen: Loss of one more sample, shape (passes,).
        margin: Points.
        error: How often the true mean may lie below the bound.
    """
    excess = np.concatenate([values + margin, (margin - unseen)[:, None]], axis=1)
    each = np.concatenate([counts, np.ones((len(counts), 1))], axis=1)
    excess = np.where(each > 0, excess, np.inf)
    least = excess.min(axis=1)
    excess = np.where(each > 0, excess, 0.0)
    found: Bools = least >= 0
    open_ = ~found & ((excess * each).sum(axis=1) > 0)
    found[open_] = _deviates(excess[open_], each[open_], least[open_]) < NormalDist().inv_cdf(error)
    return found


def _deviates(excess: Floats, each: Floats, least: Floats) -> Floats:
    """Return the normal deviates of the weighted means' being below 0."""
    low, high = 1 / least, np.zeros(len(least))
    point = low / 2
    for _ in range(STEPS):
        tilted = excess / (1 - point[:, None] * excess)
        slope = (each * tilted).sum(axis=1)
        high, low = np.where(slope > 0, point, high), np.where(slope > 0, low, point)
        newton = point - slope / (each * tilted**2).sum(axis=1)
        inside = (newton > low) & (newton < high)
        before, point = point, np.where(inside, newton, (low + high) / 2)
        if np.all(np.abs(point - before) <= CLOSE * np.abs(point)):
            break
    rest = 1 - point[:, None] * excess
    cumulant = -(each * np.log(rest)).sum(axis=1)
    curvature = (each * (excess / rest) ** 2).sum(axis=1)
    root = -np.sqrt(np.maximum(-2 * cumulant, 1e-300))
    found: Floats = root + np.log(point * np.sqrt(curvature) / root) / root
    return found
