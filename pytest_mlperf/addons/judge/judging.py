"""Judge the runs of one side against those of another, point by point and metric by metric."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import NamedTuple

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.files import readers
from pytest_mlperf.addons.judge.model import (
    QUANTITIES,
    RANKS,
    SUCCESS,
    Fact,
    Point,
    Quantity,
    Run,
    named,
    split,
)
from pytest_mlperf.core.rulings.sides import Pooled, pooled
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.formulas import bound_of, raw
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.judge.ratio import judge_drop
from pytest_mlperf.judge.rule_a import RuleA, ScorePairs, holm, judge_pairs
from pytest_mlperf.judge.rule_r import RuleR, Value

RULE = RuleR()

IMPLAUSIBLE_GAIN, IMPLAUSIBLE_LOSS = 4.0, 10.0
"""Factors beyond which a change more likely has another cause than the code: work that was not
done, a warm cache, another unit."""

SAME_RATE = 0.05
"""Relative difference of throughputs below which a token latency should be the same as well."""

CURVE = "curve"
"""Name of the point that judges all points of a curve as one."""

NOT_PROVEN = "not proven: one session a side"

DECIDING = (
    *(Outcome.PERF_DROP, Outcome.ACC_DROP, Outcome.INVALID, Outcome.SUSPECT),
    *(Outcome.PROVISIONAL, Outcome.INCONCLUSIVE, Outcome.OK, Outcome.IMPROVED),
)
"""Outcomes in the order in which they decide a comparison: a proven drop first."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hold what the user decides.

    Attributes:
        limits: Smallest changes that matter, as shares, by metric or by base of metrics.
        metrics: Metrics or bases to judge; empty for the usual ones.
        allow_missing: Whether points of one side alone are notes.
        ignored: Facts that may differ.
        session_by: Field that tells the session of a run; None for day, host and commit.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    allow_missing: bool = False
    ignored: tuple[str, ...] = ()
    session_by: str | None = None

    def limit(self, metric: str, quantity: Quantity) -> float:
        """Return the limit of a metric."""
        return self.limits.get(metric, self.limits.get(split(metric)[0], quantity.limit))

    def names(self, metric: str) -> bool:
        """Check whether the user named a metric."""
        return any(name in self.metrics for name in (metric, split(metric)[0]))


@dataclass(frozen=True, kw_only=True)
class Row:
    """Hold the verdict on one metric of a point.

    Attributes:
        outcome: None if the metric is only reported.
        change, low, high: Relative change of the value; points of a score for `absolute` rows.
        p: Probability that unchanged code looks this bad; None if not judged.
        direction: For an undecided row the answer that is likely.
    """

    tool: str
    point: str
    metric: str
    outcome: Outcome | None
    quantity: Quantity
    before: float | None = None
    now: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    runs: tuple[int, int] = (0, 0)
    sessions: tuple[int, int] = (0, 0)
    note: str = ""
    p: float | None = None
    direction: str | None = None
    absolute: bool = False

    @property
    def title(self) -> str:
        """The metric in words."""
        return self.quantity.title


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold all rows of a comparison, and how they were judged.

    Attributes:
        how: How the runs were judged, and the error rate, in words.
        changed: What differs and may differ: versions, flags, host.
        one_session: Whether a side has a single session, so that nothing is proven.
    """

    rows: tuple[Row, ...]
    how: str
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    one_session: bool = False
    interleaved: bool = False

    @property
    def outcome(self) -> Outcome:
        """The outcome of the whole."""
        outcomes = {row.outcome for row in self.rows if row.outcome}
        return min(outcomes, key=DECIDING.index, default=Outcome.NOT_EVALUATED)


class Measured(NamedTuple):
    """A point with the run that it belongs to, and the run's session."""

    run: Run
    point: Point
    session: str


Points = Mapping[tuple[str, str], Sequence[Measured]]


def compare(base: Sequence[Run], now: Sequence[Run], settings: Settings) -> Comparison:
    """Judge the runs of `now` against those of `base`.

    With runs of both sides in turns on one host, pairs of neighbours are judged; else all runs of
    both sides in one analysis, session by session. Proven drops stay below an error of `alpha` for
    the whole comparison (Holm), an ok below `beta` for each metric.
    """
    old, new = (_points(side, settings) for side in (base, now))
    interleaved = in_turns(base, now, settings)
    sessions = tuple(len({m.session for ms in side.values() for m in ms}) for side in (old, new))
    rows = list(_missing(old, new, settings))
    notes: list[str] = []
    tasks: list[_Task] = []
    scored: list[_Scored] = []
    for key in [key for key in old if key in new]:
        case = _Case(key, old[key], new[key], settings)
        notes += case.notes
        rows += case.settled
        tasks += case.tasks
        scored += case.scored
    tasks += _curves(old, tasks)
    one_session = not interleaved and bool(tasks) and min(sessions) < 2 and max(sessions) < 3
    alpha = RULE.alpha / max(len(tasks) + len(scored), 1)
    rows += _decided(tasks, alpha * len(tasks), interleaved=interleaved, one_session=one_session)
    rows += [_of_scores(one, RuleA(alpha=alpha, beta=RULE.beta)) for one in scored]
    order = {key: place for place, key in enumerate([*old, *new])}
    rows.sort(key=lambda row: (order.get((row.tool, row.point), len(order)), *_in_order(row)))
    return Comparison(
        rows=tuple(rows),
        how=_how(tasks, scored, interleaved=interleaved),
        changed=tuple(_changed(base, now)),
        notes=tuple(dict.fromkeys(notes)),
        one_session=one_session,
        interleaved=interleaved,
    )


def _in_order(row: Row) -> tuple[bool, int, str]:
    """Return a key that sorts the rows of a point as `QUANTITIES`, reported ones last."""
    base, statistic = split(row.metric)
    place = _PLACES.get(base, len(_PLACES))
    return row.outcome is None, place, statistic.replace("mean", "")


_PLACES = {name: place for place, name in enumerate((SUCCESS, *QUANTITIES))}


def session_of(run: Run, by: str | None) -> str:
    """Return the session of a run: its day, host and commit, else its folder.

    Raises:
        KeyError: The run has no such field.
    """
    if by is not None:
        return _field(run, by)
    if run.started is None:
        return f"{run.folder} {run.host or ''} {run.commit or ''}"
    return f"{_field(run, 'date')} {run.host or ''} {run.commit or ''}"


def _field(run: Run, name: str) -> str:
    if name == "date" and run.started is not None:
        return dt.datetime.fromtimestamp(run.started, dt.UTC).date().isoformat()
    own = {"file": run.source, "folder": run.folder, "host": run.host, "commit": run.commit}
    value = {**run.told, "version": run.version, **own}.get(name)
    if value is None:
        raise KeyError(name)
    return value


def in_turns(base: Sequence[Run], now: Sequence[Run], settings: Settings) -> bool:
    """Check by time stamps whether the runs of both sides alternated on one host.

    Each side has one run in each pair of neighbours; there are two pairs at least.
    """
    runs = [*base, *now]
    hosts = {run.host for run in runs}
    if len(hosts) != 1 or (None in hosts and "host" not in settings.ignored):
        return False
    if len(base) != len(now) or len(base) < 2 or settings.session_by:
        return False
    stamped = [(run.started, side) for side, of in enumerate((base, now)) for run in of]
    if any(started is None for started, _ in stamped):
        return False
    sides = [side for _, side in sorted(stamped, key=lambda pair: pair[0] or 0.0)]
    pairs = list(zip(sides[::2], sides[1::2], strict=True))
    return all(first != second for first, second in pairs)


def _points(runs: Sequence[Run], settings: Settings) -> dict[tuple[str, str], list[Measured]]:
    points: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for run in runs:
        session = session_of(run, settings.session_by)
        for point in run.points:
            points[run.tool, point.name].append(Measured(run, point, session))
    return dict(points)


def _missing(old: Points, new: Points, settings: Settings) -> Iterator[Row]:
    tools = [{tool for tool, _ in side} for side in (old, new)]
    if not tools[0] & tools[1]:
        names = [
            ", ".join(sorted(readers()[t].title if t in readers() else t for t in side))
            for side in tools
        ]
        yield _row(
            (", ".join(sorted(tools[0])), "all points"),
            "tool",
            Outcome.INVALID,
            note=f"tool differs: {names[0]} before, {names[1]} now; two tools count differently",
        )
        return
    for side, other, name in ((old, new, "the baseline"), (new, old, "the new runs")):
        for key in side:
            if key not in other:
                outcome = None if settings.allow_missing else Outcome.INVALID
                yield _row(key, "point", outcome, note=f"only {name} has this point")


def _row(key: tuple[str, str], metric: str, outcome: Outcome | None, **more: object) -> Row:
    quantity = more.pop("quantity", None)
    if not isinstance(quantity, Quantity):
        quantity = named(metric) or Quantity(metric, "", Direction.NEITHER)
    row = Row(tool=key[0], point=key[1], metric=metric, outcome=outcome, quantity=quantity)
    return replace(row, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Hold the values of a metric that is to be judged."""

    row: Row
    old: Sequence[Value]
    new: Sequence[Value]
    guard: str = ""  # an unknown condition: a drop is undecided

    @property
    def ratio(self) -> float:
        logs = [fmean(math.log(v.value) for v in side) for side in (self.old, self.new)]
        return math.exp(logs[1] - logs[0])


class _Scored(NamedTuple):
    """The runs of a point with the same score on both sides."""

    row: Row
    old: Sequence[Measured]
    new: Sequence[Measured]


class _Case:
    """Prepare one point: compare its facts, then list what may be judged."""

    def __init__(
        self,
        key: tuple[str, str],
        old: Sequence[Measured],
        new: Sequence[Measured],
        settings: Settings,
    ) -> None:
        self.key, self.old, self.new, self.settings = key, old, new, settings
        self.notes: list[str] = []
        self.settled: list[Row] = []
        self.tasks: list[_Task] = []
        self.scored: list[_Scored] = []
        self._whole = ""
        self._parts: dict[str, str] = {}
        self._guards: dict[str, str] = {}
        self._compare_facts()
        if self._broken() or self._requests():
            return
        self._metrics()
        self._accuracy()

    def _compare_facts(self) -> None:
        first = self.old[0].point.facts
        names = dict.fromkeys(name for m in (*self.old, *self.new) for name in m.point.facts)
        for name in names:
            if name in self.settings.ignored:
                self._note_ignored(name)
                continue
            before = first.get(name, Fact(None))
            for side in (self.old, self.new):
                for measured in side:
                    fact = measured.point.facts.get(name, Fact(None))
                    source = measured.run.source if side is self.old else ""
                    self._compare(name, before, fact, source)

    def _note_ignored(self, name: str) -> None:
        known = {m.point.facts.get(name, Fact(None)).text for m in (*self.old, *self.new)}
        if len(known) > 1 or known == {"not recorded"}:
            texts = " and ".join(sorted(known))
            self.notes.append(f"{name} is taken as equal, as you asked: {texts}")

    def _compare(self, name: str, before: Fact, fact: Fact, in_baseline: str) -> None:
        """Compare a fact of a run with the baseline's first; `in_baseline` is its file there."""
        bases = fact.bases or before.bases
        if before.value is None and fact.value is None:
            if before.needed or fact.needed:
                text = f"{name} is not recorded; if it is equal, say --ignore '{name}'"
                self._guards.update(dict.fromkeys(bases, text))
            return
        if before.value is None or fact.value is None:
            side = "the baseline" if in_baseline or before.value is None else "the new runs"
            self.notes.append(f"{name}: not recorded in {side}")
            return
        if before.agrees(fact):
            return
        reason = f"{name} differs: {before.text} before, {fact.text} now"
        if in_baseline:
            reason = f"{name} differs inside the baseline: {before.text}, and {fact.text} in "
            reason += in_baseline
        if bases:
            self._parts = {**dict.fromkeys(bases, reason), **self._parts}
        self._whole = self._whole or ("" if bases else reason)

    def _broken(self) -> bool:
        """Judge points that failed as a whole; they have no figures."""
        texts = [[m.point.broken for m in side if m.point.broken] for side in (self.old, self.new)]
        if not any(texts):
            return False
        if all(texts) or texts[0]:
            outcome, note = Outcome.INVALID, f"failed in the baseline: {texts[0][0]}"
        elif len(texts[1]) == len(self.new):
            outcome, note = Outcome.PERF_DROP, f"measured before, fails now: {texts[1][0]}"
        else:
            outcome = Outcome.INVALID
            note = f"fails in {len(texts[1])} of {len(self.new)} new runs: {texts[1][0]}"
        self.settled.append(_row(self.key, SUCCESS, outcome, note=note))
        return True

    def _requests(self) -> bool:
        """Judge failed requests first; return True if they make the other figures incomparable."""
        shares = [[_failed(m.point) for m in side] for side in (self.old, self.new)]
        known = [[share for share in side if share is not None] for side in shares]
        allowed = self.settings.limits.get(SUCCESS, 0.0)
        if not any(share > allowed for side in known for share in side):
            return False
        before, now = (fmean(side) if side else 0.0 for side in known)
        text = f"failed requests: {before:.3g} of the requests before, {now:.3g} now"
        drop = now > before and min(known[1], default=0.0) > max(known[0], default=0.0)
        outcome = Outcome.PERF_DROP if drop and not self._whole else Outcome.INVALID
        row = _row(self.key, SUCCESS, outcome, before=1 - before, now=1 - now, note=text)
        self.settled.append(
            replace(row, change=(1 - now) / (1 - before) - 1 if before < 1 else None)
        )
        for metric in self._judged_names():
            note = "not comparable: percentiles and rates leave out failed requests"
            self.settled.append(self._undecided(metric, note))
        return True

    def _names(self) -> list[str]:
        return list(
            dict.fromkeys(
                name for m in (*self.old, *self.new) for name in (*m.point.metrics, *m.point.absent)
            )
        )

    def _judged_names(self) -> list[str]:
        names = self._names()
        if self.settings.metrics:
            return [name for name in names if self.settings.names(name)]
        return [name for name in usual(names) if self._quantity(name).direction in _JUDGED]

    def _quantity(self, metric: str) -> Quantity:
        points = [m.point for m in (*self.old, *self.new)]
        holders = [p for p in points if metric in p.quantities or metric in p.metrics]
        return (holders or points)[0].quantity(metric)

    def _undecided(self, metric: str, note: str) -> Row:
        quantity = self._quantity(metric)
        limit = self.settings.limit(metric, quantity)
        return _row(
            self.key,
            metric,
            Outcome.INVALID,
            quantity=quantity,
            note=note,
            limit=limit,
            before=_mean(self.old, metric),
            now=_mean(self.new, metric),
        )

    def _metrics(self) -> None:
        judged = self._judged_names()
        for metric in self._names():
            sides = [
                [m for m in side if metric in m.point.metrics] for side in (self.old, self.new)
            ]
            if not any(sides):
                continue  # measured on neither side
            if metric not in judged:
                self._report(metric, all(sides))
                continue
            note = self._whole or self._parts.get(split(metric)[0]) or self._parts.get(metric, "")
            note = note or self._lacking(metric, sides)
            if note:
                self.settled.append(self._undecided(metric, note))
                continue
            quantity = self._quantity(metric)
            row = _row(
                self.key,
                metric,
                Outcome.INCONCLUSIVE,
                quantity=quantity,
                limit=self.settings.limit(metric, quantity),
            )
            old, new = (_values(side, metric) for side in sides)
            guard = self._guards.get(split(metric)[0], "")
            self.tasks.append(_Task(row=row, old=old, new=new, guard=guard))
        if self._whole and not any(row.point == self.key[1] for row in self.settled):
            self.settled.append(_row(self.key, "facts", Outcome.INVALID, note=self._whole))
        self._check_meaning()

    def _check_meaning(self) -> None:
        """Replace metrics whose meaning may differ between the tool's versions by INVALID rows."""
        reader = readers().get(self.key[0])
        if reader is None:
            return
        ratios = {task.row.metric: task.ratio for task in self.tasks}
        suspicious = reader.suspicious(ratios)
        for task in [task for task in self.tasks if task.row.metric in suspicious]:
            self.tasks.remove(task)
            self.settled.append(self._undecided(task.row.metric, suspicious[task.row.metric]))

    def _lacking(self, metric: str, sides: Sequence[Sequence[Measured]]) -> str:
        for having, side, name in zip(
            sides, (self.old, self.new), ("the baseline", "the new runs"), strict=True
        ):
            without = [m for m in side if m not in having]
            if without:
                first = without[0]
                why = first.point.absent.get(metric)
                count = (
                    "" if len(without) == len(side) else f"{len(without)} of {len(side)} runs of "
                )
                reason = f": {why}" if why else ""
                return f"not measured in {count}{name}{reason} ({first.run.source})"
        return ""

    def _report(self, metric: str, both: bool) -> None:
        if not both:
            return
        quantity = self._quantity(metric)
        before, now = _mean(self.old, metric), _mean(self.new, metric)
        assert before is not None
        assert now is not None
        note = ""
        if quantity.direction is Direction.NEITHER:
            note = "which direction is better is unknown; say it with --column, or leave it out"
        row = _row(self.key, metric, None, quantity=quantity, before=before, now=now, note=note)
        self.settled.append(replace(row, change=now / before - 1))

    def _accuracy(self) -> None:
        names = dict.fromkeys(n for m in (*self.old, *self.new) for n in m.point.scores)
        for name in names:
            if self.settings.metrics and not self.settings.names(name):
                continue
            quantity = self._quantity(name)
            limit = self.settings.limit(name, quantity)
            row = _row(
                self.key, name, Outcome.INCONCLUSIVE, quantity=quantity, limit=limit, absolute=True
            )
            old, new = (
                [m for m in side if name in m.point.scores] for side in (self.old, self.new)
            )
            note = self._whole
            if not old or not new:
                side = "the new runs have" if old else "the baseline has"
                note = note or f"{side} no such score"
            if quantity.direction is Direction.NEITHER and not note:
                note = "which direction is better is unknown"
            for m, side in (
                (m, s) for s in ("before", "now") for m in (old if s == "before" else new)
            ):
                value = m.point.scores[name].value
                row = replace(row, **{side: value})  # type: ignore[arg-type]
            if note:
                self.settled.append(replace(row, outcome=Outcome.INVALID, note=note))
            else:
                self.scored.append(_Scored(row, old, new))


_JUDGED = (Direction.HIGHER, Direction.LOWER)


def usual(names: Collection[str]) -> list[str]:
    """Return the metrics that are judged unless the user names some.

    Of the rates of one run, which are proportional, the first of `RANKS`, and none beside the time
    of a benchmark; of a latency its median, or its mean without one, and the 99th percentile.
    """
    rank = next((name for name in RANKS if name in names), None)
    timed = any(split(name)[0] == "time" for name in names)
    chosen = []
    for name in names:
        base, statistic = split(name)
        if statistic in {"mean", "min", "max"} and f"{base}_p50" in names:
            continue
        if statistic == "min" or (statistic == "max" and f"{base}_mean" in names):
            continue
        if statistic[:1] == "p" and statistic not in {"p50", "p99"}:
            continue
        if "_per_second" in name and name != rank and (rank or timed):
            continue
        chosen.append(name)
    return chosen


def _failed(point: Point) -> float | None:
    if point.failed is None:
        return None
    total = point.sent or point.failed
    return point.failed / total if total else None


def _mean(side: Sequence[Measured], metric: str) -> float | None:
    values = [m.point.metrics[metric] for m in side if metric in m.point.metrics]
    return math.exp(fmean(map(math.log, values))) if values else None


def _values(side: Sequence[Measured], metric: str) -> list[Value]:
    return [Value(value=m.point.metrics[metric], session=m.session) for m in side]


def _curves(old: Points, tasks: Sequence[_Task]) -> list[_Task]:
    """Return a task for each rate over all points of a curve, the geometric mean of its points.

    The runs of a session are combined in their order: the first of each point with the first of the
    others. Sessions in which a point is missing are left out.
    """
    curves: dict[tuple[str, str], dict[str, _Task]] = defaultdict(dict)
    for task in tasks:
        key = (task.row.tool, task.row.point)
        if old[key][0].point.axis is not None and split(task.row.metric)[0] in RANKS:
            curves[task.row.tool, task.row.metric][task.row.point] = task
    whole = []
    for (tool, metric), points in curves.items():
        if len(points) < 2:
            continue
        sides = [_combined([getattr(t, side) for t in points.values()]) for side in ("old", "new")]
        if not all(sides):
            continue
        one = next(iter(points.values())).row
        title = f"{one.quantity.title}, mean of {len(points)} points"
        row = _row(
            (tool, CURVE),
            metric,
            Outcome.INCONCLUSIVE,
            quantity=replace(one.quantity, title=title),
            limit=one.limit,
        )
        whole.append(_Task(row=row, old=sides[0], new=sides[1]))
    return whole


def _combined(points: Sequence[Sequence[Value]]) -> list[Value]:
    by_session = [defaultdict(list) for _ in points]  # type: list[defaultdict[str, list[float]]]
    for values, of in zip(points, by_session, strict=True):
        for value in values:
            of[value.session].append(math.log(value.value))
    return [
        Value(value=math.exp(fmean(logs)), session=session)
        for session in by_session[0]
        for logs in zip(*(of.get(session, []) for of in by_session), strict=False)
    ]


def _decided(
    tasks: Sequence[_Task], alpha: float, *, interleaved: bool, one_session: bool
) -> list[Row]:
    """Judge all metrics with an error of `alpha` in all (Holm; Bonferroni for interim analyses)."""
    if interleaved:
        rule = replace(RULE, alpha=alpha / max(len(tasks), 1))
        return [_guarded(task, _of_pairs(task, rule)) for task in tasks]
    sides = [pooled(task.old, task.new, rule=RULE) for task in tasks]
    p_values = {n: _p(task, side) for n, (task, side) in enumerate(zip(tasks, sides, strict=True))}
    proven = holm(p_values, alpha)
    rows = []
    for n, (task, side) in enumerate(zip(tasks, sides, strict=True)):
        row = _of_sides(task, side, proven=n in proven, p=p_values[n])
        if one_session and row.outcome is not Outcome.INVALID:
            row = _unproven(row, task, side)
        rows.append(_guarded(task, row))
    return rows


def _p(task: _Task, side: Pooled) -> float:
    return side.p(-1 if task.row.quantity.direction is Direction.HIGHER else 1)


def _figures(task: _Task) -> Row:
    sessions = tuple(len({v.session for v in side}) for side in (task.old, task.new))
    before, now = (
        math.exp(fmean(math.log(v.value) for v in side)) for side in (task.old, task.new)
    )
    return replace(
        task.row,
        before=before,
        now=now,
        change=now / before - 1,
        runs=(len(task.old), len(task.new)),
        sessions=(sessions[0], sessions[1]),
    )


def _of_sides(task: _Task, side: Pooled, *, proven: bool, p: float) -> Row:
    row, direction = _figures(task), task.row.quantity.direction
    bound = bound_of(direction, task.row.limit or 0.0)
    sign = 1 if direction is Direction.HIGHER else -1
    middle = sign * side.change
    low, high = middle - side.reach(RULE.beta), middle + side.reach(RULE.alpha)
    ends = sorted(raw(x, direction) for x in (low, middle, high))
    row = replace(row, p=p, low=ends[0], change=ends[1], high=ends[2])
    if low > bound:
        better = middle > side.reach(RULE.alpha)
        return replace(row, outcome=Outcome.IMPROVED if better else Outcome.OK)
    if min(row.runs) > 1 and proven:
        return replace(row, outcome=Outcome.PERF_DROP)
    if min(row.runs) > 1 and p < RULE.alpha:
        return replace(
            row, outcome=Outcome.SUSPECT, note="a drop if judged alone, not among all rows"
        )
    if side.by_sessions:
        return replace(row, outcome=Outcome.INCONCLUSIVE)
    return _unproven(row, task, side)


def _unproven(row: Row, task: _Task, side: Pooled) -> Row:
    """Return a row as it stands without knowledge of the variance between sessions."""
    direction = row.quantity.direction
    middle = (1 if direction is Direction.HIGHER else -1) * side.change
    if middle - side.plain.reach(RULE.beta) > bound_of(direction, task.row.limit or 0.0):
        return replace(row, outcome=Outcome.PROVISIONAL, direction="ok")
    if middle + side.plain.reach(RULE.alpha) < 0:
        return replace(row, outcome=Outcome.PROVISIONAL, direction="drop")
    return replace(row, outcome=Outcome.INCONCLUSIVE, note="")


def _of_pairs(task: _Task, rule: RuleR) -> Row:
    direction, pairs = task.row.quantity.direction, len(task.new)
    rule = replace(rule, max_runs=max(2, pairs))
    limit = task.row.limit or 0.0
    ruling = judge_drop(task.new, task.old, direction=direction, limit=limit, rule=rule)
    outcome = {
        Answer.PASS: Outcome.IMPROVED if ruling.improved else Outcome.OK,
        Answer.FAIL: Outcome.PERF_DROP,
    }.get(ruling.outcome, Outcome.INCONCLUSIVE)
    sign = 1 if direction is Direction.HIGHER else -1
    low, high = sorted(math.expm1(sign * math.log(end)) for end in ruling.interval if end > 0)
    row = replace(_figures(task), outcome=outcome, low=low, high=high)
    return replace(row, change=math.expm1(sign * math.log(ruling.ratio)))


def _guarded(task: _Task, row: Row) -> Row:
    """Return a row as undecided if another cause than the code is likelier."""
    factor = task.ratio if row.quantity.direction is Direction.HIGHER else 1 / task.ratio
    if factor > IMPLAUSIBLE_GAIN:
        note = "implausible improvement: check that the work was done, and the state of caches"
        return replace(row, outcome=Outcome.INVALID, note=note)
    if factor < 1 / IMPLAUSIBLE_LOSS:
        note = "implausible loss: check units, warm-up, and whether one side had a warm cache"
        return replace(row, outcome=Outcome.INVALID, note=note)
    if task.guard and row.outcome not in {Outcome.OK, Outcome.INCONCLUSIVE}:
        return replace(row, outcome=Outcome.INVALID, note=task.guard)
    return replace(row, note=task.guard) if task.guard else row


def _of_scores(scored: _Scored, rule: RuleA) -> Row:
    row, name = scored.row, scored.row.metric
    old, new = ([m.point.scores[name] for m in side] for side in (scored.old, scored.new))
    before, now = (fmean(score.value for score in side) for side in (old, new))
    row = replace(row, before=before, now=now, change=now - before, runs=(len(old), len(new)))
    sign = -1 if row.quantity.direction is Direction.LOWER else 1
    margin = max((row.limit or 0.0) * abs(before), 1e-9)
    if all(score.samples for score in (*old, *new)):
        return _of_documents(
            row, [s.samples for s in old], [s.samples for s in new], sign, margin, rule
        )
    errors = [score.stderr for score in (*old, *new)]
    if any(error is None for error in errors):
        note = "no standard error: give the files with a score for each document"
        return replace(row, outcome=Outcome.INCONCLUSIVE, note=note)
    variance = math.fsum(
        fmean((s.stderr or 0.0) ** 2 for s in side) for side in (old, new)
    )  # runs of one model share its documents, so repeats do not shrink the error
    se, change = math.sqrt(variance), sign * (now - before)
    normal = NormalDist()
    low = change - normal.inv_cdf(1 - rule.beta) * se
    high = change + normal.inv_cdf(1 - rule.alpha) * se
    ends = sorted((sign * low, sign * high))
    least = (normal.inv_cdf(1 - rule.beta) + normal.inv_cdf(1 - rule.alpha)) * se
    note = f"totals only: they show drops from {least:.2g} on; give the files of samples"
    outcome = Outcome.INCONCLUSIVE
    if low > -margin:
        outcome, note = Outcome.OK, ""
    elif high < 0:
        outcome, note = Outcome.ACC_DROP, ""
    return replace(row, outcome=outcome, low=ends[0], high=ends[1], note=note)


def _of_documents(
    row: Row,
    old: Sequence[Mapping[str, float]],
    new: Sequence[Mapping[str, float]],
    sign: int,
    margin: float,
    rule: RuleA,
) -> Row:
    names = list(old[0])
    for samples in (*old, *new):
        if samples.keys() != old[0].keys():
            other = len(samples.keys() ^ old[0].keys())
            note = f"documents differ: {other:,} of {len(names):,} are in one file alone"
            return replace(row, outcome=Outcome.INVALID, note=note)
    before, now = (
        [sign * fmean(samples[name] for samples in side) for name in names] for side in (old, new)
    )
    pairs = ScorePairs(before=before, now=now, margin=margin)
    paired = judge_pairs({row.metric: pairs}, (len(names),), rule)[row.metric]
    outcome = {Answer.PASS: Outcome.OK, Answer.FAIL: Outcome.ACC_DROP}.get(
        paired.outcome, Outcome.INCONCLUSIVE
    )
    ends = sorted(sign * end for end in (paired.low, paired.high))
    return replace(
        row,
        outcome=outcome,
        before=sign * paired.before,
        now=sign * paired.now,
        change=sign * paired.change,
        low=ends[0],
        high=ends[1],
        p=paired.p,
        note=f"{paired.down:,} documents worse, {paired.up:,} better of {paired.samples:,}",
    )


def _changed(base: Sequence[Run], now: Sequence[Run]) -> Iterator[str]:
    """Yield what differs between both sides and may differ."""
    sides = [_told(base), _told(now)]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get(name, {"not recorded"}) for side in sides)
        if before != after:
            yield f"{name}: {', '.join(sorted(before))} → {', '.join(sorted(after))}"


def _told(runs: Iterable[Run]) -> dict[str, set[str]]:
    told: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        own = {f"{run.tool} version": run.version, "host": run.host, "commit": run.commit}
        for name, value in (*own.items(), *run.told.items()):
            if value:
                told[name].add(value)
    return told


def _how(tasks: Sequence[_Task], scored: Sequence[_Scored], *, interleaved: bool) -> str:
    count = len(tasks) + len(scored)
    if not count:
        return ""
    rows = "1 metric" if count == 1 else f"{count} metrics together"
    ways = []
    if tasks:
        ways.append(
            "neighbouring runs in pairs, because both sides alternated on one host"
            if interleaved
            else "all runs of both sides in one analysis, session by session"
        )
    if scored:
        ways.append("scores by document where both sides have them")
    return (
        f"{'; '.join(ways)}; {rows}: where nothing changed, at most 1 comparison of 100 shows a "
        "drop; a metric that fell by its limit is ok at most 5 times in 100"
    )
