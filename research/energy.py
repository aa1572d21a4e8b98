"""Print how far off energies are, against the exact integral of simulated loads.

    python research/energy.py            # or: make energy

A simulated board has an energy counter that steps and trails the power, and a power sensor that
refreshes and shows the mean of the last of its windows; the counter is read 20 times a second, the
power 50 times and the driver's mean of a second 5 times, with the jitter of a busy machine. The
loads are those that inference makes: constant, square waves, a sawtooth, bursts, and a job between
two idle times. No figure here is of a real board.
"""

from __future__ import annotations

import argparse
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from pytest_mlperf.core.energy import PAD_S, Energy, measure, sum_energies
from pytest_mlperf.core.energy.readings import Reading
from pytest_mlperf.reports.terminal.layout import table
from pytest_mlperf.run.power.sampling import COUNTER_MARGIN_SECONDS

LOW_W, HIGH_W, DUTY = 80.0, 620.0, 0.4
COUNTER_HZ, TRACE_HZ, AVERAGE_HZ = 20.0, 50.0, 5.0
JITTER_S = 0.003
"""Standard deviation of the moment of a reading."""

LEAD_S = 5.0
"""Sampling begins so long before the window: the engine loads and warms up."""

WINDOWS_S = (5.0, 10.0, 20.0, 60.0)
PHASES = 12
"""Windows of each kind, begun at random moments."""

Integral = Callable[[float], float]
"""Joules that a load has used from time 0 to a time in seconds."""


def constant(time_s: float) -> float:
    """Return the energy of a constant load."""
    return HIGH_W * time_s


def square(period_s: float) -> Integral:
    """High for DUTY of each period, low for the rest."""
    whole = period_s * (DUTY * HIGH_W + (1 - DUTY) * LOW_W)

    def integral(time_s: float) -> float:
        periods, rest = divmod(time_s, period_s)
        high_s = min(rest, DUTY * period_s)
        return periods * whole + HIGH_W * high_s + LOW_W * (rest - high_s)

    return integral


def saw(period_s: float) -> Integral:
    """From low to high, and down at once."""
    swing, whole = HIGH_W - LOW_W, period_s * (HIGH_W + LOW_W) / 2

    def integral(time_s: float) -> float:
        periods, rest = divmod(time_s, period_s)
        return periods * whole + LOW_W * rest + swing * rest**2 / period_s / 2

    return integral


def bursts(seed: int = 0, seconds: float = 200.0) -> Integral:
    """Any power for 10 ms to 1 s, then another."""
    rng = random.Random(seed)
    lengths = [0.01 + 0.99 * rng.random() ** 2 for _ in range(int(4 * seconds))]
    powers = [LOW_W + (HIGH_W - LOW_W) * rng.random() for _ in lengths]
    ends = list(accumulate(lengths))
    used = list(accumulate(s * w for s, w in zip(lengths, powers, strict=True)))

    def integral(time_s: float) -> float:
        number = bisect_right(ends, time_s)
        return used[number] - powers[number] * (ends[number] - time_s)

    return integral


def job(begin_s: float, end_s: float) -> Integral:
    """Idle, busy from begin to end, then idle again: what a run looks like."""

    def integral(time_s: float) -> float:
        busy_s = min(max(time_s - begin_s, 0.0), end_s - begin_s)
        return LOW_W * (time_s - busy_s) + HIGH_W * busy_s

    return integral


LOADS: dict[str, Integral | None] = {
    "constant": constant,
    "square 0.1 s": square(0.1),
    "square 0.2 s": square(0.2),
    "square 1.1 s": square(1.1),
    "square 3 s": square(3.0),
    "saw 2.3 s": saw(2.3),
    "bursts": bursts(),
    "job": None,
}
"""None stands for a job of the window's length."""


@dataclass(frozen=True, kw_only=True)
class Sensor:
    """A board's counter and power readings.

    Attributes:
        step_s: How often the counter steps; None: there is none.
        lag_s: By how much it trails.
        smear_s: It counts the mean power of so long.
        jitter_s: Standard deviation of the moment of a step.
        gain: What it counts of a joule.
        refresh_s: How often the power is renewed.
        window_s: Of what time it is the mean.
        covers: Whether it is known to see all of the time.
        average: Whether the driver also gives the mean of the last second.
    """

    step_s: float | None = 0.1
    lag_s: float = 0.0
    smear_s: float = 0.0
    jitter_s: float = 0.0
    gain: float = 1.0
    refresh_s: float = 0.025
    window_s: float = 0.025
    covers: bool = False
    average: bool = True

    def counter(self, load: Integral, phase_s: float, time_s: float) -> float:
        """Return joules, whole millijoules as NVML's."""
        assert self.step_s is not None
        number = math.floor((time_s - phase_s) / self.step_s)
        if self.jitter_s:
            shift = random.Random(number).gauss(0, self.jitter_s)
            number -= number * self.step_s + phase_s + shift > time_s
        then = number * self.step_s + phase_s - self.lag_s
        joules = load(then)
        if self.smear_s:
            # The integral of a mean over the last smear_s is the mean of the integral.
            pieces = 50
            joules = fmean(load(then - self.smear_s * (i + 0.5) / pieces) for i in range(pieces))
        return math.floor(1000 * self.gain * joules) / 1000

    def power(self, load: Integral, phase_s: float, time_s: float) -> float:
        """Return watts: the mean of the window before the last refresh."""
        then = math.floor((time_s - phase_s) / self.refresh_s) * self.refresh_s + phase_s
        return (load(then) - load(then - self.window_s)) / self.window_s


SENSORS: dict[str, Sensor] = {
    "counter 100 ms, no lag": Sensor(),
    "counter 20 ms, lag 20 ms": Sensor(step_s=0.02, lag_s=0.02, refresh_s=0.02, window_s=0.01),
    "counter with jitter, lag 50 ms": Sensor(lag_s=0.05, jitter_s=0.015),
    "counter, lag 250 ms": Sensor(lag_s=0.25),
    "GA10x-like: lag 50 ms, 100/100": Sensor(
        lag_s=0.05, refresh_s=0.1, window_s=0.1, covers=True, average=True
    ),
    "H100-like: lag 100 ms, 25/100": Sensor(lag_s=0.1, refresh_s=0.1, window_s=0.025),
    "A100-like: no mean of a second": Sensor(
        lag_s=0.1, refresh_s=0.1, window_s=0.025, average=False
    ),
    "no counter, 25/100": Sensor(step_s=None, refresh_s=0.1),
    "no counter, 25/25": Sensor(step_s=None),
    "no counter, 100/100, covers": Sensor(step_s=None, refresh_s=0.1, window_s=0.1, covers=True),
    "counter of a 1 s mean": Sensor(lag_s=0.1, smear_s=1.0, refresh_s=0.1),
    "counter, lag 500 ms": Sensor(lag_s=0.5, refresh_s=0.1),
    "counter, lag 600 ms": Sensor(lag_s=0.6, refresh_s=0.1),
    "counter of 500 ms": Sensor(step_s=0.5, lag_s=0.05, refresh_s=0.1),
    "counter +2 %, GA10x-like": Sensor(
        lag_s=0.05, gain=1.02, refresh_s=0.1, window_s=0.1, covers=True
    ),
    "counter +4 %, GA10x-like": Sensor(
        lag_s=0.05, gain=1.04, refresh_s=0.1, window_s=0.1, covers=True
    ),
    "counter +8 %, H100-like": Sensor(lag_s=0.1, gain=1.08, refresh_s=0.1),
    "counter +8 %, A100-like": Sensor(lag_s=0.1, gain=1.08, refresh_s=0.1, average=False),
    "counter +20 %, module": Sensor(lag_s=0.1, gain=1.2, refresh_s=0.1),
}
"""What boards are reported to have, then what they may have; window/refresh of the power in ms."""


def readings(
    take: Callable[[float], float], begin_s: float, end_s: float, rate_hz: float, rng: random.Random
) -> list[Reading]:
    """Return readings at a rate, each a little late."""
    count = int((end_s - begin_s) * rate_hz)
    moments = [begin_s + i / rate_hz + abs(rng.gauss(0, JITTER_S)) for i in range(count + 1)]
    return [Reading(time_s=t, value=take(t)) for t in sorted(moments)]


def once(
    load: Integral,
    sensor: Sensor,
    begin_s: float,
    window_s: float,
    seed: int,
    board: Board | None = None,
) -> Energy:
    """Measure one window; of a board with all that was read since it rested."""
    rng = random.Random(seed)
    phase_s, of_power_s = rng.random() * (sensor.step_s or 0.0), rng.random() * sensor.refresh_s
    first, last = (
        (0.2 if board else begin_s - LEAD_S),
        begin_s + window_s + PAD_S + COUNTER_MARGIN_SECONDS,
    )
    board = board or Board(sensor=sensor)
    counter = trace = average = []
    if sensor.step_s:
        counter = readings(
            lambda t: sensor.counter(load, phase_s, t), first, last, board.counter_hz, rng
        )
    trace = readings(lambda t: sensor.power(load, of_power_s, t), first, last, board.trace_hz, rng)
    if sensor.average:
        average = readings(lambda t: load(t) - load(t - 1.0), first, last, board.average_hz, rng)
    return measure(
        counter,
        trace,
        begin_s,
        begin_s + window_s,
        rate_hz=board.trace_hz,
        covers=sensor.covers,
        average=average,
    )


REST_S, REST_W = 3.0, 110.0
"""Before anything is loaded the board rests, as it does before a run's engine is loaded."""


def steps(pieces: Iterator[tuple[float, float]], seconds: float = 60.0) -> Integral:
    """Return a board at rest, then `pieces`: seconds and the power that follows."""
    lengths, powers, total = [REST_S], [REST_W], REST_S
    while total < seconds:
        length, watts = next(pieces)
        lengths.append(length)
        powers.append(watts)
        total += length
    ends = list(accumulate(lengths))
    used = list(accumulate(s * w for s, w in zip(lengths, powers, strict=True)))

    def integral(time_s: float) -> float:
        number = min(bisect_right(ends, time_s), len(ends) - 1)
        return used[number] - powers[number] * (ends[number] - time_s)

    return integral


def requests(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Prefill, decode, and a gap."""
    while True:
        yield rng.uniform(0.15, 0.35), 640
        yield rng.uniform(0.8, 2.0), 330
        yield rng.uniform(0.05, 0.45), 120


def telegraph(rng: random.Random) -> Iterator[tuple[float, float]]:
    """High for 40 ms and low for 60 ms in the mean."""
    while True:
        yield rng.expovariate(1 / 0.040), 620
        yield rng.expovariate(1 / 0.060), 110


def chirp(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Square waves whose period goes from 0.08 to 4 s and back."""
    time_s = 10 * rng.random()
    while True:
        half_s = 0.04 * 50 ** (0.5 - 0.5 * math.cos(math.tau * time_s / 25))
        yield half_s, 600
        yield half_s, 100
        time_s += 2 * half_s


def shots(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Work of 30 ms at random moments."""
    while True:
        yield rng.expovariate(1 / 0.12), 100
        yield 0.03, 650


def ramp(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield a ramp of 12 s with a ripple of 30 Hz."""
    time_s = 12 * rng.random()
    while True:
        base_w = 150 + 400 * (time_s % 12) / 12
        yield 1 / 60, base_w + 100
        yield 1 / 60, base_w - 40
        time_s += 1 / 30


def beside(rng: random.Random) -> Iterator[tuple[float, float]]:
    """97 ms, which a sensor of 100 ms sees a little later each time."""
    yield 0.09 * rng.random(), 100
    while True:
        yield 0.0388, 620
        yield 0.0582, 80


def levels(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Any power for 4 to 12 s, then another."""
    while True:
        yield rng.uniform(4, 12), rng.uniform(110, 630)


def beats(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Two square waves of 0.31 and 1.7 s at once."""
    time_s, first, second = 0.0, rng.random(), rng.random()
    while True:
        fast, slow = (time_s + first) / 0.31 % 1 < 0.5, (time_s + second) / 1.7 % 1 < 0.5
        yield 0.005, 120 + 220 * fast + 280 * slow
        time_s += 0.005


SHAPES = (requests, telegraph, chirp, shots, ramp, beside, levels, beats)


@dataclass(frozen=True, kw_only=True)
class Board:
    """A sensor as it is read: Hz of the counter, the power, and the driver's mean of a second."""

    sensor: Sensor
    counter_hz: float = COUNTER_HZ
    trace_hz: float = TRACE_HZ
    average_hz: float = AVERAGE_HZ


BOARDS: dict[str, Board] = {
    "H100-like": Board(sensor=SENSORS["H100-like: lag 100 ms, 25/100"]),
    "A100-like": Board(sensor=SENSORS["A100-like: no mean of a second"]),
    "counter 20 ms": Board(sensor=SENSORS["counter 20 ms, lag 20 ms"]),
    "GA10x-like": Board(sensor=SENSORS["GA10x-like: lag 50 ms, 100/100"]),
    "H100-like, read at 5 Hz": Board(
        sensor=SENSORS["H100-like: lag 100 ms, 25/100"], counter_hz=5, trace_hz=5, average_hz=1
    ),
    "A100-like, read at 5 Hz": Board(
        sensor=SENSORS["A100-like: no mean of a second"], counter_hz=5, trace_hz=5, average_hz=1
    ),
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A window of a shape: of one GPU or the sum of some, joules, their ±, and the truth."""

    truth_j: float
    joules: float
    unsure_j: float
    gated: bool

    @property
    def error_j(self) -> float:
        """How far off it is."""
        return abs(self.joules - self.truth_j)


def shape_windows(
    board: Board, each: int, gpus: int = 1, window_s: float = 20.0
) -> Iterator[Measured]:
    """Yield windows of each shape and of a job between rests, each of so many GPUs together."""
    for shape in (*SHAPES, None):
        for number in range(each):
            rng = random.Random(f"{shape and shape.__name__} {board} {gpus} {number}")
            begin_s = LEAD_S + 6 * rng.random()
            energies, truth_j = {}, 0.0
            for gpu in range(gpus):
                load = job(begin_s, begin_s + window_s) if shape is None else steps(shape(rng))
                energies[str(gpu)] = once(
                    load, board.sensor, begin_s, window_s, rng.randrange(2**31), board
                )
                truth_j += load(begin_s + window_s) - load(begin_s)
            whole = sum_energies(energies)
            assert whole.joules is not None
            assert whole.uncertainty_j is not None
            yield Measured(
                truth_j=truth_j,
                joules=whole.joules,
                unsure_j=whole.uncertainty_j,
                gated=whole.gated,
            )


def shape_row(name: str, board: Board, each: int, gpus: int) -> dict[str, str]:
    """Return one line of the table of shapes."""
    every = list(shape_windows(board, each, gpus))
    errors = [one.error_j / one.truth_j for one in every]
    stated = [one.unsure_j / one.truth_j for one in every]
    return {
        "board": name,
        "windows": f"{len(every)}",
        "mean error": percent(fmean(errors), 3),
        "largest": percent(max(errors)),
        "stated ±": percent(fmean(stated)),
        "± / mean error": f"{fmean(stated) / fmean(errors):.1f}",
        "inside ±": percent(fmean(one.error_j <= one.unsure_j for one in every), 1),
        "judged": percent(fmean(one.gated for one in every), 0),
    }


@dataclass(frozen=True, kw_only=True)
class Window:
    """One window: relative error, relative uncertainty, and whether it may be judged."""

    load: str
    error: float
    unsure: float | None
    gated: bool

    @property
    def inside(self) -> bool:
        """Whether the uncertainty covers the error."""
        return self.unsure is None or abs(self.error) <= self.unsure + 1e-6


def windows(sensor: Sensor, window_s: float) -> Iterator[Window]:
    """Yield windows of every load at random moments."""
    for name, load in LOADS.items():
        for number in range(PHASES):
            rng = random.Random(f"{name} {sensor} {window_s} {number}")
            begin_s = 10 + 5 * rng.random()
            run = load or job(begin_s, begin_s + window_s)
            energy = once(run, sensor, begin_s, window_s, number)
            exact = run(begin_s + window_s) - run(begin_s)
            assert energy.joules is not None
            unsure = energy.uncertainty_j
            yield Window(
                load=name,
                error=energy.joules / exact - 1,
                unsure=None if unsure is None else unsure / exact,
                gated=energy.gated,
            )


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share as "1.23 %"; "–" for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def row(name: str, sensor: Sensor, window_s: float) -> dict[str, str]:
    """Return one line of a table."""
    every = list(windows(sensor, window_s))
    worst = max(every, key=lambda each: abs(each.error))
    stated = [each.unsure for each in every if each.unsure is not None]
    judged = [each for each in every if each.gated]
    return {
        "sensor": name,
        "window": f"{window_s:g} s",
        "mean error": percent(fmean(abs(each.error) for each in every), 3),
        "largest": percent(abs(worst.error)),
        "of load": worst.load,
        "stated ±": percent(fmean(stated) if stated else None),
        "judged": percent(len(judged) / len(every), 0),
        "judged inside ±": percent(fmean(e.inside for e in judged) if judged else None, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    assert __doc__
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(arguments)
    usual = SENSORS["H100-like: lag 100 ms, 25/100"]
    rows = [row(name, each, 20.0) for name, each in SENSORS.items()]
    rows += [row("H100-like", usual, window_s) for window_s in WINDOWS_S]
    print("\n".join(table(rows, 120, left=["sensor", "of load"])))
    shapes = [shape_row(name, board, 24, 1) for name, board in BOARDS.items()]
    shapes.append(shape_row("8 GPUs, H100-like", BOARDS["H100-like"], 3, 8))
    shapes.append(
        shape_row("8 GPUs, A100-like, read at 5 Hz", BOARDS["A100-like, read at 5 Hz"], 3, 8)
    )
    print("\n".join(["", *table(shapes, 120, left=["board"])]))


if __name__ == "__main__":
    main()
