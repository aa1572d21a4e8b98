"""Sessions of 200 cases under noises that rule R does not expect: false reds, drops found.

Judged by the shipped rule R, empirical null and Benjamini-Hochberg, as `together.settle` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decisions_lib import rule
from decisions_lib.noise import Bools, Floats
from decisions_lib.performance import SEED
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.multiplicity import Compared, estimate, judge_jointly, rule_among

CASES, METRICS = 200, 3
PAIRS = CASES * METRICS
SD, SPREAD = 0.007, 0.4
"""Standard deviation of a run: log-normal over cases, median and sd of its logarithm."""

PROMISED = 0.05
"""Of sessions in which nothing fell, the most that may have a false red."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What varies though nothing fell; shares, standard deviations relative.

    Attributes:
        name: What tables call it.
        correlation: Of the noise of the metrics of one case.
        share: Of the variance, what the runs of one case in one session have in common.
        times: All noise beside what is expected.
        now: Noise of the runs of now beside the baseline's.
        machine: What all pairs of a session have in common.
        tail: Degrees of freedom of Student's t; None: normal.
        sessions: Session of each run of the baseline.
    """

    name: str
    correlation: float = 0.7
    share: float = 0.25
    times: float = 1.0
    now: float = 1.0
    machine: float = 0.0
    tail: float | None = None
    sessions: Sequence[str] = rule.SESSIONS


ONE = rule.ONE_SESSION
NOISES = (
    Noise(name="as expected, correlation 0.7"),
    Noise(name="as expected, correlation 0", correlation=0.0),
    Noise(name="heavy tails (t3), sessions as well", tail=3),
    Noise(name="all noise 2 times", times=2),
    Noise(name="all noise 3 times", times=3),
    Noise(name="noise of now 2 times", now=2),
    Noise(name="noise of now 3 times", now=3),
    Noise(name="all pairs of a session by 0.3 %", machine=0.003),
    Noise(name="all pairs of a session by 0.5 %", machine=0.005),
    Noise(name="all pairs of a session by 1 %", machine=0.01),
    Noise(name="session share 0.6", share=0.6),
    Noise(name="baseline of one session, share 0.25", sessions=ONE),
    Noise(name="baseline of one session, share 0.6", sessions=ONE, share=0.6),
)

DROPS = {
    "1 pair −3 %": (1, 1, 0.03),
    "1 pair −4 %": (1, 1, 0.04),
    "1 pair −5 %": (1, 1, 0.05),
    "1 case −3 %": (1, 3, 0.03),
    "5 cases −3 %": (5, 3, 0.03),
    "20 cases −3 %": (20, 3, 0.03),
    "100 cases −2 %": (100, 3, 0.02),
    "200 cases −1 %": (200, 3, 0.01),
    "200 cases −3 %": (200, 3, 0.03),
    "200 cases −5 %": (200, 3, 0.05),
}
"""Cases and metrics that fell, and by how much."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; shares.

    Attributes:
        name: Noise or drop.
        red: Sessions with a false red; None where everything fell.
        interval: Wilson's 95 % interval of that, where nothing fell: what is promised.
        red_by_rule_alone: The same without what all pairs show.
        suspects: False suspects per session.
        found: Dropped cases that are red; None where nothing fell.
        found_by_rule_alone: The same without what all pairs show.
        suspected: Dropped pairs that are SUSPECT.
        count: Of sessions.
    """

    name: str
    red: float | None
    interval: tuple[float, float] | None
    red_by_rule_alone: float | None
    suspects: float
    count: int
    found: float | None = None
    found_by_rule_alone: float | None = None
    suspected: float | None = None

    @property
    def holds(self) -> bool:
        """Whether at most `PROMISED` of the sessions have a false red, as far as is known."""
        return self.interval is None or self.interval[0] <= PROMISED


@dataclass(frozen=True)
class Judged:
    """Of each session and pair: p in the light of all, p alone; and the words."""

    p: Floats
    alone: Floats


def rows(scale: float = 1.0) -> Iterator[Row]:
    """Yield every line of the table.

    Args:
        scale: Share of the full size.
    """
    quiet = np.zeros((CASES, METRICS), bool)
    for noise in NOISES:
        yield _row(noise.name, noise, quiet, 0.0, max(20, round(400 * scale)))
    for name, (cases, metrics, size) in DROPS.items():
        fell = quiet.copy()
        fell[:cases, :metrics] = True
        count = 400 if cases == 1 else 100
        yield _row(name, NOISES[0], fell, size, max(10, round(count * scale)))


def _row(name: str, noise: Noise, fell: Bools, drop: float, count: int) -> Row:
    rng = np.random.default_rng([SEED, 7, *name.encode()])
    before, scales = baseline(rng, noise, count)
    judged = judge(before, now(rng, noise, scales, np.log1p(-drop) * fell), noise)
    among_all = np.array([words(p) for p in judged.p]).reshape(count, CASES, METRICS)
    plain = np.array([words(p) for p in judged.alone]).reshape(count, CASES, METRICS)
    failed, alone = among_all == Answer.FAIL, plain == Answer.FAIL
    doubted = among_all == Answer.SUSPECT
    some = bool(fell.any())
    cases = fell.any(axis=1)
    wrong = (failed & ~fell).any(axis=(1, 2))
    return Row(
        name=name,
        red=None if fell.all() else float(wrong.mean()),
        interval=None if some else wilson(int(wrong.sum()), count),
        red_by_rule_alone=None if fell.all() else float((alone & ~fell).any(axis=(1, 2)).mean()),
        suspects=float((doubted & ~fell).sum(axis=(1, 2)).mean()),
        count=count,
        found=float((failed & fell).any(axis=2)[:, cases].mean()) if some else None,
        found_by_rule_alone=float((alone & fell).any(axis=2)[:, cases].mean()) if some else None,
        suspected=float(doubted[:, fell].mean()) if some else None,
    )


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    z, share = 1.96, hits / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return float(middle - half), float(middle + half)


def words(p: Floats) -> Any:
    """Return what p values of a session say together."""
    return np.array(
        [
            decision.outcome
            for decision in judge_jointly(dict(enumerate(p.tolist())), rule.RULE).values()
        ]
    )


def _raw(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> Floats:
    """Return noise of unit variance, correlated over the metrics of a case."""

    def draw(metrics: int) -> Floats:
        size = (*shape[:2], metrics, shape[3])
        if noise.tail is None:
            return rng.standard_normal(size)
        heavy: Floats = rng.standard_t(noise.tail, size)
        heavy /= np.sqrt(noise.tail / (noise.tail - 2))
        return heavy

    own = np.sqrt(1 - noise.correlation) * draw(METRICS)
    mixed: Floats = own + np.sqrt(noise.correlation) * draw(1)
    return mixed


def _runs(
    rng: np.random.Generator, noise: Noise, scales: Floats, sessions: Sequence[str]
) -> Floats:
    names = sorted(set(sessions))
    of_run = [names.index(session) for session in sessions]
    count = scales.shape[0]
    shared = _raw(rng, noise, (count, CASES, METRICS, len(names)))[..., of_run]
    own = _raw(rng, noise, (count, CASES, METRICS, len(sessions)))
    logs = scales * (np.sqrt(noise.share) * shared + np.sqrt(1 - noise.share) * own)
    machine = noise.machine * rng.standard_normal((count, 1, 1, len(names)))
    found: Floats = logs + machine[..., of_run]
    return found


def baseline(rng: np.random.Generator, noise: Noise, count: int) -> tuple[Floats, Floats]:
    """Return baselines, and by how much the runs of each case vary."""
    scales = noise.times * SD * np.exp(SPREAD * rng.standard_normal((count, CASES, 1, 1)))
    return _runs(rng, noise, scales, noise.sessions), scales


def now(rng: np.random.Generator, noise: Noise, scales: Floats, change: Floats) -> Floats:
    """Return the runs of a session that changed by this, logarithmic."""
    runs = _runs(rng, noise, noise.now * scales, ("now",) * rule.RULE.max_runs)
    shifted: Floats = runs + change[..., None]
    return shifted


def judge(
    x0: Floats, x1: Floats, noise: Noise, apart: Mapping[str, _Looks] | None = None
) -> Judged:
    """Judge sessions, shape (sessions, CASES, METRICS, runs).

    Args:
        x0: Runs of the baselines.
        x1: Runs of now.
        noise: Which runs of the baselines are of one session.
        apart: `between` of these baselines, where it is at hand.
    """
    count, zero = x0.shape[0], np.zeros_like
    base = rule.baselines(x0, zero(x0), noise.sessions)
    decided = rule.decide(base, x1, zero(x1), rule=rule_among(rule.RULE, PAIRS), with_p=True)
    seen = [_looks(base, x1[..., :k], count) for k in range(1, rule.RULE.max_runs + 1)]
    apart = between(x0, noise.sessions) if apart is None else apart
    alone = decided.p.reshape(count, PAIRS)
    used = decided.runs.reshape(count, PAIRS)
    p = alone.copy()
    for session in range(count):
        sessions = {name: looks.of(session) for name, looks in apart.items()}
        null = estimate(seen[0].of(session), sessions, rule.RULE)
        for pair in np.flatnonzero(alone[session] < rule.RULE.alpha).tolist():
            looks = [look.at(session, pair) for look in seen[: used[session, pair]]]
            p[session, pair] = max(alone[session, pair], null.p_value(looks, rule.RULE))
    return Judged(p, alone)


def between(x0: Floats, sessions: Sequence[str]) -> Mapping[str, _Looks]:
    """Return each session of the baselines beside its others, by session of pytest."""
    names, of_run = sorted(set(sessions)), np.array(sessions)
    found = {}
    for name in names if len(names) > 1 else ():
        others = x0[..., of_run != name]
        base = rule.baselines(others, np.zeros_like(others), tuple(of_run[of_run != name]))
        found[name] = _looks(base, x0[..., of_run == name], x0.shape[0])
    return found


@dataclass(frozen=True)
class _Looks:
    """What one look saw of all pairs; shape (sessions, pairs)."""

    change: Floats
    se: Floats
    df: float

    def at(self, session: int, pair: int) -> Compared:
        return float(self.change[session, pair]), float(self.se[session, pair]), self.df

    def of(self, session: int) -> list[Compared]:
        both = zip(self.change[session].tolist(), self.se[session].tolist(), strict=True)
        return [(change, se, self.df) for change, se in both]


def _looks(base: rule.Baselines, runs: Floats, count: int) -> _Looks:
    look = rule.look_at(base, runs, np.zeros_like(runs), rule.RULE)
    change = np.asarray(look.d)
    se = np.broadcast_to(look.se, change.shape)
    return _Looks(change.reshape(count, -1), se.reshape(count, -1), look.df)
