"""Define a suite's limits (smallest relevant change by metric), and check them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pytest_mlperf.core import metrics
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.rulings.accuracy import Margin
from pytest_mlperf.core.untrusted_text import nearest, quoted
from pytest_mlperf.suite.tables import OF_BEST, AccuracyLimit, EngineEntry, ScenarioEntry
from pytest_mlperf.suite.values import Defect, share


def margin_of(limit: AccuracyLimit) -> Margin | None:
    """Return the accuracy drop that is tolerated; None if the suite sets none."""
    text = limit.margin
    if text is None:
        return None
    value = float(re.sub(r"%|points?", "", text))
    is_share = text.strip().endswith("%")
    return Margin(value=value / 100 if is_share else value, is_share=is_share)


def gateable(scenario: ScenarioEntry) -> frozenset[str]:
    """Return the performance metrics that a scenario measures and a suite can gate."""
    slowest = {metrics.SLOWEST_REPLICA}
    if scenario.find:
        is_curve = scenario.name == Scenario.CONCURRENCY
        measured = metrics.SEARCH_METRICS if is_curve else frozenset({"throughput"})
    elif scenario.name.is_curve:
        is_open = scenario.name == Scenario.OPEN_LOOP  # throughput is what was offered
        names = metrics.AT_POINTS.difference(metrics.RATES if is_open else ())
        alone = metrics.ARRIVAL_METRICS if is_open else metrics.CURVE
        at_points = {metrics.at_point(name, c) for name in names for c in scenario.points or ()}
        measured = alone | slowest | at_points
    elif scenario.name == Scenario.OFFLINE:
        measured = metrics.OFFLINE | slowest
    elif scenario.name.rate_is_condition:
        measured = metrics.LATENCIES
    else:
        measured = metrics.LATENCIES - metrics.SERVED - slowest
    return measured | metrics.RESOURCES


def gated_server_metrics(limits: Mapping[str, Any], scenario: ScenarioEntry) -> list[str]:
    """Return the server metrics that `limits` gates in a scenario; for a curve by point."""
    points = scenario.points or (None,)
    every = {
        name if point is None else metrics.at_point(name, point): name
        for name in sorted(metrics.SERVER_METRICS)
        for point in points
    }
    return [name for name, base in every.items() if not limits.keys().isdisjoint({name, base})]


def limit_defects(
    limits: Mapping[str, Any],
    scenarios: Sequence[ScenarioEntry],
    engines: Sequence[EngineEntry],
    judged: Collection[str],
) -> Iterator[Defect]:
    """Yield the defects of a suite's limits; `judged` has the metrics that a scenario gates."""
    tables: list[tuple[tuple[str | int, ...], Mapping[str, Any]]] = [(("limits",), limits)]
    tables += [(("scenarios", i, "limits"), s.limits) for i, s in enumerate(scenarios)]
    for where, table in tables:
        yield from _table_defects(engines, where, table)
    # Official values are rates; in Server and Interactive, the highest that held.
    if OF_BEST in limits and not any(
        s.name == Scenario.OFFLINE or (s.find and s.name.rate_is_condition) for s in scenarios
    ):
        yield (
            ("limits", OF_BEST),
            "no scenario can be compared with official results; add Offline, or find in Server or "
            "Interactive",
        )
    copies = any(e.replicas_on(name) > 1 for e in engines for name in e.accelerators)
    for where, table in tables:
        if metrics.SLOWEST_REPLICA in table and not copies:
            message = "no engine entry has replicas, which this limit compares; remove it"
            yield (*where, metrics.SLOWEST_REPLICA), message
    yield from _gated_nowhere(limits, scenarios, judged)
    for index, scenario in enumerate(scenarios):
        measured = gateable(scenario) | {
            *gated_server_metrics(scenario.limits, scenario),
            *metrics.SERVER_METRICS,
        }
        for name in scenario.limits:
            if name in metrics.METRICS and name not in measured | metrics.UNGATED:
                yield (
                    ("scenarios", index, "limits", name),
                    f"{name} cannot be gated in {scenario.name}"
                    f"{' with find' if scenario.find else ''}{nearest(name, sorted(measured))}",
                )


def _gated_nowhere(
    limits: Mapping[str, Any], scenarios: Sequence[ScenarioEntry], judged: Collection[str]
) -> Iterator[Defect]:
    """Yield a defect for each limit of the suite on a metric that no scenario gates."""
    held = {*judged, *metrics.EFFICIENCY, *metrics.SERVER_METRICS}
    for name in (one for one in limits if one in metrics.METRICS and one not in held):
        if any(name in gateable(scenario) for scenario in scenarios):
            key = f'"{name}"' if metrics.point_of(name) else name
            advice = f"write limits = {{ {key} = … }} in the scenario that should gate it"
            yield ("limits", name), f"no scenario gates this metric by default; {advice}"
        elif metrics.point_of(name):
            message = (
                f"no scenario measures {name}: correct the number after @, which must be one of "
                "points, or the metric"
            )
            yield ("limits", name), message


def _table_defects(
    engines: Sequence[EngineEntry], path: tuple[str | int, ...], table: Mapping[str, Any]
) -> Iterator[Defect]:
    for name, bound in table.items():
        where = (*path, name)
        if where == ("limits", "accuracy"):
            yield from _accuracy_defects(engines, bound)
            continue
        if where == ("limits", OF_BEST):
            yield from _share_defects(where, bound)
            continue
        if name in metrics.UNGATED or metrics.is_stage(name):
            kind = " a count: it is" if name in metrics.COUNTS else ""
            yield where, f"{name} is{kind} reported, and cannot be gated; remove this limit"
            continue
        if name not in metrics.METRICS or name in metrics.OF_BENCHMARKS:
            names = [
                one
                for one in (*metrics.METRICS, "accuracy", OF_BEST)
                if one not in metrics.OF_BENCHMARKS
            ]
            yield where, f"unknown metric {name!r}{nearest(name, names)}"
            continue
        metric = metrics.METRICS[name]
        keys = set(bound) if isinstance(bound, Mapping) else set()
        strange = sorted(keys - {"max_drop", "max_rise"})
        if strange:
            correction = nearest(strange[0], [metric.limit_key])
            yield (*where, strange[0]), f"unknown key {strange[0]!r}{correction}"
            continue
        if not isinstance(bound, Mapping) or set(bound) != {metric.limit_key}:
            written = next(iter(bound.values())) if keys else None
            valid = keys and not [*_share_defects(where, written)]
            text = written if valid else f"{metric.limit:.0%}"
            yield (
                where,
                f"{name} is {metric.direction}-is-better: "
                f'write {name} = {{ {metric.limit_key} = "{text}" }}',
            )
            continue
        value = bound[metric.limit_key]
        defects = list(_share_defects((*where, metric.limit_key), value))
        yield from defects
        if not defects and metric.limit_key == "max_drop" and share(value) >= 1:
            yield (*where, metric.limit_key), "a drop of 100 % or more cannot be measured"


def _share_defects(where: tuple[str | int, ...], value: object) -> Iterator[Defect]:
    try:
        share(value)
    except ValueError as error:
        yield where, str(error)


def _accuracy_defects(engines: Sequence[EngineEntry], value: object) -> Iterator[Defect]:
    where = ("limits", "accuracy")
    try:
        limit = AccuracyLimit.model_validate(value)
    except ValidationError:
        advice = 'write accuracy = { margin = "0.5%" } or { margin = "0.5 points" }'
        yield where, f"{quoted(value)} is not an accuracy limit; {advice}"
        return
    margin = margin_of(limit)
    if margin is not None and not margin.value:
        yield (*where, "margin"), "a margin of 0 can never be proven; allow a small drop"
    reference = limit.reference
    labels = [name for e in engines for name in dict.fromkeys((e.label, e.full_label))]
    if reference is not None and reference not in labels:
        message = f"no engine entry named {reference!r}{nearest(reference, dict.fromkeys(labels))}"
        yield (*where, "reference"), message
    elif reference is not None and labels.count(reference) > 1:
        several = list(dict.fromkeys(e.full_label for e in engines if e.label == reference))
        advice = f"write one of {', '.join(several)}" if several else "give each a name of its own"
        yield (*where, "reference"), f"several engine entries named {reference!r}: {advice}"
