"""Whether polling NVML slows the work that it watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

from benchmarks.gpu.board import BUSY_W, watch
from benchmarks.gpu.figures import abba, apart
from benchmarks.gpu.load import Launcher, Products
from benchmarks.gpu.setting import Answer, Part, Setting, Table, percent, show

BLOCKS = 6
"""More are not needed."""

ORDER = (False, True, True, False)
"""Sampled or not: in this order a drift that is steady cancels."""


def part(setting: Setting) -> Part:
    """Rates of long and of very short kernels, without and with the sampler, in turns."""
    began_s, answer = time.monotonic(), Answer()
    works: dict[str, tuple[Callable[[float], float], str]] = {
        "matrix products": (Products.on(setting.device).rate, "FLOP/s"),
        "shortest kernels": (Launcher(setting.device).rate, "1/s"),
    }
    leg_s = 1.0 if not setting.simulated else min(0.5, setting.seconds / 40)
    rates: dict[str, dict[bool, list[float]]] = {name: {False: [], True: []} for name in works}
    block_s = 0.0
    for _ in range(BLOCKS // 2 if setting.simulated else BLOCKS):
        block = time.monotonic()
        for sampled in ORDER:
            with watch(setting, "const", f"{BUSY_W:g}") if sampled else nullcontext():
                for name, (rate, _) in works.items():
                    rates[name][sampled].append(rate(leg_s))
        block_s = max(block_s, time.monotonic() - block)
        _tell(answer, works, rates, leg_s)
        yield answer
        if time.monotonic() - began_s + 1.2 * block_s > setting.seconds:
            return


def _tell(
    answer: Answer,
    works: dict[str, tuple[Callable[[float], float], str]],
    rates: dict[str, dict[bool, list[float]]],
    leg_s: float,
) -> None:
    table = Table(
        title=f"Rates with the sampler off, on, on, off, in legs of {leg_s:.2g} s",
        columns=(
            "work",
            "unit",
            "off, median",
            "on, median",
            "on ÷ off − 1, %",
            "blocks from … to, %",
            "blocks",
            "like legs of a block differ by up to, %",
        ),
    )
    for name, (_, unit) in works.items():
        off, on = rates[name][False], rates[name][True]
        found = abba(off, on)
        answer.values[name] = {"off": off, "on": on, "ratio": found.ratio}
        table.rows.append(
            (
                name,
                unit,
                f"{median(off):.4g}",
                f"{median(on):.4g}",
                percent(found.ratio - 1),
                f"{percent(found.low - 1)} … {percent(found.high - 1)}",
                show(found.blocks),
                f"{100 * apart([*off, *on]):.2g}",
            )
        )
    answer.tables = [table]
    answer.notes = [
        "A block is off, on, on, off. Legs of the same kind differ by the machine's own "
        "variation: a ratio that is closer to 1 than that shows no effect."
    ]
