"""Compare the conditions of a point (one task or concurrency); list its metrics to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean
from typing import NamedTuple

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.files import readers
from pytest_mlperf.addons.judge.model import COMPLETED, SUCCESS, Fact, Quantity, ToolPoint, split
from pytest_mlperf.addons.judge.rows import MeasuredPoint, Row, Settings, row_of, usual_metrics
from pytest_mlperf.extension import some
from pytest_mlperf.judge import Direction, Value

UNKNOWN_DIRECTION = "not judged: unknown whether higher or lower is better"

FEW = 100
"""Requests of a run below which the 99th percentile is almost the slowest request."""


@dataclass(frozen=True, kw_only=True)
class JudgedMetric:
    """Hold a metric's old and new values; `guard` is why a decided change is INVALID, or ""."""

    row: Row
    old: Sequence[Value]
    new: Sequence[Value]
    guard: str = ""  # an unknown condition: a drop is undecided

    @property
    def ratio(self) -> float:
        """Geometric mean of the new runs, divided by the geometric mean of the baseline runs."""
        old, new = (geometric_mean(v.value for v in side) for side in (self.old, self.new))
        return new / old


class ScoredPoint(NamedTuple):
    """Hold an evaluation score, and the baseline and new runs of one task that measured it."""

    row: Row
    old: Sequence[MeasuredPoint]
    new: Sequence[MeasuredPoint]

    @property
    def has_documents(self) -> bool:
        """Whether all runs have a score for each document."""
        return all(m.point.scores[self.row.metric].samples for m in (*self.old, *self.new))


class PointCase:
    """Compare settings of old and new runs at one task or load; list the metrics to judge."""

    def __init__(
        self,
        key: tuple[str, str],
        old: Sequence[MeasuredPoint],
        new: Sequence[MeasuredPoint],
        settings: Settings,
    ) -> None:
        self.key, self.old, self.new, self.settings = key, old, new, settings
        self.notes: list[str] = []
        self.settled: list[Row] = []
        self.tasks: list[JudgedMetric] = []
        self.scored: list[ScoredPoint] = []
        self._differing: dict[str, str] = {}
        self._guards: dict[str, str] = {}
        self._compare_facts()
        self._whole = self._differing.get("", "")
        if self._add_failure() or self._judge_failures():
            return
        self._metrics()
        self._accuracy()

    def _compare_facts(self) -> None:
        runs = (*self.old, *self.new)
        counted = all(m.point.failed is not None for m in runs)
        for name in dict.fromkeys(name for m in runs for name in m.point.facts):
            facts = [m.point.facts.get(name, Fact(None)) for m in runs]
            if name in self.settings.ignored:
                texts = sorted({fact.text for fact in facts})
                if len(texts) > 1 or facts[0].value is None:
                    values = " and ".join(texts)
                    self.notes.append(f"{name} is taken as equal because of --ignore: {values}")
            elif name != COMPLETED or not counted:
                self._check_fact(name, facts)

    def _check_fact(self, name: str, facts: Sequence[Fact]) -> None:
        """Note runs that lack fact `name`; if its values differ, mark metrics as not comparable."""
        bases = next((fact.bases for fact in facts if fact.bases), ())
        first = next((index for index, fact in enumerate(facts) if fact.value is not None), None)
        if first is None:
            if any(fact.needed for fact in facts):
                text = f"{name} is not recorded; if it did not change, add --ignore '{name}'"
                self._guards.update(dict.fromkeys(bases, text))
            return
        before, count = facts[first], len(self.old)
        for index, (fact, measured) in enumerate(zip(facts, (*self.old, *self.new), strict=True)):
            side = "the baseline" if index < count else "the new runs"
            if fact.value is None:
                self.notes.append(f"{name}: not recorded in {side}")
            elif not before.agrees(fact):
                reason = f"{name} differs: {before.text} before, {fact.text} now"
                if (first < count) == (index < count):
                    reason = f"{name} differs inside {side}: {before.text}, and {fact.text} in "
                    reason += measured.run.source
                for base in bases or ("",):
                    self._differing.setdefault(base, reason)

    def _add_failure(self) -> bool:
        """Add a row with the error if the benchmark failed in a run; return whether one did."""
        texts = [[m.point.broken for m in side if m.point.broken] for side in (self.old, self.new)]
        if not any(texts):
            return False
        whole = [len(texts[0]) == len(self.old), len(texts[1]) == len(self.new)]
        outcome: Outcome | None = Outcome.INVALID
        if all(whole) and self.settings.allow_missing:
            outcome, note = None, f"failed in the baseline and in the new runs: {texts[1][0]}"
        elif texts[0]:
            note = f"failed in the baseline: {texts[0][0]}"
        elif whole[1]:
            outcome, note = Outcome.PERF_DROP, f"measured before, fails now: {texts[1][0]}"
        else:
            note = f"fails in {len(texts[1])} of {len(self.new)} new runs: {texts[1][0]}"
        self.settled.append(row_of(self.key, SUCCESS, outcome, note=note))
        return True

    def _judge_failures(self) -> bool:
        """Judge the share of failed requests; return True if other metrics are incomparable."""
        shares = [[_failed(m.point) for m in side] for side in (self.old, self.new)]
        recorded = [[share for share in side if share is not None] for side in shares]
        allowed = self.settings.limits.get(SUCCESS, 0.0)
        if not any(share > allowed for side in recorded for share in side):
            return False
        before, now = (fmean(side) if side else 0.0 for side in recorded)
        text = f"share of failed requests: {before:.3g} before, {now:.3g} now"
        drop = now > before and min(recorded[1], default=0.0) > max(recorded[0], default=0.0)
        outcome = Outcome.PERF_DROP if drop and not self._whole else Outcome.INVALID
        figures = {"before": 1 - before, "now": 1 - now, "note": text}
        figures["change"] = (1 - now) / (1 - before) - 1 if before < 1 else None
        self.settled.append(row_of(self.key, SUCCESS, outcome, **figures))
        for metric in self._judged_names():
            note = "not comparable: percentiles and rates leave failed requests out"
            self._settle(metric, Outcome.INVALID, note=note)
        return True

    def _names(self) -> list[str]:
        """Return the metrics that any baseline run or new run measured."""
        return list(dict.fromkeys(n for m in (*self.old, *self.new) for n in m.point.metrics))

    def _judged_names(self) -> list[str]:
        names = self._names()
        if self.settings.metrics:
            return [name for name in names if self.settings.selects(name)]
        return [
            name
            for name in usual_metrics(names)
            if self._quantity(name).direction is not Direction.NEITHER
        ]

    def _quantity(self, metric: str) -> Quantity:
        points = [m.point for m in (*self.old, *self.new)]
        holders = [p for p in points if metric in p.quantities or metric in p.metrics]
        return (holders or points)[0].quantity(metric)

    def _row(self, metric: str, outcome: Outcome | None, **more: object) -> Row:
        quantity = self._quantity(metric)
        fields = {"quantity": quantity, "limit": self.settings.limit(metric, quantity), **more}
        return row_of(self.key, metric, outcome, **fields)

    def _settle(self, metric: str, outcome: Outcome | None, **more: object) -> None:
        means = {"before": _mean(self.old, metric), "now": _mean(self.new, metric)}
        self.settled.append(self._row(metric, outcome, **{**means, **more}))

    def _metrics(self) -> None:
        judged = self._judged_names()
        for metric in self._names():
            sides = [
                [m for m in side if metric in m.point.metrics] for side in (self.old, self.new)
            ]
            base = split(metric)[0]
            note = self._whole or self._differing.get(base) or self._lacking(metric, sides)
            if metric not in judged:
                if all(sides):
                    self._report(metric)
            elif note:
                self._settle(metric, Outcome.INVALID, note=note)
            else:
                old, new = (
                    [Value(value=m.point.metrics[metric], session=m.session) for m in side]
                    for side in sides
                )
                row = self._row(metric, Outcome.INCONCLUSIVE)
                guard = self._guards.get(base, "")
                self.tasks.append(JudgedMetric(row=row, old=old, new=new, guard=guard))
        if self._whole and not self.settled:
            self.settled.append(row_of(self.key, "facts", Outcome.INVALID, note=self._whole))
        self._check_meaning()
        few = min((m.point.sent or FEW for m in (*self.old, *self.new)), default=FEW)
        if few < FEW and any(task.row.metric.endswith("_p99") for task in self.tasks):
            self.notes.append(f"the 99th percentile of {few} requests is close to their maximum")
        measured = self._names()
        absent = {n: text for m in (*self.old, *self.new) for n, text in m.point.absent.items()}
        if unmeasured := [name for name in absent if name not in measured]:
            text = f"{some(unmeasured)}: {absent[unmeasured[0]]}"
            self.notes.append(f"not measured on either side, and not judged: {text}")

    def _check_meaning(self) -> None:
        """Mark metrics INVALID if a change suggests that the tool's new version redefined them."""
        reader = readers().get(self.key[0])
        if reader is None or reader.suspicious is None:
            return
        means = {n: (_mean(self.old, n), _mean(self.new, n)) for n in self._names()}
        ratios = {name: now / before for name, (before, now) in means.items() if before and now}
        suspicious = reader.suspicious(ratios)
        for task in [task for task in self.tasks if task.row.metric in suspicious]:
            self.tasks.remove(task)
            self._settle(task.row.metric, Outcome.INVALID, note=suspicious[task.row.metric])

    def _lacking(self, metric: str, sides: Sequence[Sequence[MeasuredPoint]]) -> str:
        names = ("the baseline", "the new runs")
        for having, side, name in zip(sides, (self.old, self.new), names, strict=True):
            if without := [m for m in side if m not in having]:
                run, point, _ = without[0]
                some = "" if not having else f"{len(without)} of {len(side)} runs of "
                cause = f": {point.absent[metric]}" if metric in point.absent else ""
                return f"not measured in {some}{name}{cause} ({run.source})"
        return ""

    def _report(self, metric: str) -> None:
        unknown = self._quantity(metric).direction is Direction.NEITHER
        note = UNKNOWN_DIRECTION if unknown else ""
        change = (_mean(self.new, metric) or 1.0) / (_mean(self.old, metric) or 1.0) - 1
        self._settle(metric, None, limit=None, change=change, note=note)

    def _accuracy(self) -> None:
        for name in dict.fromkeys(n for m in (*self.old, *self.new) for n in m.point.scores):
            if self.settings.metrics and not self.settings.selects(name):
                continue
            old, new = (
                [m for m in side if name in m.point.scores] for side in (self.old, self.new)
            )
            before, now = (
                side[-1].point.scores[name].value if side else None for side in (old, new)
            )
            row = self._row(name, Outcome.INCONCLUSIVE, before=before, now=now, absolute=True)
            lacking = "" if old and new else f"{'the new runs have' if old else 'the baseline has'}"
            if note := self._whole or (lacking and f"{lacking} no such score"):
                self.settled.append(replace(row, outcome=Outcome.INVALID, note=note))
            elif row.quantity.direction is Direction.NEITHER:
                self.settled.append(replace(row, outcome=None, note=UNKNOWN_DIRECTION))
            else:
                self.scored.append(ScoredPoint(row, old, new))


def _failed(point: ToolPoint) -> float | None:
    if point.failed is None:
        return None
    total = point.sent or point.failed
    return point.failed / total if total else None


def _mean(side: Sequence[MeasuredPoint], metric: str) -> float | None:
    values = [m.point.metrics[metric] for m in side if metric in m.point.metrics]
    return geometric_mean(values) if values else None
