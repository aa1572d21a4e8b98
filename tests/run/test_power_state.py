"""What a run keeps of its GPUs' clocks, heat and power cap, and what its energy is told as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.core.energy import Energy
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.power import Power, together
from pytest_mlperf.run.power_gpu import GpuLog
from pytest_mlperf.verdicts import energy_notes

CAP = 0x4


def state(time_s: float, mhz: float | None, heat: float) -> dict[str, Any]:
    return {"time": time_s, "sm_mhz": mhz, "memory_mhz": 3201, "temperature_c": heat}


def test_a_windows_state_is_its_median_clock_its_heat_and_the_share_of_the_cap() -> None:
    """What lies outside the window does not count."""
    log = GpuLog(
        uuid="GPU-0",
        reasons=((0.0, 0), (20.0, CAP), (30.0, 0), (60.0, 0)),
        states=(state(5, 300, 95), state(12, 1900, 60), state(20, 1800, 71), state(30, 1850, 70)),
    )

    assert log.state(10.0, 50.0) == {
        "sm_mhz": 1850,
        "memory_mhz": 3201,
        "temperature_c": 71,
        "power_cap_share": pytest.approx(0.25),
    }


def test_what_was_not_read_is_left_out() -> None:
    assert GpuLog(uuid="GPU-0", states=(state(12, None, 60),)).state(10.0, 50.0) == {
        "memory_mhz": 3201,
        "temperature_c": 60,
    }


def run(by_gpu: dict[str, float | None], **metrics: float) -> Run:
    joules = sum(value or 0.0 for value in by_gpu.values())
    power = Power(
        joules=joules,
        uncertainty_j=12.0,
        mean_w=joules / 20,
        peak_w=700.0,
        window_s=20.0,
        by_gpu=by_gpu,
        gated=True,
    )
    return Run(
        metrics=metrics,
        within_se={},
        samples=100,
        queries=100,
        duration_s=20.0,
        target_qps=5.0,
        session="s",
        started="2026-11-21T00:00:00+00:00",
        commit=None,
        folder="x",
        power=power,
    )


def test_energy_is_told_in_all_for_each_token_and_for_each_gpu() -> None:
    told = energy_notes([run({"GPU-0": 6000.0, "GPU-1": 4000.0}, tokens_per_joule=2.5)])

    assert told == [
        "10,000 J (± 12) in 20.0 s, 500 W, 700 W at most, 0.4 J/token: GPU board energy by NVML, "
        "not MLPerf Power",
        "by GPU: GPU-0 6,000 J, GPU-1 4,000 J",
    ]


def test_energy_above_idle_and_an_uncertainty_that_is_not_known_are_told_so() -> None:
    made = run({"GPU-0": 10_000.0}, samples_per_joule=0.01)
    assert made.power is not None
    power = replace(made.power, uncertainty_j=None, idle_w=120.0, net_joules=7600.0)

    assert energy_notes([replace(made, power=power)]) == [
        "10,000 J (uncertainty not known) in 20.0 s, 500 W, 700 W at most, 100 J/sample, 7,600 J "
        "above an idle 120 W: GPU board energy by NVML, not MLPerf Power"
    ]


def test_an_unknown_part_makes_the_whole_unknown() -> None:
    def energy(uncertainty_j: float | None, idle_w: float | None) -> Energy:
        return Energy(
            joules=1000.0,
            uncertainty_j=uncertainty_j,
            method="trace",
            window_s=20.0,
            peak_w=60.0,
            trace_j=1000.0,
            idle_w=idle_w,
        )

    whole = together({"GPU-0": energy(10.0, 20.0), "GPU-1": energy(20.0, 30.0)})
    unsure = together({"GPU-0": energy(10.0, 20.0), "GPU-1": energy(None, 20.0)})
    busy = together({"GPU-0": energy(10.0, 20.0), "GPU-1": energy(10.0, None)})

    assert (whole.uncertainty_j, whole.idle_w, whole.net_joules) == (30.0, 50.0, 1000.0)
    assert (unsure.joules, unsure.uncertainty_j, unsure.gated) == (2000.0, None, False)
    assert (busy.joules, busy.idle_w, busy.net_joules) == (2000.0, None, None)


def test_what_was_noted_of_any_run_is_told_once() -> None:
    """A note of an earlier run alone is told as such; figures of the last run stand for all."""
    cap = "clocks are held back to stay within the power limit: {} s, {}% of the window"
    first = replace(
        run({"GPU-0": 1e4}),
        notes=("3 replays on the PCIe link during the run", cap.format(1.25, 6.2)),
        power=None,
        power_unknown="the sampler was killed",
    )
    last = replace(run({"GPU-0": 1e4}), notes=(cap.format(20.0, "100.0"),))

    assert [note for note in energy_notes([first, last]) if "NVML" not in note] == [
        "in 1 of 2 runs: 3 replays on the PCIe link during the run",
        cap.format(20.0, "100.0"),
        "in 1 of 2 runs: energy is not known: the sampler was killed",
    ]


def test_without_tokens_a_sample_has_its_energy() -> None:
    (told,) = energy_notes([run({"GPU-0": 10_000.0}, samples_per_joule=0.01)])

    assert ", 100 J/sample: " in told
