"""Models of real size with random weights, beside what the GPU could do at most."""

from __future__ import annotations

import contextlib
import gc
import time

from benchmarks.gpu import shapes
from benchmarks.gpu.board import watch
from benchmarks.gpu.load import torch_on
from benchmarks.gpu.offline import Timed
from benchmarks.gpu.setting import Answer, Part, Setting, Table, show
from pytest_mlperf.core.energy import Energy
from pytest_mlperf.core.roofline import Limit, share_of_limit
from pytest_mlperf.hardware.specs import find_gpu

COLUMNS = (
    "shape",
    "way",
    "precision",
    "parameters",
    "batch",
    "unit",
    "units/s",
    "of the certain limit, %",
    "of the speed of light, %",
    "binds",
    "J per unit",
    "mean W",
    "window, s",
)


def part(setting: Setting) -> Part:
    """Every shape that fits into the memory and the time."""
    began_s, answer = time.monotonic(), Answer(values={"shapes": []})
    answer.tables.append(Table(title="Random weights, measured rates", columns=COLUMNS))
    answer.notes.append(
        "Certain: counts the least work that is possible, without prompts and the cache of keys "
        "and values. Speed of light: counts the work of the run. Both at the GPU's dense peak, see "
        "docs/limits.md. "
        "The engines' rates contain moving inputs from and answers to the host."
    )
    makers: tuple[tuple[str, shapes.Maker], ...] = (
        ("Llama 2 7B", lambda s, u: shapes.llama(s, u, "7B")),
        ("ResNet-50", shapes.resnet),
        ("BERT-large", shapes.bert),
        ("SDXL", shapes.sdxl),
        ("Llama 2 13B", lambda s, u: shapes.llama(s, u, "13B")),
    )
    window_s = min(8.0, setting.seconds / 12) if not setting.simulated else 0.8
    longest_s = 5.0 if not setting.simulated else 1.0
    for name, make in makers[: 4 if setting.simulated else None]:
        begin_s = time.monotonic()
        if begin_s - began_s + longest_s > setting.seconds:
            answer.tables[0].rows.append((name, "not run: no time left", *[""] * 11))
            continue
        try:
            with contextlib.ExitStack() as undo:
                for shape in make(setting, undo):
                    row = _measure(setting, shape, window_s, answer)
                    answer.tables[0].rows.append(row)
                    yield answer
        # One shape that breaks, as for want of memory, says so; the others are still run.
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            answer.tables[0].rows.append((name, f"failed: {why}", *[""] * 11))
            answer.failures.append(f"{name}: {why}")
        free(setting)
        longest_s = max(longest_s, time.monotonic() - begin_s)
        yield answer


def _measure(
    setting: Setting, shape: shapes.Shape, window_s: float, answer: Answer
) -> tuple[str, ...]:
    """Warm up, measure with the sampler on, and return the table's row."""
    shape.run(window_s / 8)
    with watch(setting, "const", "560") as seen:
        timed = shape.run(window_s)
    energy = seen.energy(timed.begin_s, timed.end_s)
    limit = share_of_limit(
        shape.metric,
        timed.rate,
        accelerator=setting.accelerator,
        gpu=find_gpu(setting.product, memory_gib=setting.memory_gib),
        work=shape.work,
        seen=shape.seen,
    )
    answer.values["shapes"].append(
        {
            "name": shape.name,
            "way": shape.way,
            "rate": timed.rate,
            "unit": shape.unit,
            "parameters": shape.parameters,
            "certain_limit": limit.certain,
            "estimated_limit": limit.estimated,
            "why_unknown": limit.why_unknown,
            "joules": energy.joules,
            "uncertainty_j": energy.uncertainty_j,
            "window_s": energy.window_s,
        }
    )
    return _row(shape, timed, limit, energy)


def _row(shape: shapes.Shape, timed: Timed, limit: Limit, energy: Energy) -> tuple[str, ...]:
    wrong = shape.expected not in (None, shape.parameters)
    counted = f"{shape.parameters:,}" + (f", not {shape.expected:,}!" if wrong else "")
    of = [
        "unknown" if share is None else f"{100 * share:.3g}"
        for share in (limit.certain_share, limit.estimated_share)
    ]
    return (
        shape.name,
        shape.way,
        str(shape.seen.precision),
        counted,
        str(shape.batch),
        shape.unit,
        show(timed.rate),
        *of,
        limit.binds or "",
        show(energy.joules / timed.units if energy.joules else None),
        show(energy.mean_w),
        f"{energy.window_s:.2f}",
    )


def free(setting: Setting) -> None:
    """Give back what a model took."""
    gc.collect()
    if setting.device == "cuda":
        torch_on(setting.device).cuda.empty_cache()
