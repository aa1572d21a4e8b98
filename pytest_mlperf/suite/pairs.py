"""Plan the pairs of engine entries that a suite makes claims about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.judge.ratio import FIRST_LOOK
from pytest_mlperf.suite.benchmarks import PlannedBenchmark
from pytest_mlperf.suite.claims import accelerators_of, metric_of, scenario_of, side_of
from pytest_mlperf.suite.load import line_of
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.plan import Planned, url_of
from pytest_mlperf.suite.tables import PairEntry


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedPair:
    """Hold a claim about two cases; pytest's collection and reports use it like a `Planned`.

    Objects are compared by identity, because pytest hashes every parameter to order tests.

    Attributes:
        case: Case of the pair; engine, precision and accelerator are "a-vs-b" if they differ.
        a: Case that must be better.
        b: Case that it is compared with.
        least: Minimum factor by which `a` must be better than `b` in `metric`.
    """

    case: Case
    a: Planned
    b: Planned
    metric: str
    least: float
    line: int
    kinds: tuple[Kind, ...] = (Kind.PAIR,)
    fewest_runs: int = FIRST_LOOK

    @property
    def suite(self) -> Suite:
        """Suite that contains this pair, parsed from its file."""
        return self.a.suite

    @property
    def path(self) -> Path:
        """Path of the suite file."""
        return self.a.path

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators that the two cases need, without duplicates."""
        return tuple(dict.fromkeys((*self.a.accelerators, *self.b.accelerators)))

    @property
    def limit_w(self) -> int | None:
        """Power limit of both cases [W]; None if it is not set, or if they differ."""
        return self.a.limit_w if self.a.limit_w == self.b.limit_w else None

    @property
    def techniques(self) -> tuple[str, ...]:
        """Open-division techniques that either engine entry declares."""
        return tuple(dict.fromkeys((*self.a.techniques, *self.b.techniques)))

    @property
    def elsewhere(self) -> str:
        """Other Pythons in which the two entries' engines run, as text; "" if both use this one."""
        return " and ".join(dict.fromkeys(filter(None, (self.a.elsewhere, self.b.elsewhere))))

    @property
    def limits(self) -> dict[str, float]:
        """Empty, because a pair is not compared with a baseline."""
        return {}

    @property
    def runs_per_value(self) -> tuple[int, int]:
        """Usual and maximum number of processes per measured value; above 1 only in a search."""
        return self.a.runs_per_value

    @property
    def seconds_per_run(self) -> float:
        """Planned length of the timed parts of one run of each case [s]."""
        return self.a.seconds_per_run + self.b.seconds_per_run


SuiteTest = Planned | PlannedPair
PlannedCase = Planned | PlannedBenchmark
Testable = SuiteTest | PlannedBenchmark


def case_ids(planned: Testable) -> list[str]:
    """Return the id of a case; for a pair, the ids of the pair and its two cases."""
    sides = (planned.a, planned.b) if isinstance(planned, PlannedPair) else ()
    return [planned.case.id, *(side.case.id for side in sides)]


def has_server(planned: Testable) -> bool:
    """Return whether a case, or both cases of a pair, measure a server that already runs."""
    sides = (planned.a, planned.b) if isinstance(planned, PlannedPair) else (planned,)
    return all(map(url_of, sides))


def plan_pairs(planned: Sequence[Planned]) -> list[PlannedPair]:
    """Return the pairs among all cases of a valid suite, in the order of the file."""
    suite, path = planned[0].suite, planned[0].path
    if not suite.pairs:
        return []
    text = path.read_text("utf-8-sig")
    cases: dict[tuple[int, str, str], Planned] = {
        (id(p.engine), p.case.accelerator, p.case.scenario): p for p in planned
    }
    pairs = []
    for index, entry in enumerate(suite.pairs):
        a, b = side_of(suite, entry.a), side_of(suite, entry.b)
        scenario = scenario_of(suite, entry)
        for on_a, on_b in accelerators_of(a, b):
            case_a, case_b = (cases[id(a[0]), on_a, scenario], cases[id(b[0]), on_b, scenario])
            pairs.append(
                PlannedPair(
                    case=_pair_case(entry, case_a.case, case_b.case),
                    a=case_a,
                    b=case_b,
                    metric=metric_of(suite, entry),
                    least=entry.expect,
                    line=line_of(text, ("pairs", index)),
                )
            )
    return pairs


def _pair_case(entry: PairEntry, a: Case, b: Case) -> Case:
    def both(text_a: str, text_b: str) -> str:
        return text_a if text_a == text_b else f"{text_a}-vs-{text_b}"

    return Case(
        workload=a.workload,
        scenario=a.scenario,
        engine=entry.name or both(a.engine, b.engine),
        precision=both(a.precision, b.precision),
        accelerator=both(a.accelerator, b.accelerator),
    )
