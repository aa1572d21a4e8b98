"""The last word on many pairs, and what rule R measures them by."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.case import Case, Kind, Scenario
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.multiplicity import (
    SuspectSince,
    interrupted,
    is_certain,
    is_open,
    judge_pairs_jointly,
    may_fall,
    null_distributions,
)
from pytest_mlperf.core.rulings.ruling import ruling_of
from pytest_mlperf.core.verdict import (
    InterimAnalysis,
    MetricBaseline,
    MetricVerdict,
    Outcome,
    Unchecked,
    Verdict,
    with_unchecked_note,
)
from pytest_mlperf.judge.formulas import t_sf
from pytest_mlperf.judge.multiplicity import benjamini_hochberg
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.sentences import sentence
from tests.reports.verdicts import run

CASE = Case(
    workload="w", scenario=Scenario.OFFLINE, engine="e", precision="fp32", accelerator="cpu"
)
RULE = RuleR()
ADDED = f", {sentence(Unchecked.NOT_CHECKED.note)}"
FEW_SESSIONS_NOTE = sentence(Note.of("few_sessions", since=None))
INTERRUPTED = sentence(Note.of("interrupted"))


def metric(
    p: float | None, outcome: Outcome = Outcome.INCONCLUSIVE, runs_baseline: int = 8
) -> MetricVerdict:
    fields: dict[str, Any] = {"now": 90.0, "limit": 0.05, "runs": 5}
    fields |= {"change": -0.1, "low": -0.2, "high": 0.01, "robust": True}
    return MetricVerdict(
        metric="throughput",
        outcome=outcome,
        baseline=MetricBaseline(value=100.0, runs=runs_baseline),
        p=p,
        **fields,
    )


def verdict(*metrics: MetricVerdict, kind: Kind = Kind.PERFORMANCE) -> Verdict:
    ruling = ruling_of(metrics)
    return Verdict(
        case=CASE,
        kind=kind,
        outcome=ruling.outcome,
        headline=with_unchecked_note(ruling.headline, Unchecked.NOT_CHECKED),
        unchecked=Unchecked.NOT_CHECKED,
        metrics=metrics,
    )


def words(p_values: list[float], pairs: int, final: int = 0) -> list[Outcome]:
    drops = [verdict(metric(1e-9, Outcome.PERF_DROP)) for _ in range(final)]
    return [
        v.outcome
        for v in judge_pairs_jointly([verdict(metric(p)) for p in p_values], drops, pairs, RULE)
    ]


def test_a_pair_among_others_falls_or_is_suspected() -> None:
    """25 pairs; the others passed, or were not measured."""
    for p, final, word in (
        (0.0019, 0, Outcome.PERF_DROP),  # below 5 % / 25
        (0.0021, 0, Outcome.SUSPECT),
        (0.0039, 1, Outcome.PERF_DROP),  # below 5 % x 2 / 25, with a drop beside it
        (0.0041, 1, Outcome.SUSPECT),
        (0.0099, 0, Outcome.SUSPECT),
        (0.0101, 0, Outcome.INCONCLUSIVE),
        (0.0119, 5, Outcome.PERF_DROP),  # though alone it would have failed nothing
        (1.0, 24, Outcome.INCONCLUSIVE),
    ):
        assert (p, words([p], 25, final)) == (p, [word])


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(21, 60))
def test_those_that_fall_are_the_procedures(p_values: list[float], pairs: int) -> None:
    """Benjamini and Hochberg's step-up over all pairs, the others counting with 1."""
    pairs = max(pairs, len(p_values))
    padded = dict(enumerate([*p_values, *[1.0] * (pairs - len(p_values))]))

    outcomes = words(p_values, pairs)

    assert {n for n, word in enumerate(outcomes) if word is Outcome.PERF_DROP} == {
        n for n in benjamini_hochberg(padded, 0.05) if n < len(p_values)
    }


def test_the_message_says_among_how_many_and_keeps_what_was_added() -> None:
    first, second = judge_pairs_jointly(
        [verdict(metric(0.0001)), verdict(metric(0.0002), kind=Kind.EFFICIENCY)], [], 25, RULE
    )

    assert sentence(first.headline) == (
        "samples/s −10.0 % (−20.0 to +1.0 %); one of 2 drops among 25 pairs judged together, "
        "p=0.0001, accuracy not checked"
    )
    assert second.outcome is Outcome.POWER_DROP
    (alone,) = judge_pairs_jointly([verdict(metric(0.0001))], [], 25, RULE)
    assert "; the only drop among 25 pairs judged together, p=0.0001" in sentence(alone.headline)
    (suspect,) = judge_pairs_jointly([verdict(metric(0.004))], [], 25, RULE)
    assert suspect.metrics[0].note == Note.of("suspect_among", among=25, p=0.004)


def test_advice_and_invalid_pairs_lift_no_other_and_final_ones_stay() -> None:
    """A baseline of 4 runs gates nothing, and a measurement that may not be judged is none.

    Only what may still fall asks whether the machine is slow.
    """
    advice, doubt = verdict(metric(1e-9, runs_baseline=4)), verdict(metric(0.0039))
    invalid = replace(verdict(metric(1e-9)), outcome=Outcome.INVALID)
    final = [
        verdict(metric(1.0, Outcome.OK)),
        verdict(metric(1e-9, Outcome.PERF_DROP)),
        verdict(metric(None, Outcome.NO_BASELINE)),
        replace(verdict(metric(0.001)), outcome=Outcome.ERROR),
    ]

    settled = judge_pairs_jointly([advice, doubt], [invalid], 25, RULE)

    assert [v.outcome for v in settled] == [Outcome.INCONCLUSIVE, Outcome.SUSPECT]
    assert settled[0] == advice
    assert judge_pairs_jointly(final, [], 25, RULE) == final
    assert not any(map(is_open, final))

    metrics = [metric(0.049), metric(0.051), metric(0.049, runs_baseline=4)]
    stopped = interrupted(verdict(metric(1.0)))

    assert [may_fall([one]) for one in metrics] == [True, False, False]
    assert not may_fall([metric(0.0, Outcome.PERF_DROP)])
    assert stopped.outcome is Outcome.INCONCLUSIVE
    assert (
        sentence(stopped.headline) == f"samples/s −10.0 % (−20.0 to +1.0 %); {INTERRUPTED}{ADDED}"
    )


def many(
    changes: list[float], session_changes: list[list[float]], outcome: Outcome = Outcome.PERF_DROP
) -> list[Verdict]:
    """Return one verdict for each change after five runs, each with its interim analyses."""
    verdicts = []
    for change, sessions in zip(changes, session_changes, strict=True):
        seen = [
            InterimAnalysis(change=change, se=0.008 if k == 1 else 0.007, df=11.0 + k)
            for k in (1, 2)
        ]
        p = min(1.0, 4 * t_sf(-change / 0.007, 13.0))
        word = outcome if p < 0.01 else Outcome.INCONCLUSIVE if change < 0 else Outcome.OK
        names = zip("abcd", sessions, strict=False)
        judged = replace(
            metric(p if change < 0 else 1.0, word),
            analyses=tuple(seen),
            baseline=replace(
                metric(p if change < 0 else 1.0, word).baseline,
                sessions=tuple(
                    InterimAnalysis(change=c, se=0.008, df=10.0, session=s) for s, c in names
                ),
            ),
            robust=False,
        )
        verdicts.append(verdict(judged))
    return verdicts


def spread(count: int, sd: float, shift: float = 0.0, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [shift + rng.gauss(0, sd) for _ in range(count)]


def quiet(count: int, machine: float = 0.0) -> list[list[float]]:
    """Return what four sessions of each pair's baseline did, all pairs together by `machine`."""
    shifts = (machine, -machine, machine / 2, -machine / 2)
    columns = [spread(count, 0.008, shift, seed) for seed, shift in enumerate(shifts, start=2)]
    return [list(row) for row in zip(*columns, strict=True)]


def drops(verdicts: list[Verdict]) -> int:
    open_ = [v for v in verdicts if is_open(v)]
    final = [v for v in verdicts if not is_open(v)]
    settled = judge_pairs_jointly(open_, final, len(verdicts), RULE)
    return sum(v.outcome is Outcome.PERF_DROP for v in settled)


def test_drops_are_counted_against_the_distribution_of_all_pairs_and_sessions() -> None:
    """-2.5 % of everything where sessions differ by as much: none is red, nor was final before."""
    shifted, wild = spread(100, 0.004, -0.025), spread(100, 0.02)
    everything = many(spread(100, 0.004, -0.05), quiet(100, machine=0.01))

    assert drops(many([-0.06, *spread(99, 0.004)], quiet(100))) == 1
    assert drops(many(shifted, quiet(100))) > 50
    assert drops(many(shifted, quiet(100, machine=0.03))) == 0
    assert drops(everything) == 100
    assert sum(v.outcome is Outcome.PERF_DROP for v in many(wild, quiet(100))) > 10
    assert drops(many(wild, quiet(100))) == 0


def test_a_drop_is_provisional_if_no_baseline_shows_the_variance_of_sessions() -> None:
    """A second session is compared with the same few sessions.

    It is certain once all first runs are there, or a limit was missed twice.
    """
    verdicts = many([-0.08, *spread(99, 0.004)], [[]] * 100)
    suspects = {0: SuspectSince("2026-11-20", ["throughput"])}

    first, *_ = judge_pairs_jointly(verdicts[:1], verdicts[1:], 100, RULE)
    again, *_ = judge_pairs_jointly(verdicts[:1], verdicts[1:], 100, RULE, suspects)

    assert (first.outcome, first.metrics[0].direction) == (Outcome.PROVISIONAL, "drop")
    assert sentence(first.headline).endswith(f"; drop {FEW_SESSIONS_NOTE}{ADDED}")
    assert again.outcome is Outcome.PROVISIONAL
    assert sentence(again.headline).endswith(
        f"; drop {FEW_SESSIONS_NOTE}; SUSPECT since 2026-11-20{ADDED}"
    )

    verdicts = many([-0.09, -0.02, *spread(98, 0.004)], quiet(100))
    null_of_metrics, missed = null_distributions(verdicts, RULE), replace(run(1), limit_missed=True)

    assert is_certain(verdicts[0], null_of_metrics, 100, RULE)
    assert not is_certain(verdicts[1], null_of_metrics, 100, RULE)
    assert is_open(verdicts[1])
    assert not is_open(replace(many([-0.09], quiet(1))[0], runs=(missed, missed)))


def test_another_machine_has_a_shift_of_its_own() -> None:
    changes = spread(60, 0.004, -0.025)
    here, there = many(changes, quiet(60, machine=0.03)), many(changes, quiet(60))
    other = replace(CASE, accelerator="H200")

    settled = judge_pairs_jointly([*here, *(replace(v, case=other) for v in there)], [], 120, RULE)

    red = [v.case.accelerator for v in settled if v.outcome is Outcome.PERF_DROP]
    assert len(red) > 30
    assert set(red) == {"H200"}


def test_a_suspect_of_the_last_session_is_judged_alone() -> None:
    """The same baseline makes the same pair suspect again.

    So the more pairs there are, the more a second session has to show; it stays SUSPECT.
    """
    doubt, other, clear = verdict(metric(0.004)), verdict(metric(0.004)), verdict(metric(0.02))
    suspects = {
        0: SuspectSince("2026-11-20", ["throughput"]),
        1: SuspectSince("2026-11-20", ["ttft_p99"]),
    }
    suspects[2] = suspects[0]

    settled = judge_pairs_jointly([doubt, other, clear], [], 100, RULE, suspects)

    words_ = [Outcome.PERF_DROP, Outcome.SUSPECT, Outcome.INCONCLUSIVE]
    assert [v.outcome for v in settled] == words_
    assert sentence(settled[0].headline).endswith(
        f"; SUSPECT since 2026-11-20 and again now, p=0.004{ADDED}"
    )

    suspects = {0: SuspectSince("2026-11-20", ["throughput"])}
    for p, pairs, least in (
        (0.0016, 600, None),  # below 1 / 600
        (0.0017, 600, "0.0017"),
        (0.0099, 100, None),
        (0.0095, 110, "0.0091"),
    ):
        (verdict_settled,) = judge_pairs_jointly([verdict(metric(p))], [], pairs, RULE, suspects)
        assert verdict_settled.outcome is (Outcome.SUSPECT if least else Outcome.PERF_DROP)
        assert least is None or (
            f"; a drop only if p < {least}, " in sentence(verdict_settled.headline)
        )
