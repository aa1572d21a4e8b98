"""The `build` of a case, ready to be carried out: builder, source, calibration data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mlperf import registry
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.run.protocol import Factory
from pytest_mlperf.suite.build_table import BuildStep, CalibrationSource
from pytest_mlperf.suite.elsewhere import Elsewhere, find
from pytest_mlperf.suite.places import available, local, place_of
from pytest_mlperf.suite.variables import expand

if TYPE_CHECKING:
    from pytest_mlperf.suite.plan import Planned


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Samples that a builder looks at.

    Attributes:
        dataset: Where they come from.
        count: How many of them, spread over the data set; None: all.
        title: What results call it.
    """

    dataset: Factory
    count: int | None
    title: str

    @property
    def registered(self) -> bool:
        """The data set is an installed extension, not code of the user's own."""
        return self.title in registry.registered("datasets")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A build step.

    Attributes:
        use: The builder, as the suite names it.
        target: "package.module:name" of it.
        recipe: How it quantises.
        options: Of the builder, variables expanded.
        written: The same as the suite writes them: variables may be secrets.
        source: Folder of the model that is quantised.
        calibration: Samples it looks at, or None.
        python: Another Python that it runs in, or None.
    """

    use: str
    target: str
    recipe: str
    options: Mapping[str, Any]
    written: Mapping[str, Any]
    source: Path
    calibration: Calibration | None
    python: Elsewhere | None

    @property
    def title(self) -> str:
        """What messages call it: "torchao int8"."""
        return f"{self.use} {self.recipe}"

    @property
    def registered(self) -> bool:
        """The builder is an installed extension, not code of the user's own."""
        return self.use in registry.registered("builders")


def build_key(planned: Planned) -> tuple[str | int, ...]:
    """Return the key path of the `build` of a case."""
    return ("engines", planned.suite.engines.index(planned.engine), "build")


def step_of(planned: Planned) -> Step | None:
    """Return the build step of a case; None where its entry has none.

    Raises:
        UnavailableError: The model, the calibration data or the builder's Python is not here.
        SuiteError: A variable in an option is not set.
    """
    named, key = planned.engine.build, build_key(planned)
    if named is None:
        return None
    assert planned.model is not None  # a suite without is refused when it is read
    try:
        options = expand(named.options)
    except SuiteError as error:
        raise SuiteError(f"{place_of(planned.path, key)}: {error}") from None
    return Step(
        use=named.use,
        target=registry.target("builders", named.use),
        recipe=named.recipe,
        options=options,
        written=named.options,
        source=Path(planned.model),
        calibration=_calibration(planned, named),
        python=find(planned, key, named),
    )


def _calibration(planned: Planned, named: BuildStep) -> Calibration | None:
    given = named.calibration
    if given is None:
        return None
    if not isinstance(given, CalibrationSource):
        own = planned.suite.workload.dataset.use
        return Calibration(dataset=planned.factories[1], count=given, title=own)
    key = (*build_key(planned), "calibration")
    path = {} if given.path is None else {"path": local(planned.path, (*key, "path"), given.path)}
    options = {**available(planned.path, key, given.options), **path}
    dataset = Factory(target=registry.target("datasets", given.use), options=options)
    if look := registry.look(given.use):
        try:
            look(**options)
        except (SuiteError, UnavailableError) as error:
            raise type(error)(f"{place_of(planned.path, key)}: {error}") from None
    return Calibration(dataset=dataset, count=None, title=given.use)
