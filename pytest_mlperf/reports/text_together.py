"""What the summary says of all cases of a session together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.reports.layout import unbroken

PROMISE = (
    "of the drops that fail together at most 5 % are expected to be none; a drop of the limit is "
    "passed at most 5 % of the time; between 0 and the limit either answer may come"
)

FEWEST = 3
"""Below so many cases nothing falls together."""

SHOWN = 4
"""Changes that are named."""

_JUDGED = {
    Outcome.OK,
    Outcome.IMPROVED,
    Outcome.PERF_DROP,
    Outcome.SUSPECT,
    Outcome.INCONCLUSIVE,
}


def together(results: Results) -> list[str]:
    """Return what is to be said of the session as a whole, a paragraph each."""
    found = []
    if results.pairs:
        found.append(f"{results.pairs} pairs judged together: {_words(results)}")
    performance = [r for r in results.cases if r.verdict.kind == "performance"]
    judged = [r for r in performance if r.verdict.outcome in _JUDGED]
    fell = [r for r in judged if r.verdict.outcome is Outcome.PERF_DROP]
    if len(judged) >= FEWEST and 2 * len(fell) > len(judged):
        found.append(_fell(fell, len(judged)))
    return found


def _words(results: Results) -> str:
    counts = Counter(
        metric.outcome
        for result in results.cases
        for metric in result.verdict.metrics
        if result.pairs
    )
    parts = [
        unbroken(f"{counts[word]} {word}")
        for word in (Outcome.PERF_DROP, Outcome.POWER_DROP)
        if counts[word]
    ]
    if counts[Outcome.SUSPECT]:
        parts.append(
            f"{unbroken(f'{counts[Outcome.SUSPECT]} SUSPECT')} (first in the next session)"
        )
    return ", ".join(parts) or "no drop"


def _fell(fell: Sequence[CaseResult], judged: int) -> str:
    steady = all(result.verdict.steady for result in fell)
    control = "control unchanged" if steady else "control not compared"
    first, *others = (result.verdict.changed for result in fell)
    common = [text for text in first if all(text in other for other in others)]
    more = [f"{len(common) - SHOWN} more"] if len(common) > SHOWN else []
    changed = ", ".join([*common[:SHOWN], *more]) or "nothing that is recorded of all of them"
    return f"{len(fell)} of {judged} cases fell together; {control}; changed: {changed}"
