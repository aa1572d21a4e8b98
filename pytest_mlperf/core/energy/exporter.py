"""Compute the energy of remote GPUs from the counters on a DCGM exporter's page.

An exporter samples its GPUs at its own interval, 30 s by default, and repeats each value until the
next. So a value's time is known only to about one interval, which determines the uncertainty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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

NO_COUNTER = f"the DCGM exporter reports no {ENERGY_METRIC} above 0"

FASTER = "start the DCGM exporter with --collect-interval=1000, or "
SELDOM = (
    "the DCGM exporter updates less often (every 30 s by default); start it with "
    "--collect-interval=1000"
)

OF_PROBES = {
    SELDOM: "the GPU's driver does not update it",
    FASTER: "",
    f"no {ENERGY_METRIC}": "no energy counter",
    "the DCGM exporter": "the probe",
}
"""Texts of notes on an exporter, and of the same notes on a probe."""

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
    """Return a page's GPUs by UUID; if `chosen` is not empty, only those UUIDs and hosts."""
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
    """Hold one read of an exporter's page: time [s since 1970], and GPUs by UUID."""

    time_s: float
    gpus: Mapping[str, ExportedGpu]


@dataclass(frozen=True, kw_only=True, slots=True)
class _CounterEnergy:
    """Hold a GPU's energy [J] in a window by its counter; None if `why_not` has reasons."""

    joules: float | None = None
    uncertainty_j: float | None = None
    interval_s: float | None = None
    readings: int = 0
    why_not: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def exported_energy(
    looks: Sequence[ExporterLook],
    begin_s: float,
    end_s: float,
    *,
    expected: int | None = None,
    failure: str = "",
) -> EnergyReading:
    """Compute the energy of a window; its ends are in seconds since 1970.

    A counter is interpolated between its changes, which may appear up to one interval late. So the
    uncertainty is the highest power between two changes, times the sum of the interval, one polling
    period and `COUNTER_UPDATE_SECONDS`. Uncertainties of the GPUs on one exporter are added.

    Args:
        expected: Number of GPUs of the case; None if unknown.
        failure: Reason why the last page could not be read; "" if it was read.
    """
    window_s = end_s - begin_s
    unknown = EnergyReading(source=Source.EXPORTER, window_s=window_s, method="counter")
    near = [look for look in looks if look.gpus]
    if not near:
        reason = f": {failure}" if failure else ""
        return replace(unknown, notes=(f"the DCGM exporter reported no GPU{reason}",))
    gpus = {uuid: gpu for look in near for uuid, gpu in look.gpus.items()}
    unknown = replace(unknown, devices=models_of(list(gpus.values())))
    if all(gpu.joules is None for gpu in gpus.values()):
        return _by_power(unknown, near, begin_s, end_s)
    lost = [f"the DCGM exporter was not read to the end of the run: {failure}"]
    lost = lost if failure and near[-1].time_s < end_s else []
    pages = [look.gpus for look in near if begin_s <= look.time_s <= end_s]
    moving = any(len({page[uuid].joules for page in pages if uuid in page}) > 2 for uuid in gpus)
    counted = {uuid: _counted(near, uuid, begin_s, end_s, moving=moving) for uuid in gpus}
    whole = replace(
        unknown,
        interval_s=max((c.interval_s for c in counted.values() if c.interval_s), default=None),
        readings=min(c.readings for c in counted.values()),
        parts={uuid: c.joules for uuid, c in counted.items()},
    )
    if why_not := energy.merge_sentences([(uuid, c.why_not) for uuid, c in counted.items()]):
        return replace(whole, notes=(*why_not, *lost))
    whole = replace(
        whole,
        joules=sum(c.joules or 0.0 for c in counted.values()),
        uncertainty_j=sum(c.uncertainty_j or 0.0 for c in counted.values()),
    )
    doubts = (
        *lost,
        *energy.merge_sentences([(uuid, c.doubts) for uuid, c in counted.items()]),
        *_doubts(whole, gpus.values(), expected),
        *_beside_powers(whole, _powers(near, begin_s, end_s)),
    )
    notes = energy.merge_sentences([(uuid, c.notes) for uuid, c in counted.items()])
    if lost:
        whole = replace(whole, joules=None, uncertainty_j=None, parts=dict.fromkeys(counted))
    return replace(whole, notes=(*doubts, *notes), gated=not doubts)


def _doubts(
    whole: EnergyReading, gpus: Collection[ExportedGpu], expected: int | None
) -> Iterator[str]:
    if any(gpu.parts for gpu in gpus):
        yield (
            "energy not judged: a GPU is divided by MIG, and its counter is that of the whole board"
        )
    if expected is not None and len(gpus) != expected:
        yield (
            f"energy not judged: the case has {expected} GPUs, the DCGM exporter reports "
            f"{len(gpus)}; name those of the case in mlperf_dcgm_gpus"
        )
    if whole.window_s < energy.MIN_GATED_SECONDS:
        yield energy.too_short("energy", whole.window_s)
    share = (whole.uncertainty_j or 0.0) / (whole.joules or 1.0)
    if share > energy.UNSURE:
        yield (
            f"energy with an uncertainty of {share:.0%} is reported, not gated: the DCGM exporter "
            f"updates every {whole.interval_s or 0:.2g} s; {_advice(whole.interval_s or 0)}"
        )


def _beside_powers(whole: EnergyReading, watts: Sequence[float]) -> Iterator[str]:
    if not watts or not whole.mean_w:
        return
    mean_w = sum(watts) / len(watts)
    if not 1 / MAX_MEAN_RATIO <= mean_w / whole.mean_w <= MAX_MEAN_RATIO:
        yield (
            f"energy not judged: the energy counters give a mean of {whole.mean_w:.3g} W, "
            f"{POWER_METRIC} gives {mean_w:.3g} W; {ENERGY_METRIC} must be in mJ, and both "
            "metrics must be of the same GPUs"
        )


def _counted(
    looks: Sequence[ExporterLook], uuid: str, begin_s: float, end_s: float, *, moving: bool
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
        return _CounterEnergy(why_not=("the energy counter was reset during the run",))
    if len(inside) < 2:
        still = _stands_still(series, end_s - begin_s, moving=moving)
        return _CounterEnergy(readings=len(inside), why_not=(still,))
    joules = at(changes, end_s) - at(changes, begin_s)
    if joules > MAX_WATTS * (end_s - begin_s):
        text = (
            f"the energy counter rises faster than any board can draw power: {ENERGY_METRIC} "
            "must be in mJ"
        )
        return _CounterEnergy(readings=len(inside), why_not=(text,))
    moments = [begin_s, *(change.time_s for change in inside), end_s]
    longest_s = max(later - earlier for earlier, later in pairwise(moments))
    interval_s = median_interval_s(inside)
    return _CounterEnergy(
        joules=joules,
        uncertainty_j=(interval_s + median_interval_s(series) + COUNTER_UPDATE_SECONDS)
        * max(slopes(changes)),
        interval_s=interval_s,
        readings=len(inside),
        doubts=tuple(_sparse(len(inside), interval_s, longest_s)),
        notes=misreads(misread),
    )


def _stands_still(series: Sequence[object], window_s: float, *, moving: bool) -> str:
    if not series:
        return NO_COUNTER
    if moving:
        return (
            "the energy counter is constant while those of other GPUs change: its value is "
            "old; name the GPUs of the case in mlperf_dcgm_gpus"
        )
    return f"the energy counter changed less than twice in {window_s:.0f} s: {SELDOM}"


def _advice(interval_s: float) -> str:
    return f"{FASTER * (interval_s >= MIN_SLOW_SECONDS)}make the run longer"


def _sparse(readings: int, interval_s: float, longest_s: float) -> Iterator[str]:
    if readings < MIN_COUNTER_VALUES:
        yield (
            f"{readings} values of the energy counter in the run, one every {interval_s:.2g} "
            f"s; {MIN_COUNTER_VALUES} are needed: {_advice(interval_s)}"
        )
    elif longest_s > GAP * interval_s:
        yield (
            f"energy not judged: the energy counter did not change for {longest_s:.1f} s; "
            f"usually it changes every {interval_s:.2g} s"
        )


def _powers(looks: Sequence[ExporterLook], begin_s: float, end_s: float) -> list[float]:
    return [
        sum(gpu.watts for gpu in look.gpus.values() if gpu.watts is not None)
        for look in looks
        if begin_s <= look.time_s <= end_s
        and all(gpu.watts is not None for gpu in look.gpus.values())
    ]


def _by_power(
    unknown: EnergyReading, looks: Sequence[ExporterLook], begin_s: float, end_s: float
) -> EnergyReading:
    watts = _powers(looks, begin_s, end_s)
    if not watts:
        return replace(unknown, notes=("the DCGM exporter reported no power during the run",))
    mean_w = sum(watts) / len(watts)
    note = (
        f"{NO_COUNTER}: energy from single power readings has an unknown uncertainty and is not "
        "judged"
    )
    return replace(
        unknown,
        joules=mean_w * (end_s - begin_s),
        method="power",
        readings=len(set(watts)),
        notes=(note,),
    )
