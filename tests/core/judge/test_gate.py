"""The accuracy gate: a plain comparison, as MLPerf makes it; a part has to prove a miss."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.judge.gate import OWN, GateWindow, Pass, combine, gate
from pytest_mlperf.core.judge.ruling import Ruling
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.verdict import Gate, GateState, MetricVerdict, Outcome

TOP1 = {"top1": GateWindow(reference=76.46, low=76.46 * 0.99, high=None)}


def ruled(scores: Mapping[str, float], bounds: Mapping[str, GateWindow] | None = TOP1) -> Ruling:
    return gate(full(scores), bounds, whose="MLPerf's", complete=True)


def full(scores: Mapping[str, float]) -> Pass:
    accuracy = Accuracy(scores=scores, samples=500, total=500, full=True, folder="x")
    return Pass(accuracy=accuracy, scored=Scored(indices=(), per_sample={}), order=(), total=500)


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
    bounds = {"top1": GateWindow(reference=76.46, low=76.46 * target, high=None)}

    assert f", {shown} of MLPerf's reference" in ruled({"top1": 80.0}, bounds).headline


ROUGE = {
    "rouge1": GateWindow(reference=44.4312, low=43.987, high=None),
    "rouge2": GateWindow(reference=22.0352, low=21.815, high=None),
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


def part(right: int, samples: int, total: int = 50_000, *, given: int = 0) -> Pass:
    """Return a pass over the first samples of a shuffled data set, right ones spread evenly."""
    values = [100.0 * (n * right // samples < (n + 1) * right // samples) for n in range(samples)]
    accuracy = Accuracy(
        scores={"top1": 100 * right / samples},
        samples=samples,
        total=given or total,
        full=samples == given,
        folder="x",
    )
    scored = Scored(indices=tuple(range(samples)), per_sample={"top1": values})
    return Pass(accuracy=accuracy, scored=scored, order=range(samples), total=total)


def test_without_a_reference_no_gate_is_claimed() -> None:
    found = gate(full({"top1": 76.5234}), None, whose="MLPerf's", complete=False)

    assert found == Ruling(
        gate=Gate(state=GateState.NONE, samples=500, total=500),
        outcome=Outcome.OK,
        headline="top1 76.523; no gate: no reference score is known",
        metrics=(MetricVerdict(metric="top1", outcome=None, now=76.5234),),
    )


@pytest.mark.parametrize(
    ("right", "samples", "given", "state", "headline"),
    [
        (784, 1024, 0, GateState.UNDECIDED, "top1 76.562; gate not decided on 1,024 of 50,000"),
        (1024, 1024, 0, GateState.UNDECIDED, "top1 100.000; gate not decided on 1,024 of 50,000"),
        (768, 1024, 0, GateState.UNDECIDED, "top1 75.000; gate not decided on 1,024 of 50,000"),
        (
            700,
            1024,
            0,
            GateState.FAILED,
            "top1 68.359 < 75.695, 99 % of MLPerf's reference; proven",
        ),
        (1, 1024, 0, GateState.FAILED, "top1 0.098 < 75.695, 99 % of MLPerf's reference; proven"),
        (0, 10, 10, GateState.FAILED, "top1 0.000 < 75.695, 99 % of MLPerf's reference; proven"),
        (0, 3, 3, GateState.UNDECIDED, "top1 0.000; gate not decided on 3 of 50,000"),
        (500, 500, 500, GateState.UNDECIDED, "top1 100.000; gate not decided on 500 of 50,000"),
        (699, 1024, 1024, GateState.UNDECIDED, "top1 68.262; gate not decided on 1,024 of"),
        (614, 1024, 1024, GateState.FAILED, "top1 59.961 < 75.695, 99 % of MLPerf's reference"),
        (614, 1024, 2000, GateState.FAILED, "top1 59.961 < 75.695, 99 % of MLPerf's reference"),
        (36_000, 49_999, 0, GateState.FAILED, "top1 72.001 < 75.695, 99 % of MLPerf's reference"),
    ],
)
def test_a_part_fails_where_it_proves_it_and_never_keeps_the_gate(
    right: int, samples: int, given: int, state: GateState, headline: str
) -> None:
    found = gate(
        part(right, samples, given=given),
        TOP1,
        whose="MLPerf's",
        complete=True,
        rerun_sd={"top1": 10.0},
    )

    assert found.gate == Gate(state=state, samples=samples, total=50_000)
    failed = state is GateState.FAILED
    assert found.outcome is (Outcome.GATE_FAIL if failed else Outcome.OK)
    assert found.headline.startswith(headline)
    assert found.headline.endswith(f"on {samples:,} of 50,000 samples")
    assert [metric.outcome for metric in found.metrics] == [Outcome.GATE_FAIL if failed else None]
    assert found.notes == ()


def test_a_data_set_larger_than_mlperfs_is_compared_plainly() -> None:
    found = gate(part(700, 1000, total=500, given=1000), TOP1, whose="MLPerf's", complete=True)

    assert found.gate == Gate(state=GateState.FAILED, samples=1000, total=1000)


def test_a_score_that_was_not_asked_for_leaves_the_gate_undecided() -> None:
    bounds = {**TOP1, "mbxp": GateWindow(reference=60.12, low=59.5, high=None)}

    kept = gate(full({"top1": 76.0}), bounds, whose="MLPerf's", complete=False)
    failed = gate(full({"top1": 70.0}), bounds, whose="MLPerf's", complete=False)
    nothing = gate(full({"top5": 70.0}), bounds, whose="MLPerf's", complete=False)

    assert kept.gate == Gate(state=GateState.UNDECIDED, samples=500, total=500, unscored=("mbxp",))
    assert kept.headline == "top1 76.000; gate not decided on 500 samples, without mbxp"
    assert [metric.outcome for metric in kept.metrics] == [Outcome.OK]
    assert failed.gate is not None
    assert (failed.gate.state, failed.outcome) == (GateState.FAILED, Outcome.GATE_FAIL)
    assert nothing.gate is not None
    assert nothing.gate.unscored == ("top1", "mbxp")
    with pytest.raises(RunError, match="MLPerf's gate needs mbxp"):
        gate(full({"top1": 76.0}), bounds, whose="MLPerf's", complete=True)
    with pytest.raises(RunError, match=r"\[workload\] reference names mbxp"):
        gate(full({"top1": 76.0}), bounds, whose=OWN, complete=False)


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
    window = GateWindow(reference=294.45, low=294.45 * 0.9, high=294.45 * 1.1)

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
        {"fid": fid}, {"fid": GateWindow(reference=23.4805, low=23.01085758, high=23.95007626)}
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
    bounds = {"ne": GateWindow(reference=0.86687, low=None, high=0.86687 * 1.001)}

    found = ruled({"ne": score}, bounds)

    assert (found.outcome, found.headline) == (outcome, headline)


def test_a_scorer_that_gives_no_such_metric_is_an_error() -> None:
    with pytest.raises(RunError, match=r"needs top1, .* it gave accuracy, top5") as caught:
        ruled({"accuracy": 1.0, "top5": 2.0})

    assert caught.value.layer == "scorer"


def test_a_score_that_is_no_number_reaches_nothing() -> None:
    assert ruled({"top1": float("nan")}).outcome is Outcome.GATE_FAIL


GATE = 75.6954
WINDOW = {"fid": GateWindow(reference=23.4805, low=23.01085758, high=23.95007626)}


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
        complete=True,
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
        full({"fid": fid}), WINDOW, whose="MLPerf's", complete=True, rerun_sd={"fid": 0.02}
    )

    assert [note.split(" its")[0] for note in found.notes] == (
        [] if side is None else [f"NEAR-GATE: fid is {side}"]
    )


@pytest.mark.parametrize("score", [75.70, 75.69])
def test_near_gate_is_said_whatever_the_baseline_says(score: float) -> None:
    near = gate(
        full({"top1": score}),
        TOP1,
        whose="MLPerf's",
        complete=True,
        rerun_sd={"top1": 0.01},
    )
    ruling = Ruling(
        outcome=Outcome.ACC_DROP, headline="top1 fell", paired=(), more=False, notes=("other",)
    )

    for against in (None, ruling):
        found = combine(near, against, "record it")
        assert found.notes[0].startswith("NEAR-GATE: top1")
