"""Run the worker process: load one engine, and run LoadGen on it until a command ends it.

Run it as `python -m pytest_mlperf.run.worker.worker SPEC.json --events FD`. Commands arrive on
stdin, which is empty for the engine; events leave on FD; stdout and stderr are the engine's log:
see `pytest_mlperf.run.child.protocol`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, TextIO

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Engine, is_speech
from pytest_mlperf.core.job import Factory, LoadGenSettings
from pytest_mlperf.hardware import devices
from pytest_mlperf.hardware.clock import MIN_MOVE_SECONDS
from pytest_mlperf.hardware.contention import ContentionMonitor, Window, port_here, session_of
from pytest_mlperf.registry import imported
from pytest_mlperf.run.child.protocol import RunFinished, WorkerSpec, import_as_parent
from pytest_mlperf.run.child.reporter import Reporter, fail_at_dead_threads, guard_group, leave
from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail
from pytest_mlperf.run.worker import _loadgen as loadgen
from pytest_mlperf.run.worker import clocks
from pytest_mlperf.run.worker._clients import ClientProcesses
from pytest_mlperf.run.worker._handicap import HandicapEngine, InOrder
from pytest_mlperf.run.worker._replicas import ReplicatedEngine
from pytest_mlperf.run.worker._sink import CountingSink, Fail, Faults, GuardedSink
from pytest_mlperf.run.worker.closed_loop import (
    ClosedLoop,
    HarnessProgress,
    SlotSink,
    run_engine_harness,
    with_reach,
)
from pytest_mlperf.run.worker.conversations import Conversations, conversations
from pytest_mlperf.run.worker.model_files import model_files_facts
from pytest_mlperf.run.worker.open_loop import OpenLoop, trace_arrivals
from pytest_mlperf.run.worker.point_window import CURVE_LOG, MAX_FINISH_REASONS, write_requests
from pytest_mlperf.run.worker.provenance import imported_files, input_digests
from pytest_mlperf.run.worker.samples import (
    as_dataset,
    check_count,
    check_digest,
    count,
    fixed_lengths,
    require_same_length,
    sizes,
    stages_of,
)
from pytest_mlperf.stores import atomic

# --- to bring an engine to speed without LoadGen, and find the rate to offer it --------------

WARMUP_BATCH = 64
"""Samples of a warm-up list in Offline."""

MIN_PROBE_SECONDS = 1.0
LOADGEN_QPS = 5e6
"""Upper bound of LoadGen's own rate [samples/s], which an engine without work gets offered."""

STEADY_SHARE = 0.05
"""A warm-up ends once a window's median is at most this share below the previous one."""

MAX_WARMUP_SECONDS = 30.0
"""Limit of a warm-up, besides the planned time of a run."""

MAX_DURATION_RATIO = 20
"""A run expected to exceed its planned time by this factor is refused; busy neighbours cost about
4."""

MIN_GAIN_FACTOR = 1.25
"""An engine that gains less than this from a list twice as long runs at its full rate."""

SERVER_SHARES = (0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1)
"""Shares of the Offline rate to try in Server, in descending order."""

SERVER_PROBE_SECONDS = 2.0
CLOCK_SHARE = 0.01
"""Share of a probe by which the wall clock may move; rates are tried in steps of 15 %."""

HEADROOM_SHARE = 0.8
"""A rate is accepted if the limited latency stays below this share of its limit."""


class Driver:
    """Submit queries to an engine one at a time, and wait until all their samples are done."""

    def __init__(self, engine: Engine, indices: Sequence[int], fail: Fail) -> None:
        self.sink = CountingSink(fail)
        self._engine = engine
        self._indices = cycle(indices)
        self._fail = fail
        self._next_id = 1

    def submit(self, samples: int) -> float:
        """Submit one query of `samples` samples; return the time until all are done [s]."""
        ids = list(range(self._next_id, self._next_id + samples))
        indices = list(islice(self._indices, samples))
        self._next_id += samples
        begun_s = perf_counter()
        self.sink.expect(ids)
        self.sink.recent.append((ids, indices))
        self._engine.submit(ids, indices, self.sink)
        self.sink.idle.wait()
        took_s = perf_counter() - begun_s
        if self.sink.faults.count:
            self._fail(RunError("engine", f"during warm-up, {self.sink.faults.texts[0]}"))
        return took_s


def query_size(settings: LoadGenSettings) -> int:
    """Return the number of samples that a warm-up submits at a time."""
    if settings.scenario == Scenario.OFFLINE:
        return min(WARMUP_BATCH, settings.performance_samples)
    return settings.per_query


def longest_warmup_s(settings: LoadGenSettings) -> float:
    """Return the longest time that a warm-up waits for an engine to become fast [s]."""
    return min(MAX_WARMUP_SECONDS, settings.planned_s)


def warm_up(
    driver: Driver, settings: LoadGenSettings, min_s: float, min_queries: int = 1
) -> tuple[float, float]:
    """Submit queries until the rate is steady: `min_queries` or more, for `min_s` or longer.

    Without a target rate, this lasts the maximum time, as a slow start may look steady for a while.
    Returns the duration [s], and samples/s by the median query time of the last window.
    """
    samples, lists, before_s = query_size(settings), 0, 0.0
    longest_s = longest_warmup_s(settings)
    least_s = min_s if settings.target_qps else max(min_s, longest_s)
    begun_s = perf_counter()
    while True:
        window_s: list[float] = []
        opened_s = perf_counter()
        while not window_s or perf_counter() - opened_s < min_s / 2:
            window_s.append(driver.submit(samples))
        lists += len(window_s)
        median_s = statistics.median(window_s)
        took_s = perf_counter() - begun_s
        steady = 0 < before_s * (1 - STEADY_SHARE) <= median_s
        if lists >= min_queries and took_s >= least_s and (steady or took_s >= longest_s):
            return took_s, samples / max(median_s, 1 / LOADGEN_QPS)
        before_s = median_s


def full_rate(
    driver: Driver, reached: float, min_rate: float, settings: LoadGenSettings, max_samples: int
) -> float:
    """Repeat queries, larger if possible, until the rate is `min_rate` or stalls; return samples/s.

    `reached` is the rate of the warm-up. Batches of Offline and Server double up to `max_samples`;
    other scenarios repeat their query for the longest warm-up time.
    """
    samples, begun_s, longest_s = query_size(settings), perf_counter(), longest_warmup_s(settings)
    doubles = not settings.scenario.answers_one_at_a_time
    while reached < min_rate and (doubles or perf_counter() - begun_s < longest_s):
        samples = min(2 * samples, max_samples) if doubles else samples
        previous_rate, reached = reached, max(reached, samples / driver.submit(samples))
        doubles = doubles and samples < max_samples and reached >= MIN_GAIN_FACTOR * previous_rate
    return reached


def probe_offline(driver: Driver) -> float:
    """Double a batch until it takes `MIN_PROBE_SECONDS`; return samples/s up to `LOADGEN_QPS`."""
    samples = WARMUP_BATCH
    while (
        took_s := driver.submit(samples)
    ) < MIN_PROBE_SECONDS and samples < LOADGEN_QPS * MIN_PROBE_SECONDS:
        samples *= 2
    return min(samples / took_s, LOADGEN_QPS)


def probe_query_rate(driver: Driver, samples_per_query: int) -> float:
    """Submit one query at a time for `MIN_PROBE_SECONDS`; return 1 / median latency [1/s]."""
    latencies_s: list[float] = []
    begun_s = perf_counter()
    while perf_counter() - begun_s < MIN_PROBE_SECONDS:
        latencies_s.append(driver.submit(samples_per_query))
    return 1 / statistics.median(latencies_s)


def probe_server(
    peak_qps: float, settings: LoadGenSettings, attempt: Callable[[LoadGenSettings], Detail]
) -> float:
    """Try rates from `peak_qps` down; return the first well below latency limits, else the last."""
    for share in SERVER_SHARES:
        trial = dataclasses.replace(
            settings,
            target_qps=peak_qps * share,
            fixed_work_s=SERVER_PROBE_SECONDS,
            min_query_count=1,
        )
        if _has_headroom(attempt(trial), settings):
            break
    return peak_qps * share


def _has_headroom(detail: Detail, settings: LoadGenSettings) -> bool:
    pairs: tuple[tuple[int | None, int | None], ...] = (
        (detail.percentile_ns("ttft", settings.latency_percentile), settings.ttft_limit_ns),
        (detail.percentile_ns("tpot", settings.latency_percentile), settings.tpot_limit_ns),
    )
    if settings.ttft_limit_ns is None:
        latency_ns = detail.percentile_ns("latency", settings.latency_percentile)
        pairs = ((latency_ns, settings.latency_limit_ns),)
    return all(
        value is not None and limit is not None and value < HEADROOM_SHARE * limit
        for value, limit in pairs
    )


# --- the worker ------------------------------------------------------------------------------

SWITCH_INTERVAL_S = 1e-4
"""Python's default of 5 ms for thread switches would show in every p99."""

MAX_DESCRIPTION_CHARACTERS = 100_000
"""Maximum size of an engine's description, which every baseline contains."""

PROGRESS_SECONDS = 0.5


class EngineWorker:
    """Load one engine, and perform all runs with it."""

    def __init__(
        self, spec: WorkerSpec, spec_file: Path, reporter: Reporter, commands: TextIO
    ) -> None:
        self._spec, self._spec_file = spec, spec_file
        self._commands, self._reporter = commands, reporter
        self._folder = Path(spec.folder)
        self._sink: GuardedSink | None = None
        self._spent: dict[str, float] = {}
        self._counts_tokens = spec.settings.tokens
        # Must precede an engine that binds this thread to some cores.
        pid, port = os.getpid(), port_here(spec.engine.options.get("url"))
        self._watch = ContentionMonitor(pid, session=session_of(pid), port=port)
        self._trace: Sequence[float] = ()
        self._dataset: Dataset
        self._engine: Engine

    def serve(self) -> None:
        """Load the engine, measure, then execute commands until a stop."""
        fail_at_dead_threads(
            self._reporter.fail, lambda: self._sink.outstanding if self._sink else 0
        )
        self._reporter.event("loading")
        if not self._spec.settings.points:
            with self._reporter.blaming("loadgen"):
                loadgen.require()
        self._load()
        if self._spec.performance:
            self._measure()
        self._obey()
        self._reporter.event("leaving")
        with self._reporter.blaming("engine"):
            self._engine.__exit__(None, None, None)

    def _fail_engine(self, error: BaseException) -> NoReturn:
        """Raise an engine's error; on a curve, its message names the concurrency or rate."""
        sink = self._sink
        if isinstance(sink, SlotSink) and sink.point and isinstance(error, RunError):
            error = RunError(error.layer, f"at {sink.point:,}: {error}", error.log)
        self._reporter.fail("engine", error)

    def _load(self) -> None:
        begun_s = perf_counter()
        with self._reporter.blaming("dataset"):
            self._dataset = as_dataset(build("dataset", self._spec.dataset))
            self._samples = count(self._dataset)
            check_count(self._samples, self._spec.expected)
            settings = self._spec.settings
            drawn = min(settings.performance_samples, self._samples)
            self._asked = Conversations(range(drawn))
            if settings.scenario == Scenario.CONCURRENCY:
                self._asked = conversations(self._dataset, range(drawn))
            facts = {
                "digest": check_digest(self._dataset.digest, self._spec.expected),
                "samples": self._samples,
                "sizes": sizes(self._dataset, len(self._asked.indices)),
                "fixed_lengths": fixed_lengths(self._dataset),
            }
            if settings.arrivals == "trace":
                self._trace = trace_arrivals(self._dataset, settings)
                self._asked = Conversations(range(len(self._trace)))
        with self._reporter.blaming("engine"):
            if replicas := self._spec.replicas:
                kind = ClientProcesses if replicas[0].client else ReplicatedEngine
                self._engine = kind(self._spec, self._spec_file, self._dataset, self._fail_engine)
            else:
                self._engine = built_engine(self._spec, self._dataset)
            self._engine.__enter__()
            described = described_by(self._engine)
            pages = self._engine.metrics_pages()
            if self._spec.settings.scenario == Scenario.CONCURRENCY and not self._engine.harness:
                require_room(described, self._spec.settings.points)
            if not self._spec.settings.points and self._engine.counted_again() is not None:
                raise RunError(
                    "engine",
                    "a reference tokenizer counts tokens only in Concurrency and OpenLoop, "
                    'because LoadGen uses the engine\'s counts; set count_tokens = "server"',
                )
        self._spent["load_s"] = perf_counter() - begun_s
        # Local files do not belong to a server that already runs.
        options = self._spec.engine.options
        model = None if options.get("url") else self._spec.model
        described = model_files_facts(model, options) | described
        with self._reporter.blaming("dataset"):
            inputs, input_s = input_digests(self._dataset, self._asked.indices)
            # Outputs that are text have no token count; the engine reports an input that raises.
            text = "outputs" in described or (input_s is not None and is_speech(self._dataset))
            self._outputs_are_tokens = not text
        self._reporter.event(
            "loaded",
            engine=described,
            dataset={**facts, "inputs": inputs, "input_s": input_s},
            files=sorted({*imported_files(), *getattr(self._engine, "files", ())}),
            load_s=self._spent["load_s"],
            pages=None if pages is None else list(pages),
        )

    def _measure(self) -> None:
        settings, rate, expected = self._spec.settings, self._spec.settings.target_qps, 0
        if rate is not None and not settings.points:
            expected = loadgen.plan_performance(settings, self._samples).expected
        loaded = self._asked.indices
        with self._reporter.blaming("engine"):
            self._engine.load_samples(loaded)
            driver = Driver(self._engine, loaded, self._fail_engine)
            self._sink = driver.sink
            with progress(self._reporter, "warm-up", driver.sink):
                least = max(1, len(self._spec.replicas))
                warmup_s, reached = warm_up(driver, settings, self._spec.warmup_s, least)
            self._spent["warmup_s"] = warmup_s
            self._counts_tokens |= driver.sink.counts_tokens
            takes_s = None
            if expected:
                takes_s = self._expected_s(driver, settings, reached, expected)
            self._reporter.event("warmed", warmup_s=warmup_s, takes_s=takes_s)
            if settings.points:
                self._measure_curve(settings, driver.submit(1))
                self._engine.unload_samples(loaded)
                return
            if rate is None:
                with progress(self._reporter, "probe", driver.sink):
                    batch = settings.scenario in (Scenario.OFFLINE, Scenario.SERVER)
                    samples = query_size(settings)
                    rate = probe_offline(driver) if batch else probe_query_rate(driver, samples)
            self._engine.unload_samples(loaded)
        probed = settings.target_qps is None
        if probed:
            if settings.scenario == Scenario.SERVER:
                rate = probe_server(rate, settings, self._try_server)
            self._reporter.event("probed", target_qps=rate)
        settings = dataclasses.replace(settings, target_qps=rate)
        plan = loadgen.plan_performance(settings, self._samples, lasts=probed)
        self._run(plan, self._folder / "performance", settings)

    def _expected_s(
        self, driver: Driver, settings: LoadGenSettings, warmup_rate: float, sample_count: int
    ) -> float:
        """Return the expected duration of a run [s]; RunError if far longer than planned."""
        usual_s, most_s = settings.planned_s, MAX_DURATION_RATIO * settings.planned_s
        stream = settings.scenario.answers_one_at_a_time
        enough = sample_count / (2 * usual_s if stream else most_s)
        if warmup_rate < enough:
            with progress(self._reporter, "probe", driver.sink):
                warmup_rate = full_rate(driver, warmup_rate, enough, settings, sample_count)
        takes_s = max(usual_s, sample_count / warmup_rate)
        if takes_s > most_s:
            raise RunError(
                "engine",
                f"the run would take {takes_s:,.0f} s instead of {usual_s:,.3g} s: "
                f"{sample_count:,} samples were planned for {settings.target_qps:,.6g}/s "
                f"(target_qps, or the baseline's rate), but after the warm-up the engine reached "
                f"{warmup_rate:,.3g} samples/s. Lower target_qps; if this speed is right, record "
                "the baseline anew",
            )
        return takes_s

    def _try_server(self, settings: LoadGenSettings) -> Detail:
        plan = loadgen.plan_performance(settings, self._samples)
        folder = self._folder / "probe" / f"{settings.target_qps:.6g}-qps"
        folder.mkdir(parents=True)
        sink = self._sink = loadgen.make_sink(plan, self._fail_engine, folder)
        window = Window(self._watch)
        with progress(self._reporter, "probe", sink), self._reporter.blaming("loadgen"):
            loadgen.run(plan, folder, self._engine, sink, at_edges=window.read_edge)
            if abs(window.clock.moved_s) > max(MIN_MOVE_SECONDS, CLOCK_SHARE * sink.duration_s):
                raise RunError(
                    "loadgen",
                    f"the wall clock was set by {window.clock.moved_s:+.4g} s during the rate "
                    "search, and LoadGen measures by it: run it again",
                )
        self._require_no(sink.faults)
        return parse_detail(folder / DETAIL)

    def _obey(self) -> None:
        while True:
            self._reporter.event("ready")
            line = self._commands.readline()
            if self._sink is not None:
                self._require_no(self._sink.faults)
            if not line:  # the parent is gone; the guard ends this process group
                return
            command = json.loads(line)
            if command["command"] == "stop":
                return
            settings, indices = self._spec.settings, command["indices"]
            plan = loadgen.plan_accuracy(settings, len(indices))
            folder = self._folder / "accuracy" / f"block-{command['block']}"
            self._run(plan, folder, settings, indices=indices)

    def _run(
        self,
        plan: loadgen.LoadGenPlan,
        folder: Path,
        settings: LoadGenSettings,
        *,
        indices: Sequence[int] | None = None,
    ) -> None:
        sink = loadgen.make_sink(plan, self._fail_engine, folder)
        sink.counts_tokens = self._counts_tokens
        # Only a compliance test checks the outputs of a timed run.
        sink.outputs_are_tokens = self._outputs_are_tokens and plan.phase == "accuracy"
        sink.answer_forms = tuple(self._spec.answer_forms) if self._outputs_are_tokens else ()
        engine = self._engine
        if plan.phase == "performance" and getattr(self._dataset, "in_order", False):
            engine = InOrder(engine)
        used = {**dataclasses.asdict(settings), "loadgen": plan.attributes}
        with self._reported_run(plan.phase, folder, sink, plan.expected, used) as window:
            with self._reporter.blaming("loadgen"):
                loadgen.run(plan, folder, engine, sink, indices=indices, at_edges=window.read_edge)
                parse_detail(folder / DETAIL)
            if plan.phase == "performance" and settings.scenario == Scenario.SERVER:
                clocks.write(folder, sink.over_time)

    def _measure_curve(self, settings: LoadGenSettings, alone_s: float) -> None:
        folder = self._folder / "performance"

        def fail(error: BaseException) -> None:
            if sink.records is not None:
                with contextlib.suppress(OSError):  # the run's own error matters more
                    write_requests(folder, sink.cut_records())
            self._fail_engine(error)

        sink = SlotSink(
            fail,
            tokens=settings.tokens,
            records=self._spec.requests,
            may_fail=settings.max_failed or 0.0,
        )
        used, pulse = dataclasses.asdict(settings), None
        if self._engine.harness:
            pulse = HarnessProgress()
        with (
            self._reported_run("performance", folder, sink, 0, used, pulse=pulse) as window,
            self._reporter.blaming("engine"),
        ):
            if pulse:
                log = run_engine_harness(self._engine, settings, folder, pulse, window.read_edge)
            else:
                kind = OpenLoop if settings.arrivals else ClosedLoop
                loop = kind(self._engine, sink, self._asked, settings, self._trace)
                log = loop.run(self._folder.name, alone_s, window.read_edge)
                log["points"] = with_reach(
                    log["points"], self._engine, self._asked.indices, settings, self._fail_engine
                )
            atomic.write_text(folder / CURVE_LOG, json.dumps(log, indent=1) + "\n")
            if sink.records is not None and not pulse:  # a harness writes its own events
                write_requests(folder, sink.records)

    @contextlib.contextmanager
    def _reported_run(
        self,
        phase: loadgen.Phase,
        folder: Path,
        sink: GuardedSink,
        expected_samples: int,
        settings_used: Mapping[str, Any],
        *,
        pulse: HarnessProgress | None = None,
    ) -> Iterator[Window]:
        """Report begin, progress and result of the run in the `with` body; end on sink faults."""
        with self._reporter.blaming("dataset"):
            require_same_length(self._dataset, self._samples)
        folder.mkdir(parents=True)
        self._sink = sink
        self._reporter.event(
            "running", phase=phase, expected=expected_samples, settings=settings_used
        )
        with self._reporter.blaming("engine"):
            self._engine.client_lateness()  # reset the counts before the run
            self._engine.accepted_drafts()
            self._engine.answer_counts()
            self._engine.stage_seconds()
        window = Window(self._watch)
        with progress(self._reporter, phase, pulse or sink):
            yield window
        with self._reporter.blaming("engine"):
            result = result_of(sink, window, self._engine, len(self._spec.replicas) or 1)
        content = {
            "phase": phase,
            "settings": settings_used,
            "result": result,
            "spent": self._spent,
        }
        atomic.write_text(folder / clocks.RUN_FILE, json.dumps(content, indent=2, sort_keys=True))
        if tokens_of := sink.answer_tokens.by_index:
            atomic.write_text(folder / clocks.TOKENS_FILE, json.dumps(tokens_of) + "\n")
        self._reporter.event("finished", phase=phase, folder=str(folder), result=result)
        self._require_no(sink.faults)

    def _require_no(self, faults: Faults) -> None:
        if faults.count:
            texts = faults.texts
            more = f" ({faults.count} faults in all)" if faults.count > 1 else ""
            self._reporter.fail("engine", RunError("engine", f"{texts[0]}{more}"))


@contextlib.contextmanager
def progress(reporter: Reporter, phase: str, sink: GuardedSink | HarnessProgress) -> Iterator[None]:
    """Report a sink's progress from a separate thread during the `with` block."""
    over = threading.Event()
    begun_s = perf_counter()

    def tell() -> None:
        done = -1
        while not over.wait(PROGRESS_SECONDS):
            elapsed_s = perf_counter() - begun_s
            fault = sink.faults.texts[0] if sink.faults.count else None
            still, done = done == sink.completed, sink.completed
            fault = sink.repeated() if still and not fault else fault
            reporter.event(
                "progress",
                phase=phase,
                done=sink.completed,
                outstanding=sink.outstanding,
                fault=fault,
                elapsed_s=elapsed_s,
            )

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def result_of(sink: GuardedSink, window: Window, engine: Engine, processes: int) -> dict[str, Any]:
    """Return a run's results as fields of `RunFinished`; `processes`: number of engine copies."""
    finished = RunFinished(
        issued=sink.issued,
        completed=sink.completed,
        duration_s=sink.duration_s,
        within_se=sink.stamps.relative_error,
        token_metrics=sink.token_metrics,
        notes=sink.notes,
        **sink.as_streamed,
        faults=sink.faults.texts,
        completing_threads=len(sink.threads),
        client=engine.client_lateness(),
        accepted_drafts=engine.accepted_drafts(),
        contention=window.seen,
        peak_bytes=window.watch.peak_bytes(),
        clock_moved_s=window.clock.moved_s,
        slow_start=sink.slow_start,
        answer_counts=dict(engine.answer_counts()),
        stages=stages_of(engine, sink.duration_s, processes),
        answer_forms=sink.answer_forms if sink.wants_output else (),
        salt=sink.run,
        finishes=dict(sink.ends.most_common(MAX_FINISH_REASONS)),
        replicas=engine.replica_runs() if isinstance(engine, ReplicatedEngine) else (),
    )
    return dataclasses.asdict(finished)


def require_room(described: Mapping[str, str], points: Sequence[float]) -> None:
    """Raise RunError if a point of the curve exceeds "concurrency" in the engine's description."""
    most = described.get("concurrency", "")
    if points and most.isdigit() and int(most) < max(points):
        raise RunError(
            "engine",
            f"points has {max(points):,} requests in flight, but the engine sends {most} at a "
            f"time: set its option concurrency to {max(points)}, or remove the point",
        )


def built_engine(spec: WorkerSpec, dataset: Dataset) -> Engine:
    """Return a spec's engine, not yet loaded, slowed down if the spec has a handicap."""
    engine: Engine = build(
        "engine", spec.engine, dataset=dataset, model=spec.model, precision=spec.precision
    )
    if spec.handicap and engine.harness:
        raise RunError(
            "engine",
            f"--mlperf-handicap cannot slow down requests that {engine.harness} sends: remove it",
        )
    devices.check_devices(getattr(engine, "libraries", ()), os.environ)
    return HandicapEngine(engine, spec.handicap) if spec.handicap else engine


def described_by(engine: Engine) -> dict[str, str]:
    """Return an engine's description; raise RunError if it is too long."""
    facts = {str(key): str(value) for key, value in engine.describe().items()}
    size = sum(len(key) + len(value) for key, value in facts.items())
    if size > MAX_DESCRIPTION_CHARACTERS:
        raise RunError(
            "engine",
            f"describe() returns {size:,} characters, {MAX_DESCRIPTION_CHARACTERS:,} at "
            "most are kept: return "
            "versions and settings, and of a file only its digest",
        )
    return facts


def build(kind: str, factory: Factory, **arguments: Any) -> Any:
    """Import a factory, check its options, and return its result; `kind` names it in errors."""
    return imported(kind, factory.target, factory.options)(**arguments, **factory.options)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve the engine of a spec file until a command or the end of stdin ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path, help="file with a WorkerSpec as JSON")
    parser.add_argument("--events", type=int, required=True, help="descriptor to write events to")
    options = parser.parse_args(arguments)
    commands = os.fdopen(guard_group(), encoding="utf-8")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    faulthandler.enable()
    # After a time-out the parent requests all stacks before it kills this process.
    faulthandler.register(signal.SIGUSR1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.set_inheritable(options.events, False)
    reporter = Reporter(options.events)
    reporter.event("started", pid=os.getpid())
    with reporter.blaming("worker"):
        spec = WorkerSpec.from_json(options.spec.read_text(encoding="utf-8"))
        import_as_parent(spec.import_path)
        EngineWorker(spec, options.spec, reporter, commands).serve()
    leave(0)


if __name__ == "__main__":
    main()
