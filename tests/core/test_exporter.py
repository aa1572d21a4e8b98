"""Test the energy of a window from a DCGM exporter, and when it may be judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from pytest_mlperf.core.energy.exporter import (
    ENERGY_METRIC,
    ExportedGpu,
    ExporterLook,
    Reader,
    exported_energy,
    models_of,
    read_exporter,
)
from pytest_mlperf.core.notes import Note
from tests.core.made import keys_of, present

PAGE = b"""# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H200",Hostname="box"} 412.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H200",Hostname="box"} 120
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",modelName="NVIDIA H200",Hostname="box"} 5000250
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-b",modelName="NVIDIA H200",Hostname="box"} 9223372036854775794
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 99
"""  # noqa: E501 - a page as it is

A = ExportedGpu(uuid="GPU-a", name="NVIDIA H200", host="box", joules=5000.25, watts=412.5)
B = ExportedGpu(uuid="GPU-b", name="NVIDIA H200", host="box", watts=120.0)


def test_gpus_of_a_page_are_read_and_values_unknown_to_dcgm_stay_unknown() -> None:
    """They are chosen by UUID or host, and a split one is reported as split."""
    split = PAGE.replace(b'gpu="0",', b'gpu="0",GPU_I_PROFILE="1g.18gb",GPU_I_ID="7",')

    assert read_exporter(PAGE) == {"GPU-a": A, "GPU-b": B}
    assert models_of([A, B]) == "2 x NVIDIA H200"
    chosen = [list(read_exporter(PAGE, {name})) for name in ("GPU-b", "box", "other")]
    assert chosen == [["GPU-b"], ["GPU-a", "GPU-b"], []]
    assert read_exporter(split)["GPU-a"].parts


Watts = Callable[[float], float]


def steady(_: float) -> float:
    return 500.0


def exported(
    watts: Watts,
    *,
    interval_s: float = 1.0,
    phase_s: float = 0.3,
    age_s: float = 0.0,
    until_s: float = 140.0,
    base: float = 1e6,
    uuid: str = "GPU-a",
) -> list[ExporterLook]:
    """Return looks, twice a second, at a counter that is refreshed rarely and shown late."""
    step_s = 0.01
    energy = [base]
    for n in range(round((until_s + 50) / step_s)):
        energy.append(energy[-1] + watts(n * step_s - 50) * step_s)

    def counter(time_s: float) -> float:
        return energy[round((time_s + 50) / step_s)]

    looks = []
    for n in range(round(2 * until_s)):
        asked_s = (n / 2 - phase_s) // interval_s * interval_s + phase_s
        gpu = ExportedGpu(uuid=uuid, name="NVIDIA H200", joules=round(counter(asked_s - age_s), 3))
        looks.append(ExporterLook(time_s=n / 2, gpus={uuid: gpu}))
    return looks


def both(*sides: Sequence[ExporterLook]) -> list[ExporterLook]:
    return [
        ExporterLook(
            time_s=looks[0].time_s, gpus={k: v for look in looks for k, v in look.gpus.items()}
        )
        for looks in zip(*sides, strict=True)
    ]


def test_a_steady_load_is_the_power_times_the_time_and_gpus_add_up() -> None:
    """Power alone has no uncertainty."""
    for watts in (None, 300.0, 500.0, 900.0):
        energy = exported_energy(with_gpu(STEADY, watts=watts), 40.2, 100.4, expected=1)
        assert energy.joules == pytest.approx(500 * 60.2, rel=1e-3)
        assert energy.mean_w == pytest.approx(500, rel=1e-3)
        assert energy.uncertainty_j == pytest.approx((1.0 + 0.5 + 0.2) * 500, rel=0.01)
        assert (energy.interval_s, energy.readings, energy.devices) == (1.0, 61, "1 x NVIDIA H200")
        assert (energy.notes, energy.gated) == ((), True)

    looks = both(STEADY, exported(lambda _: 300.0, uuid="GPU-b"))
    single = exported_energy(STEADY, 40.0, 100.0)
    energy = exported_energy(looks, 40.0, 100.0, expected=2)
    power = exported_energy(with_gpu(STEADY, joules=None, watts=500.0), 40.0, 100.0)

    assert energy.joules == pytest.approx(800 * 60, rel=1e-3)
    assert energy.uncertainty_j == pytest.approx((single.uncertainty_j or 0) * 8 / 5, rel=0.01)
    assert (energy.devices, energy.gated) == ("2 x NVIDIA H200", True)
    assert set(energy.parts) == {"GPU-a", "GPU-b"}
    assert (power.joules, power.method, power.uncertainty_j) == (30_000.0, "power", None)


@pytest.mark.parametrize("loads", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_the_error_of_the_energy_is_within_its_stated_uncertainty(loads: int) -> None:
    """Simulated: square waves and a job between idle times, whatever the exporter's phase."""
    for interval_s in (1.0, 2.0, 5.0):
        draw = random.Random(7)
        for _ in range(loads):
            period_s, begin_s = draw.uniform(0.3, 20), draw.uniform(30, 50)

            def watts(time_s: float, period_s: float = period_s, begin_s: float = begin_s) -> float:
                if period_s > 15:
                    return 620 if begin_s <= time_s <= begin_s + 60 else 80
                return 620 if time_s % period_s < period_s / 2 else 80

            phase_s, age_s = draw.uniform(0, interval_s), draw.uniform(0, interval_s)
            looks = exported(watts, interval_s=interval_s, phase_s=phase_s, age_s=age_s)
            energy = exported_energy(looks, begin_s, begin_s + 60)
            true_j = sum(watts(begin_s + n / 1000) for n in range(60_000)) / 1000
            assert abs(present(energy.joules) - true_j) <= present(energy.uncertainty_j)


STEADY = exported(steady)
OTHER = exported(steady, uuid="GPU-b")


def silent(looks: list[ExporterLook], first_s: float, last_s: float) -> list[ExporterLook]:
    return [look for look in looks if not first_s < look.time_s < last_s]


def test_energy_that_may_not_be_judged_has_a_reason() -> None:
    """Neither may a window that is too short for the exporter; its energy is known."""
    reset = silent(STEADY, 70, 999) + with_gpu(silent(STEADY, -1, 70.1), joules=7.0)
    uncounted = with_gpu(OTHER, uuid="GPU-b", joules=None)
    for looks, key in (
        (exported(steady, interval_s=30.0), "few_counted"),
        (exported(steady, interval_s=8.0), "few_counted"),
        (silent(STEADY, 50, 90), "counter_paused"),
        (silent(STEADY, 80, 140), "counter_paused"),
        (silent(STEADY, -1, 70), "counter_paused"),
        (reset, "counter_reset"),
        (with_gpu(STEADY, parts=True), "gpu_divided"),
        (with_gpu(STEADY, watts=0.5), "powers_differ"),
        (with_gpu(STEADY, watts=1001.0), "powers_differ"),
        (with_gpu(STEADY, joules=None, watts=500.0), "no_counter"),
        (with_gpu(STEADY, joules=None), "reader_no_power"),
        (with_gpu(STEADY, joules=7.0), "counter_seldom"),
        ([], "reader_no_gpu"),
        (both(STEADY, OTHER), "gpus_miscounted"),
        (both(STEADY, uncounted), "of_gpus"),
    ):
        energy = exported_energy(looks, 40.0, 100.0, expected=1, failure="it went away")
        assert key in keys_of(energy.notes), energy.notes
        assert not energy.gated
    missing = Note.of("no_counter", reader="exporter", metric=ENERGY_METRIC)
    assert energy.notes[0] == Note.of("of_gpus", gpus=("GPU-b",), notes=(missing,), of=2)

    slow = exported(steady, interval_s=6.0)
    for looks, end_s, key in ((STEADY, 58.9, "energy_short"), (slow, 100.0, "reader_unsure")):
        energy = exported_energy(looks, 40.0, end_s)
        assert (energy.joules is None, energy.gated) == (False, False)
        assert key in keys_of(energy.notes), energy.notes


def test_notes_name_the_probe_that_was_read_in_place_of_an_exporter() -> None:
    """A probe has no interval to set, so that no note advises it."""
    cases: list[tuple[Reader, str, str]] = [
        ("exporter", "exporter_seldom", "exporter_slow"),
        ("probe", "probe_seldom", "run_short"),
    ]
    for reader, cause, advice in cases:
        ask = partial(exported_energy, begin_s=40.0, end_s=100.0, reader=reader)
        (still,) = ask(with_gpu(STEADY, joules=7.0)).notes
        few = ask(exported(steady, interval_s=8.0)).notes[0]
        empty = ask([])
        assert isinstance(still, Note)
        assert isinstance(few, Note)
        assert (still.values["cause"], few.values["advice"]) == (cause, advice)
        assert empty.notes == (Note.of("reader_no_gpu", reader=reader, failure=""),)


def test_energy_is_unknown_if_the_readings_fail_before_the_end_of_the_run() -> None:
    """The last reading may be a polling period before the end if none failed after it."""
    looks = exported(steady)
    for last_s, failure, is_known in (
        (70.0, "it went away", False),
        (99.8, "it went away", False),
        (99.8, "", True),
        (110.0, "it came back", True),
    ):
        read = [look for look in looks if look.time_s <= last_s]
        energy = exported_energy(read, 40.0, 100.0, expected=1, failure=failure)
        assert (energy.joules is not None) == energy.gated == is_known
        assert ("reader_stopped" in keys_of(energy.notes)) != is_known


def with_gpu(looks: list[ExporterLook], **changes: object) -> list[ExporterLook]:
    return [
        replace(look, gpus={k: replace(g, **changes) for k, g in look.gpus.items()})  # type: ignore[arg-type]
        for look in looks
    ]
