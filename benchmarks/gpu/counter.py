"""How the energy counter moves, whether it agrees with the power trace, and how power falls."""

from __future__ import annotations

import time
from statistics import fmean, median

from benchmarks.gpu.board import BUSY_W, IDLE_W, PARTLY_BLIND, exact_joules, foresee, watch
from benchmarks.gpu.figures import steps_of, tail_of
from benchmarks.gpu.load import Products, square
from benchmarks.gpu.setting import Answer, Part, Setting, Table, percent, show
from pytest_mlperf.reports.sentences import sentence

PERIODS_S = (0.01, 0.05, 0.1)
FIXED_S = 23.0
"""What starting and ending samplers takes, and what is not shortened; all else is by its share."""

LEAD_S = 0.3
"""Between planning bursts and the first of them."""

FALLING = ((0.0, 310.0), (0.3, 160.0), (1.1, 110.0), (2.5, IDLE_W))
"""How a simulated GPU's power falls: seconds after the load, watts from then on."""


def part(setting: Setting) -> Part:
    """Step loads, square loads, and the tail."""
    begin_s = time.monotonic()
    answer, products = Answer(), Products.on(setting.device)
    # What is left once libraries are read from the disk, which takes a while the first time.
    left_s = setting.seconds - (time.monotonic() - begin_s)
    share = min(max((left_s - FIXED_S) / (19 if setting.simulated else 53), 0.2), 1.0)
    _steps(setting, products, answer, repeats=max(2, round(5 * share)), share=share)
    yield answer
    yield from _squares(setting, products, answer, share)
    _tail(setting, products, answer, share)
    yield answer


def _steps(
    setting: Setting, products: Products, answer: Answer, *, repeats: int, share: float
) -> None:
    """Idle and load in turn: the counter's period, its lag, the power of both levels."""
    half_s = (1.0 if setting.simulated else 2.0) * max(share, 0.3)
    with watch(setting, watch_s=1.5 * share) as seen:
        begin_s = time.monotonic() + LEAD_S
        bursts = [
            (begin_s + 2 * half_s * i, begin_s + half_s * (2 * i + 1)) for i in range(repeats)
        ]
        foresee(setting, [pair for on, off in bursts for pair in ((on, BUSY_W), (off, IDLE_W))])
        done = products.bursts(bursts)
        time.sleep(half_s)
    trace = seen.log.trace
    moved = steps_of(seen.log.counter, trace)
    busy = [r.value for r in trace if any(a + half_s / 2 < r.time_s < b for a, b in done)]
    idle = [r.value for r in trace if r.time_s < done[0][0] - 0.05]
    watched_s = seen.facts["counter_period_s"]
    table = Table(
        title=f"Energy counter: {repeats} × {half_s:.3g} s of products, {half_s:.3g} s idle",
        columns=("what", "value"),
        rows=[
            ("period while watched idle, ms", show(_ms(watched_s))),
            ("period by its steps under load, ms", show(_ms(moved.period_s if moved else None))),
            ("lag behind the power trace, ms", show(_ms(moved.lag_s if moved else None))),
            ("steps seen", show(moved.steps if moved else None)),
            ("power with the model resident, no work, W", show(median(idle) if idle else None)),
            ("power under load, W", show(median(busy) if busy else None)),
        ],
    )
    answer.tables.append(table)
    answer.values |= {
        "counter_period_s": moved.period_s if moved else watched_s,
        "counter_lag_s": moved.lag_s if moved else None,
        "idle_w": median(idle) if idle else None,
        "busy_w": median(busy) if busy else None,
        "product": f"{products.size} x {products.size} {products.dtype}",
    }
    if setting.simulated:
        answer.notes.append(
            "The simulated counter steps every 100 ms and trails the power by 100 ms. Its power "
            "reading sees all of the time and is 25 ms late at the mean, so that a lag of about "
            "75 ms behind the trace is right. Under square loads it sees 25 ms of each 100 ms: "
            "there the trace must be wrong and the counter right."
        )


def _squares(setting: Setting, products: Products, answer: Answer, share: float) -> Part:
    """Loads of half a period each: does the counter see what the trace cannot?"""
    seconds = (2.5 if setting.simulated else 5.0) * max(share, 0.3)
    table = Table(
        title=f"Counter and trace under square loads of {seconds:.3g} s",
        columns=(
            "period, ms",
            "real busy share, %",
            "counter, J",
            "± J",
            "trace, J",
            "trace − counter, %",
            "middle by counter and by trace, W",
            "difference, %",
        ),
    )
    if setting.simulated:
        table.columns = (*table.columns, "counter − exact, %")
    answer.tables.append(table)
    answer.values["squares"] = {}
    for period_s in PERIODS_S:
        _square(setting, products, answer, period_s, seconds)
        yield answer
    answer.notes.append(
        "Whole window: from before the load to its end, with the step at both ends. Middle: "
        "without 0.5 s at each end, where lag no longer counts. A trace that differs there while "
        "the counter stays the same for all periods is a sensor that does not see all of the time."
    )


def _square(
    setting: Setting, products: Products, answer: Answer, period_s: float, seconds: float
) -> None:
    wave = f"square {IDLE_W:g} {BUSY_W:g} {period_s:g} 0.5"
    with watch(setting, *wave.split(), more=PARTLY_BLIND) as seen:
        bursts = square(time.monotonic() + LEAD_S, period_s, seconds)
        done = products.bursts(bursts)
    begin_s, end_s = done[0][0], bursts[-1][1] + period_s / 2
    whole, inside = seen.energy(begin_s, end_s), (begin_s + 0.5, end_s - 0.5)
    if inside[1] - inside[0] < 0.2:
        inside = (begin_s, end_s)
    middle, exact = seen.energy(*inside), exact_joules(setting, begin_s, end_s)
    busy = sum(end - begin for begin, end in done) / (end_s - begin_s)
    row = [
        f"{1000 * period_s:g}",
        f"{100 * busy:.1f}",
        show(whole.joules),
        show(whole.uncertainty_j),
        show(whole.trace_j),
        percent(_off(whole.trace_j, whole.joules)),
        f"{show(middle.mean_w)}, {show(_over(middle.trace_j, middle.window_s))}",
        percent(_off(middle.trace_j, middle.joules)),
    ]
    if setting.simulated:
        row.append(percent(_off(whole.joules, exact)))
    answer.tables[-1].rows.append(row)
    answer.values["squares"][f"{period_s:g}"] = {
        "counter_j": whole.joules,
        "trace_j": whole.trace_j,
        "exact_j": exact,
        "method": whole.method,
        "middle_counter_j": middle.joules,
        "middle_trace_j": middle.trace_j,
        "busy_share": busy,
        "notes": [*map(sentence, (*whole.notes, *whole.invalid))],
    }


def _tail(setting: Setting, products: Products, answer: Answer, share: float) -> None:
    """Load, then nothing: how long until power is idle again."""
    load_s, after_s = (1.0, 5.0) if setting.simulated else (5.0, 15.0 * share)
    with watch(setting) as seen:
        begin_s = time.monotonic() + LEAD_S
        end_s = begin_s + load_s
        foresee(setting, [(begin_s, BUSY_W), *((end_s + s, w) for s, w in FALLING)])
        ((_, ended_s),) = products.bursts([(begin_s, end_s)])
        time.sleep(after_s)
    trace = seen.log.trace
    before = [r.value for r in trace if r.time_s < begin_s - 0.05]
    tail = tail_of(trace, ended_s)
    seconds = tail.seconds if tail else None
    answer.tables.append(
        Table(
            title=f"Power after a load of {load_s:g} s, watched for {after_s:.3g} s",
            columns=("what", "value"),
            rows=[
                ("power before, W", show(fmean(before) if before else None)),
                ("power that it settles at, W", show(tail.settled_w if tail else None)),
                (
                    "time until within 5 % of that, s",
                    "not seen" if seconds is None else f"{seconds:.2f}",
                ),
                ("energy above it after the load, J", show(tail.excess_j if tail else None)),
            ],
        )
    )
    answer.values |= {
        "tail_s": seconds,
        "settled_w": tail.settled_w if tail else None,
        "tail_excess_j": tail.excess_j if tail else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _off(value: float | None, of: float | None) -> float | None:
    return None if value is None or not of else value / of - 1


def _over(value: float | None, by: float) -> float | None:
    return None if value is None else value / by
