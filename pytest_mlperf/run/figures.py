"""Compute the metrics of a performance run from LoadGen's log and our time stamps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pytest_mlperf.core import measurement
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.contention import MEMORY_SHARE, Contention, client_note, lost_share
from pytest_mlperf.core.control import State
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job, LoadGenSettings, MeasuredCase
from pytest_mlperf.core.measurement import GpuRun, ReplicaRun, RunHardware, RunServing
from pytest_mlperf.core.metrics import METRICS, SLOWEST_REPLICA
from pytest_mlperf.core.notes import Note, Words
from pytest_mlperf.core.numbers import MAX_RATE, MIN_RATE
from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.core.roofline import RooflineShare
from pytest_mlperf.core.rulings.stragglers import slowest
from pytest_mlperf.hardware.clock import MIN_MOVE_SECONDS
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.run.logs import Detail
from pytest_mlperf.run.worker.clocks import GOODPUT

LATE_SHARE, LATE_SECONDS = 0.25, 1e-3
"""Requests were held up if LoadGen's p99, which counts from the schedule, exceeds ours by this
share and these seconds."""

MAX_LISTED_PROCESSES = 3


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Hold the fields of `Run` that one data source determines, such as LoadGen's log."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    invalid: tuple[Reason, ...] = ()
    notes: tuple[Words, ...] = ()
    signs: tuple[Sign, ...] = ()
    zero: tuple[str, ...] = ()
    energy: Mapping[Source, EnergyReading] = field(default_factory=dict)
    energy_unknown: str | None = None
    limit_missed: bool = False
    light: tuple[RooflineShare, ...] = ()
    replicas: tuple[ReplicaRun, ...] = ()
    contention: Contention | None = None
    state: State = field(default_factory=dict)
    gpus: tuple[GpuRun, ...] = ()
    server: Mapping[str, float] = field(default_factory=dict)


def merged_fields(*findings: Findings) -> dict[str, Any]:
    """Merge findings' fields by name: join tuples and mappings, else use the last true value."""
    fields: dict[str, Any] = {}
    for name, value in chain.from_iterable(vars(one).items() for one in findings):
        earlier = fields.get(name, value)
        if isinstance(value, tuple):
            fields[name] = (*fields.get(name, ()), *value)
        elif isinstance(value, Mapping):
            fields[name] = {**earlier, **value}
        else:
            fields[name] = value or earlier
    return fields


_GROUPS = {"load": measurement.RunLoad, "hardware": RunHardware, "serving": RunServing}


def run_arguments(**fields: Any) -> dict[str, Any]:
    """Group flat `fields` into the objects that `Run` expects; return the arguments of `Run`."""
    for name, group in _GROUPS.items():
        group_fields = [field.name for field in dataclasses.fields(group) if field.name in fields]
        fields[name] = group(**{key: fields.pop(key) for key in group_fields})
    return fields


@dataclass(frozen=True, kw_only=True)
class Figures(Findings):
    """Hold a run's metrics from log and time stamps, and request counts and lengths by point."""

    requests: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, str] = field(default_factory=dict)
    samples: int
    queries: int
    duration_s: float


def replica_findings(result: Mapping[str, Any]) -> Findings:
    """Return each replica's results, and the slowest one's speed / the median speed as a metric."""
    replicas = tuple(
        ReplicaRun(**{**each, "gpus": tuple(each["gpus"]), "shares": tuple(each["shares"])})
        for each in result["replicas"]
    )
    share = slowest(replicas)
    return Findings(metrics={SLOWEST_REPLICA: share} if share else {}, replicas=replicas)


def figures(
    result: Mapping[str, Any], detail: Detail, scenario: Scenario, accelerator: str = "cpu"
) -> Figures:
    """Return a run's metrics, from LoadGen's log (preferred) and from the worker's `result`."""
    ours = dict(result["token_metrics"])
    signs = [Sign(key=SignKey(key), text=text) for key, text in result["notes"].items()]
    theirs = dict(detail.metrics(scenario))
    if result["corrected"]:  # LoadGen counts hidden tokens too
        renamed = "first_read_p50" in ours
        hidden = ("tpot_", "ttft_") if renamed else ("tpot_",)
        theirs = {name: value for name, value in theirs.items() if not name.startswith(hidden)}
    goodput = ours.pop(GOODPUT, None)
    for name, value in ours.items():
        if not MIN_RATE <= value <= MAX_RATE:
            cause = "the engine reports the end of answers at the same time as their first token"
            if name == "tokens_per_sample":
                cause = "done() was given n_tokens of 0 for every sample"
            text = f"{name} is {value!r} by the measured times; it must be positive: {cause}"
            raise RunError("engine", text, detail.path)
    zero = (GOODPUT,) if goodput == 0 else ()
    if goodput:
        if reason := _unknown_goodput(ours, theirs):
            signs.append(Sign(key=SignKey.GOODPUT_UNKNOWN, text=reason))
        else:
            ours[GOODPUT] = goodput
    samples, duration_s = int(result["completed"]), float(result["duration_s"])
    metrics = with_token_rate({**ours, **theirs}, samples=samples, duration_s=duration_s)
    return Figures(
        metrics={**metrics, **per_gpu(metrics, accelerator)},
        notes=(Note.of("no_goodput"),) if zero else (),
        signs=tuple(signs),
        zero=zero,
        samples=samples,
        queries=int(detail.values.get("result_query_count") or result["issued"]),
        duration_s=duration_s,
    )


def with_token_rate(
    metrics: Mapping[str, float], *, samples: int, duration_s: float
) -> dict[str, float]:
    """Add tokens/s if tokens were counted but LoadGen logged no token rate.

    In SingleStream and MultiStream the rate is per `duration_s`, from the first issue to the last
    completion. LoadGen's constant of 69 tokens per sample for gptj is never used.
    """
    rated = dict(metrics)
    tokens = rated.get("tokens_per_sample")
    if tokens is None or "tokens_per_second" in rated:
        return rated
    if "throughput" in rated:
        rated["tokens_per_second"] = rated["throughput"] * tokens
    elif duration_s > 0:
        rated["tokens_per_second"] = samples * tokens / duration_s
    return rated


def per_gpu(metrics: Mapping[str, float], accelerator: str) -> dict[str, float]:
    """Return {"tokens_per_second_per_gpu": rate / GPUs}; {} for a CPU or without a token rate."""
    count, kind = split(accelerator)
    rate = metrics.get("tokens_per_second")
    return {} if kind == "cpu" or rate is None else {"tokens_per_second_per_gpu": rate / count}


def client_findings(
    metrics: Mapping[str, float], client: Mapping[str, float], job: MeasuredCase
) -> Findings:
    """Return a warning if the client's delays are a large share of a gated latency, else none."""
    note = client_note(metrics, {**job.limits, **job.latency_limits}, client)
    if note is None:
        return Findings()
    return Findings(signs=(Sign(key=SignKey.CLIENT_LATE, text=note),))


CLOCK_SHARE = 0.1
"""The wall clock may move by this share of the smallest limit's share of a window."""


def clock_findings(job: MeasuredCase, clock_step_s: float, shortest_window_s: float) -> Findings:
    """Return INVALID if the wall-clock step is too large for the run's shortest time window [s]."""
    smallest = min(job.limits.values(), default=min(each.limit for each in METRICS.values()))
    if abs(clock_step_s) <= max(MIN_MOVE_SECONDS, CLOCK_SHARE * smallest * shortest_window_s):
        return Findings()
    return Findings(invalid=(Reason.of(Key.CLOCK_SET, "clock_moved", moved_s=clock_step_s),))


START_INVALID, START_TOLD = 0.5, 0.1
"""Shares of a limit from which a slow start makes a run INVALID, or is reported."""

QUEUED = 2.0
"""Server queries in the first tenth may take this many times as long, as arrivals may cluster there
in every run."""

SAMPLE_TIME_METRICS = ("throughput", "tokens_per_second", "tokens_per_second_per_gpu")
"""Metrics that the mean time per sample decides, except in Server, where the schedule does."""


def start_findings(job: Job, effects: Mapping[str, float]) -> Findings:
    """Report a slow start that affects a gated metric; `effects` is the result of `slow_start`."""
    names = {name: name for name in job.limits if name in effects}
    paced = job.settings.scenario == Scenario.SERVER
    if not paced:
        names |= {name: "latency_mean" for name in SAMPLE_TIME_METRICS if name in job.limits}
    shares = {name: effects.get(key, 0.0) / job.limits[name] for name, key in names.items()}
    name = max(shares, key=lambda metric: abs(shares[metric]), default="")
    if not name or abs(shares[name]) < START_TOLD:
        return Findings()
    added = effects[names[name]] * (-1 if name in SAMPLE_TIME_METRICS else 1)
    slowed = math.exp(effects[names[name].partition("_")[0]])
    limits = {"change": math.expm1(added), "limit": job.limits[name]}
    note = Note.of("slow_start", times=slowed, metric=name, **limits)
    if shares[name] > START_INVALID and (slowed > QUEUED or not paced):
        return Findings(invalid=(Reason(key=Key.SLOW_START, text=note),))
    return Findings(signs=(Sign(key=SignKey.SLOW_START, text=note),))


MIN_DURATION_SHARE, MAX_DURATION_SHARE = 0.5, 4.0
"""Shares of its planned time: a shorter run is INVALID if its rate was probed, as the probe was
wrong; a longer one is reported. Neighbours on the machine slow a run down about 4 times."""


def length_findings(settings: LoadGenSettings, duration_s: float, *, probed: bool) -> Findings:
    """Return INVALID for a run far shorter than planned (if `probed`), a warning for a longer one.

    `duration_s` is from the first issue to the last completion. `probed` means that this process
    measured the rate from which the run's length was planned.
    """
    planned_s = settings.planned_s
    if probed and settings.fixed_work_s and duration_s < MIN_DURATION_SHARE * planned_s:
        note = Note.of("too_short", lasted_s=duration_s, planned_s=planned_s)
        return Findings(invalid=(Reason(key=Key.TOO_SHORT, text=note),))
    if settings.points or duration_s <= MAX_DURATION_SHARE * planned_s:
        return Findings()
    lengths = {"lasted_s": duration_s, "planned_s": planned_s}
    return Findings(signs=(Sign.of(SignKey.TOO_LONG, "too_long", **lengths),))


def load_findings(job: MeasuredCase, measured: Mapping[str, Any] | None) -> Findings:
    """Return other processes' load in a run; `measured`: `Contention`'s fields, None if unread."""
    if measured is None:
        return Findings()
    contention = Contention(
        **{**measured, "others": dict(list(measured["others"].items())[:MAX_LISTED_PROCESSES])}
    )
    if contention.serves is False:  # its work cannot be separated from others'
        return Findings(contention=contention)
    elsewhere = bool(job.url) and contention.serves is None
    on_cpu = job.accelerator == "cpu" and not elsewhere
    bounded = dataclasses.replace(
        contention,
        share=lost_share(contention, on_cpu=on_cpu),
        drop_share=lost_share(contention, on_cpu=on_cpu, memory=MEMORY_SHARE),
        serves=False if elsewhere else contention.serves,
    )
    return Findings(contention=bounded)


def _unknown_goodput(
    our_metrics: Mapping[str, float], loadgen_metrics: Mapping[str, float]
) -> Note | None:
    """Return a note that goodput is unknown if LoadGen's p99 exceeds ours by far, else None."""
    name = next(
        (n for n in ("ttft_p99", "latency_p99") if n in our_metrics and n in loadgen_metrics), None
    )
    if name is None or loadgen_metrics[name] <= our_metrics[name] * (1 + LATE_SHARE) + LATE_SECONDS:
        return None
    return Note.of("goodput_unknown", late_s=loadgen_metrics[name] - our_metrics[name])
