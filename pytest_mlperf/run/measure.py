"""Run one process of a case: load, performance run, accuracy pass, and read what it left."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.case import path_part
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from pytest_mlperf.core.measurement import Accuracy, Run, Scored, Subject
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.run.accuracy_pass import Ask, Scoring, run_pass
from pytest_mlperf.run.builds import LABEL, Build, build_for, import_path
from pytest_mlperf.run.checkpoints import checkpoint_for
from pytest_mlperf.run.conditions import Conditions, held
from pytest_mlperf.run.figures import figures, with_client, with_per_gpu
from pytest_mlperf.run.fingerprint import subject_of
from pytest_mlperf.run.light import with_light
from pytest_mlperf.run.logs import Detail, parse_detail
from pytest_mlperf.run.power import Sampling
from pytest_mlperf.run.power_run import with_power
from pytest_mlperf.run.protocol import Event, LoadGenSettings, WorkerSpec
from pytest_mlperf.run.supervisor import Worker
from pytest_mlperf.run.talk import Talk
from pytest_mlperf.run.timeline import draw_timeline
from pytest_mlperf.run.wall import with_wall
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.preflight import problems, require


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one worker process gave.

    Attributes:
        run: The performance run, if it was asked for.
        accuracy: The accuracy pass, if it was asked for and there is one.
        scored: Its scores sample by sample.
        unscored: Why there are none, when only the scorer broke: the run is good all the same.
        subject: Machine, engine and data.
        target_qps: The rate that was used, probed or given.
        probed: The rate was probed in this process.
        notes: What else is to be said of it; those of a run are its own.
    """

    run: Run | None
    accuracy: Accuracy | None
    scored: Scored | None
    unscored: RunError | None
    subject: Subject
    target_qps: float | None
    probed: bool
    notes: tuple[str, ...] = ()


def measure(
    planned: Planned,
    conditions: Conditions,
    show: Callable[[str], None],
    *,
    target_qps: float | None,
    performance: bool,
    ask: Ask | None,
    number: int,
    build: Build | None = None,
) -> Process:
    """Run one fresh worker process of a case.

    Args:
        planned: The case.
        conditions: What the session's runs share.
        show: Takes a line of progress, many times.
        target_qps: Rate to offer; None lets the worker probe it.
        performance: Do a performance run.
        ask: Do an accuracy pass afterwards, or None; dummy weights have no accuracy.
        number: Which process of the case this is; names its folder.
        build: Run it in another build than the one that the engine entry names.

    Raises:
        RunError: Anything broke; the message names the layer and the log.
        UnavailableError: Model or data set is not here; all that is missing is named.
        SuiteError: A value in the suite is wrong, as engine, data set or scorer say.
    """
    found_before = problems(planned, scorer=ask is not None)
    require(found_before)
    trouble = [RunError(part, str(error)) for part, error in found_before if part == "scorer"]
    label = f"{LABEL}.{number}" if build else str(number)
    folder = new_folder(conditions.folder, f"{planned.case.id}.{label}")
    used = conditions.machine.environment(planned.case.accelerator)
    talk = Talk(planned, number, show)
    checkpoint = checkpoint_for(planned, conditions, folder, talk.show)
    model = str(checkpoint.folder) if checkpoint else planned.model
    started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    accelerator = planned.case.accelerator
    gpus = conditions.machine.uuids(accelerator) if performance else []
    score: Callable[[], tuple[Accuracy, Scored]] | None = None
    with (
        build_for(planned, folder, build) as there,
        held(accelerator, conditions, talk.show, look=performance) as looked,
        Sampling(gpus if conditions.power else [], folder) as sampling,
        Worker(
            _spec(
                planned,
                conditions,
                folder,
                there,
                model=model,
                target_qps=target_qps,
                performance=performance,
            ),
            conditions.patience,
            talk.on_event,
            environment=used,
            build=there,
        ) as worker,
    ):
        spec = worker.spec
        loaded = worker.wait_for("loaded")
        subject = subject_of(
            planned,
            conditions.machine,
            loaded,
            build=there,
            python=worker.python,
            built=checkpoint.facts if checkpoint else {},
        )
        if checkpoint:
            checkpoint.require(loaded["engine"])
        finished = worker.wait_for("finished") if performance else None
        sampling.linger()
        worker.wait_for("ready")
        scorer = planned.built_scorer
        if ask and scorer and not subject.dummy and not trouble:
            scoring = Scoring(
                folder=folder,
                dataset=spec.dataset,
                scorer=scorer,
                model=spec.model,
                import_path=import_path(),
                patience=conditions.patience,
                show=talk.show,
            )
            total = int(loaded["dataset"]["samples"])
            with _only_the_scorer() as trouble:
                score = run_pass(worker, total, ask, scoring, subject)
        worker.send({"command": "stop"})
    run = None
    if finished is not None:
        run = _read_run(spec, finished, talk.target_qps, conditions, started)
        run = with_per_gpu(run, accelerator)
        limits_w = conditions.machine.power_limits_w(accelerator)
        run = with_power(run, sampling.log, warm_s=talk.warm_s, limits_w=limits_w)
        run = with_wall(run, conditions.meter)
        picture = draw_timeline(folder) if sampling.log.gpus else None
        run = dataclasses.replace(
            run,
            control=looked[0],
            notes=(*run.notes, *looked[1:], *worker.notes),
            timeline=str(picture) if picture else None,
        )
        run = with_client(run, planned)
        run = with_light(
            run,
            planned,
            subject.identity,
            engine=loaded["engine"],
            sizes=loaded["dataset"]["sizes"],
        )
    found: tuple[Accuracy, Scored] | None = None
    if score:
        with _only_the_scorer() as trouble:
            found = score()
    return Process(
        run=run,
        accuracy=found[0] if found else None,
        scored=found[1] if found else None,
        unscored=trouble[0] if trouble else None,
        subject=subject,
        target_qps=talk.target_qps if talk.target_qps is not None else target_qps,
        probed=talk.probed,
        notes=() if run else worker.notes,
    )


@contextlib.contextmanager
def _only_the_scorer() -> Iterator[list[RunError]]:
    """Keep an error of the scorer, which says nothing about the engine's run."""
    kept: list[RunError] = []
    try:
        yield kept
    except EnvironmentFault as error:
        kept.append(RunError("scorer", str(error)))
    except RunError as error:
        if error.layer != "scorer":
            raise
        kept.append(error)


def _spec(
    planned: Planned,
    conditions: Conditions,
    folder: Path,
    there: Build | None,
    *,
    model: str | None,
    target_qps: float | None,
    performance: bool,
) -> WorkerSpec:
    """Return what a worker is told; one elsewhere also what it does not inherit."""
    engine, dataset = planned.factories
    used = conditions.machine.environment(planned.case.accelerator)
    return WorkerSpec(
        folder=str(folder),
        engine=engine,
        dataset=dataset,
        expected=planned.expected,
        model=model,
        precision=planned.case.precision,
        settings=planned.settings(target_qps=target_qps),
        performance=performance,
        handicap=conditions.handicap,
        import_path=there.last if there else import_path(),
        import_first=there.first if there else (),
        import_not=there.never if there else (),
        environment=used if there else {},
    )


def new_folder(parent: Path, name: str) -> Path:
    """Make a fresh folder, named `name` or `name-2`, … where that is taken.

    Raises:
        RunError: It cannot be made.
        BaselineError: The name would lead elsewhere.
    """
    path_part("case", name)
    for attempt in range(1, 1000):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError("worker", f"cannot make {path}: {error.strerror}") from None
        return path.resolve()
    raise RunError("worker", f"{parent} holds 999 folders called {name}")


def _read_run(
    spec: WorkerSpec,
    finished: Event,
    target_qps: float | None,
    conditions: Conditions,
    started: str,
) -> Run:
    """Read LoadGen's own log; the worker's word is only checked against it."""
    folder = Path(finished["folder"])
    log = folder / "mlperf_log_detail.txt"
    detail = parse_detail(log)
    detail.require_no_errors()
    result = finished["result"]
    if result["faults"] or result["completed"] != result["issued"]:
        faults = "; ".join(result["faults"]) or "samples are missing"
        raise RunError(
            "engine",
            f"{result['completed']:,} of {result['issued']:,} samples completed: {faults}",
            str(log),
        )
    metrics, notes = figures(result, detail, spec.settings.scenario)
    invalid, limit_missed = _validity(detail, spec.settings)
    within = {"throughput": result["within_se"]} if result["within_se"] else {}
    return Run(
        metrics=metrics,
        within_se=within,
        samples=int(result["completed"]),
        queries=int(detail.values.get("result_query_count") or result["issued"]),
        duration_s=float(result["duration_s"]),
        target_qps=target_qps or 0.0,
        session=conditions.session,
        started=started,
        commit=conditions.commit,
        folder=str(folder),
        invalid=invalid,
        limit_missed=limit_missed,
        client=result["client"],
        notes=notes,
    )


def _validity(detail: Detail, settings: LoadGenSettings) -> tuple[tuple[Reason, ...], bool]:
    """Return why a run may not be judged, and whether it only missed its latency limit."""
    if detail.valid:
        return (), False
    met = detail.min_duration_met is not False and detail.min_queries_met is not False
    # Early stopping alone says that there were too few queries, not that they were late.
    if settings.scenario == "Server" and met and detail.perf_constraints_met is False:
        return (), True
    queries = "too few queries for its percentile (early stopping): raise min_query_count"
    unmet = {
        "the run was too short": detail.min_duration_met,
        "too few queries": detail.min_queries_met,
        queries: detail.early_stopping_met,
    }
    reasons = [*detail.invalid_reasons, *(text for text, met in unmet.items() if met is False)]
    texts = [f"LoadGen: {reason}" for reason in reasons or ["result is INVALID"]]
    return tuple(Reason(key=Key.LOADGEN, text=text) for text in texts), False
