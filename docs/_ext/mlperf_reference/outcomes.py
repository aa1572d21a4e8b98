"""List the words of verdicts, in the order in which they decide."""

from __future__ import annotations

from mlperf_reference.markdown import named, slug, table, text
from mlperf_reference.words import OUTCOMES
from pytest_mlperf.core.verdict import SEVERITY, Outcome

COUNTED_APART = frozenset(
    {
        Outcome.SUSPECT,
        Outcome.PROVISIONAL,
        Outcome.INCONCLUSIVE,
        Outcome.NO_BASELINE,
        Outcome.NOT_EVALUATED,
        Outcome.RECORDED,
        Outcome.EXPECTED,
    }
)
"""Outcomes that pass, and that pytest's last line counts under their own word."""


def anchor(outcome: Outcome) -> str:
    """Return its id on the page."""
    return slug("outcome", str(outcome))


def markdown() -> str:
    """Return the table."""
    rows = [[named(str(o), anchor(o)), _test(o), text(OUTCOMES.get(str(o), ""))] for o in SEVERITY]
    return table(("word", "the test", "meaning, and what to do"), rows)


def _test(outcome: Outcome) -> str:
    if outcome.fails:
        return "fails"
    return "passes, counted apart" if outcome in COUNTED_APART else "passes"
