"""Resolve performance tests from node ids, suite paths and case names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_mlperf.cli.stored_results import case_named
from pytest_mlperf.cli.suites import SUFFIX, find_suites, node_id, read_suites, rootdir
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.untrusted_text import nearest
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.suite.plan import Planned

_FUNCTION = re.compile(r"test_(\w+?)(?:\[(.*)\])?")


def performance_tests(texts: Sequence[str]) -> tuple[dict[str, Planned], Machine]:
    """Return the performance tests that the arguments name, by node id, and this machine.

    A file or folder selects the cases that can run here. Raises MlperfError for a test that is
    unknown or of another kind, EnvironmentFault if its accelerator is not on this machine.
    """
    chosen = {text: list(_cases(text)) for text in texts}
    every = (case for cases in chosen.values() for case in cases)
    machine = detect(gpus=any(split(one.case.accelerator)[1] != "cpu" for one in every))
    tests: dict[str, Planned] = {}
    for text, cases in chosen.items():
        here = [one for one in cases if machine.has(one.case.accelerator)]
        if not here:
            names = ", ".join(dict.fromkeys(one.case.accelerator for one in cases))
            raise EnvironmentFault(
                f"{text}: accelerator {names} is not on this machine, so pytest deselects the "
                f"test; available: {machine.seen}"
            )
        for case in here:
            tests[node_id(case, Kind.PERFORMANCE, rootdir([case.path]))] = case
    return tests, machine


def _cases(text: str) -> Iterator[Planned]:
    file, _, rest = text.partition("::")
    if not (rest or Path(file).exists() or file.endswith(SUFFIX)):
        planned = read_suites(find_suites([]))
        case = case_named(text, [one.case.id for one in planned])
        yield from _timed(text, [one for one in planned if one.case.id == case])
        return
    planned = read_suites(find_suites([Path(file)]))
    match = _FUNCTION.fullmatch(rest or "test_performance")
    if match is None:
        raise MlperfError(f"{text}: not a test of a suite; write FILE::test_performance[CASE]")
    kind, name = match.groups()
    if kind != Kind.PERFORMANCE:
        raise MlperfError(
            f"{text}: only performance tests can be bisected here; for a score use: "
            f"git bisect run pytest '{text}'"
        )
    ids = [one.case.id for one in planned]
    if name and name not in ids:
        raise MlperfError(f"{file} has no case {name!r}{nearest(name, ids)}")
    yield from _timed(text, [one for one in planned if name in (None, one.case.id)])


def _timed(text: str, planned: Sequence[Planned]) -> Iterator[Planned]:
    timed = [one for one in planned if Kind.PERFORMANCE in one.kinds]
    if not timed:
        raise MlperfError(f"{text}: the suite has no performance test")
    yield from timed
