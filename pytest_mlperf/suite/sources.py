"""Check that a suite's engines, data set and scorer are installed and take what it says to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.preflight import ABSENT, blamed, engine_key, try_engine
from pytest_mlperf.suite.tables import DatasetSource, EngineEntry
from pytest_mlperf.suite.values import Defect, nearest
from pytest_mlperf.suite.variables import expand, unset_in


def source_defects(suite: Suite) -> Iterator[Defect]:
    """Yield every extension that is not installed, and every option that it does not take."""
    dataset, scorer = suite.workload.dataset, suite.workload.scorer
    options = dataset.options if dataset.path is None else {**dataset.options, "path": ""}
    place = ("workload", "dataset")
    defects = list(_extension_defects("datasets", dataset.use, options, place))
    yield from defects or _dataset_defects(dataset)
    if scorer:
        yield from _extension_defects("scorers", scorer.use, scorer.options, ("workload", "scorer"))
    elif suite.rules and suite.rules.scorer:
        use = suite.rules.scorer
        for _, what in _extension_defects("scorers", use, {}, ()):
            yield ("workload",), f'{what}; write scorer = {{ use = "{use}", ... }} with it'
    for index, engine in enumerate(suite.engines):
        defects = list(
            _extension_defects("engines", engine.use, engine.options, ("engines", index))
        )
        yield from defects or _engine_defects(suite, index)
    yield from _reference_defects(suite)


def _extension_defects(
    group: registry.Group, use: str, options: Mapping[str, Any], where: tuple[str | int, ...]
) -> Iterator[Defect]:
    try:
        registry.target(group, use)
    except SuiteError as error:
        yield (*where, "use"), str(error)
        return
    inside = (*where, "options") if group == "engines" else where
    try:
        registry.check_options(group, use, options)
        if group == "engines":  # of data and scorers it is a path, as a rule: a skip that says so
            expand(options)
    except SuiteError as error:
        yield inside, str(error)
        return
    known = {name: value for name, value in options.items() if not unset_in(value)}
    for name, what in registry.wrong_values(group, use, known).items():
        yield (*inside, name), what


def _dataset_defects(source: DatasetSource) -> Iterator[Defect]:
    """Yield what a registered data set has against the values of its options."""
    look, options = registry.look(source.use), source.options
    if look is None or unset_in(options):
        return
    path = {} if source.path is None else {"path": ABSENT}
    try:
        look(**options, **path)
    except SuiteError as error:
        yield ("workload", "dataset", *blamed(str(error), options)), str(error)
    except Exception:  # what is not here is a skip, and told there; all else by the worker
        return


def _engine_defects(suite: Suite, index: int) -> Iterator[Defect]:
    """Yield what a registered engine has against the values of its options."""
    entry = suite.engines[index]
    named = suite.workload.model if entry.model is None else entry.model
    model = None if named is None else ABSENT
    try:
        try_engine(entry.use, options=expand(entry.options), model=model, precision=entry.precision)
    except SuiteError as error:
        yield engine_key(index, str(error), entry.options), str(error)
        return
    except MlperfError:  # what is not here is a skip, and told there
        pass
    yield from _gpu_defects(entry, index)


def _gpu_defects(entry: EngineEntry, index: int) -> Iterator[Defect]:
    """Yield accelerators whose GPUs a registered engine would not all use, or lack."""
    for accelerator in entry.accelerators:
        count, name = split(accelerator)
        if name == "cpu":
            continue
        try:
            registry.check_gpus(entry.use, count, expand(entry.options))
        except SuiteError as error:
            yield ("engines", index, "accelerators"), f'"{accelerator}": {error}'


def _reference_defects(suite: Suite) -> Iterator[Defect]:
    """Yield every reference score that the scorer never gives, where it says what it gives."""
    workload, rules = suite.workload, suite.rules
    use = workload.scorer.use if workload.scorer else rules.scorer if rules else ""
    known = registry.metrics(use) if use and workload.reference else None
    for name in workload.reference or {}:
        if known is not None and name not in known:
            yield (
                ("workload", "reference", name),
                f"scorer {use!r} gives no {name!r}{nearest(name, known)}",
            )
