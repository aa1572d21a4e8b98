"""Test that a replica proven to be behind is reported with the differences of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pytest_mlperf.core.measurement import GpuRun, ReplicaRun
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.stragglers import slowest, stragglers

PARTS = 8


def replica(
    number: int, shares: Sequence[float], gpus: tuple[str, ...] | None = None
) -> ReplicaRun:
    return ReplicaRun(
        name=f"replica {number} (GPU {number})",
        gpus=(f"g{number}",) if gpus is None else gpus,
        samples=100,
        throughput=10.0,
        latency_s=0.1,
        shares=tuple(shares),
    )


def run_of(*speeds: float, noise: float = 0.01, seed: int = 0) -> list[ReplicaRun]:
    draw = np.random.default_rng(seed)
    return [
        replica(n, [float(s) for s in draw.normal(speed, noise, PARTS)])
        for n, speed in enumerate(speeds)
    ]


def gpus(**of_third: float) -> list[GpuRun]:
    """Return eight GPUs, of which the third has other values."""
    usual = {"temperature_c": 60.0, "sm_mhz": 1900.0, "power_cap_share": 0.0}
    watts = of_third.pop("mean_w", 500.0)
    return [
        GpuRun(
            uuid=f"g{n}",
            mean_w=watts if n == 3 else 500.0,
            state={**usual, **(of_third if n == 3 else {})},
        )
        for n in range(8)
    ]


EIGHT = (1.0, 1.01, 0.99, 0.89, 1.0, 1.0, 1.01, 1.0)


def test_a_replica_that_is_behind_in_every_run_is_reported_with_the_differences_of_its_gpus() -> (
    None
):
    """Not if it was as fast as the others in another run, or another one was behind."""
    hot = gpus(temperature_c=72.0, power_cap_share=0.34)
    other = (1.0, 0.89, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)

    (finding,) = stragglers([(run_of(*EIGHT, seed=seed), hot) for seed in (1, 2)])

    causes = {"hotter_c": 12.0, "slower_mhz": 0.0, "less_w": 0.0, "capped": 0.34}
    lag = {"name": "replica 3 (GPU 3)", "lag": pytest.approx(0.114, abs=0.0005), "of": 8}
    assert finding == Note.of("replica_behind", **lag, **causes)
    for name, value, differs in (
        ("temperature_c", 62.0, {}),
        ("temperature_c", 48.0, {}),
        ("sm_mhz", 1500.0, {"slower_mhz": 400.0}),
        ("sm_mhz", 1890.0, {}),
        ("mean_w", 400.0, {"less_w": 100.0}),
        ("power_cap_share", 0.03, {}),
    ):
        (finding,) = stragglers([(run_of(*EIGHT), gpus(**{name: value}))])
        assert {
            cause: finding.values[cause] for cause in causes if finding.values[cause]
        } == differs
    (unread,) = stragglers([(run_of(*EIGHT), [])])
    assert not any(unread.values[cause] for cause in causes)
    for speeds in ([1.0] * 8, other):
        assert stragglers([(run_of(*EIGHT), []), (run_of(*speeds), [])]) == ()


SEEDS = [80, pytest.param(1500, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("seeds", SEEDS)
def test_up_to_the_limit_hardly_any_replica_is_reported(seeds: int) -> None:
    """In a case 1 % at most, whatever replicas differ by from one part of a run to the next."""
    for behind in (0.0, 0.03, 0.05):
        speeds = (1.0, 1.0, 1.0, 1 - behind)
        alarms = sum(
            bool(stragglers([(run_of(*speeds, noise=0.03, seed=s), [])])) for s in range(seeds)
        )
        assert alarms <= 0.01 * seeds + 2 * (0.01 * seeds) ** 0.5


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_lag_in_one_run_alone_proves_nothing(seeds: int) -> None:
    """Replicas differ from run to run by more than the parts of a run do: by heat, by placement."""
    for spread, count in ((0.04, 1), (0.02, 1), (0.02, 2)):
        draw = np.random.default_rng(7)
        alarms = 0
        for seed in range(seeds):
            speeds = [draw.normal(1, spread, 8) for _ in range(count)]
            runs = [(run_of(*own, seed=2 * seed + n), gpus()) for n, own in enumerate(speeds)]
            alarms += bool(stragglers(runs))
        assert alarms <= 0.01 * seeds + 2.2 * (0.01 * seeds) ** 0.5


def test_replicas_are_distinguished_by_their_gpus_and_too_few_parts_prove_nothing() -> None:
    """Another session may number them otherwise; on a CPU there are numbers only."""
    few = [replica(n, [speed] * 3) for n, speed in enumerate((1.0, 1.0, 0.5))]

    assert slowest(run_of(*EIGHT, noise=0)) == pytest.approx(0.89)
    assert slowest([replica(0, ()), replica(1, ())]) is slowest([]) is None
    assert stragglers([(few, [])]) == stragglers([]) == ()

    first = [replica(0, [0.8] * 8), replica(1, [1.0] * 8), replica(2, [1.0] * 8)]
    turned = [
        replica(0, [1.0] * 8, ("g2",)),
        replica(1, [0.8] * 8, ("g0",)),
        replica(2, [1.0] * 8, ("g1",)),
    ]
    on_cpu = [replica(n, [share] * 8, ()) for n, share in enumerate((0.8, 1.0, 1.0))]

    (moved,), (late,) = stragglers([(first, []), (turned, [])]), stragglers([(on_cpu, [])])
    names = [note.values["name"] for note in (moved, late)]
    assert names == ["replica 1 (GPU 1)", "replica 0 (GPU 0)"]
