"""What the other cases of a session say about one that got worse, or better."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.numbers import percent, points
from pytest_mlperf.core.verdict import Outcome, Verdict

DROPS = frozenset(
    {
        Outcome.PERF_DROP,
        Outcome.POWER_DROP,
        Outcome.ACC_DROP,
        Outcome.GATE_FAIL,
        Outcome.SUSPECT,
    }
)
KEPT = frozenset({Outcome.OK, Outcome.IMPROVED})


@dataclass(frozen=True, kw_only=True)
class Points:
    """Where else it happened.

    Attributes:
        says: Sentences with their numbers, each with whether it tells one part from another.
        points_to: "engine" or "machine" where the cases tell them apart, else "".
    """

    says: tuple[tuple[str, bool], ...] = ()
    points_to: Literal["engine", "machine", ""] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """A verdict that something was found by, with what is asked of it again and again."""

    case: str
    verdict: Verdict
    engine: str
    moved: int
    share: float | None
    points: float | None


class Siblings(tuple[Verdict, ...]):
    """Verdicts of a session, sorted once however many of them are explained."""

    @cached_property
    def by_engine(self) -> Mapping[tuple[Kind, str], Sequence[_Judged]]:
        """What was judged, by kind and engine."""
        return self._grouped(lambda one: one.engine)

    @cached_property
    def by_accelerator(self) -> Mapping[tuple[Kind, str], Sequence[_Judged]]:
        """What was judged, by kind and accelerator."""
        return self._grouped(lambda one: one.verdict.case.accelerator)

    @cached_property
    def _judged(self) -> Collection[_Judged]:
        """The last verdict of each kind and case."""
        last = {}
        for verdict in self:
            way = moved(verdict)
            if way is not None:
                case = verdict.case.id
                last[verdict.kind, case] = _Judged(
                    case=case,
                    verdict=verdict,
                    engine=_engine(verdict),
                    moved=way,
                    share=_largest(verdict),
                    points=_points(verdict),
                )
        return last.values()

    def _grouped(
        self, key: Callable[[_Judged], str]
    ) -> Mapping[tuple[Kind, str], Sequence[_Judged]]:
        groups: dict[tuple[Kind, str], list[_Judged]] = defaultdict(list)
        for one in self._judged:
            groups[one.verdict.kind, key(one)].append(one)
        return groups


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Cases with a verdict, and those among them that went the same way."""

    cases: Sequence[_Judged]
    same: Sequence[_Judged]

    @property
    def counted(self) -> str:
        return f"{len(self.same)} of {len(self.cases)}"


def moved(verdict: Verdict) -> int | None:
    """Return -1 where something got worse, proven, +1 where it got better, 0 where neither.

    None where nothing was judged: no baseline, an error, undecided. The outcomes of the metrics
    count, for the test's own may be INVALID because of the machine, or expected.
    """
    if verdict.ratio or verdict.outcome is Outcome.ERROR:
        return None
    outcomes = {
        verdict.outcome,
        *(metric.outcome for metric in verdict.metrics),
        *(metric.outcome for metric in verdict.paired),
    }
    if outcomes & DROPS:
        return -1
    if Outcome.INCONCLUSIVE in outcomes:
        return None
    if Outcome.IMPROVED in outcomes:
        return 1
    return 0 if outcomes & KEPT else None


def siblings_of(verdict: Verdict, others: Sequence[Verdict], direction: int) -> Points:
    """Return what other cases say that were judged on the same question.

    Args:
        verdict: The verdict to explain.
        others: Verdicts of the session; as `Siblings` where many are explained.
        direction: -1 where the verdict got worse, +1 where it got better.
    """
    session = others if isinstance(others, Siblings) else Siblings(others)
    mine, here, case = _engine(verdict), verdict.case.accelerator, verdict.case.id
    of_engine = session.by_engine.get((verdict.kind, mine), ())
    beside = session.by_accelerator.get((verdict.kind, here), ())
    engine = _group([one for one in of_engine if one.case != case], direction)
    rest = _group([one for one in beside if one.engine != mine and one.case != case], direction)
    way = "worse" if direction < 0 else "better"
    if rest.cases and len(rest.same) * 2 > len(rest.cases):
        return _everywhere(engine, rest, way, verdict)
    if engine.same:
        return _same_engine(engine, rest, way, verdict)
    return _only_here(engine, rest, way, mine)


def _group(judged: Sequence[_Judged], direction: int) -> _Group:
    return _Group(cases=judged, same=[one for one in judged if one.moved == direction])


def _everywhere(engine: _Group, rest: _Group, way: str, verdict: Verdict) -> Points:
    names = sorted({one.engine for one in rest.cases})
    also = f", and {engine.counted} others of {_engine(verdict)}" if engine.cases else ""
    says = (
        f"{rest.counted} cases of other engines on {verdict.case.accelerator} "
        f"({', '.join(names)}) got {way} as well, by {_by(rest.same)}{also}: the machine, its "
        "driver or what all of them share"
    )
    whole = len(rest.same) == len(rest.cases)
    return Points(says=((says, whole),), points_to="machine" if whole else "")


def _same_engine(engine: _Group, rest: _Group, way: str, verdict: Verdict) -> Points:
    workloads = [one.case.workload for one in (verdict, *(o.verdict for o in engine.cases))]
    models = "models" if len(set(workloads)) == len(workloads) else "cases"
    says = (
        f"{_engine(verdict)} got {way} in {engine.counted} other {models} too, "
        f"by {_by(engine.same)}"
    )
    if not rest.cases:
        return Points(says=((says, False),))
    clear = not rest.same and len(engine.same) * 2 > len(engine.cases)
    says += f"; of other engines on {verdict.case.accelerator} {rest.counted}"
    return Points(says=((says, clear),), points_to="engine" if clear else "")


def _only_here(engine: _Group, rest: _Group, way: str, name: str) -> Points:
    told = []
    if engine.cases:
        told.append(f"{engine.counted} other cases of {name}")
    if rest.cases:
        told.append(f"{rest.counted} of other engines")
    if not told or rest.same:
        return Points()
    return Points(says=((f"only this case: {' and '.join(told)} got {way}", False),))


def _engine(verdict: Verdict) -> str:
    """Return what tells engines apart: what the entry uses, else its name."""
    fingerprint = verdict.subject.fingerprint if verdict.subject else {}
    return fingerprint.get("engine", verdict.case.engine)


def _by(cases: Sequence[_Judged]) -> str:
    """Return by how much each case changed at most: "5.1 % to 7.9 %"."""
    shares = sorted(one.share for one in cases if one.share is not None)
    if not shares:
        scores = sorted(one.points for one in cases if one.points is not None)
        ends = dict.fromkeys(points(x)[1:] for x in scores[:1] + scores[-1:])
        return f"{' to '.join(ends)} points" if ends else "what their own messages say"
    return " to ".join(dict.fromkeys(percent(x) for x in (shares[0], shares[-1])))


def _largest(verdict: Verdict) -> float | None:
    """Return the size of the largest proven change of a metric, as a share."""
    sizes = [
        abs(m.change)
        for m in verdict.metrics
        if m.change is not None and m.outcome in DROPS | {Outcome.IMPROVED}
        if m.metric in METRICS and METRICS[m.metric].direction is not Direction.NEITHER
    ]
    return max(sizes, default=None)


def _points(verdict: Verdict) -> float | None:
    sizes = [abs(p.change) for p in verdict.paired if p.outcome in DROPS | {Outcome.IMPROVED}]
    return max(sizes, default=None)
