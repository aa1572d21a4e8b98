"""Screen runs before recording: find outliers, and first runs that differ from later ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from pytest_mlperf.core.baseline import BaselineRun, Record
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.ruling import rule_values
from pytest_mlperf.core.rulings.sample import countable
from pytest_mlperf.judge.formulas import scatter, squares, t_isf, to_relative_change
from pytest_mlperf.judge.rule_r import RuleR, Scale, Value, by_session, log_scale, moderated_sd

SCREEN = 0.01
"""Probability that a screen rejects a run of a homogeneous session, over all metrics."""


def outliers(
    runs: Sequence[Value], kept: Sequence[Value], scale: Scale, rule: RuleR, p: float = SCREEN
) -> list[int]:
    """Return the indexes of outliers among runs; `p` is the test's error probability.

    Each run is compared with `kept` and the others of its session, by the scatter within sessions.
    The farthest run is removed and the rest compared again. All runs removed up to the last
    significant one are outliers, so that outliers do not mask each other. If these are more than a
    quarter but at most half of the runs, none is: the baseline would be steadier than the machine.

    Source: generalised extreme Studentized deviate (B. Rosner, Technometrics 25, 1983,
        doi:10.1080/00401706.1983.10487848), with the variance moderated as in rule R.
    """
    left, removed, count = dict(enumerate(runs)), list[int](), 0
    while len(removed) < (len(runs) - 1 if kept else len(runs) // 2):
        error = p / (2 * len(left))
        distances = {
            i: _distance(run, [*kept, *(left[j] for j in left if j != i)], scale, rule, error)
            for i, run in left.items()
        }
        worst = max(distances, key=distances.__getitem__)
        removed.append(worst)
        count = len(removed) if distances[worst] > 1 else count
        del left[worst]
    varies = max(1, len(runs) // 4) < count <= len(runs) // 2
    return [] if varies else removed[:count]


def _distance(run: Value, rest: Sequence[Value], scale: Scale, rule: RuleR, error: float) -> float:
    others = [other for other in rest if other.session == run.session]
    spread = scatter(by_session(rest, scale)) if others else None
    if spread is None or not spread.run_df:
        return 0.0
    df = rule.prior_df + spread.run_df
    sd = moderated_sd(rest, spread.inside, df, rule) * math.sqrt(1 + 1 / len(others))
    gap = scale(run) - fmean(map(scale, others))
    gap = max(gap - fmean(other.lost for other in others), -gap - run.lost)
    return gap / (sd * t_isf(error, df))


def first_run_effect(
    runs: Sequence[Value], scale: Scale, rule: RuleR, p: float = SCREEN
) -> float | None:
    """Return the log difference of first runs to later ones of their sessions, if proven.

    A session of m runs has the weight w = (m - 1)/m, and the difference d between the first run and
    the mean of the others. The effect is D = Σwd/Σw; it is proven if |D|·√Σw/s exceeds the quantile
    of two-sided t. s² is the scatter of the later runs plus Σw(d - D)², over Σ(m - 1) - 1.

    Source: least squares for a two-way layout of sessions and positions.
    """
    loaded = {run.session for run in runs if run.lost}
    logs = by_session([run for run in runs if run.session not in loaded], scale)
    parts = [(1 - 1 / len(xs), xs[0] - fmean(xs[1:]), squares(xs[1:])) for xs in logs if xs[1:]]
    df = sum(map(len, logs)) - len(logs) - 1
    if df < 1:
        return None
    total = math.fsum(w for w, _, _ in parts)
    effect = math.fsum(w * d for w, d, _ in parts) / total
    variance = math.fsum(w * (d - effect) ** 2 + inside for w, d, inside in parts) / df
    far = t_isf(p / 2, df) * math.sqrt(max(variance, rule.floor_sd**2) / total)
    return effect if abs(effect) > far else None


class Screened(NamedTuple):
    """Hold runs to record, notes on others, and whether each session's first run is left out."""

    runs: tuple[Run, ...]
    notes: tuple[Note, ...]
    skips_first_run: bool


def value_of(run: Run, names: Collection[str]) -> Note:
    """Return a note with a run's value of the first metric in `names` that the run has."""
    name = next(filter(run.metrics.__contains__, names), "")
    return Note.of("value", metric=name, value=run.metrics.get(name))


def screened(
    runs: Sequence[Run], limits: Mapping[str, float], rule: RuleR, old: Record | None = None
) -> Screened:
    """Return the runs to record in a new baseline, or to add to the record `old`, with notes.

    Outliers are omitted, and so is each session's first run if first runs differ from later ones.
    """
    names, sessions = countable(runs, limits, old), [run.session for run in runs]
    first, baseline_runs = {sessions.index(one) for one in sessions}, old.runs if old else ()
    p, skips = SCREEN / max(1, len(names)), old is not None and old.skips_first_run

    def sample(side: Sequence[Run | BaselineRun], name: str) -> list[Value]:
        # Without the margin, as in a baseline's runs.
        return rule_values(side, name, rule.tolerated, margin=False, by_day=False)

    def odd(name: str, without: Collection[int]) -> set[int]:
        places = [n for n, run in enumerate(runs) if name in run.metrics and n not in without]
        fresh, scale = [runs[n] for n in places], log_scale(METRICS[name].direction)
        strays = outliers(sample(fresh, name), sample(baseline_runs, name), scale, rule, p)
        return {places[index] for index in strays}

    def effect(name: str) -> float | None:
        strays, scale = odd(name, ()), log_scale(METRICS[name].direction)
        clean = [run for n, run in enumerate(runs) if n in first or n not in strays]
        sure = not baseline_runs and len(first) == 1 and 0 in strays
        both = [*sample(baseline_runs, name), *sample(clean, name)]
        return first_run_effect(both, scale, rule, 1.0 if sure else p)

    effects = {} if skips else {name: share for name in names if (share := effect(name))}
    without = first if effects else set[int]()
    notes = [
        Note.of(
            "first_run_differs",
            metric=name,
            change=to_relative_change(share, METRICS[name].direction),
        )
        for name, share in [*effects.items()][:1]
    ]
    strange = {n: name for name in names for n in odd(name, without)}
    notes += [
        Note.of("outlier", run=n + 1, of=len(runs), value=value_of(runs[n], [of]))
        for n, of in sorted(strange.items())
    ]
    return Screened(
        runs=tuple(run for n, run in enumerate(runs) if n not in without | strange.keys()),
        notes=tuple(notes),
        skips_first_run=skips or bool(effects),
    )
