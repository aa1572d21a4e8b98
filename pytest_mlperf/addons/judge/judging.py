"""Judge new runs against baseline runs, by metric of each task or concurrency."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean, geometric_mean

from pytest_mlperf import Outcome
from pytest_mlperf.addons.judge.files import title_of
from pytest_mlperf.addons.judge.model import BASES, RANKS, ToolRun, split
from pytest_mlperf.addons.judge.points import JudgedMetric, PointCase, ScoredPoint
from pytest_mlperf.addons.judge.rows import (
    FileComparison,
    MeasuredPoint,
    Points,
    Row,
    Settings,
    in_pairs,
    row_of,
    session_of,
)
from pytest_mlperf.core.rulings.sides import Pooled, pooled
from pytest_mlperf.extension import plural, some
from pytest_mlperf.judge import Answer, RuleA, RuleR, ScorePairs, Value, judge_drop, judge_pairs
from pytest_mlperf.judge.formulas import bound_of, to_relative_change
from pytest_mlperf.judge.rule_a import holm

RULE = RuleR()

IMPLAUSIBLE_GAIN, IMPLAUSIBLE_LOSS = 4.0, 10.0
"""Factors beyond which a change more likely has another cause than the code: work that was not
done, a warm cache, another unit."""

IMPLAUSIBLE = "implausible change"

CURVE = "curve"
"""Name of the point that judges all points of a curve as one."""

NO_HOST = "the runs alternate, but the files name no host: if all ran on one, add --ignore host"


def compare(
    baseline_runs: Sequence[ToolRun], new_runs: Sequence[ToolRun], settings: Settings
) -> FileComparison:
    """Judge new runs against baseline runs.

    If runs of both sides alternated on one host, pairs of neighbouring runs are compared, else all
    runs with a between-session variance. The probability of any false drop in the comparison is at
    most `alpha` (Holm), that of a missed drop at most `beta` for each metric.
    """
    old, new = (points_by_case(side, settings) for side in (baseline_runs, new_runs))
    shared = [key for key in old if key in new]
    interleaved = bool(shared) and all(in_pairs(old[key], new[key], settings) for key in shared)
    on_one_host = replace(settings, ignored=(*settings.ignored, "host"))
    hostless = shared and all(in_pairs(old[key], new[key], on_one_host) for key in shared)
    sessions = tuple(len({m.session for ms in side.values() for m in ms}) for side in (old, new))
    cases = [PointCase(key, old[key], new[key], settings) for key in shared]
    rows = [*_missing(old, new, settings), *(row for case in cases for row in case.settled)]
    tasks = [task for case in cases for task in case.tasks]
    tasks += _curves(old, tasks)
    scored = [score for case in cases for score in case.scored]
    one_session = not interleaved and bool(tasks) and min(sessions) < 2 and max(sessions) < 3
    names = {(s.row.point, s.row.metric) for s in scored if s.has_documents}
    totals = [s for s in scored if not s.has_documents and (s.row.point, s.row.metric) in names]
    note = "not judged: only a total, but other files have scores by document, judged below"
    rows += [replace(s.row, outcome=None, note=note) for s in totals]
    scored = [s for s in scored if s not in totals]
    alpha = RULE.alpha / max(len(tasks) + len(scored), 1)
    rows += _decided(
        tasks, alpha * len(tasks), settings, interleaved=interleaved, one_session=one_session
    )
    rows += [_of_scores(one, RuleA(alpha=alpha, beta=RULE.beta)) for one in scored]
    notes = [
        *_lacking(old, baseline_runs, "baseline"),
        *_lacking(new, new_runs, "new"),
    ]
    if hostless and not interleaved:
        notes.append(NO_HOST)
    notes += (note for case in cases for note in case.notes)
    order = {key: place for place, key in enumerate([*old, *new])}
    rows.sort(key=lambda row: (order.get((row.tool, row.point), len(order)), *_sort_key(row)))
    return FileComparison(
        rows=tuple(rows),
        new=new,
        how=_how(tasks, scored, interleaved=interleaved),
        changed=tuple(_changed(baseline_runs, new_runs)),
        notes=tuple(dict.fromkeys(notes)),
        one_session=one_session,
    )


def _sort_key(row: Row) -> tuple[bool, int, str]:
    """Return the key to sort rows by: judged before reported, then order in `BASES`, statistic."""
    base, statistic = split(row.metric)
    place = BASES.index(base) if base in BASES else len(BASES)
    return row.outcome is None, place, statistic.replace("mean", "")


def points_by_case(
    runs: Sequence[ToolRun], settings: Settings
) -> dict[tuple[str, str], list[MeasuredPoint]]:
    """Group the measured points of runs by (tool, task or concurrency), oldest first."""
    points: dict[tuple[str, str], list[MeasuredPoint]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.started or 0.0):
        session = session_of(run, settings.session_by)
        for point in run.points:
            points[run.tool, point.name].append(MeasuredPoint(run, point, session))
    return dict(points)


def _missing(old: Points, new: Points, settings: Settings) -> Iterator[Row]:
    tools = [{tool for tool, _ in side} for side in (old, new)]
    if not tools[0] & tools[1]:
        names = [", ".join(sorted(map(title_of, side))) for side in tools]
        note = f"tool differs: {names[0]} before, {names[1]} now; use the same tool for both"
        key = (", ".join(sorted(tools[0])), "all points")
        yield row_of(key, "tool", Outcome.INVALID, note=note)
        return
    for side, other, name in ((old, new, "the baseline"), (new, old, "the new runs")):
        for key in side:
            if key not in other:
                outcome = None if settings.allow_missing else Outcome.INVALID
                cure = "" if settings.allow_missing else "; measure it on both sides, or allow this"
                cure += " with --allow-missing" if cure else ""
                yield row_of(key, "point", outcome, note=f"measured only in {name}{cure}")


def _lacking(side: Points, runs: Sequence[ToolRun], name: str) -> Iterator[str]:
    """Yield a note per curve point that some runs of a tool lack; `name`: "baseline" or "new"."""
    several = {run.tool for run in runs if len(run.points) > 1}
    totals = Counter(run.tool for run in runs)
    for (tool, point), measured in side.items():
        if tool in several and len(measured) < totals[tool]:
            lacking = totals[tool] - len(measured)
            yield f"{point} is missing in {lacking} of {totals[tool]} {name} runs"


def _curves(old: Points, tasks: Sequence[JudgedMetric]) -> list[JudgedMetric]:
    """For each throughput metric of a curve, return the geometric mean over its concurrencies.

    Points whose names differ by more than the concurrency belong to different curves. In a session
    the first runs of all concurrencies are combined, then the second runs, and so on. A session
    that lacks a concurrency is skipped.
    """
    curves: dict[tuple[str, str, str], list[JudgedMetric]] = defaultdict(list)
    for task in tasks:
        row, axis = task.row, old[task.row.tool, task.row.point][0].point.axis
        if axis is not None and split(row.metric)[0] in RANKS:
            curves[row.tool, row.metric, row.point.replace(f"{axis:g}", "*", 1)].append(task)
    whole = []
    names = {name for (_, _, name), points in curves.items() if len(points) > 1}
    for (_, _, name), points in curves.items():
        sides = [_combined([getattr(t, side) for t in points]) for side in ("old", "new")]
        if len(points) < 2 or not all(sides):
            continue
        row = points[0].row
        title = f"{row.quantity.title}, mean of {len(points)} points"
        row = replace(
            row,
            point=CURVE if len(names) == 1 else f"{CURVE}: {name}",
            quantity=replace(row.quantity, title=title),
        )
        whole.append(JudgedMetric(row=row, old=sides[0], new=sides[1]))
    return whole


def _combined(points: Sequence[Sequence[Value]]) -> list[Value]:
    by_session: list[dict[str, list[float]]] = [defaultdict(list) for _ in points]
    for values, of in zip(points, by_session, strict=True):
        for value in values:
            of[value.session].append(math.log(value.value))
    return [
        Value(value=math.exp(fmean(logs)), session=session)
        for session in by_session[0]
        for logs in zip(*(of.get(session, []) for of in by_session), strict=False)
    ]


def _decided(
    tasks: Sequence[JudgedMetric],
    alpha: float,
    settings: Settings,
    *,
    interleaved: bool,
    one_session: bool,
) -> list[Row]:
    """Judge all metrics at family-wise error `alpha`: Holm, or Bonferroni if `interleaved`."""
    if interleaved:
        rule = replace(RULE, alpha=alpha / max(len(tasks), 1))
        return [_guarded(task, _of_pairs(task, rule), settings) for task in tasks]
    sides = [pooled(task.old, task.new, rule=RULE) for task in tasks]
    p_values = {n: side.p(-tasks[n].row.sign) for n, side in enumerate(sides)}
    proven = holm(p_values, alpha)
    rows = []
    for n, (task, side) in enumerate(zip(tasks, sides, strict=True)):
        row = _of_sides(task, side, proven=n in proven, p=p_values[n])
        if one_session and row.outcome is not Outcome.INVALID:
            row = _unproven(row, task, side)
        rows.append(_guarded(task, row, settings))
    return rows


def _figures(task: JudgedMetric) -> Row:
    sessions = tuple(len({v.session for v in side}) for side in (task.old, task.new))
    before, now = (geometric_mean(v.value for v in side) for side in (task.old, task.new))
    return replace(
        task.row,
        before=before,
        now=now,
        change=now / before - 1,
        runs=(len(task.old), len(task.new)),
        sessions=(sessions[0], sessions[1]),
    )


def _of_sides(task: JudgedMetric, side: Pooled, *, proven: bool, p: float) -> Row:
    row, direction = _figures(task), task.row.quantity.direction
    bound = bound_of(direction, task.row.limit or 0.0)
    middle = row.sign * side.change
    low, high = middle - side.reach(RULE.beta), middle + side.reach(RULE.alpha)
    ends = sorted(to_relative_change(x, direction) for x in (low, middle, high))
    row = replace(row, p=p, low=ends[0], change=ends[1], high=ends[2])
    if low > bound:
        better = middle > side.reach(RULE.alpha)
        return replace(row, outcome=Outcome.IMPROVED if better else Outcome.OK)
    if min(row.runs) > 1 and proven:
        return replace(row, outcome=Outcome.PERF_DROP)
    if min(row.runs) > 1 and p < RULE.alpha:
        return replace(
            row,
            outcome=Outcome.SUSPECT,
            note="a drop if judged alone, but not jointly with all metrics",
        )
    if side.by_sessions:
        one = "one run proves no drop: give more runs" if min(row.runs) < 2 and proven else ""
        return replace(row, outcome=Outcome.INCONCLUSIVE, note=one)
    return _unproven(row, task, side)


def _unproven(row: Row, task: JudgedMetric, side: Pooled) -> Row:
    """Return the row as PROVISIONAL ok or drop (by expected session variance) or INCONCLUSIVE."""
    direction = row.quantity.direction
    middle = row.sign * side.change
    if middle - side.plain.reach(RULE.beta) > bound_of(direction, task.row.limit or 0.0):
        return replace(row, outcome=Outcome.PROVISIONAL, direction="ok")
    if middle + side.plain.reach(RULE.alpha) < 0:
        return replace(row, outcome=Outcome.PROVISIONAL, direction="drop")
    return replace(row, outcome=Outcome.INCONCLUSIVE, note="")


def _of_pairs(task: JudgedMetric, rule: RuleR) -> Row:
    direction, pairs = task.row.quantity.direction, len(task.new)
    rule = replace(rule, max_runs=max(2, pairs))
    limit = task.row.limit or 0.0
    ruling = judge_drop(task.new, task.old, direction=direction, limit=limit, rule=rule)
    outcome = {
        Answer.PASS: Outcome.IMPROVED if ruling.improved else Outcome.OK,
        Answer.FAIL: Outcome.PERF_DROP,
    }.get(ruling.outcome, Outcome.INCONCLUSIVE)
    sign = task.row.sign
    low, high = sorted(math.expm1(sign * math.log(end)) for end in ruling.interval if end > 0)
    row = replace(_figures(task), outcome=outcome, low=low, high=high)
    return replace(row, change=math.expm1(sign * math.log(ruling.ratio)))


def _guarded(task: JudgedMetric, row: Row, settings: Settings) -> Row:
    """Return the row as INVALID if its change is implausible or depends on an unrecorded fact."""
    factor = task.ratio**row.sign
    plausible = 1 / IMPLAUSIBLE_LOSS < factor < IMPLAUSIBLE_GAIN
    if not plausible and IMPLAUSIBLE not in settings.ignored:
        note = (
            f"implausible {'loss' if factor < 1 else 'improvement'}: check caches, warm-up and "
            f"units, and that all work was done; if it is real, add --ignore '{IMPLAUSIBLE}'"
        )
        return replace(row, outcome=Outcome.INVALID, note=note)
    if task.guard and row.outcome not in {Outcome.OK, Outcome.INCONCLUSIVE}:
        return replace(row, outcome=Outcome.INVALID, note=task.guard)
    return replace(row, note=task.guard) if task.guard else row


def _of_scores(scored: ScoredPoint, rule: RuleA) -> Row:
    row, name = scored.row, scored.row.metric
    old, new = ([m.point.scores[name] for m in side] for side in (scored.old, scored.new))
    before, now = (fmean(score.value for score in side) for side in (old, new))
    row = replace(row, before=before, now=now, change=now - before, runs=(len(old), len(new)))
    margin = max((row.limit or 0.0) * abs(before), 1e-9)
    if scored.has_documents:
        return _of_documents(row, [s.samples for s in old], [s.samples for s in new], margin, rule)
    errors = [score.stderr for score in (*old, *new)]
    if any(error is None for error in errors):
        note = "no standard error in the files: give files with a score for each document"
        return replace(row, outcome=Outcome.INCONCLUSIVE, note=note)
    variance = math.fsum(
        fmean((s.stderr or 0.0) ** 2 for s in side) for side in (old, new)
    )  # runs of one model share its documents, so repeats do not shrink the error
    down, up = (NormalDist().inv_cdf(1 - e) * math.sqrt(variance) for e in (rule.beta, rule.alpha))
    low, high = row.sign * (now - before) - down, row.sign * (now - before) + up
    ends, least = sorted((row.sign * low, row.sign * high)), down + up
    note = f"total scores show only drops of {least:.2g} or more; give the scores by document"
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
    margin: float,
    rule: RuleA,
) -> Row:
    names, sign = list(old[0]), row.sign
    for samples in (*old, *new):
        if samples.keys() != old[0].keys():
            other = len(samples.keys() ^ old[0].keys())
            note = f"documents differ: {other:,} of {len(names):,} are in one file only; evaluate "
            note += "both builds on the same documents"
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
    note = f"{paired.down:,} documents worse, {paired.up:,} better of {paired.samples:,}"
    if (paired.unseen or 0.0) > margin:
        note += f"; on further documents a drop of up to {paired.unseen:.2g} is not excluded"
    return replace(
        row,
        outcome=outcome,
        before=sign * paired.before,
        now=sign * paired.now,
        change=sign * paired.change,
        low=ends[0],
        high=ends[1],
        p=paired.p,
        documents=(paired.samples, paired.down, paired.up),
        note=note,
    )


def _changed(baseline_runs: Sequence[ToolRun], new_runs: Sequence[ToolRun]) -> Iterator[str]:
    """Yield differences in version, host, commit and details, which do not prevent a comparison."""
    values: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for side, runs in enumerate((baseline_runs, new_runs)):
        for run in runs:
            common = {f"{run.tool} version": run.version, "host": run.host, "commit": run.commit}
            for name, value in (*common.items(), *run.details.items()):
                values[name][side].update([value] if value else ())
    for name, (before, after) in values.items():
        if before != after:
            texts = (some(sorted(side)) or "not recorded" for side in (before, after))
            yield f"{name}: {' → '.join(texts)}"


def _how(tasks: Sequence[JudgedMetric], scored: Sequence[ScoredPoint], *, interleaved: bool) -> str:
    if not (count := len(tasks) + len(scored)):
        return ""
    runs = "all runs of both sides, grouped by session"
    if interleaved:
        runs = "neighbouring runs in pairs, because both sides alternated on one host"
    scores = "scores by document where both sides have them"
    ways = "; ".join([runs] * bool(tasks) + [scores] * bool(scored))
    rows = f"{plural(count, 'metric')}{' judged jointly' if count > 1 else ''}"
    return (
        f"{ways}; {rows}: if nothing changed, at most 1 comparison of 100 shows a drop; "
        "a metric that dropped by its limit is judged ok at most 5 times in 100"
    )
