"""`pytest-mlperf across`: compare two accelerators per GPU, watt and dollar, without verdict."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.compare import Measured, add_sides, planned_here, two_sides, why_not
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.stored_results import rule_here
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.metrics import EFFICIENCY, METRICS
from pytest_mlperf.core.numbers import plural, quantity, times
from pytest_mlperf.core.roofline.gpu import GpuPrice
from pytest_mlperf.core.rulings.sides import judge_sides
from pytest_mlperf.core.untrusted_text import nearest, visible
from pytest_mlperf.core.verdict import MetricVerdict
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.terminal.layout import Row, paragraphs, table
from pytest_mlperf.stores.foreign import read_toml
from pytest_mlperf.suite.load import defects_in
from pytest_mlperf.suite.tables import Price

DEVICE_RATES = ("tokens_per_second", "throughput")
"""Rates to divide by GPUs and dollars; the first one that both sides have is used."""

NO_VERDICT = "no verdict: the ratios compare hardware, not code, so the exit code is always 0"

HELP = """\
Compares the same work on different hardware: ratios per system, GPU, watt and
dollar, with confidence intervals. A and B are given as for `compare`: results,
LIBRARY==VERSION or a git ref. Nothing is judged.

Exit 2 if A and B have no workload and scenario in common.

needs: two measurements of the same workload and scenario; git for refs

examples:
  $ pytest-mlperf across h100.json h200.json
      work per GPU and per watt of both machines
  $ pytest-mlperf across h100.json h200.json --prices prices.toml
      also per dollar, at prices that the suites do not state
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_sides(parser, a="results of one machine", b="results of the other")
    add(parser, "--prices")


def run(parsed: argparse.Namespace) -> int:
    """Print the ratios B / A for each workload that both sides measured."""
    prices = read_prices(parsed.prices) if parsed.prices else {}
    a, b, roots = two_sides(parsed, planned_here())
    compared = compare_sides(a.cases, b.cases, prices, roots)
    show(lines(compared, (a.name, b.name), prices, (*a.notes, *b.notes), width()))
    return 0


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Hold the ratios of a workload's metrics on two accelerators, and notes on missing ratios."""

    a: Measured
    b: Measured
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


Prices = Mapping[str, GpuPrice]


def read_prices(path: Path) -> Prices:
    """Return the table `[prices]` of a TOML file by accelerator.

    Raises MlperfError if the file is unreadable, a price has no date or an accelerator is unknown.
    """
    raw = read_toml(path, "file of prices").get("prices")
    if not isinstance(raw, dict) or not raw:
        example = "H200 = { usd_per_gpu_hour = 3.29, as_of = 2026-11-01 }"
        raise MlperfError(f"{path}: no table [prices]; add one with lines like: {example}")
    return {name: _price(path, name, table) for name, table in raw.items()}


def _price(path: Path, name: str, raw: object) -> GpuPrice:
    where = f"{path}: prices.{visible(name)}"
    classes = sorted({gpu.accelerator for gpu in known_gpus().values()})
    kind = split(name)[1]
    if kind != "cpu" and find_gpu(kind) is None:
        raise MlperfError(f"{where}: unknown accelerator {kind!r}{nearest(kind, classes)}")
    if isinstance(raw, dict) and "as_of" not in raw:
        raise MlperfError(
            f"{where}: as_of is missing; add the day of the price: as_of = 2026-11-01"
        )
    try:
        return GpuPrice(**Price.model_validate(raw).model_dump())
    except ValidationError as error:
        key, message = defects_in(error)[0]
        raise MlperfError(f"{'.'.join((where, *map(str, key)))}: {message}") from None


def price_in_words(name: str, price: GpuPrice) -> str:
    """Return a price in USD per GPU-hour as text, with its date and source."""
    source = f", {visible(price.source)}" if price.source else ""
    return f"{name} {price.usd_per_gpu_hour:g} USD per hour, {price.as_of}{source}"


def compare_sides(
    a: Mapping[str, Sequence[Measured]],
    b: Mapping[str, Sequence[Measured]],
    prices: Prices,
    roots: Sequence[Path],
) -> list[Compared]:
    """Compare B with A for each pair of matching cases; raise MlperfError if no cases match."""
    pairs = list(_pairs(a, b))
    if not pairs:
        raise MlperfError(
            "A and B have no workload and scenario in common; cases of different engines or "
            "precisions are compared only if A and B each have exactly one case of the workload"
        )
    return [_compared(one, other, prices, roots) for one, other in pairs]


def _pairs(
    a: Mapping[str, Sequence[Measured]], b: Mapping[str, Sequence[Measured]]
) -> Iterator[tuple[Measured, Measured]]:
    """Yield pairs of cases with equal workload, scenario and, if possible, engine and precision."""
    work: dict[tuple[str, str], tuple[list[Measured], list[Measured]]] = {}
    for index, side in enumerate((a, b)):
        for measured in chain.from_iterable(side.values()):
            key = measured.case.workload, measured.case.scenario
            work.setdefault(key, ([], []))[index].append(measured)
    for ours, theirs in work.values():
        alike = [
            (one, other)
            for one in ours
            for other in theirs
            if (one.case.engine, one.case.precision) == (other.case.engine, other.case.precision)
        ]
        yield from alike or (
            zip(ours, theirs, strict=True) if len(ours) == len(theirs) == 1 else ()
        )


def _compared(a: Measured, b: Measured, prices: Prices, roots: Sequence[Path]) -> Compared:
    if a.identity == b.identity and a.case.accelerator == b.case.accelerator:
        reason = "A and B ran on the same hardware; use: pytest-mlperf compare A B"
        return Compared(a=a, b=b, rows=(), notes=(reason,))
    if reason := why_not(a, b, hardware=False) or _other_data(a, b):
        return Compared(a=a, b=b, rows=(), notes=(f"not comparable: {reason}",))
    rules = (rule_here(roots, one.case.accelerator, one.identity)[0] for one in (a, b))
    metrics = _ratios(a, b, max(rules, key=lambda one: one.prior_sd))
    rate = next((name for name in DEVICE_RATES if name in metrics), None)
    rows = [_row("system", name, metric) for name, metric in metrics.items()]
    notes = [f"{label}: {one.reason}" for label, one in (("A", a), ("B", b)) if one.reason]
    if rate and a.rate is None:
        (count_a, kind_a), (count_b, kind_b) = (split(side.case.accelerator) for side in (a, b))
        if "cpu" not in (kind_a, kind_b):
            rows.append(_row("GPU", rate, metrics[rate], count_a, count_b))
        paid = _per_dollar(a, b, rate, metrics[rate], prices)
        rows += [paid] if isinstance(paid, dict) else []
        notes += [paid] if isinstance(paid, str) else []
    if not EFFICIENCY & metrics.keys():
        notes.append("no ratio per watt: energy was not measured in both A and B")
    return Compared(a=a, b=b, rows=tuple(rows), notes=tuple(notes))


def _other_data(a: Measured, b: Measured) -> str:
    data_a, data_b = (side.fingerprint.get("dataset", "")[:12] for side in (a, b))
    differs = bool(data_a and data_b) and data_a != data_b
    return f"different data: checksum {data_a} → {data_b}" if differs else ""


def _ratios(a: Measured, b: Measured, rule: RuleR) -> dict[str, MetricVerdict]:
    runs = (*a.runs, *b.runs)
    both = {name for name in runs[0].metrics if all(run.may_judge(name) for run in runs)}
    limited = {*(a.limits or {}), *(b.limits or {})} & both
    rates = [] if a.rate is not None else [name for name in DEVICE_RATES if name in both][:1]
    names = dict.fromkeys(
        [*rates, *sorted(limited - set(DEVICE_RATES)), *sorted(both & EFFICIENCY)]
    )
    judged = judge_sides(a.runs, b.runs, {name: METRICS[name].limit for name in names}, rule)
    return {metric.metric: metric for metric in judged if metric.metric in names}


def _row(per: str, name: str, metric: MetricVerdict, a: float = 1.0, b: float = 1.0) -> Row:
    """Return a metric's row `per` system, GPU or dollar, with A's value / `a` and B's / `b`."""
    assert metric.change is not None
    assert metric.low is not None
    assert metric.high is not None
    ratio, low, high = (a / b * (1 + one) for one in (metric.change, metric.low, metric.high))
    better = "" if METRICS[name].direction is Direction.HIGHER else " (lower is better)"
    return {
        "per": "watt" if name in EFFICIENCY else per,
        "metric": f"{METRICS[name].title}{better}",
        "A": quantity(name, (metric.baseline.value or 0.0) / a),
        "B": quantity(name, (metric.now or 0.0) / b),
        "B / A": times(ratio),
        "interval": f"{times(low)} to {times(high)}",
    }


def _per_dollar(
    a: Measured, b: Measured, rate: str, metric: MetricVerdict, prices: Prices
) -> Row | str:
    costs = []
    for side in (a, b):
        count, kind = split(side.case.accelerator)
        price = prices.get(side.case.accelerator) or prices.get(kind) or side.price
        if price is None:
            return (
                f"no ratio per dollar: {kind} has no price; add it to a table [prices] in the "
                f"suite or in --prices FILE: {kind} = {{ usd_per_gpu_hour = ..., as_of = ... }}"
            )
        costs.append(count * price.usd_per_gpu_hour)
    row = _row("dollar", rate, metric, *costs)
    unit = "tokens" if rate == DEVICE_RATES[0] else "samples"
    values = (metric.baseline.value or 0.0, metric.now or 0.0)
    bought = [quantity("", 3600 * v / cost) for v, cost in zip(values, costs, strict=True)]
    return {**row, "metric": f"{unit}/USD", "A": bought[0], "B": bought[1]}


def lines(
    compared: Sequence[Compared],
    side_names: Sequence[str],
    prices: Prices,
    notes: Sequence[str],
    width: int,
) -> Iterator[str]:
    """Yield the report: names of sides A and B, a table per pair of cases, prices and notes."""
    yield from (*paragraphs("A", side_names[:1], width), *paragraphs("B", side_names[1:], width))
    for pair in compared:
        work = f"{pair.a.case.workload} {pair.a.case.scenario}"
        text = f"{work}: A {_about(pair.a)}, B {_about(pair.b)}"
        yield from ("", *paragraphs("case", [text], width))
        if pair.rows:
            yield from table(pair.rows, width, left=["per", "metric"])
        yield from paragraphs("note", pair.notes, width)
    yield ""
    used = {split(side.case.accelerator)[1] for pair in compared for side in (pair.a, pair.b)}
    lines = [price_in_words(n, price) for n, price in prices.items() if split(n)[1] in used]
    yield from paragraphs("prices", lines, width)
    yield from paragraphs("note", [*notes, NO_VERDICT], width)


def _about(side: Measured) -> str:
    case, runs = side.case, plural(len(side.runs), "run")
    return f"{case.accelerator} ({case.engine} {case.precision}, {runs})"
