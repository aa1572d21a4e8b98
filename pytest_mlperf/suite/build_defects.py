"""What is wrong with the `build` of a suite's engine entries, said before anything is built."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.core.extension import Builder
from pytest_mlperf.suite.build_table import BuildStep, CalibrationSource
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.preflight import ABSENT, blamed
from pytest_mlperf.suite.tables import EngineEntry
from pytest_mlperf.suite.values import Defect
from pytest_mlperf.suite.variables import expand, unset_in


def build_defects(suite: Suite) -> Iterator[Defect]:
    """Yield every builder that is not installed, and all that it does not take."""
    for index, entry in enumerate(suite.engines):
        if entry.build is not None:
            for where, what in _defects(suite, entry, entry.build):
                yield ("engines", index, "build", *where), what


def _defects(suite: Suite, entry: EngineEntry, step: BuildStep) -> Iterator[Defect]:
    """Yield what is wrong with one step; key paths are relative to it."""
    if entry.model is None and suite.workload.model is None:
        yield (), "there is nothing to quantise: set workload.model to the model's folder"
    try:
        registry.target("builders", step.use)
    except SuiteError as error:
        yield ("use",), str(error)
        return
    yield from _calibration_defects(step.calibration)
    builder = yield from _built(step)
    if builder is not None:
        yield from _fit(entry, step, builder)


def _built(step: BuildStep) -> Generator[Defect, None, Builder | None]:
    """Yield what a registered builder has against its options; return it where there is nothing."""
    found, options = registry.registered("builders").get(step.use), step.options
    if found is None:
        return None
    try:
        registry.check_options("builders", step.use, {**options, "recipe": step.recipe})
        wrong = registry.wrong_values("builders", step.use, options)
        yield from (((name,), what) for name, what in wrong.items())
        if wrong or unset_in(options):
            return None
        built: Any = registry.resolve(found.value)(recipe=step.recipe, **expand(options))
    except SuiteError as error:
        yield blamed(str(error), (*options, "recipe")), str(error)
        return None
    except MlperfError:  # what is not here is told by the first run
        return None
    return built if isinstance(built, Builder) else None


def _fit(entry: EngineEntry, step: BuildStep, builder: Builder) -> Iterator[Defect]:
    """Yield what does not go together."""
    if builder.precision not in {None, entry.precision}:
        yield (
            ("recipe",),
            f"recipe = {step.recipe!r} makes weights of {builder.precision}: write precision = "
            f'"{builder.precision}" in the engine entry, not "{entry.precision}"',
        )
    elif what := _unread(entry.use, step, builder):
        yield ("recipe",), what
    if builder.calibrates and step.calibration is None:
        yield (
            ("recipe",),
            f"recipe = {step.recipe!r} needs samples to look at: write calibration = 64 for so "
            'many of the workload\'s data set, or calibration = { use = "...", path = "..." }',
        )
    if not builder.calibrates and step.calibration is not None:
        yield ("calibration",), f"recipe = {step.recipe!r} looks at no samples: leave it out"


def _unread(use: str, step: BuildStep, builder: Builder) -> str:
    """Return why an engine does not load what a recipe makes; "": it does, or does not say."""
    if not builder.format or _reads(use, builder):
        return ""
    others = [name for name in registry.registered("engines") if _reads(name, builder, said=True)]
    loads = f"engines that load it: {', '.join(sorted(others))}" if others else "none here does"
    return (
        f"engine {use!r} does not load what builder {step.use!r} makes by recipe = "
        f"{step.recipe!r} ({builder.format}, {builder.precision}); {loads}"
    )


def _reads(use: str, builder: Builder, *, said: bool = False) -> bool:
    """Whether an engine loads a builder's checkpoints; of one that does not say, `not said`."""
    entry = registry.registered("engines").get(use)
    formats = getattr(registry.resolve(entry.value), "checkpoints", None) if entry else None
    if formats is None:
        return not said
    return builder.precision in formats.get(builder.format, ())


def _calibration_defects(given: CalibrationSource | int | None) -> Iterator[Defect]:
    if not isinstance(given, CalibrationSource):
        return
    path = {} if given.path is None else {"path": ABSENT}
    try:
        registry.target("datasets", given.use)
    except SuiteError as error:
        yield ("calibration", "use"), str(error)
        return
    try:
        registry.check_options("datasets", given.use, {**given.options, **path})
    except SuiteError as error:
        yield ("calibration", *blamed(str(error), given.options)), str(error)
