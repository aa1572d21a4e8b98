"""Build a `Run` from the results of its worker process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_mlperf.core.baseline import has_salt
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.energy.host import Counted, host_energy
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job, LoadGenSettings, MeasuredCase
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import (
    BUILD_TIME,
    LOAD_TIME,
    PEAK_DEVICE_MEMORY,
    PEAK_HOST_MEMORY,
    STAGE,
    at_point,
)
from pytest_mlperf.core.notes import Note, NoteKey
from pytest_mlperf.core.paths import placeless
from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.core.server.changes import HIDDEN_SHARE
from pytest_mlperf.hardware.clock import MIN_MOVE_SECONDS
from pytest_mlperf.hardware.machine import Machine, split
from pytest_mlperf.hardware.rapl import CLOCK_STEP_S
from pytest_mlperf.run import curve
from pytest_mlperf.run.builds import Build
from pytest_mlperf.run.child.protocol import Event
from pytest_mlperf.run.conditions import Conditions, ControlRun
from pytest_mlperf.run.curve import read_recorded
from pytest_mlperf.run.figures import (
    Figures,
    Findings,
    client_findings,
    clock_findings,
    figures,
    length_findings,
    load_findings,
    merged_fields,
    replica_findings,
    run_arguments,
    start_findings,
)
from pytest_mlperf.run.logs import DETAIL, Detail, TimedLog, parse_detail
from pytest_mlperf.run.power.exporter import Exporter, ExporterLog, exporter_energy
from pytest_mlperf.run.power.figures import CLOCK_SET, findings_of, sampled, wall_meter_findings
from pytest_mlperf.run.power.sampling import PowerLog
from pytest_mlperf.run.roofline_share import roofline_findings
from pytest_mlperf.run.server import Answers, ServerLog, answer_signs, server_findings
from pytest_mlperf.run.worker.point_window import CURVE_LOG
from pytest_mlperf.stores.endpoints import version_of


def subject_of(
    job: Job,
    machine: Machine,
    loaded: Event,
    *,
    build: Build | None = None,
    python: Event | None = None,
    built: Mapping[str, str] = MappingProxyType({}),
    exporter: Exporter | None = None,
) -> Subject:
    """Return the machine, engine and data that a worker process measured.

    `build` is the worker's environment and `python` describes it; None for this Python. `built`
    describes its checkpoint. `exporter` measures the GPUs of its server.
    """
    python_facts: dict[str, str] = {}
    if build and python:
        versions = {f"python.{name}": version for name, version in python["versions"].items()}
        python_facts = {"python": str(python["version"]), **versions}
        if build.baseline:
            python_facts |= {"build": build.title, "python.prefix": str(python["prefix"])}
        elif python["system"]:
            python_facts["python.system"] = str(python["system"])
    # Baselines in git must not contain a user's folders, which options may name.
    subject = Subject(
        identity=machine.identity(job.accelerator),
        fingerprint={
            **{f"engine.{key}": str(value) for key, value in sorted(loaded["engine"].items())},
            **{key: job.facts[key] for key in ("engine", "options")},
            "dataset": str(loaded["dataset"]["digest"]),
            **loaded["dataset"]["inputs"],
            **job.facts,
            **(machine.server.facts if machine.server else {}),
            **python_facts,
            **built,
        },
        surroundings={
            **machine.surroundings(job.accelerator),
            "requests": _planned_length(job),
            **({"dcgm": exporter.gpus} if exporter else {}),
        },
    )
    return placeless(subject, home=str(Path.home()))


LOOP_SETTINGS = ("points", "ramp_ms", "arrivals", "burstiness", "audit", "max_failed")


def _planned_length(job: Job) -> str:
    """Return a key to compare runs: planned length, and LoadGen's settings without rate."""
    settings = job.settings
    # Settings of our own loops must not change the hashes of other baselines.
    hashed = {k: v for k, v in dataclasses.asdict(settings).items() if k not in LOOP_SETTINGS or v}
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:8]
    count = f"{settings.min_query_count:,} queries"
    if settings.points:
        count = f"{len(settings.points)} points of {settings.min_duration_ms / 1000:g} s"
    return f"{job.seconds_per_run:g} s, {count} ({digest})"


SCORED_BETWEEN = (
    "energy is not reported: MLCommons' client also scored answers between the points, which used "
    "energy too"
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Hold the results of a worker process after it ended.

    Attributes:
        finished: The worker's event after its performance run; None without one.
        settings: Settings of the run; None without LoadGen.
        target_qps: Rate that was offered, or that sized the run; None without one.
        power: Samples of the GPUs; None if not sampled.
        warm_s: End of the warm-up, monotonic [s].
        warmed: Whether the accelerator had worked in this session; None if not recorded.
        host: Values of the host's own counters by name; empty if not readable.
        server: Metrics of the measured server; None without one.
        exporter: Values of a DCGM exporter; None without one.
        build_s: Time to build the model's checkpoint, maybe earlier [s]; None without one.
        waited_s: Time waited for the accelerator [s].
        probed: Whether this process measured the rate by which the run was sized.
    """

    loaded: Event
    finished: Event | None
    subject: Subject
    target_qps: float | None
    warm_s: float
    notes: tuple[str, ...]
    power: PowerLog | None = None
    settings: LoadGenSettings | None = None
    started: str = ""
    control: ControlRun = field(default_factory=ControlRun)
    warmed: bool | None = None
    host: Mapping[str, Counted] = field(default_factory=dict)
    server: ServerLog | None = None
    exporter: ExporterLog | None = None
    build_s: float | None = None
    waited_s: float | None = None
    probed: bool = False


def read_run(evidence: Evidence, job: Job, conditions: Conditions) -> Run | None:
    """Return the performance run of a worker, or None if it made none."""
    finished, settings = evidence.finished, evidence.settings
    if finished is None or settings is None:
        return None
    result, moved_s = finished["result"], finished["result"]["clock_moved_s"]
    fingerprint = evidence.subject.fingerprint
    timed: TimedLog
    if settings.points:
        log, validity = _read_curve(finished, evidence.loaded["engine"], job)
        timed, figures = log, curve.curve_figures(log, job.accelerator)
        finishes = curve.curve_finishes(log)
        shortest_s, scored = min(one.duration_s for one in log.points), log.scored
        # Differences between a curve's points are not scatter.
        within = curve.answer_length_errors(log)
        late = curve.curve_lateness(log, result["client"])
        answers: Answers = {point.point: point.answer_counts for point in log.points}
        hidden = {at_point(HIDDEN_SHARE, one.point): one.hidden_share for one in log.points}
    else:
        timed, figures = read_figures(finished, settings.scenario, job.accelerator)
        validity, finishes = _validity(timed, settings), result["finishes"]
        shortest_s, scored = result["duration_s"], False
        within = {"throughput": result["within_se"]} if result["within_se"] else {}
        late, answers = result["client"], {None: result["answer_counts"]}
        hidden = {HIDDEN_SHARE: result["hidden_share"]}
    energy = energy_findings(evidence, job, conditions, timed, figures, moved_s)
    notes = (*evidence.control.notes, *evidence.notes)
    if energy and scored:
        # The energy of scoring between the points belongs to no request that counts.
        energy, notes = [replace(one, metrics={}) for one in energy], (*notes, SCORED_BETWEEN)
    differing = conditions.machine.differing(job.accelerator)
    sign = Sign.of(SignKey.GPUS_DIFFER, "gpus_differ", differences="; ".join(differing))
    used = replace(settings, target_qps=evidence.target_qps)
    shared = evidence.loaded["dataset"].get("sizes", {}).get("prefix_share")
    server = server_findings(evidence.server or ServerLog(), timed, shared, job.limits, answers)
    shares = {name: share for name, share in hidden.items() if share is not None}
    fields = merged_fields(
        validity,
        figures,
        *energy,
        Findings(notes=notes, signs=(sign,) if differing else (), server=shares),
        client_findings(figures.metrics, result["client"], job),
        load_findings(job, result["contention"]),
        clock_findings(job, moved_s, shortest_s),
        start_findings(job, result["slow_start"]),
        length_findings(used, result["duration_s"], probed=evidence.probed),
        replica_findings(result),
        _resources(evidence, result, timed, settings),
        server,
        Findings(signs=tuple(answer_signs(answers, fingerprint, server.server))),
        _light(evidence, job, figures, energy),
        untimed_input(evidence.loaded["dataset"].get("input_s"), settings, figures),
    )
    return made_run(
        evidence,
        job,
        conditions,
        **fields,
        client=late,
        finishes=finishes,
        salt=result["salt"] if has_salt(fingerprint) else "",
        within_se=within,
    )


def made_run(evidence: Evidence, job: MeasuredCase, conditions: Conditions, **fields: Any) -> Run:
    """Return a run with `fields`, and with the facts that all runs of its worker process share."""
    assert evidence.finished is not None
    hashes = conditions.machine.hashes
    return Run(
        **run_arguments(
            **fields,
            control=evidence.control.values,
            warmed=evidence.warmed,
            waited_s=evidence.waited_s,
            ids="" if job.url else hashes(job.accelerator),  # a server's GPUs are unknown
        ),
        target_qps=evidence.target_qps or 0.0,
        session=conditions.session,
        started=evidence.started,
        commit=conditions.commit,
        folder=str(Path(evidence.finished["folder"])),
    )


UNTIMED_SHARE, MIN_UNTIMED_SECONDS = 0.1, 1e-5
"""`input()` is reported from this share of a sample's time, and from this time on."""


def untimed_input(input_s: float | None, settings: LoadGenSettings, figures: Figures) -> Findings:
    """Warn if a data set's `input()` takes > 10 % of a sample's time; no metric includes it."""
    latencies_s = [s for n, s in figures.metrics.items() if n.partition("@")[0] == "latency_p50"]
    sample_s = min(latencies_s, default=figures.duration_s / max(1, figures.samples))
    if settings.scenario == Scenario.MULTI_STREAM:
        sample_s /= settings.samples_per_query
    if input_s is None or input_s <= max(UNTIMED_SHARE * sample_s, MIN_UNTIMED_SECONDS):
        return Findings()
    times = {"input_s": input_s, "sample_s": sample_s}
    return Findings(signs=(Sign.of(SignKey.UNTIMED_INPUT, "untimed_input", **times),))


def _resources(
    evidence: Evidence, result: Event, timed: TimedLog, settings: LoadGenSettings
) -> Findings:
    device = None
    if evidence.power and not evidence.power.clock_stepped:
        device = evidence.power.peak_memory(timed.window_s[1])
    taken = {
        PEAK_DEVICE_MEMORY: device,
        PEAK_HOST_MEMORY: result.get("peak_bytes"),
        LOAD_TIME: evidence.loaded.get("load_s"),
        BUILD_TIME: evidence.build_s,
    }
    if not settings.points:  # stages of different points would be mixed
        samples = max(1, result["completed"])
        taken |= {f"{STAGE}{name}": took_s / samples for name, took_s in result["stages"].items()}
    return Findings(metrics={name: float(value) for name, value in taken.items() if value})


def _read_curve(
    finished: Event, described: Mapping[str, str], job: Job
) -> tuple[curve.CurveLog, Findings]:
    path = Path(finished["folder"]) / CURVE_LOG
    if "harness" in described:
        return read_recorded(path, version_of(described))
    log = curve.read_curve(path)
    _require_all(finished, log.path)
    most = str(described.get("concurrency", ""))
    at_a_time = int(most) if most.isdigit() else None
    client, may_fail = finished["result"]["client"], job.settings.max_failed or 0.0
    load = load_findings(job, finished["result"]["contention"])
    return log, curve.curve_validity(log, job.limits, client, at_a_time, may_fail, load.contention)


@dataclass(frozen=True)
class TimedWindow:
    """Hold begin and end [s since the epoch] of a timed run that has no LoadGen log."""

    window_s: tuple[float, float]


SLEWED = 1e-3
"""Share of a window by which a corrected clock may move; Linux slews at half of it."""


def energy_findings(
    evidence: Evidence,
    job: MeasuredCase,
    conditions: Conditions,
    timed: TimedLog,
    figures: Figures,
    moved_s: float,
) -> list[Findings]:
    """Return the findings of each energy source; `moved_s`: wall-clock step during the run [s]."""
    seen: list[Findings] = []
    if not (evidence.power or evidence.host or evidence.exporter or conditions.meter):
        return seen
    begin_s, end_s = timed.window_s
    clock_set = abs(moved_s) > max(CLOCK_STEP_S, SLEWED * (end_s - begin_s))
    if clock_set:
        end_s = begin_s + max(figures.duration_s, MIN_MOVE_SECONDS)
        timed = TimedWindow((begin_s, end_s))
    if evidence.power:
        used = conditions.machine.used(job.accelerator, job.replicas)
        power = replace(evidence.power, unavailable=CLOCK_SET) if clock_set else evidence.power
        seen.append(sampled(figures, power, timed, warm_s=evidence.warm_s, used=used))
    if evidence.host:
        shared = conditions.machine.shared
        host = host_energy({} if clock_set else evidence.host, begin_s, end_s, shared=shared)
        host = replace(host, notes=(CLOCK_SET,)) if clock_set else host
        seen.append(findings_of(figures, host))
    if evidence.exporter:
        count, kind = split(job.accelerator)
        expected = None if kind == "cpu" else count
        evidence.exporter.clock_stepped |= clock_set
        seen.append(exporter_energy(figures, evidence.exporter, timed, expected=expected))
    if conditions.meter:
        seen.append(wall_meter_findings(figures, conditions.meter, timed, clock_set=clock_set))
    return seen


def has_roofline(job: Job, identity: Mapping[str, object]) -> bool:
    """Return whether a roofline exists: not for curves, simulated GPUs, CPUs without peaks."""
    if job.settings.points:  # each point of a curve has its own limit
        return False
    figures = job.gpu is not None or split(job.accelerator)[1] != "cpu"
    return figures and "pretended" not in identity


def _light(evidence: Evidence, job: Job, figures: Figures, energy: Sequence[Findings]) -> Findings:
    if not has_roofline(job, evidence.subject.identity):
        return Findings()
    return roofline_findings(
        replace(figures, metrics=merged_fields(figures, *energy)["metrics"]),
        job,
        evidence.subject.identity,
        engine=evidence.loaded["engine"],
        sizes=evidence.loaded["dataset"]["sizes"],
        drafts=(evidence.finished or {}).get("result", {}).get("accepted_drafts"),
    )


def read_figures(finished: Event, scenario: Scenario, accelerator: str) -> tuple[Detail, Figures]:
    """Return a finished run's LoadGen detail log and metrics; RunError if samples are missing."""
    log = Path(finished["folder"]) / DETAIL
    detail = parse_detail(log)
    detail.require_no_errors()
    _require_all(finished, str(log))
    return detail, figures(finished["result"], detail, scenario, accelerator)


def _require_all(finished: Event, log: str) -> None:
    result = finished["result"]
    if result["faults"] or result["completed"] != result["issued"]:
        faults = "; ".join(result["faults"]) or "the engine left the others open"
        raise RunError(
            "engine",
            f"{result['completed']:,} of {result['issued']:,} samples completed: {faults}",
            log,
        )


REQUIREMENTS: Mapping[str, NoteKey] = {
    "result_min_duration_met": "run_too_short",
    "result_min_queries_met": "too_few_queries",
    "early_stopping_met": "stopped_early",
}
"""Note on a requirement that a run missed, by LoadGen's key."""


def _validity(detail: Detail, settings: LoadGenSettings) -> Findings:
    if detail.valid:
        return Findings()
    unmet = {key for key, value in detail.values.items() if value is False}
    long_enough = unmet.isdisjoint({"result_min_duration_met", "result_min_queries_met"})
    # Early stopping alone means too few queries, not late ones.
    late = "result_perf_constraints_met" in unmet
    if settings.scenario == Scenario.SERVER and long_enough and late:
        return Findings(limit_missed=True)
    unmet_notes = [Note.of(note) for key, note in REQUIREMENTS.items() if key in unmet]
    reasons = [*detail.invalid_reasons, *unmet_notes] or ["result is INVALID"]
    texts = [Note.of("of_loadgen", reason=reason) for reason in reasons]
    early = long_enough and "early_stopping_met" in unmet
    key = Key.EARLY_STOPPING if early else Key.LOADGEN
    return Findings(invalid=tuple(Reason(key=key, text=text) for text in texts))
