"""Put what the sampler recorded onto a run: its energy, and why it may not be judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import NET_JOULES_PER_SAMPLE
from pytest_mlperf.core.power import Power, together
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.power import NO_GPU, PowerLog
from pytest_mlperf.run.power_doubts import Doubts, doubts
from pytest_mlperf.run.power_idle import EVIDENCE_S

SUSPECT = "the speed is suspect: NVIDIA's driver was upgraded while it is loaded; reboot"

_UNKNOWN: Mapping[str, float | None] = MappingProxyType({})


def window_s(run: Run) -> tuple[float, float]:
    """Return when the timed part began and ended, wall clock, seconds since the epoch.

    Raises:
        RunError: LoadGen's log does not tell.
    """
    return parse_detail(Path(run.folder) / DETAIL).window_s


def with_power(
    run: Run, log: PowerLog, *, warm_s: float, limits_w: Mapping[str, float | None] = _UNKNOWN
) -> Run:
    """Return a run with its energy, samples and tokens per joule, and the reasons to doubt it.

    Args:
        run: As LoadGen and our stamps measured it; its folder has LoadGen's log of the window.
        log: What was sampled around it.
        warm_s: When the engine had warmed up, monotonic: later processes are not ours.
        limits_w: Each GPU's power limit by UUID, as the session's identity has it.
    """
    why = log.unavailable
    if why == NO_GPU:
        return run
    if log.clock_stepped:
        why = "the wall clock was set during the run, so that LoadGen's window cannot be found"
    if why:
        notes = (*run.notes, SUSPECT) if log.suspect else run.notes
        invalid = (*run.invalid, *_lost(log))
        return dataclasses.replace(run, power_unknown=why, invalid=invalid, notes=notes)
    begin_s, end_s = map(log.monotonic, window_s(run))
    last_s = log.watched_until_s
    watched_s = end_s if last_s is None else min(max(last_s, begin_s), end_s)
    found = {
        gpu.uuid: doubts(
            gpu,
            begin_s,
            watched_s,
            warm_s=warm_s,
            limit_w=limits_w.get(gpu.uuid),
            busy=_busy(run),
        )
        for gpu in log.gpus
    }
    if watched_s < min(end_s, begin_s + EVIDENCE_S):
        found = {uuid: _without_idleness(each) for uuid, each in found.items()}
    run = dataclasses.replace(
        run,
        invalid=(*run.invalid, *_reasons(found)),
        notes=(*run.notes, *_each({uuid: each.notes for uuid, each in found.items()})),
    )
    if watched_s < end_s:
        return _unwatched(run, log, watched_s - begin_s)
    power = together(
        {gpu.uuid: gpu.energy(begin_s, end_s) for gpu in log.gpus},
        doubts=_each({uuid: each.energy for uuid, each in found.items()}),
    )
    return dataclasses.replace(
        run,
        metrics={**run.metrics, **per_joule(run, power.joules), **_net(run, power)},
        power=power,
        state=_worst([gpu.state(begin_s, end_s) for gpu in log.gpus if not gpu.unavailable]),
    )


def _unwatched(run: Run, log: PowerLog, seconds: float) -> Run:
    """Return a run whose sampler broke in its window: of the rest nobody knows anything."""
    how = f"the sampler broke ({log.broke or 'nobody knows how'})"
    note = (
        f"not watched from {seconds:.1f} s on: {how}; no throttling or other use after that shows"
    )
    why = f"{how} {seconds:.1f} s into the run"
    return dataclasses.replace(run, notes=(*run.notes, note), power_unknown=why)


def _without_idleness(given: Doubts) -> Doubts:
    """Return doubts without that the GPU idled, which the little that was watched cannot show."""
    kept = tuple(reason for reason in given.invalid if reason.key is not Key.GPU_UNUSED)
    return dataclasses.replace(given, invalid=kept)


def _busy(run: Run) -> float:
    """Return the share of the window in which the engine had work, by Little's law."""
    latency_s = run.metrics.get("latency_p50")
    if latency_s is None or not run.duration_s:
        return 1.0
    return min(1.0, run.queries * latency_s / run.duration_s)


def _net(run: Run, power: Power) -> dict[str, float]:
    """Return the joules above idle of a sample; no metric where idle was not seen."""
    if power.net_joules is None or not run.samples:
        return {}
    return {NET_JOULES_PER_SAMPLE: power.net_joules / run.samples}


def _worst(states: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the state of several GPUs: the slowest clocks, the most heat, the most capped."""
    names = dict.fromkeys(name for state in states for name in state)
    return {
        name: (min if name.endswith("_mhz") else max)(s[name] for s in states if name in s)
        for name in names
    }


def _each(texts: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return each GPU's sentences, with its UUID where there are several."""
    return tuple(
        f"GPU {uuid}: {text}" if len(texts) > 1 else text
        for uuid, each in texts.items()
        for text in each
    )


def _reasons(found: Mapping[str, Doubts]) -> tuple[Reason, ...]:
    """Return each GPU's reasons, likewise."""
    several = len(found) > 1
    return tuple(
        dataclasses.replace(reason, text=f"GPU {uuid}: {reason}") if several else reason
        for uuid, each in found.items()
        for reason in each.invalid
    )


def _lost(log: PowerLog) -> tuple[Reason, ...]:
    """Return that GPUs were lost, where nothing else is known of them."""
    return tuple(Reason(key=Key.GPU_LOST, text=text) for text in log.lost)


def per_joule(run: Run, joules: float | None, suffix: str = "") -> dict[str, float]:
    """Return samples, and tokens where they are counted, per joule.

    Args:
        run: The run.
        joules: What it used; None: unknown, which gives no metric.
        suffix: "_wall" for what a wall meter measured.
    """
    if not joules:
        return {}
    found = {f"samples_per_joule{suffix}": run.samples / joules}
    tokens = run.metrics.get("tokens_per_sample")
    if tokens is not None:
        found[f"tokens_per_joule{suffix}"] = run.samples * tokens / joules
    return found
