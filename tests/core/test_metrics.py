"""The one table of metrics."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.metrics import (
    METRICS,
    POINT_LIMIT,
    Dimension,
    at_point,
    curve_metrics,
    metric_sort_key,
    point_of,
)


def test_every_metric_counts_what_its_unit_says() -> None:
    expected = {
        "s": {Dimension.TIME, Dimension.START},
        "B": {Dimension.MEMORY},
        "1/s": {Dimension.SAMPLES_PER_TIME, Dimension.TOKENS_PER_TIME},
        "1/J": {Dimension.SAMPLES_PER_ENERGY, Dimension.TOKENS_PER_ENERGY},
        "J": {Dimension.ENERGY_PER_SAMPLE},
        "1": {
            Dimension.TOKENS_PER_SAMPLE,
            Dimension.TOKENS_PER_STEP,
            Dimension.SHARE,
            Dimension.REQUESTS,
        },
    }
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.dimension in expected[metric.unit]


def test_a_point_of_a_curve_has_the_metrics_of_the_whole() -> None:
    """They are made when they are asked for, and are not listed."""
    at_8 = METRICS["latency_p99@8"]

    assert at_8.title == "p99 latency at 8"
    assert (at_8.unit, at_8.direction) == ("s", METRICS["latency_p99"].direction)
    assert METRICS["tokens_per_second@1024"].limit == POINT_LIMIT
    assert "throughput@1" in METRICS
    assert "throughput@1" not in list(METRICS)
    assert (point_of("throughput@64"), point_of("throughput")) == (64, None)
    assert at_point("throughput", 64) == "throughput@64"
    assert METRICS["ttft_p50@0.5"].title == "p50 TTFT at 0.5"
    assert [point_of(at_point("ttft_p50", x)) for x in (0.001, 2, 12.25)] == [0.001, 2, 12.25]

    for name in (
        *("throughput@0", "throughput@", "nothing@8", "a@8@8", "@8", ""),
        *("throughput@8.0", "throughput@.5", "throughput@0.0001", "throughput@00.5"),
    ):
        assert name not in METRICS
        assert METRICS.get(name) is None
        with pytest.raises(KeyError):
            METRICS[name]


def test_metrics_are_in_the_order_of_the_table_and_points_behind() -> None:
    """A curve is judged by tokens if they were measured."""
    names = ["latency_p50@8", "throughput@8", "latency_p50", "throughput@1", "throughput"]

    ordered = ["load_time", "stage_unet", "stage_vae", "throughput@1", "stage_queue@1"]
    assert sorted({*ordered}, key=metric_sort_key) == ordered
    assert sorted(names, key=metric_sort_key) == [
        "throughput",
        "latency_p50",
        "throughput@1",
        "throughput@8",
        "latency_p50@8",
    ]

    rates = {"throughput", "throughput@8", "tokens_per_second@8", "tokens_per_second@1"}

    assert curve_metrics(Scenario.CONCURRENCY, {*rates, "ttft_p90@8"}) == (
        "tokens_per_second",
        "tokens_per_second@1",
        "tokens_per_second@8",
    )
    assert curve_metrics(Scenario.CONCURRENCY, {"throughput", "throughput@8"}) == (
        "throughput",
        "throughput@8",
    )
    assert curve_metrics(Scenario.CONCURRENCY, {"throughput", "latency_p50"}) == ()
    assert curve_metrics(Scenario.SERVER, {"throughput", "latency_p50"}) == ()
    assert curve_metrics(
        Scenario.OPEN_LOOP, {*rates, "ttft_p50@8", "ttft_p50@0.5", "tpot_p50@8"}
    ) == (
        "ttft_p50",
        "tpot_p50",
        "ttft_p50@0.5",
        "ttft_p50@8",
        "tpot_p50@8",
    )
