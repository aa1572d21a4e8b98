"""Five models of how the speed of a run varies when nothing changed.

A run is 60 windows of one second. log(speed of a window) = what the session has in common + what
the run has in common + noise from window to window, which is correlated with the window before,
+ a stall now and then. No model was fitted to a GPU: the figures are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from pytest_mlperf.run.worker._sink import BATCHES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WINDOWS = 60
STALL = (0.05, 0.30)
"""How much slower a stalled window is, at least and at most, as a share."""

CHUNK = 40_000
"""Runs simulated at once: bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """One model; shares, standard deviations relative.

    Attributes:
        name: What tables call it.
        correlation: Of a window with the one before it.
        window: Standard deviation of a window within its run.
        run: Standard deviation of what a run has in common.
        stalls: Share of windows that stall.
        slow_runs: Share of runs in a slow mode.
        slow_by: How much slower that mode is.
        session: Standard deviation of what the runs of one session have in common.
    """

    name: str
    correlation: float
    window: float
    run: float
    stalls: float = 0.0
    slow_runs: float = 0.0
    slow_by: float = 0.02
    session: float = 0.0


MODELS = (
    Noise(name="quiet", correlation=0.3, window=0.01, run=0.003),
    Noise(name="typical", correlation=0.6, window=0.02, run=0.007, stalls=0.01),
    Noise(name="noisy", correlation=0.9, window=0.03, run=0.015, stalls=0.02),
    Noise(name="bimodal", correlation=0.6, window=0.02, run=0.005, stalls=0.01, slow_runs=0.15),
    Noise(name="session", correlation=0.6, window=0.02, run=0.005, stalls=0.01, session=0.005),
)


def speeds(noise: Noise, rng: np.random.Generator, runs: int) -> Floats:
    """Return the speed of each window, shape (runs, WINDOWS), about 1; no session's share yet."""
    fresh = rng.standard_normal((runs, WINDOWS))
    fresh[:, 1:] *= np.sqrt(1 - noise.correlation**2)
    logs = noise.window * lfilter([1.0], [1.0, -noise.correlation], fresh, axis=1)
    logs += noise.run * rng.standard_normal((runs, 1))
    if noise.slow_runs:
        logs += np.log1p(-noise.slow_by) * (rng.random((runs, 1)) < noise.slow_runs)
    if noise.stalls:
        stalled = rng.random(logs.shape) < noise.stalls
        logs[stalled] += np.log1p(-rng.uniform(*STALL, int(stalled.sum())))
    found: Floats = np.exp(logs)
    return found


def of_sessions(noise: Noise, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return what the runs of each session have in common, log; 0.0 where that is nothing."""
    return noise.session * rng.standard_normal(shape) if noise.session else 0.0


def runs(noise: Noise, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return log speed and relative standard error within the run, each of this shape."""
    count = int(np.prod(shape))
    logs, errors = np.empty(count), np.empty(count)
    for start in range(0, count, CHUNK):
        part = slice(start, min(start + CHUNK, count))
        made = speeds(noise, rng, part.stop - part.start)
        logs[part], errors[part] = np.log(made.mean(axis=1)), within(made)
    return logs.reshape(shape), errors.reshape(shape)


def within(made: Floats) -> Floats:
    """Return the relative standard error of each run by batch means, as a worker measures it.

    Source: pytest_mlperf.run.worker._sink.batch_means_error; a stamp at the end of every window.
    """
    edges = [k * WINDOWS // BATCHES for k in range(BATCHES + 1)]
    work = np.add.reduceat(made, edges[:-1], axis=1)
    costs = np.diff(edges) / work
    found: Floats = costs.std(axis=1, ddof=1) / np.sqrt(BATCHES) / costs.mean(axis=1)
    return found
