"""How `explain` retraces a claim about two engine entries."""

from __future__ import annotations

from dataclasses import replace

from pytest_mlperf.cli.explain import turns
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.verdict import Verdict
from tests.reports.verdicts import PAIR_FAIL, run

REFUTED = """\
samples/s: claimed >= 1.5x in 2 pairs of runs
  The ratio and its interval are of all pairs so far; one pair's ratio differs
  from the next by 0.452 % (standard deviation). The claim is proven when the
  whole interval reaches it, refuted when the interval ends below it, from pair
  2 on.
  pair  order      a      b  ratio        interval  says
     1  a, b   2.852  2.593  1.10x                  one more
     2  b, a    2.85  2.601  1.10x  0.94x to 1.36x  refuted
  runs/a.1
  runs/b.1
  runs/a.2
  runs/b.2
"""


def pair(*rates: float) -> Verdict:
    """Return the verdict of a pair whose runs, a first, gave these rates."""
    made = [
        replace(run(1, throughput=rate), folder=f"runs/{'ab'[index % 2]}.{index // 2 + 1}")
        for index, rate in enumerate(rates)
    ]
    assert PAIR_FAIL.ratio is not None
    ratio = replace(PAIR_FAIL.ratio, pairs=len(rates) // 2)
    return replace(PAIR_FAIL, runs=tuple(made), ratio=ratio)


def test_every_pair_is_shown_with_what_it_says() -> None:
    verdict = pair(2.852, 2.593, 2.850, 2.601)
    assert verdict.ratio is not None

    shown = turns(verdict, verdict.ratio, RuleR(), 80)

    assert "\n".join(shown) + "\n" == REFUTED


def test_a_claim_that_stays_open_says_so_at_the_last_pair() -> None:
    verdict = pair(*(1.5, 1.0, 1.51, 1.0) * 2, 1.5, 1.0)
    assert verdict.ratio is not None

    rows = [line for line in turns(verdict, verdict.ratio, RuleR(), 80) if "," in line[:12]]

    assert [row.split("  ")[-1] for row in rows] == ["one more"] * 4 + ["undecided"]
