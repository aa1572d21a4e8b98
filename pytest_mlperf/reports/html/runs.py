"""Figures about single runs: their spread, their energy, their price and their time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, geometric_mean, stdev

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import percent, quantity
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import MetricVerdict
from pytest_mlperf.reports.cells import title
from pytest_mlperf.reports.html.model import Beside, Cell, Figure, Grouped, per_cent, rounded
from pytest_mlperf.reports.html.specs_runs import COST, SPENT, SPREAD, STRIP
from pytest_mlperf.reports.html.specs_runs import energy as energy_spec
from pytest_mlperf.reports.layout import duration

PARTS = {
    "before_s": "before",
    "load_s": "load",
    "warm_s": "warm-up",
    "window_s": "measured",
    "accuracy_s": "accuracy pass",
}
"""Where the time of a process went, in its order."""


def spread(cases: Sequence[Grouped], beside: Beside) -> Figure:
    """Return how much runs of the same build differ, now and in the baseline."""
    judged = _judged(cases)
    rows = [row for found in judged if (row := _variations(*found, beside))]
    return Figure(
        name="spread",
        title="Run-to-run spread",
        says=(
            "Standard deviation of runs of one build in % of their mean: filled now, circles the "
            "baseline. The square is the smallest change that the baseline can prove; a limit "
            "(mark) left of it cannot be proven."
        ),
        fields=(
            *("case", "row", "now", "before", "detectable", "limit"),
            *("now_text", "before_text", "detectable_text", "limit_text"),
        ),
        rows=rows,
        columns=(
            ("case", "case"),
            ("row", "metric"),
            ("now_text", "now"),
            ("before_text", "baseline"),
            ("detectable_text", "can prove"),
            ("limit_text", "limit"),
        ),
        spec=SPREAD,
        without="A spread needs two runs of a case, or a baseline with two.",
    )


def _judged(cases: Sequence[Grouped]) -> Iterator[tuple[int, CaseResult, MetricVerdict]]:
    """Yield every gated metric of performance and efficiency that all runs of its test have."""
    for place, one in enumerate(cases):
        for result in one.results:
            verdict = result.verdict
            if verdict.kind not in {"performance", "efficiency"}:
                continue
            runs = [run for run in verdict.runs if not run.invalid]
            for metric in verdict.metrics:
                gated = metric.outcome is not None and metric.metric in METRICS
                if gated and runs and all(metric.metric in run.metrics for run in runs):
                    yield place, result, metric


def _variations(
    place: int, result: CaseResult, metric: MetricVerdict, beside: Beside
) -> tuple[Cell, ...] | None:
    now = [run.metrics[metric.metric] for run in result.verdict.runs if not run.invalid]
    record = beside.records.get(result.test)
    before = [run.metrics.get(metric.metric, 0.0) for run in record.runs] if record else []
    known = (_variation(now), _variation([v for v in before if v]), metric.detectable)
    if all(share is None for share in known):
        return None
    shares = (*known, metric.limit)
    texts = ("" if share is None else percent(share) for share in shares)
    drawn = (None if share is None else per_cent(share) for share in shares)
    return place, title(metric.metric), *drawn, *texts


def _variation(values: Sequence[float]) -> float | None:
    return stdev(values) / fmean(values) if len(values) > 1 else None


def strip(cases: Sequence[Grouped]) -> Figure:
    """Return which runs are drawn as dots, beside the runs of their baselines."""
    rows = [
        (place, title(metric.metric))
        for place, result, metric in _judged(cases)
        if any(run.metrics[metric.metric] > 0 for run in result.verdict.runs if not run.invalid)
    ]
    return Figure(
        name="strip",
        title="Every run",
        says="One dot for each run, now (filled) and of the baseline.",
        fields=("case", "row"),
        rows=rows,
        columns=(
            ("case", "case"),
            ("row", "metric"),
            ("when", "run of"),
            ("date", "started (UTC)"),
            ("text", "value"),
            ("off", "difference, %"),
        ),
        spec=STRIP,
        without="No run could be judged.",
        runs=True,
    )


# --- energy and money ------------------------------------------------------------------------


def energy(cases: Sequence[Grouped], beside: Beside) -> Figure:
    """Return speed over energy, now and in the baseline."""
    rows: list[tuple[Cell, ...]] = []
    for place, one in enumerate(cases):
        result = max(one.results, key=lambda each: len(each.verdict.runs))
        now = [run.metrics for run in result.verdict.runs if not run.invalid]
        record = next(
            (beside.records[each.test] for each in one.results if each.test in beside.records), None
        )
        for when, runs in (("baseline", record.runs if record else ()), ("now", now)):
            metrics = [run if isinstance(run, Mapping) else run.metrics for run in runs]
            rows += _efficiency(place, when, metrics)
    return Figure(
        name="energy",
        title="Speed and energy",
        says=(
            "Speed over the energy of a token (of a sample, where no tokens are counted), GPU "
            "board energy by NVML, not MLPerf Power: up and to the left is better. A dashed line "
            "leads from the baseline to now."
        ),
        fields=("case", "row", "when", "unit", "joules", "rate", "rate_text", "joules_text"),
        rows=rows,
        columns=(
            ("case", "case"),
            ("when", "run of"),
            ("unit", "unit"),
            ("rate_text", "per second"),
            ("joules_text", "J each"),
        ),
        spec=energy_spec(sorted({str(row[3]) for row in rows}, reverse=True)),
        without="Energy is known where GPUs were sampled through NVML (--mlperf-power).",
    )


def _efficiency(
    place: int, when: str, runs: Sequence[Mapping[str, float]]
) -> Iterator[tuple[Cell, ...]]:
    for of, speed in (("token", "tokens_per_second"), ("sample", "throughput")):
        known = [
            (run[speed], run[f"{of}s_per_joule"])
            for run in runs
            if run.get(speed, 0) > 0 and run.get(f"{of}s_per_joule", 0) > 0
        ]
        if known:
            rate = geometric_mean(rate for rate, _ in known)
            joules = 1 / geometric_mean(per for _, per in known)
            yield (
                place,
                "",
                when,
                f"{of}s",
                rounded(joules),
                rounded(rate),
                f"{quantity('', rate)} {of}s",
                quantity("", joules),
            )
            return


def cost(cases: Sequence[Grouped]) -> Figure:
    """Return what a million tokens or samples cost."""
    rows: list[tuple[Cell, ...]] = []
    for place, one in enumerate(cases):
        found = next((each.verdict.cost for each in one.results if each.verdict.cost), None)
        if found is None or not 0 < found.value < math.inf:
            continue
        usd = 1e6 / found.value
        gpus = "1 GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
        paid = "the machine" if one.case.accelerator == "cpu" else gpus
        price = f"{paid} at {found.price.usd_per_gpu_hour:g} USD an hour, {found.price.as_of}"
        rows.append((place, found.of, found.of, rounded(usd), quantity("", usd), price))
    return Figure(
        name="cost",
        title="Cost per million tokens or samples",
        says="From the measured rate and the suite's own price of a GPU; no price ships.",
        fields=("case", "row", "of", "usd", "text", "price"),
        rows=rows,
        columns=(
            ("case", "case"),
            ("text", "USD per million"),
            ("of", "of"),
            ("price", "price"),
        ),
        spec=COST,
        without="A cost needs a price in the suite: [prices].",
    )


# --- time ------------------------------------------------------------------------------------


def spent(cases: Sequence[Grouped], beside: Beside) -> Figure:
    """Return where the time of each case went."""
    rows: list[tuple[Cell, ...]] = []
    for place, one in enumerate(cases):
        found = max((beside.spent.get(each.test, ()) for each in one.results), key=len, default=())
        sums = {name: math.fsum(getattr(each, name) for each in found) for name in PARTS}
        if not found:
            runs = max((each.verdict.runs for each in one.results), key=len)
            sums["window_s"] = math.fsum(run.duration_s for run in runs)
        rows += [
            (place, "", order, part, round(sums[name], 1), duration(sums[name]))
            for order, (name, part) in enumerate(PARTS.items())
            if sums[name] > 0
        ]
    parts = (
        "" if beside.folder else " Only the measured part is known: the runs' logs are not here."
    )
    return Figure(
        name="spent",
        title="Where the time went",
        says=(
            "All processes of a case together. What lies before LoadGen's window and is neither "
            f"loading nor warm-up is waiting for the machine and starting.{parts}"
        ),
        fields=("case", "row", "order", "part", "seconds", "text"),
        rows=rows,
        columns=(("case", "case"), ("part", "part"), ("seconds", "seconds"), ("text", "time")),
        spec=SPENT,
        without="No run was made.",
    )
