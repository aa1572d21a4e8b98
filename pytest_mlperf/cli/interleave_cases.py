"""What `compare --interleave` sets side by side, and why some of it may not be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.cli.suites import find_suites
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.hardware.machine import detect, split
from pytest_mlperf.suite.claims import Side, accelerators_of, side_of
from pytest_mlperf.suite.find import LOADED
from pytest_mlperf.suite.plan import Planned, plan_suite

BASELINE = "@baseline"
"""What stands behind an argument that means the build of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What an argument names.

    Attributes:
        text: The argument.
        planned: The cases of the suite.
        entry: The engine entry and its accelerator; None: each that both sides have.
        baseline: The build of the baseline is meant.
    """

    text: str
    planned: Sequence[Planned]
    entry: Side
    baseline: bool

    def case(self, scenario: str, accelerator: str) -> Planned:
        """Return a case of the engine entry."""
        (found,) = [
            one
            for one in self.planned
            if one.engine is self.entry[0]
            and (one.case.scenario, one.case.accelerator) == (scenario, accelerator)
        ]
        return found


def given(text: str) -> Given:
    """Return what an argument names.

    Raises:
        MlperfError: There is no such suite or entry, or several entries are meant.
    """
    file, _, label = text.removesuffix(BASELINE).partition("::")
    (path, *more) = find_suites([Path(file)])
    if more:
        raise MlperfError(f"{file} holds {len(more) + 1} suites; name one of them")
    planned = plan_suite(path)
    suite = planned[0].suite
    if not label and len(suite.engines) > 1:
        names = ", ".join(entry.full_label for entry in suite.engines)
        raise MlperfError(f"{file} has several engine entries: write {file}::LABEL, of {names}")
    try:
        entry = side_of(suite, label) if label else (suite.engines[0], None)
    except LookupError as error:
        raise MlperfError(f"{file}: {error.args[0]}") from None
    baseline = text.endswith(BASELINE)
    if baseline and entry[0].baseline_engine is None:
        raise MlperfError(f"{file}: {entry[0].full_label} has no baseline_engine")
    return Given(text=text, planned=planned, entry=entry, baseline=baseline)


def cases(a: Given, b: Given, wanted: str | None) -> Iterator[tuple[Planned, Planned]]:
    """Yield the cases to set side by side.

    Raises:
        MlperfError: They cannot be compared, or are one and the same; says why.
        EnvironmentFault: An accelerator is not here.
    """
    if reason := _suites_differ(a, b):
        raise MlperfError(f"A and B cannot be compared: {reason}")
    same_file = a.planned[0].path.samefile(b.planned[0].path)
    if same_file and (a.entry, a.baseline) == (b.entry, b.baseline):
        raise MlperfError("A and B are one and the same: there is nothing to compare")
    scenarios = {one.case.scenario: None for one in a.planned}
    known = {one.case.scenario for one in b.planned}
    both = [
        (a.case(scenario, first), b.case(scenario, second))
        for scenario in scenarios
        if scenario in known
        for first, second in _accelerators(a, b)
    ]
    if not both:
        raise MlperfError("A and B have no scenario in common")
    chosen = [two for two in both if wanted in (None, *(one.case.id for one in two))]
    if not chosen:
        names = ", ".join(one.case.id for one, _ in both)
        raise MlperfError(f"no case {wanted!r} on both sides; there: {names}")
    for x, y in chosen:
        if reason := _cases_differ(x, y):
            raise MlperfError(f"{x.case.id} and {y.case.id} cannot be compared: {reason}")
        yield x, y


def _accelerators(a: Given, b: Given) -> list[tuple[str, str]]:
    """Return the accelerators to run on, of those that are here."""
    named = accelerators_of(a.entry, b.entry)
    if not named:
        # Not shared: what is there is told apart by its count, else by naming one.
        ours, theirs = ([e[1]] if e[1] else e[0].accelerators for e in (a.entry, b.entry))
        named = [(ours[0], theirs[0])] if len(ours) == len(theirs) == 1 else []
    if not named:
        raise MlperfError(
            f"A runs on {', '.join(a.entry[0].accelerators)}, B on "
            f"{', '.join(b.entry[0].accelerators)}: name one, FILE::LABEL-ACCELERATOR"
        )
    for first, second in named:
        if split(first)[0] != split(second)[0]:
            raise MlperfError(
                f"A and B cannot be compared: {first} and {second} are other numbers of GPUs"
            )
    gpus = any(split(name)[1] != "cpu" for two in named for name in two)
    machine = detect(gpus=gpus)
    here = [two for two in named if all(map(machine.has, two))]
    if not here:
        wanted = ", ".join(dict.fromkeys(name for two in named for name in two))
        raise EnvironmentFault(f"accelerator {wanted} is not here; here: {machine.seen}")
    return here


def _suites_differ(a: Given, b: Given) -> str:
    """Return why cases of two suites prove nothing about each other; "" where they may."""
    one, other = (side.planned[0].suite for side in (a, b))
    what = {
        "another workload": (one.workload.name, other.workload.name),
        "another MLPerf workload": (one.workload.twin_of, other.workload.twin_of),
        "another division": (one.division, other.division),
        "another round": (one.round, other.round),
        "another profile": (one.profile, other.profile),
    }
    return "; ".join(f"{name}, {x} and {y}" for name, (x, y) in what.items() if x != y)


def _cases_differ(x: Planned, y: Planned) -> str:
    """Return why two cases of one workload may not be compared; "" where they may."""
    if x.factories[1] != y.factories[1]:
        return "another data set, or other options of it"
    one, other = (
        {
            **dataclasses.asdict(each.settings(target_qps=None)),
            "min_duration": each.scenario.min_duration,
        }
        for each in (x, y)
    )
    # How long a run takes follows from its rate, too.
    unlike = [name for name in one if one[name] != other[name] and name != "fixed_work_s"]
    if unlike:
        return "; ".join(f"{name} {one[name]} and {other[name]}" for name in unlike)
    finds = [each.scenario.find.in_words if each.scenario.find else "" for each in (x, y)]
    if finds[0] != finds[1]:
        return f"find {' and '.join(repr(text) for text in finds)}"
    rates = [each.scenario.rate_on(each.case.accelerator) for each in (x, y)]
    if x.case.scenario in LOADED and None not in rates and rates[0] != rates[1]:
        return f"offered rate {rates[0]:g}/s and {rates[1]:g}/s"
    return ""
