"""Resolve a case into the job of its runs, or into all problems that prevent them.

Files are looked for but not read; the user's code is not imported; nothing is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pytest_mlperf import registry
from pytest_mlperf.core import job
from pytest_mlperf.core.answer_forms import TOKEN_CODES
from pytest_mlperf.core.case import Phase, Scenario
from pytest_mlperf.core.errors import EnvironmentFault, SuiteError, UnavailableError
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.rounds import load_round
from pytest_mlperf.rounds.endpoints import seed_sets
from pytest_mlperf.suite import places
from pytest_mlperf.suite.environments import engine_python, find_python
from pytest_mlperf.suite.find import limits_of
from pytest_mlperf.suite.libraries import require_libraries
from pytest_mlperf.suite.plan import Planned
from pytest_mlperf.suite.tables import BuildStep, CalibrationSource, DatasetSource, ScenarioEntry
from pytest_mlperf.suite.trial import ABSENT, first_wrong_path, try_engine
from pytest_mlperf.suite.values import KeyPath

Value = TypeVar("Value")

SAMPLES_IN_MEMORY = 1024
"""Samples kept in memory during a run, for workloads other than MLPerf's."""


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Hold a case's problems, in the order to fix them; `build`: checkpoint to build, or None."""

    problems: tuple[job.CaseProblem, ...]
    build: job.CheckpointBuild | None


def resolve(planned: Planned, *, scorer: bool) -> job.Job | Problems:
    """Return the job of a case, else everything that prevents it from running.

    With `scorer`, accuracy is resolved too; problems of accuracy alone are part of the job.
    """
    failed: list[job.CaseProblem] = []
    attempt = functools.partial(_attempt, failed)
    other_python = attempt("python", lambda: engine_python(planned)) if planned.elsewhere else None
    model = attempt("model", lambda: model_of(planned))
    is_here = not failed or failed[-1].part != "model"
    tried = model if is_here else ABSENT  # options are checked nevertheless
    dataset = attempt("dataset", lambda: dataset_of(planned))
    scored = scores = None
    if scorer and not planned.data.shared:
        scored = attempt("dataset", lambda: data_of(planned, "accuracy"), scoring=True)
    build = attempt("build", lambda: build_of(planned, model, dataset))
    engine = attempt("engine", lambda: engine_of(planned, tried))
    if scorer:
        scores = attempt("scorer", lambda: scorer_of(planned, tried), scoring=True)
    for part, group, use, scoring in loaded_extensions(planned, scorer=scorer):
        attempt(part, functools.partial(require_libraries, group, use), scoring=scoring)
    texts = [str(problem.error) for problem in failed]  # parts share libraries
    problems = tuple(p for n, p in enumerate(failed) if texts.index(texts[n]) == n)
    if engine is None or dataset is None or not all(problem.scoring for problem in problems):
        return Problems(problems=problems, build=build)
    suite, accelerator = planned.suite, planned.case.accelerator
    return job.Job(
        case=planned.case,
        engine=engine,
        dataset=dataset,
        engine_use=planned.engine.use,
        model=model,
        scoring=job.ScoringPlan(
            data=scored,
            scorer=scores,
            written_scorer=planned.scorer,
            answer_forms=_answer_forms(planned),
            problems=problems,
        ),
        elsewhere=other_python,
        build=build,
        expected=planned.data.expected(),
        settings=settings_of(planned),
        seconds_per_run=planned.seconds_per_run,
        find=_search(planned),
        limits=planned.limits,
        latency_limits=latency_limits(planned),
        techniques=planned.techniques,
        gpu=suite.figures.get(split(accelerator)[1]),
        work=suite.work,
        price=suite.price(accelerator),
        replicas=planned.engine.replicas_on(accelerator),
        facts=_facts(planned),
        suite=planned.path,
    )


def _attempt(
    problems: list[job.CaseProblem],
    part: job.Part,
    work: Callable[[], Value],
    *,
    scoring: bool = False,
) -> Value | None:
    try:
        return work()
    except (SuiteError, UnavailableError, EnvironmentFault) as error:
        problems.append(job.CaseProblem(part=part, error=error, scoring=scoring))
        return None


def _search(planned: Planned) -> job.Search | None:
    find = planned.scenario.find
    if find is None:
        return None
    return job.Search(
        conditions=find.subject_to,
        precision=find.precision,
        max_runs=find.max_runs,
        start=find.start_on(planned.case.accelerator),
        bounds=find.bounds,
    )


def _facts(planned: Planned) -> dict[str, str]:
    """Return the fingerprint facts that the suite determines; variables are not expanded."""
    suite, find, points = planned.suite, planned.scenario.find, points_in_words(planned.scenario)
    facts = {
        "engine": planned.engine.use,
        "options": json.dumps(planned.options, sort_keys=True),
        **_data_facts(planned, "performance"),
        "round": suite.round,
        "division": "open" if suite.division == "open" else "",
        "find": find.in_words if find else "",
        "points": points,
        "seed_set": planned.scenario.seed_set,
        "techniques": ", ".join(planned.techniques),
    }
    return {name: text for name, text in facts.items() if text}


def _data_facts(planned: Planned, phase: Phase) -> dict[str, str]:
    return {"dataset.options": json.dumps(planned.data.source(phase).options, sort_keys=True)}


def points_in_words(scenario: ScenarioEntry) -> str:
    """Return the points of a curve and how requests arrive; "" if there are none."""
    points = ", ".join(map(str, scenario.points or ()))
    if scenario.name != Scenario.OPEN_LOOP:
        return points
    shape = f" {scenario.burstiness:g}" if scenario.burstiness else ""
    # Baselines store this text, so it never changes.
    times = "times as fast as its" if scenario.arrivals == "trace" else "requests/s,"
    return f"{points} {times} {scenario.arrivals or 'poisson'}{shape}"


def loaded_extensions(
    planned: Planned, *, scorer: bool
) -> Iterator[tuple[job.Part, registry.Group, str, bool]]:
    """Yield (part, group, name, whether it is for scoring) of each extension this Python loads."""
    step, scores = planned.engine.build, scorer and bool(planned.scorer_name)
    is_here = not planned.elsewhere
    if is_here:
        yield "engine", "engines", planned.engine.use, False
    if is_here or scores:
        yield "dataset", "datasets", planned.data.source("performance").use, not is_here
    if scores and not planned.data.shared:
        yield "dataset", "datasets", planned.data.source("accuracy").use, True
    if scores:
        yield "scorer", "scorers", planned.scorer_name, True
    if step and step.python is None:
        yield "build", "builders", step.use, False


# --- LoadGen ---------------------------------------------------------------------------------


def latency_limits(planned: Planned) -> dict[str, float]:
    """Return LoadGen's latency limits by metric [s]; empty unless the scenario offers a rate."""
    if not planned.case.scenario.rate_is_condition:
        return {}
    tokens = planned.suite.tokens
    return limits_of(planned.scenario, planned.round_scenario, tokens=tokens)


def settings_of(planned: Planned, *, target_qps: float | None = None) -> job.LoadGenSettings:
    """Return LoadGen's settings for a case; the worker finds `target_qps` if it is None."""
    constants, rules = planned.round_scenario, planned.suite.rules
    quick = planned.suite.profile == "quick"
    limits_ns = {name: round(limit * 1e9) for name, limit in latency_limits(planned).items()}
    scenario, points = planned.scenario.name, planned.scenario.run_points
    seconds = planned.seconds_per_run
    shortest_ms = 1 if quick else constants.min_duration_ms
    ramp = planned.scenario.ramp
    return job.LoadGenSettings(
        scenario=scenario.of_loadgen,
        seeds=_seeds(planned),
        target_qps=target_qps,
        min_duration_ms=round(seconds * 1000 / len(points)) if points else shortest_ms,
        min_query_count=planned.fewest_queries if quick else constants.min_query_count,
        fixed_work_s=seconds if quick and not points else None,
        performance_samples=rules.performance_samples if rules else SAMPLES_IN_MEMORY,
        latency_limit_ns=limits_ns.get("latency_p99"),
        tokens=planned.suite.tokens,
        ttft_limit_ns=limits_ns.get("ttft_p99"),
        tpot_limit_ns=limits_ns.get("tpot_p99"),
        latency_percentile=constants.latency_percentile,
        samples_per_query=constants.samples_per_query,
        equal_issue=bool(rules and rules.equal_issue) and not quick,
        points=points,
        ramp_ms=None if ramp is None else round(ramp * 1000),
        arrivals=(planned.scenario.arrivals or "poisson") if scenario == Scenario.OPEN_LOOP else "",
        burstiness=planned.scenario.burstiness,
        max_failed=planned.scenario.max_failed,
    )


def _seeds(planned: Planned) -> job.Seeds:
    seeds, published = load_round(planned.suite.round).seeds, planned.scenario.seed_set
    if published is None:
        return seeds
    new = seed_sets()[published]
    return replace(seeds, sample_index=new.sample_index, schedule=new.scheduler, model=new.model)


# --- model, data set, scorer -----------------------------------------------------------------


def model_of(planned: Planned) -> str | None:
    """Return the absolute path or name of the model; raise UnavailableError if it is missing."""
    entry = planned.engine
    model = planned.suite.workload.model if entry.model is None else entry.model
    return None if model is None else places.resolve_path(planned.path, _model_key(planned), model)


def _model_key(planned: Planned) -> KeyPath:
    if planned.engine.model is None:
        return "workload", "model"
    return (*planned.engine_key, "model")


def dataset_of(planned: Planned, phase: Phase = "performance") -> job.Factory:
    """Return the factory of a phase's data set; check that a registered data set's files exist.

    Raises:
        UnavailableError: A variable is unset, or a file is missing.
        SuiteError: An option is wrong; the message has its line.
    """
    return _dataset_at(planned, planned.data.key(phase), planned.data.source(phase))


def _dataset_at(
    planned: Planned, key: KeyPath, source: DatasetSource | CalibrationSource
) -> job.Factory:
    path, where = source.path, (*key, "path")
    resolved, options = places.all_of(
        lambda: {} if path is None else {"path": places.resolve_path(planned.path, where, path)},
        lambda: places.expand_variables(planned.path, key, source.options),
    )
    options |= resolved
    if look := registry.file_finder(source.use):
        with _located_errors(planned, key, set(options) - {"path"}):
            look(**options)
    return job.Factory(target=registry.target("datasets", source.use), options=options)


def data_of(planned: Planned, phase: Phase) -> job.ScoredData:
    """Return the data set of a phase and its expected size; for errors see `dataset_of`."""
    return job.ScoredData(
        dataset=dataset_of(planned, phase),
        expected=planned.data.expected(phase),
        facts=_data_facts(planned, phase),
    )


def scorer_of(planned: Planned, model: str | None) -> job.Factory | None:
    """Return the scorer's factory, None without a scorer; a registered one is checked first.

    Raises:
        UnavailableError: A variable is unset, or a file is missing.
        SuiteError: An option is wrong; the message has its line.
        EnvironmentFault: This machine lacks something else.
    """
    scorer = built_scorer(planned)
    if scorer is None or planned.scorer_name not in registry.registered("scorers"):
        return scorer
    with _located_errors(planned, ("workload", "scorer"), scorer.options):
        factory = registry.resolve(scorer.target)
        if left_out := getattr(factory, "left_out", None):
            _require_scores(planned, left_out(scorer.options))
        getattr(factory(model=model, **scorer.options), "require", lambda: None)()
    return scorer


def built_scorer(planned: Planned) -> job.Factory | None:
    """Return the scorer's factory with variables and paths expanded; None without a scorer."""
    scorer = planned.scorer
    if scorer is None:
        return None
    expanded = places.expand_variables(planned.path, ("workload", "scorer"), scorer.options)
    options = {
        name: places.resolve_existing(planned.path, value) for name, value in expanded.items()
    }
    return job.Factory(target=scorer.target, options=options)


def _answer_forms(planned: Planned) -> tuple[str, ...]:
    """Return the token id types in answers and in LoadGen's log; empty if both are equal."""
    options, rules = planned.scorer.options if planned.scorer else {}, planned.suite.rules
    # Answers to a round's workload without a scorer may be anything, as text that is attached.
    read_as = options.get("answers", "tokens" if rules and rules.scorer else "")
    if rules is None or read_as not in {"tokens", "ids"}:
        return ()
    forms = str(options.get("dtype", "int64")), rules.log_dtype
    return forms if len({*forms} & TOKEN_CODES.keys()) == 2 else ()


def _require_scores(planned: Planned, left_out: Mapping[str, str]) -> None:
    """Raise SuiteError if the scorer omits a gated metric; `left_out`: {metric: option to set}."""
    suite = planned.suite
    if suite.is_mlperf and suite.profile != "official":
        return  # the gate is then undecided and reports what is missing
    whose = "MLPerf's gate in the official profile" if suite.is_mlperf else "[workload] reference"
    if missing := [name for name in planned.bounds(()) or () if name in left_out]:
        options = " and ".join(left_out[name] for name in missing)
        raise SuiteError(
            f"scorer {planned.scorer_name} leaves out {', '.join(missing)}, which {whose} needs: "
            f"set {options}"
        )


# --- engine and build ------------------------------------------------------------------------


def engine_of(
    planned: Planned, model: str | None, others: Mapping[str, Any] | None = None
) -> job.Factory:
    """Return the engine's factory; a registered engine checks its options.

    Args:
        model: Its model, which a registered engine looks for.
        others: Options that replace the suite's; errors then have no line.

    Raises:
        UnavailableError: A file is missing.
        SuiteError: An option is wrong; the message has its line.
        EnvironmentFault: This machine lacks something else; not raised for another Python.
    """
    entry = planned.engine
    options = places.expand(planned.options if others is None else others)
    if registry.harness(entry.use) and (client := find_python(planned, planned.engine_key, entry)):
        options = {**options, "client": list(client.command)}
    try:
        try_engine(entry.use, options=options, model=model, precision=entry.precision)
    except SuiteError as error:
        location = f"{engine_place(planned, error.options)}: " if others is None else ""
        raise SuiteError(f"{location}{error}") from None
    except UnavailableError as error:
        # A missing model is reported separately; an engine need not set the error's path.
        if model != ABSENT or error.path not in {None, Path(ABSENT)}:
            raise UnavailableError(f"{planned.place(_model_key(planned))}: {error}") from None
    except EnvironmentFault:
        if not planned.elsewhere:
            raise
    return job.Factory(target=registry.target("engines", entry.use), options=options)


def engine_place(planned: Planned, at_fault: Iterable[str]) -> str:
    """Return "file:line" of the first wrong option (`at_fault`) in a case's engine entry."""
    key = planned.engine.key_of(planned.case.accelerator, at_fault)
    return planned.place((*planned.engine_key, *key))


def build_of(
    planned: Planned, model: str | None, dataset: job.Factory | None
) -> job.CheckpointBuild | None:
    """Return the build of a case's checkpoint; None if its entry has none.

    Also returns None if the model or the data set is missing, which is reported separately.

    Raises:
        UnavailableError: The calibration data or the builder's Python is missing.
        SuiteError: An option is wrong.
    """
    table, key = planned.engine.build, (*planned.engine_key, "build")
    if table is None or model is None:
        return None
    try:
        options = places.expand(table.options)
    except SuiteError as error:
        raise SuiteError(f"{planned.place(key)}: {error}") from None
    if dataset is None and isinstance(table.calibration, int):
        return None
    return job.CheckpointBuild(
        use=table.use,
        target=registry.target("builders", table.use),
        recipe=table.recipe,
        options=options,
        written=table.options,
        source=Path(model),
        calibration=_calibration(planned, table, dataset),
        python=find_python(planned, key, table),
        suite=planned.path,
        registered=table.use in registry.registered("builders"),
    )


def _calibration(
    planned: Planned, table: BuildStep, dataset: job.Factory | None
) -> job.CalibrationData | None:
    source, dataset_name = table.calibration, planned.data.source("performance").use
    if source is None:
        return None
    data_sets = registry.registered("datasets")
    if not isinstance(source, CalibrationSource):
        assert dataset is not None
        return job.CalibrationData(
            dataset=dataset, count=source, title=dataset_name, registered=dataset_name in data_sets
        )
    return job.CalibrationData(
        dataset=_dataset_at(planned, (*planned.engine_key, "build", "calibration"), source),
        count=None,
        title=source.use,
        registered=source.use in data_sets,
    )


# --- lines of errors -------------------------------------------------------------------------


@contextlib.contextmanager
def _located_errors(planned: Planned, table: KeyPath, options: Iterable[str]) -> Iterator[None]:
    """Prefix errors of the `with` block with the suite's file and the wrong option's line."""
    try:
        yield
    except SuiteError as error:
        key = (*table, *first_wrong_path(error.options, options))
        raise SuiteError(f"{planned.place(key)}: {error}") from None
    except UnavailableError as error:
        if error.path != Path(ABSENT):  # a missing model is reported separately
            raise UnavailableError(f"{planned.place(table)}: {error}") from None
