"""The accuracy gate is a plain comparison, as MLPerf makes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.judge.accuracy import AccuracyRuling
from pytest_mlperf.core.judge.answer import combine
from pytest_mlperf.core.judge.gate import Bounds, GateRuling, gate
from pytest_mlperf.core.measurement import Accuracy
from pytest_mlperf.core.verdict import MetricVerdict, Outcome

TOP1 = {"top1": Bounds(reference=76.46, low=76.46 * 0.99, high=None)}


def ruled(scores: Mapping[str, float], bounds: Mapping[str, Bounds] | None = TOP1) -> GateRuling:
    return gate(full(scores), bounds, whose="MLPerf's", profile="official")


def full(scores: Mapping[str, float]) -> Accuracy:
    return Accuracy(scores=scores, samples=500, total=500, full=True, folder="x")


@pytest.mark.parametrize(
    ("score", "outcome", "headline"),
    [
        (76.46, Outcome.OK, "top1 76.460 ≥ 75.695, 99 % of MLPerf's reference"),
        (75.6955, Outcome.OK, "top1 75.695 ≥ 75.695, 99 % of MLPerf's reference"),
        (76.46 * 0.99, Outcome.OK, "top1 75.695 ≥ 75.695, 99 % of MLPerf's reference"),
        (75.695, Outcome.GATE_FAIL, "top1 75.6950 < 75.6954, 99 % of MLPerf's reference"),
        (75.695399, Outcome.GATE_FAIL, "top1 75.695399 < 75.695400, 99 % of MLPerf's reference"),
        (71.65, Outcome.GATE_FAIL, "top1 71.650 < 75.695, 99 % of MLPerf's reference"),
        (0.0, Outcome.GATE_FAIL, "top1 0.000 < 75.695, 99 % of MLPerf's reference"),
    ],
)
def test_a_score_reaches_the_gate_or_not(score: float, outcome: Outcome, headline: str) -> None:
    found = ruled({"top1": score})

    assert (found.outcome, found.headline) == (outcome, headline)
    (metric,) = found.metrics
    assert (metric.metric, metric.outcome) == ("top1", outcome)
    assert (metric.now, metric.baseline) == (score, 76.46)
    assert metric.change == pytest.approx(score / 76.46 - 1)
    assert metric.limit == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("target", "shown"), [(0.99, "99 %"), (0.999, "99.9 %"), (0.5, "50 %"), (1.0, "100 %")]
)
def test_the_share_is_written_as_the_round_writes_it(target: float, shown: str) -> None:
    bounds = {"top1": Bounds(reference=76.46, low=76.46 * target, high=None)}

    assert f", {shown} of MLPerf's reference" in ruled({"top1": 80.0}, bounds).headline


ROUGE = {
    "rouge1": Bounds(reference=44.4312, low=43.987, high=None),
    "rouge2": Bounds(reference=22.0352, low=21.815, high=None),
}


@pytest.mark.parametrize(
    ("rouge1", "rouge2", "outcome", "first"),
    [
        (45.0, 23.0, Outcome.OK, "rouge1"),
        (45.0, 20.0, Outcome.GATE_FAIL, "rouge2"),
        (40.0, 23.0, Outcome.GATE_FAIL, "rouge1"),
        (40.0, 20.0, Outcome.GATE_FAIL, "rouge1"),
    ],
)
def test_each_metric_must_reach_its_gate(
    rouge1: float, rouge2: float, outcome: Outcome, first: str
) -> None:
    found = ruled({"rouge2": rouge2, "rouge1": rouge1, "rougeL": 1.0}, ROUGE)

    assert found.outcome is outcome
    assert found.headline.startswith(first)
    assert [metric.metric for metric in found.metrics] == ["rouge1", "rouge2"]


def test_without_a_reference_no_gate_is_claimed() -> None:
    found = gate(full({"top1": 76.5234}), None, whose="MLPerf's", profile="quick")

    assert found == GateRuling(
        evaluated=False,
        outcome=Outcome.OK,
        headline="top1 76.523; gate not evaluated (quick profile)",
        metrics=(MetricVerdict(metric="top1", outcome=None, now=76.5234),),
    )


def test_a_subset_never_claims_the_gate() -> None:
    part = Accuracy(scores={"top1": 10.0}, samples=1024, total=50_000, full=False, folder="x")

    found = gate(part, TOP1, whose="MLPerf's", profile="official")

    assert (found.evaluated, found.outcome) == (False, Outcome.OK)
    assert found.headline == "top1 10.000; gate not evaluated (1,024 of 50,000 samples)"


@pytest.mark.parametrize(
    ("tokens", "outcome", "headline"),
    [
        (294.45, Outcome.OK, "tokens_per_sample 294.450 ≥ 265.005, 90 % of MLPerf's reference"),
        (265.005, Outcome.OK, "tokens_per_sample 265.005 ≥ 265.005, 90 % of MLPerf's reference"),
        (323.895, Outcome.OK, "tokens_per_sample 323.895 ≥ 265.005, 90 % of MLPerf's reference"),
        (
            200.0,
            Outcome.GATE_FAIL,
            "tokens_per_sample 200.000 < 265.005, 90 % of MLPerf's reference",
        ),
        (
            400.0,
            Outcome.GATE_FAIL,
            "tokens_per_sample 400.000 > 323.895, 110 % of MLPerf's reference",
        ),
    ],
)
def test_a_window_has_two_sides(tokens: float, outcome: Outcome, headline: str) -> None:
    window = Bounds(reference=294.45, low=294.45 * 0.9, high=294.45 * 1.1)

    found = ruled({"tokens_per_sample": tokens}, {"tokens_per_sample": window})

    assert (found.outcome, found.headline) == (outcome, headline)


@pytest.mark.parametrize(
    ("fid", "outcome", "headline"),
    [
        (23.5, Outcome.OK, "fid 23.500 ≥ 23.011, 98 % of MLPerf's reference"),
        (23.95007627, Outcome.GATE_FAIL, "fid 23.95007627 > 23.95007626, 102 % of MLPerf's"),
        (22.0, Outcome.GATE_FAIL, "fid 22.000 < 23.011, 98 % of MLPerf's reference"),
    ],
)
def test_an_absolute_window_is_kept_to_the_digit(
    fid: float, outcome: Outcome, headline: str
) -> None:
    found = ruled(
        {"fid": fid}, {"fid": Bounds(reference=23.4805, low=23.01085758, high=23.95007626)}
    )

    assert found.outcome is outcome
    assert found.headline.startswith(headline)


@pytest.mark.parametrize(
    ("score", "outcome", "headline"),
    [
        (0.86, Outcome.OK, "ne 0.860 ≤ 0.868, 100.1 % of MLPerf's reference"),
        (0.90, Outcome.GATE_FAIL, "ne 0.900 > 0.868, 100.1 % of MLPerf's reference"),
    ],
)
def test_a_score_that_is_better_when_lower_has_a_ceiling(
    score: float, outcome: Outcome, headline: str
) -> None:
    bounds = {"ne": Bounds(reference=0.86687, low=None, high=0.86687 * 1.001)}

    found = ruled({"ne": score}, bounds)

    assert (found.outcome, found.headline) == (outcome, headline)


def test_a_scorer_that_gives_no_such_metric_is_an_error() -> None:
    with pytest.raises(RunError, match=r"needs top1, .* it gave accuracy, top5") as caught:
        ruled({"accuracy": 1.0, "top5": 2.0})

    assert caught.value.layer == "scorer"


def test_a_score_that_is_no_number_reaches_nothing() -> None:
    assert ruled({"top1": float("nan")}).outcome is Outcome.GATE_FAIL


# --- near the gate -------------------------------------------------------------------------

GATE = 75.6954
WINDOW = {"fid": Bounds(reference=23.4805, low=23.01085758, high=23.95007626)}


@pytest.mark.parametrize(
    ("score", "sd", "near"),
    [
        (75.70, 0.01, "0.0046 inside its gate, 0.5 re-run standard deviations (0.01 points)"),
        (75.69, 0.01, "0.0054 short of its gate, 0.5 re-run standard deviations (0.01 points)"),
        (75.7150, 0.01, "0.02 inside its gate, 2.0 re-run standard deviations (0.01 points)"),
        (75.7155, 0.01, None),  # a little more than two
        (76.46, 0.01, None),
        (60.0, 0.01, None),
        (75.70, 0.0, None),  # a build that repeats itself is not near: it is above
        (75.70, None, None),  # nobody repeated a pass
    ],
)
def test_a_score_within_two_rerun_deviations_is_near_its_gate(
    score: float, sd: float | None, near: str | None
) -> None:
    found = gate(
        full({"top1": score}),
        TOP1,
        whose="MLPerf's",
        profile="official",
        rerun_sd={} if sd is None else {"top1": sd},
    )

    assert found.outcome is (Outcome.OK if score >= GATE else Outcome.GATE_FAIL)
    if near is None:
        assert found.notes == ()
    else:
        (note,) = found.notes
        assert note.startswith(f"NEAR-GATE: top1 is {near}: another pass of the same build")


@pytest.mark.parametrize(
    ("fid", "side"),
    [(23.02, "0.0091 inside"), (23.0, "0.011 short of"), (23.95, "7.6e-05 inside"), (23.5, None)],
)
def test_both_ends_of_a_window_may_be_near(fid: float, side: str | None) -> None:
    found = gate(
        full({"fid": fid}), WINDOW, whose="MLPerf's", profile="official", rerun_sd={"fid": 0.02}
    )

    assert [note.split(" its")[0] for note in found.notes] == (
        [] if side is None else [f"NEAR-GATE: fid is {side}"]
    )


def test_a_subset_is_near_no_gate() -> None:
    part = Accuracy(scores={"top1": 75.70}, samples=1024, total=50_000, full=False, folder="x")

    found = gate(part, TOP1, whose="MLPerf's", profile="official", rerun_sd={"top1": 0.01})

    assert (found.evaluated, found.notes) == (False, ())


@pytest.mark.parametrize("score", [75.70, 75.69])
def test_near_gate_is_said_whatever_the_baseline_says(score: float) -> None:
    near = gate(
        full({"top1": score}),
        TOP1,
        whose="MLPerf's",
        profile="official",
        rerun_sd={"top1": 0.01},
    )
    ruling = AccuracyRuling(
        outcome=Outcome.ACC_DROP, headline="top1 fell", paired=(), more=False, notes=("other",)
    )

    for against in (None, ruling):
        found = combine(near, against, "record it")
        assert found.notes[0].startswith("NEAR-GATE: top1")
