"""Rates fall until sampling costs little enough, what costs most first."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.hardware._sampler_threads import (
    CPU_SHARE,
    DRIVER_SHARE,
    DRIVERS_SHARE,
    FLOORS_HZ,
    Rates,
    ReadCost,
    Sampler,
    choose,
    cpu_allowed,
)

GROUPS = ("trace", "counter", "state", "slow")
CHEAP = {group: ReadCost(cpu_s=10e-6, wall_s=10e-6) for group in GROUPS}

costs = st.fixed_dictionaries(
    {g: st.builds(ReadCost, cpu_s=st.floats(0, 0.01), wall_s=st.floats(0, 0.01)) for g in GROUPS}
)


def test_expensive_quantities_are_read_less_often_and_the_rest_as_before() -> None:
    usual = choose(CHEAP, 1)
    assert (usual.trace_hz, usual.state_hz, usual.slow_hz) == (50, 5, 1)
    assert 10 <= usual.counter_hz <= 20
    assert usual.cpu_share < CPU_SHARE
    assert choose({}, 1).trace_hz == 50, "what is not read costs nothing"
    for group, cpu_s, wall_s in (
        ("counter", 1.6e-3, 1.6e-3),
        ("counter", 5e-6, 10e-3),
        ("trace", 0.6e-3, 0.6e-3),
        ("state", 4e-3, 4e-3),
        ("slow", 15e-3, 15e-3),
    ):
        rates = choose({**CHEAP, group: ReadCost(cpu_s=cpu_s, wall_s=wall_s)}, 1)
        lower = {
            other
            for other in ("trace", "state", "slow")
            if getattr(rates, f"{other}_hz") < getattr(usual, f"{other}_hz")
        }
        assert lower == {group} - {"counter"}
        assert getattr(rates, f"{group}_hz") < getattr(usual, f"{group}_hz")
        assert rates.cpu_share <= CPU_SHARE
        assert rates.driver_share <= DRIVER_SHARE
    beyond_help = choose({**CHEAP, "counter": ReadCost(cpu_s=1e-6, wall_s=0.05)}, 1)
    assert beyond_help.trace_hz == 50
    assert 5 <= beyond_help.counter_hz <= 10


@given(costs, st.integers(1, 16), st.sampled_from([100.0, 50.0, 20.0]))
def test_the_budget_is_kept_or_every_rate_is_at_its_floor(
    paid: dict[str, ReadCost], gpus: int, asked_hz: float
) -> None:
    rates = choose(paid, gpus, trace_hz=asked_hz)

    at_floor = (
        rates.trace_hz == FLOORS_HZ["trace"]
        and rates.state_hz == FLOORS_HZ["state"]
        and rates.slow_hz == FLOORS_HZ["slow"]
    )
    assert at_floor or rates.cpu_share <= cpu_allowed(gpus)
    assert FLOORS_HZ["counter"] <= rates.counter_hz
    assert rates.trace_hz <= asked_hz
    assert rates.counter_hz <= rates.trace_hz
    assert rates.trace_hz / rates.counter_hz == pytest.approx(
        round(rates.trace_hz / rates.counter_hz)
    )


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_each_gpu_of_many_is_read_often_enough_at_realistic_costs(gpus: int) -> None:
    """The counter waits 2.4 ms, what else is read keeps a core busy; many wait side by side."""
    paid = {
        "trace": ReadCost(cpu_s=80e-6, wall_s=80e-6),
        "counter": ReadCost(cpu_s=30e-6, wall_s=2.4e-3),
        "state": ReadCost(cpu_s=220e-6, wall_s=220e-6),
        "slow": ReadCost(cpu_s=200e-6, wall_s=200e-6),
    }
    rates = choose(paid, gpus)
    assert rates.trace_hz >= 25
    assert rates.counter_hz >= 12
    assert rates.cpu_share <= CPU_SHARE + 0.01 * (gpus - 1)

    waits = choose({**CHEAP, "counter": ReadCost(cpu_s=9e-6, wall_s=2.4e-3)}, gpus)
    assert waits.trace_hz == pytest.approx(50)
    assert 10 <= waits.counter_hz <= 20
    assert waits.driver_share * gpus <= DRIVERS_SHARE


def test_rates_that_a_starved_start_made_low_rise_once_reading_is_quick() -> None:
    """They stay if reading has not become cheaper, or if one GPU's has not."""
    slow = {group: ReadCost(cpu_s=0.01, wall_s=0.01) for group in GROUPS}
    for costs_of, raised in (([CHEAP], True), ([CHEAP, slow], False), ([slow], False)):
        records: list[str] = []
        sampler = Sampler([], choose(slow, len(costs_of)), records.append)
        threads = [Paced(costs) for costs in costs_of]
        sampler._threads = threads  # type: ignore[assignment]
        sampler._choose_again()
        sampler._choose_again()

        hz = 50.0 if raised else None
        assert [thread.hz for thread in threads] == [hz] * len(threads)
        assert [json.loads(text)["rates"]["state_hz"] for text in records] == [5.0] * raised


class Paced:
    """A thread that has read at these costs."""

    lost = False

    def __init__(self, costs: dict[str, ReadCost]) -> None:
        self.costs = costs
        self.hz: float | None = None

    def pace(self, rates: Rates) -> None:
        self.hz = rates.trace_hz
