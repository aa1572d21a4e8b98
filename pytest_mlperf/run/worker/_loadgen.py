"""Run MLCommons LoadGen; the only module that imports its Python binding."""

from __future__ import annotations

import gc
import importlib.util
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import REINSTALL, TO_MEASURE, EnvironmentFault, RunError
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.run.worker import _delivery
from pytest_mlperf.run.worker._sink import KEPT_LIST, Fail, GuardedSink
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.artefacts import ARTEFACTS, ArtefactWriter

Phase = Literal["performance", "accuracy"]

QUERY_SPARE_FACTOR = 2
"""LoadGen makes twice the queries that a stream is expected to need; this factor comes on top."""

UNLIMITED_QPS = 1e6
"""Offered rate of Server accuracy runs, so that the schedule does not limit them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadGenPlan:
    """Hold the settings of one LoadGen run.

    Attributes:
        expected: Samples that it will issue; an estimate if time ends the run.
        audit: Settings for audit.config by LoadGen's keys; empty without a compliance test.
    """

    phase: Phase
    scenario: str
    attributes: dict[str, Any]
    expected: int
    total_samples: int
    loaded_samples: int
    audit: Mapping[str, int] = field(default_factory=dict)

    @property
    def logs_answers(self) -> bool:
        """Whether LoadGen logs some answers of a timed run."""
        return self.phase == "performance" and bool(self.audit.get("accuracy_log_sampling_target"))


def plan_performance(
    settings: LoadGenSettings, total_samples: int, *, lasts: bool = False
) -> LoadGenPlan:
    """Return the plan of a performance run.

    If `lasts`, a SingleStream or MultiStream run also lasts at least its planned time, because its
    rate was only probed and no earlier run has confirmed it.
    """
    rate, work_s, scenario = settings.target_qps, settings.fixed_work_s, settings.scenario
    if rate is None or not rate > 0:
        raise ValueError(f"target_qps={rate!r}; LoadGen needs a positive rate")
    loaded = min(settings.performance_samples, total_samples)
    least, duration_ms = settings.min_query_count, settings.min_duration_ms
    if work_s is not None and scenario == Scenario.SERVER:
        # LoadGen ends Server by its schedule, which the seed fixes: the work is always the same.
        duration_ms = math.ceil(work_s * 1000)
    elif work_s is not None:
        # A run with a fixed amount of work must not become INVALID because it is fast.
        least, duration_ms = max(least, math.ceil(rate * work_s)), 0
    if scenario == Scenario.OFFLINE:
        expected = max(least, int(1.1 * duration_ms / 1000 * rate))
        expected = math.ceil(expected / loaded) * loaded if settings.equal_issue else expected
    elif scenario == Scenario.SERVER:
        expected = max(least, math.ceil(rate * duration_ms / 1000))
    else:
        expected = max(least, int(rate * duration_ms / 1000)) * settings.per_query
    if lasts and work_s and scenario.answers_one_at_a_time:
        duration_ms = math.ceil(1000 * work_s)
    attributes = {
        **_common(settings, loaded),
        **_offered(settings, rate),
        "min_query_count": least,
        "min_duration_ms": duration_ms,
        "sample_concatenate_permutation": settings.equal_issue,
    }
    if settings.tokens:
        attributes["use_token_latencies"] = True
    if settings.ttft_limit_ns is not None and settings.tpot_limit_ns is not None:
        attributes["ttft_latency"] = settings.ttft_limit_ns
        attributes["tpot_latency"] = settings.tpot_limit_ns
    return LoadGenPlan(
        phase="performance",
        scenario=scenario,
        attributes=attributes,
        expected=expected,
        total_samples=total_samples,
        loaded_samples=loaded,
        audit=settings.audit,
    )


def plan_accuracy(settings: LoadGenSettings, samples: int) -> LoadGenPlan:
    """Return the plan of an accuracy run without token latencies; it issues each sample once."""
    loaded = min(settings.performance_samples, samples)
    if settings.points:  # LoadGen has no such scenario; outputs need none
        settings = replace(settings, scenario=Scenario.OFFLINE)
    attributes = {**_common(settings, loaded), "min_duration_ms": 0}
    if settings.scenario == Scenario.SERVER:
        attributes["server_target_qps"] = UNLIMITED_QPS
    return LoadGenPlan(
        phase="accuracy",
        scenario=settings.scenario,
        attributes=attributes,
        expected=samples,
        total_samples=samples,
        loaded_samples=loaded,
    )


def _common(settings: LoadGenSettings, loaded: int) -> dict[str, Any]:
    multi = settings.scenario == Scenario.MULTI_STREAM
    return {
        "qsl_rng_seed": settings.seeds.qsl,
        "sample_index_rng_seed": settings.seeds.sample_index,
        "schedule_rng_seed": settings.seeds.schedule,
        "performance_sample_count_override": loaded,
        **({"multi_stream_samples_per_query": settings.samples_per_query} if multi else {}),
    }


def _offered(settings: LoadGenSettings, rate: float) -> dict[str, Any]:
    """Return LoadGen's attributes of the offered rate and of the latency limit."""
    if settings.scenario == Scenario.OFFLINE:
        return {"offline_expected_qps": rate}
    percentile = settings.latency_percentile
    if settings.scenario != Scenario.SERVER:
        multi = settings.scenario == Scenario.MULTI_STREAM
        prefix = "multi_stream" if multi else "single_stream"
        # With equal_issue LoadGen derives the length of the run from the expected latency.
        spare = 1 if settings.equal_issue else QUERY_SPARE_FACTOR
        return {
            f"{prefix}_expected_latency_ns": max(1, int(1e9 / rate / spare)),
            f"{prefix}_target_latency_percentile": percentile,
        }
    offered = {"server_target_qps": rate, "server_target_latency_percentile": percentile}
    if settings.latency_limit_ns is not None:
        return {**offered, "server_target_latency_ns": settings.latency_limit_ns}
    if settings.ttft_limit_ns is None:
        raise ValueError("Server needs latency_limit_ns, or ttft_limit_ns and tpot_limit_ns")
    return offered


def require() -> None:
    """Raise EnvironmentFault if LoadGen is missing, before an engine loads for minutes."""
    if importlib.util.find_spec("mlperf_loadgen") is None:
        raise EnvironmentFault(f"the run needs LoadGen, which is not installed; try: {TO_MEASURE}")


def make_sink(plan: LoadGenPlan, fail: Fail, folder: Path) -> GuardedSink:
    require()
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise EnvironmentFault(f"LoadGen cannot be imported: {error}; try: {REINSTALL}") from None

    port = _delivery.Port(
        response=mlperf_loadgen.QuerySampleResponse,
        complete=mlperf_loadgen.QuerySamplesComplete,
        first_token=mlperf_loadgen.FirstTokenComplete,
    )
    if plan.phase == "accuracy":
        return _delivery.OutputSink(fail, port, ArtefactWriter(folder / ARTEFACTS))
    asked = plan.attributes
    if asked.get("use_token_latencies"):
        kind = _delivery.AuditTokenSink if plan.logs_answers else _delivery.TokenSink
        limits_s = None
        if "ttft_latency" in asked:  # with the other one
            limits_s = asked["ttft_latency"] / 1e9, asked["tpot_latency"] / 1e9
        needs_first = plan.scenario != Scenario.OFFLINE
        return kind(fail, port, needs_first=needs_first, limits_s=limits_s)
    if plan.logs_answers:
        return _delivery.AuditSink(fail, port, ArtefactWriter(folder / ARTEFACTS))
    if limit_ns := asked.get("server_target_latency_ns"):
        return _delivery.LimitedSink(fail, port, limit_s=limit_ns / 1e9)
    return _delivery.PerformanceSink(fail, port)


def run(
    plan: LoadGenPlan,
    folder: Path,
    engine: Engine,
    sink: GuardedSink,
    *,
    indices: Sequence[int] | None = None,
    at_edges: Callable[[], None] = lambda: None,
) -> None:
    """Run LoadGen until every sample is completed and its logs are written.

    `indices` maps LoadGen's samples to data set indices; None if equal. `at_edges` is called after
    loading and after the last sample.
    """
    import mlperf_loadgen

    try:  # LoadGen would abort the process without a message
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"LoadGen's logs go here")
    except OSError as error:
        raise RunError("loadgen", f"cannot write into {folder}: {error.strerror}") from error
    settings, logs = mlperf_loadgen.TestSettings(), mlperf_loadgen.LogSettings()
    settings.scenario = getattr(mlperf_loadgen.TestScenario, plan.scenario)
    mode = "AccuracyOnly" if plan.phase == "accuracy" else "PerformanceOnly"
    settings.mode = getattr(mlperf_loadgen.TestMode, mode)
    for name, value in plan.attributes.items():
        setattr(settings, name, value)
    logs.log_output = mlperf_loadgen.LogOutputSettings()
    logs.log_output.outdir = str(folder)
    logs.enable_trace = False
    audit = folder / "audit.config"
    if plan.audit:
        text = "".join(f"*.*.{key} = {value}\n" for key, value in plan.audit.items())
        atomic.write_text(audit, text)
    load, unload = _sample_callbacks(engine, sink, indices, at_edges)
    suite = mlperf_loadgen.ConstructFastSUT(_issue(engine, sink, indices), lambda: None)
    library = mlperf_loadgen.ConstructQSL(plan.total_samples, plan.loaded_samples, load, unload)
    with _collector_off():
        mlperf_loadgen.StartTestWithLogSettings(
            suite,
            library,
            settings,
            logs,
            # LoadGen would silently obey an audit.config of the working folder.
            str(audit if plan.audit else folder / "no-audit.config"),
        )
    mlperf_loadgen.DestroyQSL(library)
    mlperf_loadgen.DestroyFastSUT(suite)
    sink.seal()


def _issue(
    engine: Engine, sink: GuardedSink, indices: Sequence[int] | None
) -> Callable[[list[int], list[int]], None]:
    submit, expect, recent = engine.submit, sink.expect, sink.recent

    def issue(ids: list[int], samples: list[int]) -> None:
        try:
            expect(ids)
            if indices is not None:
                samples = [indices[sample] for sample in samples]
            if indices is not None or sink.counts_tokens:
                sink.answer_tokens.record_indices(ids, samples)
            if len(ids) <= KEPT_LIST:
                recent.append((ids, samples))
            submit(ids, samples, sink)
        except BaseException as error:
            sink.failed(error)

    return issue


def _sample_callbacks(
    engine: Engine, sink: GuardedSink, indices: Sequence[int] | None, at_edges: Callable[[], None]
) -> tuple[Callable[[list[int]], None], Callable[[list[int]], None]]:
    """Return (load, unload); ids index `indices`; `at_edges` runs after load and before unload."""

    def guarded(*steps: Callable[[list[int]], object]) -> Callable[[list[int]], None]:
        def call(samples: list[int]) -> None:
            try:
                for step in steps:
                    step(samples if indices is None else [indices[sample] for sample in samples])
            except BaseException as error:
                sink.failed(error)

        return call

    def edge(_: list[int]) -> None:
        at_edges()

    return guarded(engine.load_samples, edge), guarded(edge, engine.unload_samples)


@contextmanager
def _collector_off() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
