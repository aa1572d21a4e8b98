"""Energy by counters that only rise and go round: exact between readings, bounded by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.energy.host import Counted, host_energy
from pytest_mlperf.core.energy.readings import Reading
from tests.core.made import present


def counted(
    used: Callable[[float], float], *, range_j: float = 1e9, period_s: float = 0.2, end_s: float
) -> Counted:
    """What a counter shows of a load from 0 to a moment, beginning near the end of its range."""
    times = [period_s * n for n in range(int(end_s / period_s) + 2)]
    start_j = 0.9 * range_j
    readings = (Reading(time_s=t, value=(start_j + used(t)) % range_j) for t in times)
    return Counted(range_j=range_j, readings=tuple(readings))


@settings(max_examples=30)
@given(
    watts=st.floats(min_value=1.0, max_value=800.0),
    range_j=st.floats(min_value=2000.0, max_value=300_000.0),
    begin_s=st.floats(min_value=0.0, max_value=30.0),
    window_s=st.floats(min_value=1.0, max_value=300.0),
)
def test_a_counter_that_goes_round_is_followed(
    watts: float, range_j: float, begin_s: float, window_s: float
) -> None:
    end_s = begin_s + window_s
    one = counted(lambda t: watts * t, range_j=range_j, end_s=end_s + 1)
    energy = host_energy({"package-0": one}, begin_s, end_s)

    assert energy.joules == pytest.approx(watts * window_s, rel=1e-6)
    assert energy.mean_w == pytest.approx(watts, rel=1e-6)


@given(
    step_s=st.floats(min_value=4.0, max_value=26.0),
    begin_s=st.floats(min_value=4.9, max_value=5.3),
)
def test_the_truth_is_inside_the_uncertainty(step_s: float, begin_s: float) -> None:
    def used(t: float) -> float:
        return 50 * t + 350 * max(0.0, t - step_s)

    energy = host_energy({"package-0": counted(used, end_s=40)}, begin_s, 25.0)

    uncertainty_j, truth_j = present(energy.uncertainty_j), used(25.0) - used(begin_s)
    assert abs(present(energy.joules) - truth_j) <= uncertainty_j * (1 + 1e-9) + 1e-6
    assert uncertainty_j < 400 * 0.5


def test_domains_are_summed_with_their_uncertainties() -> None:
    both = {
        name: counted(lambda t, w=watts: w * t, end_s=20)  # type: ignore[misc]
        for name, watts in (("package-0", 100.0), ("package-0 dram", 20.0))
    }
    energy = host_energy(both, 5.05, 15.05)
    alone = [host_energy({name: one}, 5.05, 15.05) for name, one in both.items()]

    assert energy.by_domain == pytest.approx({"package-0": 1000.0, "package-0 dram": 200.0})
    assert energy.joules == pytest.approx(1200.0)
    assert energy.uncertainty_j == pytest.approx(sum(one.uncertainty_j or 0 for one in alone))
    assert energy.notes == ()


def test_what_readings_do_not_tell_is_not_known() -> None:
    """Never a 0, and the sum of several is not known either."""
    good = counted(lambda t: 100 * t, end_s=40)
    cases: dict[str, tuple[tuple[float, float], ...]] = {
        "none": (),
        "late": ((6.0, 1.0), (20.0, 2.0)),
        "short": ((0.0, 1.0), (14.0, 2.0)),
        "a hole": ((0.0, 1.0), (40.0, 2.0)),
        "absurd": ((0.0, 1.0), (10.0, 9e5), (20.0, 9.1e5)),
        "set back": ((0.0, 500.0), (10.0, 100.0), (20.0, 200.0)),
        "the clock": ((0.0, 1.0), (20.0, 2.0), (15.0, 3.0), (30.0, 4.0)),
        "dead": ((0.0, 7.0), (10.0, 7.0), (20.0, 7.0)),
        "range 0": ((0.0, 900.0), (10.0, 100.0), (20.0, 200.0)),
    }
    note = "package-1: its counter was not read around the window, or did not move"
    for name, values in cases.items():
        readings = tuple(Reading(time_s=t, value=v) for t, v in values)
        odd = Counted(range_j=0.0 if name == "range 0" else 1e6, readings=readings)
        energy = host_energy({"package-0": good, "package-1": odd}, 5.0, 15.0)
        assert (energy.joules, energy.uncertainty_j, energy.mean_w) == (None, None, None), name
        assert energy.by_domain == {"package-0": pytest.approx(1000.0), "package-1": None}
        assert energy.notes == (note,)


def test_memory_whose_counter_never_moves_is_left_out_and_neighbours_are_said() -> None:
    package, memory = counted(lambda t: 100 * t, end_s=40), counted(lambda t: 0.0, end_s=40)

    energy = host_energy({"package-0": package, "package-0 dram": memory}, 5.0, 15.0)
    shared = host_energy({"package-0": package}, 1.0, 2.0, shared=True)

    assert energy.joules == pytest.approx(1000.0)
    assert energy.notes == ("package-0 dram: its counter does not move: it is not in the sum",)
    assert shared.notes == ("others worked on this host at the same time",)
