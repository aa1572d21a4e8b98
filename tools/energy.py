"""Print how far energies are off, against the exact integral of simulated loads.

    python tools/energy.py            # or: make energy

The counter steps every 20 or 100 ms and trails the power by nothing or by 100 ms; it is read 20
times a second and the power 50 times, both with the jitter of a busy machine. The loads are those
that inference makes: constant, square waves with periods from 20 ms to 3 s, a sine, and steps.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_mlperf.core.counter import Reading
from pytest_mlperf.core.energy import PAD_S, Energy, measure
from pytest_mlperf.reports.layout import table

LOW_W, HIGH_W, DUTY = 80.0, 620.0, 0.4
COUNTER_HZ, TRACE_HZ = 20.0, 50.0
JITTER_S = 0.003
"""Standard deviation of the moment of a reading."""

WINDOWS_S = (5.0, 10.0, 20.0, 60.0)
PERIODS_S = (0.02, 0.05, 0.1, 0.11, 0.2, 0.5, 1.1, 3.0)
STEPS_S, LAGS_S = (0.02, 0.1), (0.0, 0.1)
PHASES = 20
"""Windows of each kind, begun at random moments."""

Integral = Callable[[float], float]
"""Joules that a load has used from time 0 to a time in seconds."""


def constant(time_s: float) -> float:
    """A load that never changes."""
    return HIGH_W * time_s


def square(period_s: float) -> Integral:
    """High for DUTY of each period, low for the rest."""
    whole = period_s * (DUTY * HIGH_W + (1 - DUTY) * LOW_W)

    def integral(time_s: float) -> float:
        periods, rest = divmod(time_s, period_s)
        high_s = min(rest, DUTY * period_s)
        return periods * whole + HIGH_W * high_s + LOW_W * (rest - high_s)

    return integral


def sine(period_s: float) -> Integral:
    """Between low and high, smoothly."""
    mean, swing = (HIGH_W + LOW_W) / 2, (HIGH_W - LOW_W) / 2
    rate = 2 * math.pi / period_s
    return lambda time_s: mean * time_s + swing / rate * (1 - math.cos(rate * time_s))


def job(begin_s: float, end_s: float) -> Integral:
    """Idle, busy from begin to end, then idle again: what a run looks like."""

    def integral(time_s: float) -> float:
        busy_s = min(max(time_s - begin_s, 0.0), end_s - begin_s)
        return LOW_W * (time_s - busy_s) + HIGH_W * busy_s

    return integral


@dataclass(frozen=True)
class Sensor:
    """A board's counter and power reading.

    Attributes:
        step_s: How often the counter steps.
        lag_s: By how much it trails.
        phase_s: When it first steps.
    """

    step_s: float
    lag_s: float
    phase_s: float

    def counter(self, load: Integral, time_s: float) -> float:
        """Return joules, whole millijoules as NVML's."""
        at = math.floor((time_s - self.phase_s) / self.step_s) * self.step_s + self.phase_s
        return math.floor(1000 * load(max(at - self.lag_s, 0.0))) / 1000

    def power(self, load: Integral, time_s: float) -> float:
        """Return watts: the mean of the 25 ms before the last of the sensor's refreshes."""
        at = math.floor(time_s / 0.025) * 0.025
        return (load(at) - load(at - 0.025)) / 0.025


def readings(
    take: Callable[[float], float], begin_s: float, end_s: float, rate_hz: float, rng: random.Random
) -> list[Reading]:
    """Return readings at a rate, each a little late."""
    count = int((end_s - begin_s) * rate_hz)
    moments = [begin_s + i / rate_hz + abs(rng.gauss(0, JITTER_S)) for i in range(count + 1)]
    return [Reading(time_s=t, value=take(t)) for t in sorted(moments)]


def once(load: Integral, sensor: Sensor, begin_s: float, window_s: float, seed: int) -> Energy:
    """Measure one window."""
    rng = random.Random(seed)
    first, last = begin_s - PAD_S - 0.2, begin_s + window_s + PAD_S + 0.2
    return measure(
        readings(lambda t: sensor.counter(load, t), first, last, COUNTER_HZ, rng),
        readings(lambda t: sensor.power(load, t), first, last, TRACE_HZ, rng),
        begin_s,
        begin_s + window_s,
        rate_hz=TRACE_HZ,
    )


def loads() -> dict[str, Integral | None]:
    """Return the loads by name; None stands for a job of the window's length."""
    squares = {f"square {period:g} s": square(period) for period in PERIODS_S}
    return {"constant": constant, **squares, "sine 2 s": sine(2.0), "job": None}


def errors(step_s: float, lag_s: float, window_s: float) -> dict[str, list[tuple[float, bool]]]:
    """Return each window's relative error by load, and whether its uncertainty covers it."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for name, load in loads().items():
        found[name] = []
        for number in range(PHASES):
            rng = random.Random(f"{name} {step_s} {lag_s} {window_s} {number}")
            begin_s = 10 + 5 * rng.random()
            own = load or job(begin_s, begin_s + window_s)
            sensor = Sensor(step_s, lag_s, rng.random() * step_s)
            energy = once(own, sensor, begin_s, window_s, number)
            exact = own(begin_s + window_s) - own(begin_s)
            assert energy.joules is not None
            assert energy.uncertainty_j is not None
            off = energy.joules - exact
            found[name].append((off / exact, abs(off) <= energy.uncertainty_j + 0.002))
    return found


def row(step_s: float, lag_s: float, window_s: float) -> dict[str, str]:
    """Return one line of the table."""
    found = errors(step_s, lag_s, window_s)
    every = [each for of_load in found.values() for each in of_load]
    worst = max(found, key=lambda name: max(abs(error) for error, _ in found[name]))
    sizes = [abs(error) for error, _ in every]
    return {
        "step": f"{1000 * step_s:.0f} ms",
        "lag": f"{1000 * lag_s:.0f} ms",
        "window": f"{window_s:g} s",
        "mean error": f"{100 * sum(sizes) / len(sizes):.3f} %",
        "largest": f"{100 * max(sizes):.2f} %",
        "of load": worst,
        "inside its uncertainty": f"{100 * sum(ok for _, ok in every) / len(every):.1f} %",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    assert __doc__
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(arguments)
    rows = [row(step, lag, window) for step in STEPS_S for lag in LAGS_S for window in WINDOWS_S]
    print("\n".join(table(list(rows[0]), rows, 100, left=["of load"])))


if __name__ == "__main__":
    main()
