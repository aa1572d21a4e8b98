"""Many pairs in one session: how long each is measured, and which drops stand among so many.

A pair is a case and one of its gated metrics of performance or efficiency; accuracy keeps its own
error rate. Up to `FEW` pairs are each judged alone by rule R. With more, one of the unchanged ones
would be failed in most sessions. So runs are added until a pair is clear even among so many, and at
the end of the session the share of false alarms among all failed pairs is held below `FALSE_SHARE`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from pytest_mlperf.core.judge.rule_r import RuleR

FEW = 20
"""Up to so many pairs are judged alone."""

FALSE_SHARE = 0.05
"""Largest share of false alarms that is expected among the pairs that fail together."""

Pair = TypeVar("Pair", bound=Hashable)


class Among(StrEnum):
    """What a pair's p value says beside those of all others.

    A FAIL stands. A SUSPECT would have failed had it been alone: it is listed, fails nothing, and
    is measured first in the next session. Of a CLEAR pair no drop is proven; whether it passed or
    is inconclusive its own verdict tells.
    """

    FAIL = "fail"
    SUSPECT = "suspect"
    CLEAR = "clear"


def rule_among(rule: RuleR, pairs: int) -> RuleR:
    """Return the rule that each pair is measured by: when it needs no further run.

    Under it `judge` asks for more runs until the pair passed, its p value is below 5 % / `pairs`,
    or the last look; `Judged.p_value` is then

        p = min(1, (K - 1) · min over looks k of P(T_ν > -d_k / se_k)), and 1 after a pass,

    valid whatever the looks have in common. Interval, `improved` and detectable change that are
    shown to people come from `judge` under the rule as it was given.

    Args:
        rule: The settings for a pair alone.
        pairs: Gated pairs of the session, known before its first run.

    Raises:
        ValueError: There is no pair.

    Source: C. E. Bonferroni's inequality, once over the looks and once over the pairs: a pair below
        5 % / `pairs` is rejected by `among` whatever the others say, so further runs are wasted.
    """
    if pairs < 1:
        raise ValueError(f"{pairs} pairs; a session that is judged has at least one")
    return rule if pairs <= FEW else replace(rule, alpha=min(rule.alpha, FALSE_SHARE / pairs))


def among(p_values: Mapping[Pair, float], rule: RuleR) -> dict[Pair, Among]:
    """Return what the pairs of a session say together, at its end.

    Args:
        p_values: By pair, of every gated pair: those that could not be judged count with 1.
        rule: The settings for a pair alone.

    Raises:
        ValueError: A p value is none.
    """
    alone = {pair for pair, p in p_values.items() if p < rule.alpha}
    if len(p_values) <= FEW:
        _check(p_values)
        return {pair: Among.FAIL if pair in alone else Among.CLEAR for pair in p_values}
    failed = benjamini_hochberg(p_values, FALSE_SHARE)
    words = {True: Among.SUSPECT, False: Among.CLEAR}
    return {pair: Among.FAIL if pair in failed else words[pair in alone] for pair in p_values}


def benjamini_hochberg(p_values: Mapping[Pair, float], share: float) -> set[Pair]:
    """Return the hypotheses that the step-up procedure rejects.

    The expected share of false ones among them is at most `share`, for p values that are
    independent, or related so that a small one makes others smaller rather than larger.

    Args:
        p_values: By hypothesis.
        share: Above 0, below 1.

    Raises:
        ValueError: A p value is none, or the share is out of range.

    Source: Y. Benjamini, Y. Hochberg, "Controlling the false discovery rate", Journal of the Royal
        Statistical Society B 57 (1995).
    """
    if not 0 < share < 1:
        raise ValueError(f"the share is {share!r}; it must lie between 0 and 1")
    _check(p_values)
    count, cut = len(p_values), -1.0
    for rank, p in enumerate(sorted(p_values.values()), start=1):
        if p <= share * rank / count:
            cut = p
    return {pair for pair, p in p_values.items() if p <= cut}


def _check(p_values: Mapping[Pair, float]) -> None:
    for pair, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"the p value of {pair!r} is {p!r}; it must lie from 0 to 1")
