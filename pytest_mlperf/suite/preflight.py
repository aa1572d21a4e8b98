"""Whether a case can run, asked before anything is measured: nothing is loaded, all is told."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pytest_mlperf import registry
from pytest_mlperf.core.errors import (
    EnvironmentFault,
    MlperfError,
    RunError,
    SuiteError,
    UnavailableError,
)
from pytest_mlperf.suite.build_step import step_of
from pytest_mlperf.suite.elsewhere import elsewhere
from pytest_mlperf.suite.libraries import require_libraries
from pytest_mlperf.suite.places import place_of
from pytest_mlperf.suite.variables import expand

if TYPE_CHECKING:
    from pytest_mlperf.suite.plan import Planned

ABSENT = "/there/is/no/model"
"""Stands for a model that is not here, where options are to be checked all the same."""

Part = Literal["python", "model", "dataset", "build", "engine", "scorer"]
Problem = tuple[Part, MlperfError]


def problems(planned: Planned, *, scorer: bool) -> list[Problem]:
    """Return everything that keeps a case from running, as far as this can be told beforehand.

    Files are looked for and not read; code of the user's own is not imported.

    Args:
        planned: The case.
        scorer: Its accuracy is wanted too.
    """
    asks: list[tuple[Part, Callable[[], object]]] = [
        ("python", lambda: elsewhere(planned)),
        ("model", lambda: planned.model),
        ("dataset", lambda: planned.factories),
        ("build", lambda: step_of(planned)),
        ("engine", lambda: require_engine(planned)),
    ]
    if scorer:
        asks.append(("scorer", planned.require_scorer))
    for part, group, use in needing(planned, scorer=scorer):
        asks.append((part, functools.partial(require_libraries, group, use)))
    found: list[Problem] = []
    for part, ask in asks:
        try:
            ask()
        except (SuiteError, UnavailableError, EnvironmentFault) as error:
            if str(error) not in {str(known) for _, known in found}:
                found.append((part, error))
    return found


def needing(planned: Planned, *, scorer: bool) -> Iterator[tuple[Part, registry.Group, str]]:
    """Yield what of a case needs libraries in this Python: its part, group and name.

    Args:
        planned: The case.
        scorer: Its accuracy is wanted too; a scorer reads the references here.
    """
    step, scores = planned.engine.build, scorer and planned.scorer_name
    if not planned.elsewhere:
        yield "engine", "engines", planned.engine.use
    if not planned.elsewhere or scores:
        yield "dataset", "datasets", planned.suite.workload.dataset.use
    if scores:
        yield "scorer", "scorers", planned.scorer_name
    if step and step.python is None:
        yield "build", "builders", step.use


def require(found: Iterable[Problem]) -> None:
    """Raise what `problems` found, in one error; what a scorer lacks beside files is let pass.

    Raises:
        SuiteError: Something in the suite is wrong.
        UnavailableError: Something is not here.
        RunError: Something else is lacking, as a library.
    """
    by_kind: dict[type[MlperfError], list[str]] = {}
    for part, error in found:
        if isinstance(error, EnvironmentFault) and part != "scorer":
            raise RunError(part, str(error))
        by_kind.setdefault(type(error), []).append(str(error))
    if SuiteError in by_kind:
        raise SuiteError("\n".join(by_kind[SuiteError]))
    if UnavailableError in by_kind:
        raise UnavailableError("; also ".join(by_kind[UnavailableError]))


# --- engines ---------------------------------------------------------------------------------


def require_engine(planned: Planned) -> None:
    """Let a registered engine check its options and look for its model.

    Raises:
        UnavailableError: A file is not here.
        SuiteError: An option is wrong; names its line.
        EnvironmentFault: This machine lacks something else; what runs in another Python needs
            nothing of this one.
    """
    entry = planned.engine
    options = expand(entry.options)
    try:
        try_engine(entry.use, options=options, model=_model(planned), precision=entry.precision)
    except SuiteError as error:
        raise SuiteError(f"{engine_place(planned, str(error))}: {error}") from None
    except UnavailableError as error:
        if ABSENT not in str(error):
            raise UnavailableError(f"{_place(planned, planned.model_key)}: {error}") from None
    except EnvironmentFault:
        if not planned.elsewhere:
            raise


def try_engine(use: str, *, options: Mapping[str, Any], model: str | None, precision: str) -> None:
    """Build a registered engine, which checks options and looks for its model; load nothing.

    Raises:
        SuiteError: An option is wrong.
        UnavailableError: The model is not here.
        EnvironmentFault: This machine lacks something else.
    """
    known = registry.registered("engines").get(use)
    if known is None:
        return
    registry.check_options("engines", use, options)
    for what in registry.wrong_values("engines", use, options).values():
        raise SuiteError(f"engine {use}: {what}")
    try:
        registry.resolve(known.value)(dataset=None, model=model, precision=precision, **options)
    except MlperfError:
        raise
    except ValueError as error:
        raise SuiteError(str(error)) from None
    except Exception:  # noqa: S110 - one that wants its data set at once: the worker will see
        pass


def engine_key(index: int, message: str, options: Iterable[str]) -> tuple[str | int, ...]:
    """Return the key path of what a message about an engine entry names first."""
    named = blamed(message, (*options, "precision"))
    return ("engines", index, *(() if named == ("precision",) else ("options",)), *named)


def engine_place(planned: Planned, message: str) -> str:
    """Return file and line of what a message about a case's engine names first."""
    index = planned.suite.engines.index(planned.engine)
    return _place(planned, engine_key(index, message, planned.engine.options))


# --- scorers, and where errors stand ---------------------------------------------------------


def require_scorer(planned: Planned) -> None:
    """Let a registered scorer look for what it needs.

    Raises:
        UnavailableError: A file is not here.
        SuiteError: An option is wrong; names its line.
        EnvironmentFault: This machine lacks something else.
    """
    scorer = planned.built_scorer
    if scorer is None or planned.scorer_name not in registry.registered("scorers"):
        return
    with placed(planned, ("workload", "scorer"), scorer.options):
        factory = registry.resolve(scorer.target)
        if asked := getattr(factory, "left_out", None):
            _require_scores(planned, asked(scorer.options))
        built = factory(model=_model(planned), **scorer.options)
        getattr(built, "require", lambda: None)()


def _require_scores(planned: Planned, left_out: Mapping[str, str]) -> None:
    """Refuse a scorer that leaves out what the gate must have, before anything is measured.

    Args:
        planned: The case.
        left_out: Metrics that the scorer's options leave out, with the option that gives each.

    Raises:
        SuiteError: The official profile, or a reference of the suite's own, needs one of them.
    """
    suite = planned.suite
    if suite.is_mlperf and suite.profile != "official":
        return  # the gate is then not decided, and says without what
    whose = "MLPerf's gate in the official profile" if suite.is_mlperf else "[workload] reference"
    if missing := [name for name in planned.bounds(()) or () if name in left_out]:
        options = " and ".join(left_out[name] for name in missing)
        raise SuiteError(
            f"scorer {planned.scorer_name} leaves out {', '.join(missing)}, which {whose} needs: "
            f"set {options}"
        )


@contextlib.contextmanager
def placed(
    planned: Planned, where: tuple[str | int, ...], options: Iterable[str]
) -> Iterator[None]:
    """Put file and line of the option that is at fault in front of an error.

    Args:
        planned: The case.
        where: The table with the options.
        options: Their names.
    """
    try:
        yield
    except SuiteError as error:
        key = (*where, *blamed(str(error), options))
        raise SuiteError(f"{_place(planned, key)}: {error}") from None
    except UnavailableError as error:
        # It names paths, in which any word may stand.
        if ABSENT not in str(error):
            raise UnavailableError(f"{_place(planned, where)}: {error}") from None


def _model(planned: Planned) -> str | None:
    """Return the model, or a path where none is: that it is not here is told once, elsewhere."""
    try:
        return planned.model
    except UnavailableError:
        return ABSENT


def _place(planned: Planned, where: tuple[str | int, ...]) -> str:
    is_suite = planned.path.suffix == ".toml"
    return place_of(planned.path, where) if is_suite else f"{planned.path}:{planned.line}"


def blamed(message: str, options: Iterable[str]) -> tuple[str, ...]:
    """Return the option that a message names first, as the end of a key path; () for none.

    Of several, as `providers`, a message may name one.
    """
    places = {
        option: found.start()
        for option in options
        if (found := re.search(rf"\b{re.escape(option.removesuffix('s'))}s?\b", message))
    }
    return (min(places, key=places.__getitem__),) if places else ()
