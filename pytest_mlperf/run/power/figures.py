"""Compute a run's energy from the power samples, and find reasons not to judge it."""

from __future__ import annotations

import dataclasses
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pytest_mlperf.core.energy import EnergyReading, Source, merge_notes, sum_energies
from pytest_mlperf.core.energy.meter import MeterReading, parse_meter, wall_energy
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.core.measurement import GpuRun
from pytest_mlperf.core.metrics import NET_JOULES_PER_SAMPLE
from pytest_mlperf.core.notes import Words
from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.hardware.machine import UsedGpu
from pytest_mlperf.run.figures import Figures, Findings, merged_fields
from pytest_mlperf.run.logs import TimedLog
from pytest_mlperf.run.power.doubts import rejection_reasons
from pytest_mlperf.run.power.sampling import WANTED_HZ, PowerLog

CLOCK_SET = "the wall clock was set during the run, so LoadGen's window is unknown"
"""Why a run's energy is unknown: the wall clock dates its window."""

LOW_HZ = WANTED_HZ / 2
"""Sampling rate below which a note is added."""

SUSPECT = "the speed is suspect: NVIDIA's driver was upgraded while it is loaded; reboot"


def sampled(
    figures: Figures,
    log: PowerLog,
    timed: TimedLog,
    *,
    warm_s: float,
    used: Mapping[str, UsedGpu] = MappingProxyType({}),
) -> Findings:
    """Return the energy of a run from its GPU power samples, and reasons not to judge it.

    Processes that start after the warm-up's end, `warm_s`, are other users'. `used`: GPUs by UUID.
    """
    if unknown := CLOCK_SET if log.clock_stepped else log.unavailable:
        notes = (SUSPECT,) if log.suspect else ()
        return Findings(energy_unknown=unknown, invalid=_lost(log, used), notes=notes)
    used = {g.uuid: used.get(g.uuid, UsedGpu(uuid=g.uuid, name=f"GPU {g.uuid}")) for g in log.gpus}
    names = {uuid: gpu.name for uuid, gpu in used.items()}
    begin_s, end_s = map(log.monotonic, timed.window_s)
    ends_s = {g.uuid: max(begin_s, log.read_until_s(g, end_s)) for g in log.gpus}
    busy, linked = _busy(figures), len(used) > 1
    ask = partial(rejection_reasons, begin_s=begin_s, warm_s=warm_s, busy=busy, linked=linked)
    by_gpu = {
        g.uuid: ask(g, end_s=until_s, limit_w=used[g.uuid].limit_w, whole=until_s >= end_s)
        for g, until_s in zip(log.gpus, ends_s.values(), strict=True)
    }
    doubts = _merged(by_gpu, names)
    signs, invalid = doubts.signs, (*_lost(log, used, begin_s), *doubts.invalid)
    if (first_s := min(ends_s.values(), default=end_s)) < end_s:
        broke, sign = _sampler_loss(log, first_s - begin_s, used)
        return Findings(signs=(*signs, sign), energy_unknown=broke, invalid=invalid)
    read = [sum(begin_s <= r.time_s <= end_s for r in gpu.trace) for gpu in log.gpus if gpu.trace]
    if read and (hz := min(read) / (end_s - begin_s)) < LOW_HZ:
        signs = (*signs, Sign.of(SignKey.SELDOM_READ, "seldom_read", hz=hz, wanted=WANTED_HZ))
    energies = {gpu.uuid: gpu.energy(begin_s, end_s) for gpu in log.gpus}
    texts = {uuid: one.energy_unknown for uuid, one in by_gpu.items()}
    unsure = merge_notes([(names[uuid], [text] if text else []) for uuid, text in texts.items()])
    power = sum_energies(energies, doubts=unsure, names=names)
    metrics = per_joule(figures, power)
    if power.net_joules is not None and figures.samples:
        metrics[NET_JOULES_PER_SAMPLE] = power.net_joules / figures.samples
    states = [gpu.state(begin_s, end_s) for gpu in log.gpus]
    runs = [
        GpuRun(
            uuid=gpu.uuid,
            name=names[gpu.uuid],
            joules=energy.joules,
            uncertainty_j=energy.uncertainty_j,
            mean_w=energy.mean_w,
            state={**state, **gpu.link_rates(begin_s, end_s)},
        )
        for gpu, energy, state in zip(log.gpus, energies.values(), states, strict=True)
    ]
    return Findings(
        signs=signs,
        invalid=invalid,
        metrics=metrics,
        energy={Source.NVML: power},
        state=_worst(states),
        gpus=tuple(runs) if len(runs) > 1 else (),
    )


def _merged(by_gpu: Mapping[str, Findings], names: Mapping[str, str]) -> Findings:
    """Merge findings of several GPUs; each reason and sign then names its GPU (`names` by UUID)."""
    if len(by_gpu) < 2:
        return Findings(**merged_fields(*by_gpu.values()))
    notes: dict[Key, dict[str, list[Words]]] = {}
    signs, reasons = list[Sign](), list[Reason]()
    for uuid, one in by_gpu.items():
        signs += [dataclasses.replace(sign, gpu=uuid, name=names[uuid]) for sign in one.signs]
        for reason in one.invalid:
            notes.setdefault(reason.key, {}).setdefault(names[uuid], []).append(reason.text)
    for key, by_name in notes.items():
        pairs = [(name, text) for name, texts in by_name.items() for text in texts]
        gpus, texts = zip(*pairs, strict=True)
        reasons.append(Reason.of(key, "of_gpus", gpus=gpus, notes=texts, of=len(by_gpu)))
    return Findings(signs=tuple(signs), invalid=tuple(reasons))


def _sampler_loss(log: PowerLog, seconds: float, used: Mapping[str, UsedGpu]) -> tuple[str, Sign]:
    """Return reason and warning for unknown energy, as sampling stopped `seconds` into the run."""
    how = f"the sampler stopped ({log.broke or 'for an unknown reason'})"
    if log.ended:
        gpus = [gpu for gpu in log.gpus if gpu.silent]
        names = ", ".join(used[gpu.uuid].name for gpu in gpus)
        failure = gpus[0].last_failure
        how = f"NVML no longer answered for {names}" + (f": {failure}" if failure else "")
    sign = Sign.of(SignKey.NOT_WATCHED, "not_watched", after_s=seconds, cause=how)
    return f"{how}, {seconds:.1f} s into the run", sign


def _busy(run: Figures) -> float:
    """Return the busy share of a run, queries · p50 latency / duration, at most 1; 1 if unknown."""
    latency_s = run.metrics.get("latency_p50")
    if latency_s is None or not run.duration_s:
        return 1.0
    return min(1.0, run.queries * latency_s / run.duration_s)


def _worst(states: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return by quantity the worst value of several GPUs: minimum of clocks, maximum of others."""
    names = dict.fromkeys(name for state in states for name in state)
    return {
        name: (min if name.endswith("_mhz") else max)(s[name] for s in states if name in s)
        for name in names
    }


def _lost(
    log: PowerLog, used: Mapping[str, UsedGpu], begin_s: float | None = None
) -> tuple[Reason, ...]:
    return tuple(Reason(key=Key.GPU_LOST, text=text) for text in log.lost(used, begin_s))


def per_joule(run: Figures, energy: EnergyReading) -> dict[str, float]:
    """Return samples per joule, and tokens per joule if counted; {} if the energy is unknown."""
    joules, suffix = energy.joules, energy.source.suffix
    if not joules:
        return {}
    metrics = {f"samples_per_joule{suffix}": run.samples / joules}
    tokens = run.metrics.get("tokens_per_sample")
    if tokens is not None:
        metrics[f"tokens_per_joule{suffix}"] = run.samples * tokens / joules
    return metrics


POLL_SECONDS = 0.1


def read_meter(
    path: Path, *, until_s: float, patience_s: float = 5.0, local_offset_s: float = 0.0
) -> tuple[MeterReading, ...]:
    """Return the readings in a wall meter's file, without an incomplete last line.

    As loggers may write in bursts, it waits up to `patience_s` for a reading after `until_s`
    (seconds since the epoch). `local_offset_s` is the meter's clock minus UTC, for a file without
    time zones. `wall_energy` checks whether the readings suffice.
    """
    deadline = time.monotonic() + patience_s
    seen: tuple[int, int] | None = None
    readings: tuple[MeterReading, ...] = ()
    while True:
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise SuiteError(f"{path} is not a file; name the file that the wall meter writes")
            changed = (status.st_size, status.st_mtime_ns) != seen
            content = path.read_bytes() if changed else b""
        except OSError as error:
            raise SuiteError(
                f"the wall meter's file {path} cannot be read: {error.strerror}; start the "
                "meter's logger first, or correct the path"
            ) from None
        if changed:
            seen = status.st_size, status.st_mtime_ns
            text = _whole_lines(content, path)
            readings = parse_meter(text, name=str(path), local_offset_s=local_offset_s)
        if any(reading.time_s > until_s for reading in reversed(readings)):
            return readings
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return readings
        time.sleep(min(POLL_SECONDS, left_s))


def _whole_lines(content: bytes, path: Path) -> str:
    try:
        return content[: content.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError as error:
        raise SuiteError(
            f"the wall meter's file {path} is not UTF-8 text: {error.reason} at byte "
            f"{error.start}; let its logger write plain text"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Describe a wall meter that logs to the file `path` during runs.

    Attributes:
        offset_s: The meter's clock minus UTC if the file has no time zone [s].
    """

    path: Path
    offset_s: float = 0.0


def findings_of(figures: Figures, seen: EnergyReading) -> Findings:
    """Return findings with an energy reading, and the samples and tokens per joule."""
    rates = {} if seen.source is Source.HOST else per_joule(figures, seen)
    return Findings(metrics=rates, energy={seen.source: seen})


def wall_meter_findings(
    figures: Figures, meter: Meter, timed: TimedLog, *, clock_set: bool = False
) -> Findings:
    """Return a run's energy by a wall meter; only a note if the file is broken or the clock set."""
    begin_s, end_s = timed.window_s
    try:
        if clock_set:
            raise SuiteError(CLOCK_SET)
        readings = read_meter(meter.path, until_s=end_s, local_offset_s=meter.offset_s)
    except MlperfError as error:
        wall = dataclasses.replace(wall_energy((), begin_s, end_s), notes=(str(error),))
    else:
        wall = wall_energy(readings, begin_s, end_s)
    return findings_of(figures, wall)
