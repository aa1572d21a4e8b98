"""Sessions of many cases: false alarms, drops found, and what they cost in runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from decisions_lib import rule
from decisions_lib.noise import Floats
from decisions_lib.performance import SEED
from pytest_mlperf.judge.decision import Answer, Decision
from pytest_mlperf.judge.multiplicity import judge_jointly, rule_among

CASES, METRICS = 200, 3
FEW_CASES = 6
"""Cases of the small session: 18 pairs, each judged alone."""

SD, SPREAD = 0.007, 0.4
"""Standard deviation of a run: log-normal over cases, median and sd of its logarithm."""

SHARE = 0.25
"""Of the variance, what the runs of one case in one session have in common."""

DROP, DROPPED = 0.03, 5


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """What happened in many simulated sessions.

    Attributes:
        false_red: Share of sessions in which an unchanged pair failed.
        false_suspect: Unchanged pairs that were suspect, per session.
        found: Share of the dropped cases of which a metric that fell failed.
        found_pairs: Share of the dropped pairs that failed.
        suspected: Share of the dropped pairs that were suspect.
        false_share: Share of unchanged pairs among those that failed, mean over sessions.
        runs: Runs per case.
        count: Of sessions.
    """

    false_red: float
    false_suspect: float
    found: float | None
    found_pairs: float | None
    suspected: float | None
    false_share: float
    runs: float
    count: int


def sessions(
    count: int, *, correlation: float, fell: int, metrics: int = METRICS, cases: int = CASES
) -> Sessions:
    """Simulate sessions.

    Args:
        count: Of sessions.
        correlation: Of the run-to-run noise of the metrics of one case.
        fell: Cases that fell by `DROP`.
        metrics: How many of the metrics of such a case fell.
        cases: Cases of a session.
    """
    rng = np.random.default_rng([SEED, 4, int(100 * correlation), fell, metrics, cases])
    dropped = np.zeros((cases, METRICS), bool)
    dropped[:fell, :metrics] = True
    red, suspect, found, found_pairs, suspected = [], [], [], [], []
    shares, runs = [], []
    for _ in range(count):
        p, used = one(rng, cases, correlation, dropped)
        words = judge_jointly(dict(enumerate(p.ravel().tolist())), rule.RULE)
        failed = of(words, Answer.FAIL, p.shape)
        wrong = failed & ~dropped
        red.append(wrong.any())
        doubted = of(words, Answer.SUSPECT, p.shape)
        suspect.append((doubted & ~dropped).sum())
        shares.append(wrong.sum() / max(1, failed.sum()))
        runs.append(used)
        if fell:
            right = failed & dropped
            found.append(right.any(axis=1).sum() / fell)
            found_pairs.append(right.sum() / dropped.sum())
            suspected.append((doubted & dropped).sum() / dropped.sum())
    return Sessions(
        false_red=float(np.mean(red)),
        false_suspect=float(np.mean(suspect)),
        found=float(np.mean(found)) if fell else None,
        found_pairs=float(np.mean(found_pairs)) if fell else None,
        suspected=float(np.mean(suspected)) if fell else None,
        false_share=float(np.mean(shares)),
        runs=float(np.mean(runs)),
        count=count,
    )


def one(
    rng: np.random.Generator, cases: int, correlation: float, dropped: np.ndarray
) -> tuple[Floats, float]:
    """Return p values of the pairs of one session, shape (cases, metrics), and runs per case."""
    sd = SD * np.exp(SPREAD * rng.standard_normal((cases, 1, 1)))
    names = sorted(set(rule.SESSIONS))
    of_run = [*(names.index(session) for session in rule.SESSIONS)]
    of_run += [len(names)] * rule.RULE.max_runs

    def noise(count: int) -> Floats:
        shared = rng.standard_normal((cases, 1, count))
        own = rng.standard_normal((cases, METRICS, count))
        found: Floats = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        return found

    of_sessions = noise(len(names) + 1)[..., of_run]
    logs = sd * (np.sqrt(SHARE) * of_sessions + np.sqrt(1 - SHARE) * noise(len(of_run)))
    n0 = len(rule.SESSIONS)
    x0, x1 = logs[..., :n0], logs[..., n0:] + np.log1p(-DROP) * dropped[..., None]
    base = rule.baselines(x0, np.zeros_like(x0), rule.SESSIONS)
    session_rule = rule_among(rule.RULE, dropped.size)
    decided = rule.decide(base, x1, np.zeros_like(x1), rule=session_rule, with_p=True)
    # A case runs until the last of its metrics is decided.
    return decided.p, float(decided.runs.max(axis=1).mean())


def of(words: Mapping[int, Decision], answer: Answer, shape: tuple[int, ...]) -> np.ndarray:
    """Return which pairs got an answer."""
    return np.array([word.outcome is answer for word in words.values()]).reshape(shape)


def alone(count: int, *, correlation: float) -> float:
    """Return the share of unchanged sessions with a red pair, were each pair judged alone."""
    rng = np.random.default_rng([SEED, 5, int(100 * correlation)])
    red = 0
    quiet = np.zeros((CASES, METRICS), bool)
    for _ in range(count):
        p, _ = one(rng, CASES, correlation, quiet)
        red += bool((p < rule.RULE.alpha).any())
    return red / count
