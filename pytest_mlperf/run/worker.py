"""The worker process: loads one engine and runs LoadGen on it until its parent says stop.

Run as `python -m pytest_mlperf.run.worker SPEC.json --events FD`. Commands come on stdin, which is
empty for the engine, events leave on FD, and stdout and stderr are the engine's log: see
`pytest_mlperf.run.protocol`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, TextIO

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset, Engine
from pytest_mlperf.registry import check_call, resolve
from pytest_mlperf.run import loadgen, over_time, probe
from pytest_mlperf.run.guard import guard_group
from pytest_mlperf.run.handicap import HandicapEngine
from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail
from pytest_mlperf.run.protocol import Factory, Finished, LoadGenSettings, WorkerSpec
from pytest_mlperf.run.reporter import Reporter, leave
from pytest_mlperf.run.samples import (
    as_dataset,
    check_count,
    check_digest,
    count,
    require_same,
    sizes,
)
from pytest_mlperf.run.sink import Faults, GuardedSink
from pytest_mlperf.stores import atomic

SWITCH_INTERVAL_S = 1e-4
"""A busy Python thread may hold others up this long; Python's 5 ms would show in every p99."""

MOST_DESCRIBED = 100_000
"""Characters that an engine may say of itself: they stand in every baseline."""

PROGRESS_S = 0.5
"""Time between two progress events."""


class Worker:
    """One engine load and the runs made with it."""

    def __init__(self, spec: WorkerSpec, reporter: Reporter, commands: TextIO) -> None:
        """Load nothing yet."""
        self._spec = spec
        self._commands = commands
        self._reporter = reporter
        self._folder = Path(spec.folder)
        self._sink: GuardedSink | None = None
        self._spent: dict[str, float] = {}
        self._fail_engine = functools.partial(reporter.fail, "engine")
        self._dataset: Dataset
        self._engine: Engine

    def serve(self) -> None:
        """Load, measure, then obey commands until stop."""
        threading.excepthook = self._thread_died
        self._reporter.event("loading")
        self._load()
        if self._spec.performance:
            self._measure()
        self._obey()
        self._reporter.event("leaving")
        with self._reporter.blaming("engine"):
            self._engine.__exit__(None, None, None)

    def _load(self) -> None:
        begun_s = perf_counter()
        with self._reporter.blaming("dataset"):
            self._dataset = as_dataset(build("dataset", self._spec.dataset))
            self._samples = count(self._dataset)
            check_count(self._samples, self._spec.expected)
            drawn = min(self._spec.settings.performance_samples, self._samples)
            facts = {
                "digest": check_digest(self._dataset.digest, self._spec.expected),
                "samples": self._samples,
                "sizes": sizes(self._dataset, drawn),
            }
        with self._reporter.blaming("engine"):
            engine = build(
                "engine",
                self._spec.engine,
                dataset=self._dataset,
                model=self._spec.model,
                precision=self._spec.precision,
            )
            self._engine = (
                HandicapEngine(engine, self._spec.handicap) if self._spec.handicap else engine
            )
            self._engine.__enter__()
            described = described_by(self._engine)
        self._spent["load_s"] = perf_counter() - begun_s
        self._reporter.event(
            "loaded", engine=described, dataset=facts, load_s=self._spent["load_s"]
        )

    def _measure(self) -> None:
        """Warm up, find the rate if it is not given, and make the performance run."""
        settings = self._spec.settings
        loaded = range(min(settings.performance_samples, self._samples))
        with self._reporter.blaming("engine"):
            self._engine.load_samples(loaded)
            driver = probe.Driver(self._engine, loaded, self._fail_engine)
            self._sink = driver.sink
            with self._progress("warm-up", driver.sink):
                warmup_s = probe.warm_up(driver, settings, self._spec.warmup_s)
            self._spent["warmup_s"] = warmup_s
            self._reporter.event("warmed", warmup_s=warmup_s)
            rate = settings.target_qps
            if rate is None:
                with self._progress("probe", driver.sink):
                    rate = self._probe(driver)
            self._engine.unload_samples(loaded)
        if settings.target_qps is None:
            if settings.scenario == "Server":
                rate = probe.probe_server(rate, settings, self._try_server)
            self._reporter.event("probed", target_qps=rate)
        settings = dataclasses.replace(settings, target_qps=rate)
        plan = loadgen.plan_performance(settings, self._samples)
        self._run(plan, self._folder / "performance", settings)

    def _probe(self, driver: probe.Driver) -> float:
        if self._spec.settings.scenario in ("Offline", "Server"):
            return probe.probe_offline(driver)
        return probe.probe_stream(driver, probe.query_size(self._spec.settings))

    def _try_server(self, settings: LoadGenSettings) -> Detail:
        plan = loadgen.plan_performance(settings, self._samples)
        folder = self._folder / "probe" / f"{settings.target_qps:.6g}-qps"
        folder.mkdir(parents=True)
        sink = self._sink = loadgen.make_sink(plan, self._fail_engine)
        with self._progress("probe", sink), self._reporter.blaming("loadgen"):
            loadgen.run(plan, folder, self._engine, sink)
        self._require_no(sink.faults)
        return parse_detail(folder / DETAIL)

    def _obey(self) -> None:
        while True:
            self._reporter.event("ready")
            line = self._commands.readline()
            if self._sink is not None:
                self._require_no(self._sink.faults)
            if not line:  # the parent is gone, and the guard soon ends this process group
                return
            command = json.loads(line)
            if command["command"] == "stop":
                return
            self._accuracy(command["block"], command["indices"])

    def _accuracy(self, block: int, indices: Sequence[int]) -> None:
        settings = self._spec.settings
        plan = loadgen.plan_accuracy(settings, len(indices))
        folder = self._folder / "accuracy" / f"block-{block}"
        self._run(plan, folder, settings, indices=indices)

    def _run(
        self,
        plan: loadgen.Plan,
        folder: Path,
        settings: LoadGenSettings,
        *,
        indices: Sequence[int] | None = None,
    ) -> None:
        """Make one LoadGen run and report it; what the guard kept from LoadGen ends the worker."""
        with self._reporter.blaming("dataset"):
            require_same(self._dataset, self._samples)
        folder.mkdir(parents=True)
        used = {**dataclasses.asdict(settings), "loadgen": plan.attributes}
        sink = self._sink = loadgen.make_sink(plan, self._fail_engine)
        self._reporter.event("running", phase=plan.phase, expected=plan.expected, settings=used)
        with self._reporter.blaming("engine"):
            self._engine.client_lateness()  # what was before this run is no part of it
        with self._progress(plan.phase, sink), self._reporter.blaming("loadgen"):
            loadgen.run(plan, folder, self._engine, sink, indices=indices)
            parse_detail(folder / DETAIL)
        with self._reporter.blaming("engine"):
            client = self._engine.client_lateness()
        result = dataclasses.asdict(
            Finished(
                issued=sink.issued,
                completed=sink.completed,
                duration_s=sink.duration_s,
                within_se=sink.within_se,
                token_metrics=sink.token_metrics,
                notes=sink.notes,
                faults=sink.faults.texts,
                completing_threads=len(sink.threads),
                client=client,
            )
        )
        content = {"phase": plan.phase, "settings": used, "result": result, "spent": self._spent}
        if plan.phase == "performance" and settings.scenario == "Server":
            over_time.write(folder, sink.over_time)
        atomic.write_text(folder / "run.json", json.dumps(content, indent=2, sort_keys=True))
        self._reporter.event("finished", phase=plan.phase, folder=str(folder), result=result)
        self._require_no(sink.faults)

    @contextlib.contextmanager
    def _progress(self, phase: str, sink: GuardedSink) -> Iterator[None]:
        """Send progress from a thread while the block runs."""
        over = threading.Event()
        begun_s = perf_counter()

        def tell() -> None:
            while not over.wait(PROGRESS_S):
                elapsed_s = perf_counter() - begun_s
                fault = sink.faults.texts[0] if sink.faults.count else None
                self._reporter.event(
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

    def _require_no(self, faults: Faults) -> None:
        """End the worker when the engine broke the rules of its sink."""
        if faults.count:
            texts = faults.texts
            more = f" ({faults.count} faults in all)" if faults.count > 1 else ""
            self._reporter.fail("engine", RunError("engine", f"{texts[0]}{more}"))

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        """End the run when a thread dies under samples: nobody else would ever complete them."""
        error = died.exc_value
        if error is None:
            error = RunError("engine", f"a thread ended with {died.exc_type.__name__}")
        if self._sink is not None and self._sink.outstanding:
            self._reporter.fail("engine", error)
        threading.__excepthook__(died)


def described_by(engine: Engine) -> dict[str, str]:
    """Return what an engine says of itself.

    Raises:
        RunError: It says more than versions and settings.
    """
    found = {str(key): str(value) for key, value in engine.describe().items()}
    size = sum(len(key) + len(value) for key, value in found.items())
    if size > MOST_DESCRIBED:
        raise RunError(
            "engine",
            f"describe() returns {size:,} characters, {MOST_DESCRIBED:,} at most are kept: return "
            "versions and settings; of a file its digest",
        )
    return found


def build(kind: str, factory: Factory, **given: Any) -> Any:
    """Import a factory and call it with its options, after checking them.

    Raises:
        SuiteError: The factory cannot be found, or an option is unknown or missing.
    """
    try:
        found = resolve(factory.target)
    except (ImportError, AttributeError) as error:
        raise SuiteError(
            f"{kind} {factory.target!r} cannot be imported: {error}; "
            "it must name a class or function of a module as package.module:name"
        ) from error
    options: Mapping[str, Any] = factory.options
    check_call(f"{kind} {factory.target!r}", found, options)
    return found(**given, **options)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Host the engine of a spec file until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path, help="file with a WorkerSpec as JSON")
    parser.add_argument("--events", type=int, required=True, help="descriptor to write events to")
    given = parser.parse_args(arguments)
    commands = os.fdopen(guard_group(), encoding="utf-8")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    faulthandler.enable()
    # A parent that loses patience asks for every thread's stack before it kills.
    faulthandler.register(signal.SIGUSR1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.set_inheritable(given.events, False)
    reporter = Reporter(given.events)
    reporter.event("started", pid=os.getpid())
    with reporter.blaming("worker"):
        spec = WorkerSpec.from_json(given.spec.read_text(encoding="utf-8"))
        sys.path += [entry for entry in spec.import_path if entry not in sys.path]
        Worker(spec, reporter, commands).serve()
    leave(0)


if __name__ == "__main__":
    main()
