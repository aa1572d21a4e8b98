"""Check that every engine, data set and scorer of a suite is installed and takes its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.values import Defect
from pytest_mlperf.suite.variables import expand


def source_defects(suite: Suite) -> Iterator[Defect]:
    """Yield every extension that is not installed, and every option that it does not take."""
    dataset, scorer = suite.workload.dataset, suite.workload.scorer
    options = dataset.options if dataset.path is None else {**dataset.options, "path": ""}
    yield from _extension_defects("datasets", dataset.use, options, ("workload", "dataset"))
    if scorer:
        place = ("workload", "scorer")
        yield from _extension_defects("scorers", scorer.use, scorer.options, place)
    elif suite.rules and suite.rules.scorer:
        use = suite.rules.scorer
        for _, what in _extension_defects("scorers", use, {}, ()):
            yield ("workload",), f'{what}; write scorer = {{ use = "{use}", ... }} with it'
    for index, engine in enumerate(suite.engines):
        yield from _extension_defects("engines", engine.use, engine.options, ("engines", index))


def _extension_defects(
    group: registry.Group, use: str, options: Mapping[str, Any], where: tuple[str | int, ...]
) -> Iterator[Defect]:
    try:
        registry.target(group, use)
    except SuiteError as error:
        yield (*where, "use"), str(error)
        return
    try:
        registry.check_options(group, use, options)
        if group == "engines":  # of data and scorers it is a path, as a rule: a skip that says so
            expand(options)
    except SuiteError as error:
        yield (*where, "options") if group == "engines" else where, str(error)
