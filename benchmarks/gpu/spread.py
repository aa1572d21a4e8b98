"""By how much tokens per joule differ from run to run when nothing changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.gpu.board import BUSY_W, Watch, watch
from benchmarks.gpu.figures import spread_of
from benchmarks.gpu.load import Decoder
from benchmarks.gpu.setting import Answer, Part, Setting, Table, show
from pytest_mlperf.core.energy.readings import Reading, at

WINDOWS_S = (20.0, 60.0)
TURNS = (0, 1, 0, 1, 0, 0, 0)
"""Which window comes when: two long runs among five short ones."""

REST_S = 2.0
SMALL = 0.1
"""Windows of a simulated GPU are so much shorter."""

RUN_COST_S = 3.5
"""What a run takes beside its window."""


def part(setting: Setting) -> Part:
    """Runs of the same decoding loop, as many as the time allows."""
    began_s, answer = time.monotonic(), Answer()
    small = min(SMALL, setting.seconds / 400) if setting.simulated else 1.0
    windows = [small * each for each in WINDOWS_S]
    decoder = Decoder.on(setting.device)
    decoder.run(5.0 * small)
    found: dict[float, list[Efficiency]] = {each: [] for each in windows}
    parts: list[Efficiency] = []
    for turn in TURNS:
        window_s = windows[turn]
        if time.monotonic() - began_s + window_s + RUN_COST_S > setting.seconds:
            continue
        with watch(setting, "sine", f"{BUSY_W:g}", "20", "7.3") as seen:
            marks = decoder.run(window_s)
        begin_s, end_s = marks[0].time_s, marks[-1].time_s
        found[window_s] += _efficiency(seen, marks, begin_s, end_s)
        for number in range(3 * turn):
            third_s = (end_s - begin_s) / 3
            at_s = begin_s + number * third_s
            parts += _efficiency(seen, marks, at_s, at_s + third_s)
        _tell(answer, decoder, found, parts)
        yield answer
        time.sleep(REST_S * small)


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """Of one window: tokens per joule and per second."""

    per_joule: float
    per_second: float


def _efficiency(
    seen: Watch, marks: Sequence[Reading], begin_s: float, end_s: float
) -> list[Efficiency]:
    """Return what a window gave, nothing where its energy is not known."""
    joules = seen.energy(begin_s, end_s).joules
    tokens = at(marks, end_s) - at(marks, begin_s)
    if not joules:
        return []
    return [Efficiency(per_joule=tokens / joules, per_second=tokens / (end_s - begin_s))]


def _tell(
    answer: Answer,
    decoder: Decoder,
    found: Mapping[float, Sequence[Efficiency]],
    parts: Sequence[Efficiency],
) -> None:
    size = f"{decoder.layers} layers of {decoder.width}², {decoder.sequences} sequences"
    table = Table(
        title=f"Spread from run to run: {size}, "
        f"{decoder.weight_bytes / 1e9:.3g} GB read for each step",
        columns=("what", "runs", "mean", "relative sd, %", "95 % interval of the sd, %"),
    )
    kinds = {f"runs of {window_s:.3g} s": each for window_s, each in found.items()}
    kinds[f"thirds of the runs of {max(found):.3g} s"] = parts
    for unit, name in (("tokens/J", "per_joule"), ("tokens/s", "per_second")):
        for kind, each in kinds.items():
            values = [getattr(one, name) for one in each]
            spread = spread_of(values)
            interval = spread and f"{100 * spread.low:.2g} … {100 * spread.high:.3g}"
            answer.values[f"{unit}, {kind}"] = values
            table.rows.append(
                (
                    f"{unit}, {kind}",
                    str(len(values)),
                    show(fmean(values) if values else None, 4),
                    f"{100 * spread.sd:.2g}" if spread else "too few runs",
                    interval or "",
                )
            )
    answer.tables = [table]
    answer.notes = [
        "The interval is that of normal values that do not depend on each other: after two runs "
        "the true spread may be 30 times the one seen. Thirds of one run share its start, its "
        "temperature and its clocks: they bound the spread from below."
    ]
