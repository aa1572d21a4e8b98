"""`--mlperf-drift`: a verdict in the light of every baseline that was accepted before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pytest_mlperf.bench.files import points_of
from pytest_mlperf.core.baseline import differences
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import change, interval, limit
from pytest_mlperf.core.rulings.cumulative import Creep, creep
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.judge.rule_r import RuleR

PASSING = {Outcome.OK, Outcome.IMPROVED, Outcome.INCONCLUSIVE, Outcome.PROVISIONAL, Outcome.SUSPECT}
"""Words that creep takes the place of; beside any other it is a note."""


def with_creep(
    verdict: Verdict, rule: RuleR, mode: Literal["fail", "warn"], since: str, root: Path
) -> Verdict:
    """Return a verdict that tells, or fails for, what accepted baselines lost in all.

    Args:
        since: A day; baselines accepted before it do not count. "": all count.
        root: The folder that the path of the baseline may start from.
    """
    if verdict.kind not in DROP_OUTCOMES or not verdict.baseline_file or verdict.subject is None:
        return verdict
    named = Path(verdict.baseline_file)
    file = named if named.is_file() else root / named
    notes: list[str] = []
    try:
        points = points_of(file, notes) if file.is_file() else []
    except MlperfError as error:
        return replace(verdict, notes=(*verdict.notes, f"drift is not known: {error}"))
    identity = verdict.subject.identity
    accepted = [
        point
        for point in points
        if not differences(point.identity, identity) and point.date[:10] >= since
    ]
    crept = [one for metric in verdict.metrics if (one := creep(accepted, metric, rule))]
    if not crept:
        return verdict
    texts = tuple(f"drift: {_text(one)}" for one in crept)
    if mode == "warn" or verdict.outcome not in PASSING:
        return replace(verdict, notes=(*texts, *verdict.notes))
    before = f"against the pinned baseline alone: {verdict.outcome} {verdict.headline}"
    cure = (
        "each step was accepted, and together they are beyond the limit: find what lost it, or "
        "begin anew with mlperf_drift_since = DAY in the ini file, which a review sees"
    )
    return replace(
        verdict,
        outcome=DROP_OUTCOMES[verdict.kind],
        headline=_text(crept[0]),
        notes=(*texts[1:], before, cure, *verdict.notes),
    )


def _text(one: Creep) -> str:
    title = METRICS[one.metric].title
    return (
        f"{title} {change(one.change)} ({interval(one.low, one.high)}) over {one.baselines} "
        f"accepted baselines since {one.since}; {limit(one.metric, one.limit)} exceeded"
    )
