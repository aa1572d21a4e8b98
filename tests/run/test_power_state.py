"""Test the recorded clocks, temperature and power cap of GPUs, and the notes on energy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.bench.bench import energy_notes, notes_of_runs
from pytest_mlperf.core.energy import Energy, EnergyReading, Source, sum_energies
from pytest_mlperf.core.measurement import GpuRun, Run, RunHardware
from pytest_mlperf.core.reason import DURATION_PLACEHOLDER, Sign, SignKey
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.sampling import PowerLog
from tests.reports.verdicts import run as valid_run

CAP = 0x4


def state(time_s: float, mhz: float | None, heat: float) -> dict[str, Any]:
    return {"time": time_s, "sm_mhz": mhz, "memory_mhz": 3201, "temperature_c": heat}


def test_a_windows_state_is_its_median_clock_heat_share_of_the_cap_and_peak_memory() -> None:
    log = GpuLog(
        uuid="GPU-0",
        reasons=[(0.0, 0), (20.0, CAP), (30.0, 0), (60.0, 0)],
        states=[state(5, 300, 95), state(12, 1900, 60), state(20, 1800, 71), state(30, 1850, 70)],
    )
    shares = {"power_cap_share": pytest.approx(0.25)}
    usual = {"sm_mhz": 1850, "memory_mhz": 3201, "temperature_c": 71}
    unread = GpuLog(uuid="GPU-0", states=[state(12, None, 60)])
    assert log.state(10.0, 50.0) == {**usual, **shares}
    assert unread.state(10.0, 50.0) == {"memory_mhz": 3201, "temperature_c": 60}

    gpus = [
        GpuLog(uuid=uuid, states=[{"time": s, "memory_used": used[s]} for s in used])
        for uuid, used in (("GPU-0", {1.0: 9e9, 20.0: 7e9, 40.0: 99e9}), ("GPU-1", {20.0: 5e9}))
    ]
    both = PowerLog(gpus=tuple(gpus), ended=True, offsets_s=(1000.0,))
    assert both.peak_memory(1030.0) == 14e9
    assert replace(both, gpus=(gpus[0], GpuLog(uuid="GPU-2"))).peak_memory(1030.0) is None
    assert replace(both, ended=False).peak_memory(1041.0) is None


POWER = EnergyReading(
    source=Source.NVML, uncertainty_j=12.0, peak_w=700.0, window_s=20.0, gated=True
)


def run(by_gpu: dict[str, float | None], **metrics: float) -> Run:
    joules = sum(value or 0.0 for value in by_gpu.values())
    power = replace(POWER, joules=joules, parts=by_gpu)
    return replace(
        valid_run(),
        metrics=metrics,
        samples=100,
        queries=100,
        duration_s=20.0,
        energy={power.source: power},
    )


def test_energy_is_reported_in_all_for_each_token_and_for_each_gpu() -> None:
    gpus = (
        GpuRun(uuid="GPU-0", name="GPU 3", joules=6000.0, uncertainty_j=5.0),
        GpuRun(uuid="GPU-1", joules=4000.0),
        GpuRun(uuid="GPU-2", name="GPU 5"),
    )
    made = run({"GPU-0": 6000.0, "GPU-1": 4000.0}, tokens_per_joule=2.5)
    notes = energy_notes([replace(made, hardware=replace(made.hardware, gpus=gpus))])
    assert notes == [
        "10,000 J (± 12) in 20.0 s, 500 W, 700 W at most of one GPU, 0.4 J/token: GPU board energy "
        "by NVML, not MLPerf Power",
        "by GPU: GPU 3 6,000 J (± 5), GPU-1 4,000 J, GPU 5 not known",
    ]

    made = run({"GPU-0": 10_000.0}, samples_per_joule=0.01)
    power = replace(made.energy[Source.NVML], uncertainty_j=None, idle_w=120.0, net_joules=7600.0)
    assert ", 100 J/sample: " in sentence(energy_notes([made])[0])
    assert energy_notes([replace(made, energy={power.source: power})]) == [
        "10,000 J (uncertainty not known) in 20.0 s, 500 W, 700 W at most, 100 J/sample, 7,600 J "
        "above idle (120 W): GPU board energy by NVML, not MLPerf Power"
    ]


def test_an_unknown_part_makes_the_whole_unknown() -> None:
    plain = Energy(
        joules=1000.0,
        uncertainty_j=None,
        method="trace",
        window_s=20.0,
        peak_w=60.0,
        trace_j=1000.0,
        idle_w=None,
    )

    def energy(uncertainty_j: float | None, idle_w: float | None) -> Energy:
        return replace(plain, uncertainty_j=uncertainty_j, idle_w=idle_w)

    whole = sum_energies({"GPU-0": energy(10.0, 20.0), "GPU-1": energy(20.0, 30.0)})
    unsure = sum_energies({"GPU-0": energy(10.0, 20.0), "GPU-1": energy(None, 20.0)})
    busy = sum_energies({"GPU-0": energy(10.0, 20.0), "GPU-1": energy(10.0, None)})

    assert (whole.uncertainty_j, whole.idle_w, whole.net_joules) == (30.0, 50.0, 1000.0)
    assert (unsure.joules, unsure.uncertainty_j, unsure.gated) == (2000.0, None, False)
    noted = {f"GPU-{n}": replace(energy(1.0, 1.0), notes=("short", "odd")[: n + 1]) for n in (0, 1)}
    assert sentence(*sum_energies(noted, names={"GPU-1": "GPU 7"}).notes) == (
        "each of 2 GPUs: short; GPU 7: odd"
    )
    assert (busy.joules, busy.idle_w, busy.net_joules) == (2000.0, None, None)


def cap(seconds: float, **of_gpu: Any) -> Sign:
    """Return a sign that lasted this many seconds of a window of 20 s."""
    text = f"clocks are held back: {DURATION_PLACEHOLDER}"
    key, share = SignKey.SW_POWER_CAP, seconds / 20
    return Sign(key=key, text=text, seconds=seconds, share=share, **of_gpu)


def test_notes_of_any_run_are_listed_once() -> None:
    def seen(*signs: Sign) -> Run:
        return replace(run({"GPU-0": 1e4}), signs=signs, notes=("something else",))

    replays = Sign(key=SignKey.PCIE_REPLAYS, text="3 replays on the PCIe link during the run")
    first = replace(seen(replays, cap(1.25)), energy={}, energy_unknown="the sampler was killed")
    last = seen(cap(20.0))
    assert [note for note in map(sentence, energy_notes([first, last])) if "NVML" not in note] == [
        "in 1 of 2 runs: 3 replays on the PCIe link during the run",
        sentence(cap(20.0).note),
        "something else",
        "in 1 of 2 runs: energy unknown: the sampler was killed",
    ]

    def waiting(key: SignKey, text: str, unknown: str | None = None) -> Run:
        sign = Sign(key=key, text=text)
        return replace(run({"GPU-0": 1e4}), signs=(sign,), energy_unknown=unknown)

    resets = [waiting(SignKey.RESET_WAITS, f"the {mode} mode waits") for mode in ("ECC", "MIG")]
    broken = [
        waiting(SignKey.NOT_WATCHED, f"not watched from {s} s on", f"it broke {s} s into the run")
        for s in (1.0, 2.5)
    ]
    noted = map(sentence, energy_notes([*resets, *broken]))
    notes = [note for note in noted if "NVML" not in note]
    assert notes == [
        "in 1 of 4 runs: the ECC mode waits",
        "in 1 of 4 runs: the MIG mode waits",
        "in 2 of 4 runs: not watched from 2.5 s on",
        "in 2 of 4 runs: energy unknown: it broke 2.5 s into the run",
    ]


def test_signs_of_several_gpus_are_one_note() -> None:
    replays = [
        Sign(key=SignKey.PCIE_REPLAYS, text=f"{n + 1} replays", gpu=f"GPU-{n}", name=f"GPU {n}")
        for n in (0, 1)
    ]
    first = cap(1.0, gpu="GPU-0", name="GPU 0")
    second = cap(4.0, gpu="GPU-1", name="GPU 1")

    def notes(*signs: Sign) -> list[str]:
        gpus = tuple(GpuRun(uuid=f"GPU-{n}") for n in (0, 1))
        seen = replace(run({"GPU-0": 1e4}), hardware=RunHardware(gpus=gpus), signs=signs)
        return [*map(sentence, notes_of_runs([seen]))]

    assert notes(first, second, *replays) == [
        "each of 2 GPUs: clocks are held back: 1.00 to 4.00 s, 5.0% to 20.0% of the run",
        "each of 2 GPUs: 1 to 2 replays",
    ]
    assert notes(second) == [sentence(second.note)]


def test_signs_at_points_of_several_runs_are_one_note_a_kind() -> None:
    """The figure is a value: notes that differ in it alone are merged."""

    def prefixes(point: float | None, share: float) -> Sign:
        text = f"the cache had {DURATION_PLACEHOLDER} of the prompts"
        return Sign(key=SignKey.PREFIX_SHARE, text=text, share=share, point=point)

    def notes(*signs_of: tuple[Sign, ...]) -> list[str]:
        return [*map(sentence, notes_of_runs([replace(run({}), signs=s) for s in signs_of]))]

    many = tuple(prefixes(point, 0.4 + point / 100) for point in (1, 4, 16.0))
    failed = tuple(Sign(key=SignKey.REQUESTS_FAILED, text=f"{n} failed", point=n) for n in (1, 2))
    assert notes(many, many, (prefixes(4, 0.3), *failed)) == [
        "at 4: the cache had 30% of the prompts",
        "in 1 of 3 runs: at 1, 2: 1 to 2 failed",
    ]
    assert notes(many) == ["at 1, 4, 16: the cache had 41% to 56% of the prompts"]
    assert notes((prefixes(None, 0.3),)) == ["the cache had 30% of the prompts"]
