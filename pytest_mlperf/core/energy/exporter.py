"""Compute the energy of remote GPUs from the counters on a DCGM exporter's page.

An exporter samples its GPUs at its own interval, 30 s by default, and repeats each value until the
next. So a value's time is known only to about one interval, which determines the uncertainty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from pytest_mlperf.core import energy
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.energy.readings import (
    MAX_RISE_WATTS,
    MAX_WATTS,
    Reading,
    at,
    median_interval_s,
    misreads,
    slopes,
    without_misreads,
)
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.plausible import plausible_reading
from pytest_mlperf.core.prometheus import PageSample, page_samples

POWER_METRIC, ENERGY_METRIC = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
"""Present power [W], and energy since the driver was loaded [mJ]."""

LIMIT_METRIC = "DCGM_FI_DEV_POWER_MGMT_LIMIT"
AMD_METRICS = ("gpu_package_power", "amd_gpu_package_power")
"""Present power [W] on the page of AMD's device metrics exporter, by its version."""

COUNTER_UPDATE_SECONDS = 0.2
MIN_COUNTER_VALUES = 10
MAX_MEAN_RATIO = 2.0
"""Tolerated ratio of the mean of sampled powers to the counter's mean power."""

Reader = Literal["exporter", "probe"]
"""What was read: the page of a DCGM exporter, or a probe on the server's machine."""

MIN_SLOW_SECONDS = 1.5
"""An exporter with at least this interval is not set to one second."""

GAP = 2.5
"""Intervals without a change after which a counter was not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedGpu:
    """Hold the values of one GPU on an exporter's page; `parts` is True if it has MIG instances."""

    uuid: str
    name: str = ""
    host: str = ""
    joules: float | None = None
    watts: float | None = None
    parts: bool = False
    limit_w: float | None = None
    driver: str = ""


def read_exporter(page: bytes, chosen: Collection[str] = ()) -> dict[str, ExportedGpu]:
    """Return a page's GPUs by UUID; if `chosen` is not empty, those with a UUID or host in it."""
    gpus: dict[str, ExportedGpu] = {}
    for sample in page_samples(page, {POWER_METRIC, ENERGY_METRIC, LIMIT_METRIC, *AMD_METRICS}):
        labels = {name.lower(): text for name, text in sample.labels.items()}
        uuid, host = labels.get("uuid") or labels.get("serial_number"), labels.get("hostname", "")
        if not uuid or (chosen and not {uuid, host}.intersection(chosen)):
            continue
        name = labels.get("modelname") or labels.get("card_model", "")
        driver = labels.get("dcgm_fi_driver_version", "")
        gpu = gpus.get(uuid) or ExportedGpu(uuid=uuid, name=name, host=host, driver=driver)
        gpus[uuid] = _with(gpu, sample)
    return gpus


def _with(gpu: ExportedGpu, sample: PageSample) -> ExportedGpu:
    if sample.labels.get("GPU_I_ID"):
        gpu = replace(gpu, parts=True)
    if sample.name == LIMIT_METRIC:
        return replace(gpu, limit_w=plausible_reading("limit_w", sample.value))
    if sample.name != ENERGY_METRIC:
        return replace(gpu, watts=plausible_reading("power_w", sample.value) or gpu.watts)
    # The lower one of two samples of a GPU is stale.
    joules = max(plausible_reading("energy_j", sample.value / 1000) or 0.0, gpu.joules or 0.0)
    return replace(gpu, joules=joules or None)


def models_of(gpus: Collection[ExportedGpu]) -> str:
    """Return the number and models of GPUs as text: "8 x NVIDIA H200"."""
    names = sorted(gpu.name or "GPU" for gpu in gpus)
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True, slots=True)
class ExporterLook:
    """Hold one read of an exporter's page: its time [s since 1970], and GPU values by UUID."""

    time_s: float
    gpus: Mapping[str, ExportedGpu]


@dataclass(frozen=True, kw_only=True, slots=True)
class _CounterEnergy:
    """Hold a GPU's energy [J] in a window by its counter; None if `why_not` has reasons."""

    joules: float | None = None
    uncertainty_j: float | None = None
    interval_s: float | None = None
    readings: int = 0
    why_not: tuple[Words, ...] = ()
    doubts: tuple[Words, ...] = ()
    notes: tuple[Words, ...] = ()


def exported_energy(
    looks: Sequence[ExporterLook],
    begin_s: float,
    end_s: float,
    *,
    expected: int | None = None,
    failure: str = "",
    reader: Reader = "exporter",
) -> EnergyReading:
    """Compute the energy of a window; its ends are in seconds since 1970.

    A counter is interpolated between its changes, which may appear up to one interval late. So the
    uncertainty is the highest power between two changes, times the sum of the interval, one polling
    period and `COUNTER_UPDATE_SECONDS`. Uncertainties of the GPUs on one exporter are added.

    Args:
        expected: Number of GPUs of the case; None if unknown.
        failure: Reason why the last page could not be read; "" if it was read.
        reader: What was read, for the notes.
    """
    window_s = end_s - begin_s
    unknown = EnergyReading(source=Source.EXPORTER, window_s=window_s, method="counter")
    near = [look for look in looks if look.gpus]
    if not near:
        note = Note.of("reader_no_gpu", reader=reader, failure=failure)
        return replace(unknown, notes=(note,))
    gpus = {uuid: gpu for look in near for uuid, gpu in look.gpus.items()}
    unknown = replace(unknown, devices=models_of(list(gpus.values())))
    if all(gpu.joules is None for gpu in gpus.values()):
        return _by_power(unknown, near, begin_s, end_s, reader)
    lost = [Note.of("reader_stopped", reader=reader, failure=failure)]
    lost = lost if failure and near[-1].time_s < end_s else []
    pages = [look.gpus for look in near if begin_s <= look.time_s <= end_s]
    moving = any(len({page[uuid].joules for page in pages if uuid in page}) > 2 for uuid in gpus)
    ask = partial(_counted, near, begin_s=begin_s, end_s=end_s, moving=moving, reader=reader)
    counted = {uuid: ask(uuid) for uuid in gpus}
    whole = replace(
        unknown,
        interval_s=max((c.interval_s for c in counted.values() if c.interval_s), default=None),
        readings=min(c.readings for c in counted.values()),
        parts={uuid: c.joules for uuid, c in counted.items()},
    )
    if why_not := energy.merge_notes([(uuid, c.why_not) for uuid, c in counted.items()]):
        return replace(whole, notes=(*why_not, *lost))
    whole = replace(
        whole,
        joules=sum(c.joules or 0.0 for c in counted.values()),
        uncertainty_j=sum(c.uncertainty_j or 0.0 for c in counted.values()),
    )
    doubts = (
        *lost,
        *energy.merge_notes([(uuid, c.doubts) for uuid, c in counted.items()]),
        *_doubts(whole, gpus.values(), expected, reader),
        *_beside_powers(whole, _powers(near, begin_s, end_s)),
    )
    notes = energy.merge_notes([(uuid, c.notes) for uuid, c in counted.items()])
    if lost:
        whole = replace(whole, joules=None, uncertainty_j=None, parts=dict.fromkeys(counted))
    return replace(whole, notes=(*doubts, *notes), gated=not doubts)


def _doubts(
    whole: EnergyReading, gpus: Collection[ExportedGpu], expected: int | None, reader: Reader
) -> Iterator[Note]:
    if any(gpu.parts for gpu in gpus):
        yield Note.of("gpu_divided")
    if expected is not None and len(gpus) != expected:
        yield Note.of("gpus_miscounted", expected=expected, count=len(gpus), reader=reader)
    if whole.window_s < energy.MIN_GATED_SECONDS:
        yield energy.too_short("energy", whole.window_s)
    share = (whole.uncertainty_j or 0.0) / (whole.joules or 1.0)
    if share > energy.UNSURE:
        values = _interval(whole.interval_s or 0.0, reader)
        yield Note.of("reader_unsure", share=share, reader=reader, **values)


def _beside_powers(whole: EnergyReading, watts: Sequence[float]) -> Iterator[Note]:
    if not watts or not whole.mean_w:
        return
    mean_w = sum(watts) / len(watts)
    if not 1 / MAX_MEAN_RATIO <= mean_w / whole.mean_w <= MAX_MEAN_RATIO:
        metrics = {"energy_metric": ENERGY_METRIC, "power_metric": POWER_METRIC}
        yield Note.of("powers_differ", counter_w=whole.mean_w, mean_w=mean_w, **metrics)


def _counted(
    looks: Sequence[ExporterLook],
    uuid: str,
    *,
    begin_s: float,
    end_s: float,
    moving: bool,
    reader: Reader,
) -> _CounterEnergy:
    read = [
        Reading(time_s=look.time_s, value=gpu.joules)
        for look in looks
        if (gpu := look.gpus.get(uuid)) and gpu.joules is not None
    ]
    series, misread = without_misreads(read, begin_s, end_s, MAX_RISE_WATTS)
    changes = [  # the time is between two looks, so the first look has no change
        Reading(time_s=(before.time_s + after.time_s) / 2, value=after.value)
        for before, after in pairwise(series)
        if after.value != before.value
    ]
    inside = [change for change in changes if begin_s <= change.time_s <= end_s]
    if read and not series:
        return _CounterEnergy(why_not=(Note.of("counter_reset", before_j=None, after_j=None),))
    if len(inside) < 2:
        seldom = Note.of("counter_seldom", window_s=end_s - begin_s, cause=f"{reader}_seldom")
        still = Note.of("counter_stale") if moving else seldom
        return _CounterEnergy(
            readings=len(inside), why_not=(still if series else _no_counter(reader),)
        )
    joules = at(changes, end_s) - at(changes, begin_s)
    if joules > MAX_WATTS * (end_s - begin_s):
        note = Note.of("counter_too_fast", metric=ENERGY_METRIC)
        return _CounterEnergy(readings=len(inside), why_not=(note,))
    moments = [begin_s, *(change.time_s for change in inside), end_s]
    longest_s = max(later - earlier for earlier, later in pairwise(moments))
    interval_s = median_interval_s(inside)
    return _CounterEnergy(
        joules=joules,
        uncertainty_j=(interval_s + median_interval_s(series) + COUNTER_UPDATE_SECONDS)
        * max(slopes(changes)),
        interval_s=interval_s,
        readings=len(inside),
        doubts=tuple(_sparse(len(inside), interval_s, longest_s, reader)),
        notes=misreads(misread),
    )


def _no_counter(reader: Reader) -> Note:
    metric = ENERGY_METRIC if reader == "exporter" else ""
    return Note.of("no_counter", reader=reader, metric=metric)


def _interval(interval_s: float, reader: Reader) -> dict[str, Any]:
    slow = reader == "exporter" and interval_s >= MIN_SLOW_SECONDS
    return {"interval_s": interval_s, "advice": "exporter_slow" if slow else "run_short"}


def _sparse(readings: int, interval_s: float, longest_s: float, reader: Reader) -> Iterator[Note]:
    if readings < MIN_COUNTER_VALUES:
        values = _interval(interval_s, reader)
        yield Note.of("few_counted", count=readings, needed=MIN_COUNTER_VALUES, **values)
    elif longest_s > GAP * interval_s:
        yield Note.of("counter_paused", seconds=longest_s, interval_s=interval_s)


def _powers(looks: Sequence[ExporterLook], begin_s: float, end_s: float) -> list[float]:
    return [
        sum(gpu.watts for gpu in look.gpus.values() if gpu.watts is not None)
        for look in looks
        if begin_s <= look.time_s <= end_s
        and all(gpu.watts is not None for gpu in look.gpus.values())
    ]


def _by_power(
    unknown: EnergyReading,
    looks: Sequence[ExporterLook],
    begin_s: float,
    end_s: float,
    reader: Reader,
) -> EnergyReading:
    watts = _powers(looks, begin_s, end_s)
    if not watts:
        return replace(unknown, notes=(Note.of("reader_no_power", reader=reader),))
    mean_w = sum(watts) / len(watts)
    return replace(
        unknown,
        joules=mean_w * (end_s - begin_s),
        method="power",
        readings=len(set(watts)),
        notes=(_no_counter(reader), Note.of("power_alone")),
    )
