"""Run one process of a case (load, performance run, accuracy pass) and read its results."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mlperf.core.answer_forms import TIMED_RANKED_ROWS
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from pytest_mlperf.core.job import (
    AuditRun,
    BenchmarkTest,
    Job,
    LoadGenSettings,
    MeasuredCase,
    raise_problems,
)
from pytest_mlperf.core.measurement import Accuracy, Run, Scored, Subject
from pytest_mlperf.core.numbers import duration
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.server.identity import identity_reasons
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.hardware.rapl import HostSampling
from pytest_mlperf.registry import clients_of, harness, is_client
from pytest_mlperf.run.accuracy import AccuracyPass, Scoring, ScoringSchedule
from pytest_mlperf.run.benchmark import benchmarked, read_benchmark
from pytest_mlperf.run.builds import FOLDER_LABEL, Build, build_for
from pytest_mlperf.run.checkpoints.build import Checkpoint, checkpoint_for
from pytest_mlperf.run.child.process import WorkerProcess
from pytest_mlperf.run.child.protocol import Event, ReplicaSpec, WorkerSpec, import_path
from pytest_mlperf.run.conditions import (
    IDLE_ENGINES,
    WARM_UP,
    Conditions,
    ControlRun,
    Placement,
    placed,
    shortened,
)
from pytest_mlperf.run.gpu_memory import require_free
from pytest_mlperf.run.power.exporter import watched_exporter
from pytest_mlperf.run.power.sampling import PowerSampling
from pytest_mlperf.run.project import new_folder
from pytest_mlperf.run.reading import Evidence, read_run, subject_of
from pytest_mlperf.run.server import watched_server


class WorkerProgress:
    """Show a worker's events as progress lines, and store the last rate that it reports."""

    def __init__(self, job: MeasuredCase, title: str, show: Callable[[str], None]) -> None:
        self._head = f"{job.case.id} {title}"
        self._show = show
        self._by = harness(job.engine_use) if isinstance(job, Job) and job.settings.points else ""
        self._expected: dict[str, int] = {}
        self.target_qps: float | None = None
        self.probed = False
        self.warm_s = 0.0

    def show(self, text: str) -> None:
        """Show a line of progress under the case's name."""
        self._show(type(text)(f"{self._head}: {text}"))

    def on_event(self, event: Event) -> None:
        """Show a worker's event on the terminal; store its rate, times and expected samples."""
        match event:
            case {"event": "loading"}:
                self.show("loading")
            case {"event": "loaded", "load_s": seconds}:
                self.show(f"loaded in {seconds:.1f} s, warming up")
            case {"event": "warmed", "takes_s": seconds}:
                self.warm_s = time.monotonic()
                if seconds is not None:
                    self.show(f"warmed up; the timed part takes about {duration(seconds)}")
            case {"event": "probed", "target_qps": rate}:
                self.target_qps, self.probed = float(rate), True
            case {"event": "running", "phase": phase, "expected": expected, "settings": settings}:
                self._expected[phase] = expected
                if phase == "performance" and (rate := settings.get("target_qps")):
                    self.target_qps = float(rate)
            case {"event": "progress", "phase": "performance", "elapsed_s": elapsed} if self._by:
                self.show(f"measured by {self._by}, {elapsed:,.0f} s")
            case {"event": "progress", "phase": phase, "done": done, "elapsed_s": elapsed}:
                of = f" of {expected:,}" if (expected := self._expected.get(phase)) else ""
                rate = done / elapsed if elapsed > 0 else 0.0
                self.show(f"{phase} {done:,}{of} samples, {rate:,.0f}/s")


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """Hold the results of one worker process.

    Attributes:
        unscored: Error of the scorer, which does not invalidate the run; None without one.
        notes: Notes about the process; notes about its run are in `run`.
        files: Imported files, except those of Python and installed packages.
        waited_s: Time waited for the accelerator [s].
    """

    run: Run | None
    accuracy: Accuracy | None
    scored: Scored | None
    unscored: RunError | None
    subject: Subject
    target_qps: float | None
    probed: bool
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    waited_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProcessTask:
    """Define the task of one worker process.

    Attributes:
        target_qps: Rate to offer; None lets the worker probe it.
        performance: Whether the process makes a performance run.
        ask: Schedule of the accuracy pass after the performance run; None for no accuracy pass.
        number: Number of the process in the case, part of its folder's name.
        title: Name of the process in progress lines, "run 2 of at most 5".
        build: Other build or Python to start the worker in; None for this one.
        label: Word before the number in its folder's name; default with `build`: `FOLDER_LABEL`.
        warmup: Whether its run is a warm-up: short, without power samples, and not counted.
        audit: Compliance test, whose figures are never recorded as a baseline.
    """

    target_qps: float | None
    performance: bool
    ask: ScoringSchedule | None
    number: int
    title: str
    build: Build | None = None
    label: str = ""
    warmup: bool = False
    audit: AuditRun | None = None

    @property
    def folder(self) -> str:
        """Suffix of the process's folder name: "2", or with a label "warm-up.1"."""
        label = self.label or (FOLDER_LABEL if self.build else "")
        return f"{label}.{self.number}" if label else str(self.number)


def measure(
    job: MeasuredCase, conditions: Conditions, show: Callable[[str], None], task: ProcessTask
) -> ProcessResult:
    """Run one new worker process of a case.

    Raises:
        RunError: A part failed; the message names the layer and the log.
        UnavailableError: Model or data set is missing.
        SuiteError: Engine, data set or scorer rejects a value of the suite.
    """
    unscorable = job.scoring.problems if task.ask else ()
    raise_problems(unscorable)
    unscored = [RunError(one.part, str(one.error)) for one in unscorable if one.part == "scorer"]
    case = _Measured(
        job=job,
        conditions=conditions,
        task=task,
        folder=new_folder(conditions.folder, f"{job.case.id}.{task.folder}"),
        progress=WorkerProgress(job, task.title, show),
    )
    evidence, accuracy, placement = _work(case, unscored)
    if isinstance(job, Job):
        run = read_run(evidence, job, placement.conditions)
    else:
        run = read_benchmark(evidence, job, placement.conditions)
    if run and conditions.server and (server := conditions.machine.server):
        reasons = identity_reasons(server, conditions.server.ask())
        server_reasons = [Reason(key=Key.SERVER_HARDWARE, text=text) for text in reasons]
        run = replace(run, invalid=(*server_reasons, *run.invalid))
    scores = None
    if accuracy and not unscored:
        with _collect_scorer_errors(unscored):
            scores = accuracy.scores()
    return ProcessResult(
        run=run,
        accuracy=scores[0] if scores else None,
        scored=scores[1] if scores else None,
        unscored=unscored[0] if unscored else None,
        subject=evidence.subject,
        target_qps=task.target_qps if evidence.target_qps is None else evidence.target_qps,
        probed=case.progress.probed,
        notes=() if run else evidence.notes,
        files=tuple(evidence.loaded.get("files", ())),
        waited_s=evidence.waited_s or 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    job: MeasuredCase
    conditions: Conditions
    task: ProcessTask
    folder: Path
    progress: WorkerProgress


def _work(
    case: _Measured, unscored: list[RunError]
) -> tuple[Evidence, AccuracyPass | None, Placement]:
    job, task, show = case.job, case.task, case.progress.show
    checkpoint = checkpoint_for(job, case.conditions, case.folder, show) if job.build else None
    with contextlib.ExitStack() as stack:
        build = task.build
        if job.elsewhere and not build:
            build = stack.enter_context(build_for(job.elsewhere, case.folder, job.suite))
        placement = stack.enter_context(placed(job.accelerator, case.conditions, show))
        warmed = None if task.warmup else _warm_up(job, placement.conditions, show, task)
        serves = isinstance(job, Job) and (
            is_client(job.engine_use) and not job.engine.options.get("serve")
        )  # a server of the user holds the GPUs' memory
        uuids = placement.conditions.machine.uuids(job.accelerator)
        if job.engine_use not in IDLE_ENGINES and not serves:
            require_free(uuids, placement.conditions.folder, waiting=show)
        waited_s = placement.waited_s
        if task.performance and case.conditions.idle:
            waited_s += case.conditions.idle.wait(show)
        started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        control = placement.control(job.accelerator) if task.performance else ControlRun()
        case = dataclasses.replace(case, conditions=placement.conditions)
        is_sampled = task.performance and case.conditions.power and uuids
        sampling = stack.enter_context(_sampling(case)) if is_sampled else None
        linger = sampling.linger if sampling else lambda: None
        accuracy = None
        if isinstance(job, BenchmarkTest):
            evidence = benchmarked(job, case.conditions, case.folder, case.progress.show)
            linger()
        else:
            evidence, accuracy = _observed(case, build, checkpoint, unscored, linger)
    evidence = dataclasses.replace(
        evidence,
        started=started,
        control=control,
        warmed=warmed,
        waited_s=waited_s,
        power=sampling.log if sampling else None,
        notes=(*placement.notes, *evidence.notes),
    )
    return evidence, accuracy, placement


def _observed(
    case: _Measured,
    build: Build | None,
    checkpoint: Checkpoint | None,
    unscored: list[RunError],
    linger: Callable[[], None],
) -> tuple[Evidence, AccuracyPass | None]:
    job, task = case.job, case.task
    assert isinstance(job, Job)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        host = enter(HostSampling()) if task.performance and case.conditions.power else None
        exporter = case.conditions.exporter if task.performance else None
        exporter_log = enter(watched_exporter(exporter)) if exporter else None
        worker = enter(_worker(case, job, build, checkpoint))
        loaded = worker.wait_for("loaded")
        subject = subject_of(
            job,
            case.conditions.machine,
            loaded,
            build=build,
            python=worker.python,
            built=checkpoint.facts if checkpoint else {},
            exporter=case.conditions.exporter,
        )
        if checkpoint:
            checkpoint.require(loaded["engine"])
        finished, server, pages = None, None, loaded["pages"]
        if task.performance:
            watch = (
                contextlib.nullcontext() if pages is None else watched_server(pages, case.folder)
            )
            with watch as server:
                finished = worker.wait_for("finished")
        linger()
        worker.wait_for("ready")
        accuracy = _accuracy(case, worker, loaded, subject)
        with _collect_scorer_errors(unscored):
            if accuracy:
                accuracy.answer()
        worker.send({"command": "stop"})
    evidence = Evidence(
        settings=worker.spec.settings,
        loaded=loaded,
        finished=finished,
        subject=subject,
        target_qps=_rate_of_later_runs(case, worker.spec.settings, finished),
        probed=case.progress.probed,
        host=host.counted if host else {},
        server=server,
        exporter=exporter_log,
        warm_s=case.progress.warm_s,
        notes=worker.notes,
        build_s=checkpoint.seconds if checkpoint else None,
    )
    return evidence, accuracy


def _rate_of_later_runs(
    case: _Measured, settings: LoadGenSettings, finished: Event | None
) -> float | None:
    """Return the rate [1/s] to give later runs as many queries as run `finished`; None if unset."""
    rate, work_s = case.progress.target_qps, settings.fixed_work_s
    streams = settings.scenario.answers_one_at_a_time
    if not (finished and rate and work_s and case.progress.probed and streams):
        return rate
    per_query = settings.per_query
    issued: int = finished["result"]["issued"]
    return max(rate, issued / per_query / work_s)


@contextlib.contextmanager
def _sampling(case: _Measured) -> Iterator[PowerSampling]:
    machine, accelerator = case.conditions.machine, case.job.accelerator
    used = machine.used(accelerator, case.job.replicas)
    sampling = PowerSampling(list(used), case.folder)
    try:
        with sampling:
            yield sampling
    except RunError as error:
        lost: tuple[str, ...] = ()
        with contextlib.suppress(RunError):  # an unreadable file shows no loss
            lost = sampling.log.lost(used)
        if not lost:
            raise
        raise RunError("gpu", f"{'; '.join(lost)}; {error.layer}: {error}", error.log) from error
    finally:
        with contextlib.suppress(RunError):
            if case.conditions.lost:
                case.conditions.lost.note(sampling.log.lost_gpus(machine.used(accelerator)))


def _worker(
    case: _Measured, job: Job, build: Build | None, checkpoint: Checkpoint | None
) -> WorkerProcess:
    conditions, task = case.conditions, case.task
    settings = dataclasses.replace(job.settings, target_qps=task.target_qps)
    answer_forms = job.scoring.answer_forms
    if audit := task.audit:
        seeds = audit.seeds or settings.seeds
        settings = dataclasses.replace(settings, audit=audit.settings, seeds=seeds)
        answer_forms = TIMED_RANKED_ROWS if audit.test == Kind.TEST08 else answer_forms
    environment = {**conditions.machine.environment(job.accelerator), **job.variables}
    environment |= build.for_servers if build else {}
    spec = WorkerSpec(
        folder=str(case.folder),
        engine=job.engine,
        dataset=job.dataset,
        expected=job.expected,
        model=str(checkpoint.folder) if checkpoint else job.model,
        precision=job.case.precision,
        settings=shortened(settings) if task.warmup else settings,
        performance=task.performance,
        handicap=conditions.handicap,
        requests=conditions.requests,
        answer_forms=answer_forms,
        import_path=build.last if build else import_path(job.suite),
        import_first=build.first if build else (),
        import_not=build.never if build else (),
        environment=environment if build else {},
        replicas=_replicas(job, conditions.machine),
        replica_patience_s=REPLICA_SHARE * conditions.patience.progress_s,
    )
    patience, on_event = conditions.patience, case.progress.on_event
    return WorkerProcess(spec, patience, on_event, environment=environment, build=build)


REPLICA_SHARE = 0.9
"""Share of the worker's time limit, so that a silent replica is reported before the worker ends."""


def _replicas(job: Job, machine: Machine) -> tuple[ReplicaSpec, ...]:
    """Return specs of a case's replicas, or of its server's clients; () for a single process."""
    if (clients := clients_of(job.engine_use, job.engine.options)) > 1:
        return tuple(ReplicaSpec(name=f"client {n}", client=True) for n in range(clients))
    if job.replicas == 1:
        return ()
    return tuple(
        ReplicaSpec(
            name=f"replica {number}" + (f" ({share.title})" if share.title else ""),
            gpus=share.gpus,
            environment=share.environment,
            cpus=share.cpus,
        )
        for number, share in enumerate(machine.shares(job.accelerator, job.replicas))
    )


def _accuracy(
    case: _Measured, worker: WorkerProcess, loaded: Event, subject: Subject
) -> AccuracyPass | None:
    ask, scorer = case.task.ask, case.job.scoring.scorer
    if ask is None or scorer is None or subject.dummy:
        return None
    scoring = Scoring(
        folder=case.folder,
        dataset=worker.spec.dataset,
        scorer=scorer,
        model=worker.spec.model,
        suite=case.job.suite,
        patience=case.conditions.patience,
        show=case.progress.show,
    )
    return AccuracyPass(worker, loaded["dataset"], ask, scoring, subject)


def _warm_up(
    job: MeasuredCase, conditions: Conditions, show: Callable[[str], None], task: ProcessTask
) -> bool | None:
    """Warm up a cold accelerator before a timed run; return whether it is warm, None if unknown."""
    if conditions.warmups is None:
        return None
    names = conditions.machine.leases(job.accelerator)
    if not task.performance:
        return conditions.warmups.used(names)
    alone = dataclasses.replace(
        conditions, warmups=None, control=False, power=False, meter=None, exporter=None
    )
    warmup = ProcessTask(
        target_qps=task.target_qps,
        performance=True,
        ask=None,
        number=1,
        title=WARM_UP,
        build=task.build,
        label=WARM_UP,
        warmup=True,
    )
    return conditions.warmups.ensure(job, names, lambda: measure(job, alone, show, warmup))


@contextlib.contextmanager
def _collect_scorer_errors(errors: list[RunError]) -> Iterator[None]:
    """Collect a scorer's error in `errors` instead of raising it: the engine's run stays valid."""
    try:
        yield
    except EnvironmentFault as error:
        errors.append(RunError("scorer", str(error)))
    except RunError as error:
        if error.layer != "scorer":
            raise
        errors.append(error)
