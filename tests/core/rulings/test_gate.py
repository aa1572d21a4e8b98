"""The accuracy gate: a plain comparison, as MLPerf makes it; a part has to prove a miss."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.rulings.gate import OWN_REFERENCE, GateWindow, Pass, combine, gate
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Gate, GateState, MetricVerdict, Outcome
from pytest_mlperf.reports.sentences import sentence
from tests.core.made import present

TOKENS = GateWindow(reference=294.45, low=294.45 * 0.9, high=294.45 * 1.1)
ENTROPY = GateWindow(reference=0.86687, low=None, high=0.86687 * 1.001)
FID = GateWindow(reference=23.4805, low=23.01085758, high=23.95007626)
TOP1 = {"top1": GateWindow(reference=76.46, low=76.46 * 0.99, high=None)}


def ruled(
    scores: Mapping[str, float],
    bounds: Mapping[str, GateWindow] | None = TOP1,
    *,
    whose: str = "MLPerf's",
    complete: bool = True,
    rerun_sd: Mapping[str, float] | None = None,
) -> Ruling:
    """Hold scores of a whole data set of 500 samples against a gate."""
    accuracy = Accuracy(scores=scores, samples=500, total=500, full=True, folder="x")
    scored = Scored(indices=(), per_sample={})
    whole = Pass(accuracy=accuracy, scored=scored, order=(), total=500)
    return gate(whole, bounds, whose=whose, complete=complete, rerun_sd=rerun_sd or {})


def test_a_score_reaches_the_gate_or_not() -> None:
    """The share is written as the round writes it."""
    for score, outcome, comparison in (
        (76.46, Outcome.OK, "76.460 ≥ 75.695"),
        (75.6955, Outcome.OK, "75.695 ≥ 75.695"),
        (76.46 * 0.99, Outcome.OK, "75.695 ≥ 75.695"),
        (75.695, Outcome.GATE_FAIL, "75.6950 < 75.6954"),
        (75.695399, Outcome.GATE_FAIL, "75.695399 < 75.695400"),
        (71.65, Outcome.GATE_FAIL, "71.650 < 75.695"),
        (0.0, Outcome.GATE_FAIL, "0.000 < 75.695"),
    ):
        ruling = ruled({"top1": score})
        headline = f"top1 {comparison}, 99 % of MLPerf's reference"
        assert (ruling.outcome, sentence(ruling.headline)) == (outcome, headline)
        (metric,) = ruling.metrics
        assert (metric.metric, metric.outcome) == ("top1", outcome)
        assert (metric.now, metric.baseline.value) == (score, 76.46)
        assert metric.change == pytest.approx(score / 76.46 - 1)
        assert metric.limit == pytest.approx(0.01)
    assert ruled({"top1": float("nan")}).outcome is Outcome.GATE_FAIL

    for target, target_text in ((0.99, "99 %"), (0.999, "99.9 %"), (0.5, "50 %"), (1.0, "100 %")):
        bounds = {"top1": GateWindow(reference=76.46, low=76.46 * target, high=None)}
        assert f", {target_text} of MLPerf's reference" in sentence(
            ruled({"top1": 80.0}, bounds).headline
        )


def test_each_metric_must_reach_its_gate() -> None:
    bounds = {
        "rouge1": GateWindow(reference=44.4312, low=43.987, high=None),
        "rouge2": GateWindow(reference=22.0352, low=21.815, high=None),
    }
    for rouge1, rouge2, outcome, first in (
        (45.0, 23.0, Outcome.OK, "rouge1"),
        (45.0, 20.0, Outcome.GATE_FAIL, "rouge2"),
        (40.0, 23.0, Outcome.GATE_FAIL, "rouge1"),
        (40.0, 20.0, Outcome.GATE_FAIL, "rouge1"),
    ):
        ruling = ruled({"rouge2": rouge2, "rouge1": rouge1, "rougeL": 1.0}, bounds)
        assert ruling.outcome is outcome
        assert sentence(ruling.headline).startswith(first)
        assert [metric.metric for metric in ruling.metrics] == ["rouge1", "rouge2"]


def part(right: int, samples: int, total: int = 50_000, *, full_size: int = 0) -> Pass:
    """Return a pass over the first samples of a shuffled data set, right ones spread evenly."""
    values = [100.0 * (n * right // samples < (n + 1) * right // samples) for n in range(samples)]
    accuracy = Accuracy(
        scores={"top1": 100 * right / samples},
        samples=samples,
        total=full_size or total,
        full=samples == full_size,
        folder="x",
    )
    scored = Scored(indices=tuple(range(samples)), per_sample={"top1": values})
    return Pass(accuracy=accuracy, scored=scored, order=range(samples), total=total)


def test_without_a_reference_no_gate_is_claimed() -> None:
    """A data set larger than MLPerf's is compared plainly."""
    ruling = ruled({"top1": 76.5234}, None, complete=False)

    assert sentence(ruling.headline) == "top1 76.523; no gate: no reference score is known"
    assert ruling == Ruling(
        gate=Gate(state=GateState.NONE, samples=500, total=500),
        outcome=Outcome.OK,
        headline=ruling.headline,
        metrics=(MetricVerdict(metric="top1", outcome=None, now=76.5234),),
    )

    ruling = gate(part(700, 1000, total=500, full_size=1000), TOP1, whose="MLPerf's", complete=True)

    assert ruling.gate == Gate(state=GateState.FAILED, samples=1000, total=1000)


def test_a_part_fails_where_it_proves_it_and_never_keeps_the_gate() -> None:
    bound = "< 75.695, 99 % of MLPerf's reference"
    for right, samples, full_size, failed, headline in (
        (784, 1024, 0, False, "76.562; gate not decided on 1,024 of 50,000"),
        (1024, 1024, 0, False, "100.000; gate not decided on 1,024 of 50,000"),
        (768, 1024, 0, False, "75.000; gate not decided on 1,024 of 50,000"),
        (700, 1024, 0, True, f"68.359 {bound}; proven"),
        (1, 1024, 0, True, f"0.098 {bound}; proven"),
        (0, 10, 10, True, f"0.000 {bound}; proven"),
        (0, 3, 3, False, "0.000; gate not decided on 3 of 50,000"),
        (500, 500, 500, False, "100.000; gate not decided on 500 of 50,000"),
        (699, 1024, 1024, False, "68.262; gate not decided on 1,024 of"),
        (614, 1024, 1024, True, f"59.961 {bound}"),
        (614, 1024, 2000, True, f"59.961 {bound}"),
        (36_000, 49_999, 0, True, f"72.001 {bound}"),
    ):
        measured = part(right, samples, full_size=full_size)
        ruling = gate(measured, TOP1, whose="MLPerf's", complete=True, rerun_sd={"top1": 10.0})
        state = GateState.FAILED if failed else GateState.UNDECIDED
        word = Outcome.GATE_FAIL if failed else None
        assert ruling.gate == Gate(state=state, samples=samples, total=50_000)
        assert (ruling.outcome, ruling.notes) == (word or Outcome.OK, ())
        assert sentence(ruling.headline).startswith(f"top1 {headline}")
        assert sentence(ruling.headline).endswith(f"on {samples:,} of 50,000 samples")
        assert [metric.outcome for metric in ruling.metrics] == [word]


def test_a_score_that_was_not_asked_for_leaves_the_gate_undecided() -> None:
    bounds = {**TOP1, "mbxp": GateWindow(reference=60.12, low=59.5, high=None)}

    kept, failed, nothing = (
        ruled(scores, bounds, complete=False)
        for scores in ({"top1": 76.0}, {"top1": 70.0}, {"top5": 70.0})
    )

    assert kept.gate == Gate(state=GateState.UNDECIDED, samples=500, total=500, unscored=("mbxp",))
    assert sentence(kept.headline) == "top1 76.000; gate not decided on 500 samples, without mbxp"
    assert [metric.outcome for metric in kept.metrics] == [Outcome.OK]
    assert (present(failed.gate).state, failed.outcome) == (GateState.FAILED, Outcome.GATE_FAIL)
    assert present(nothing.gate).unscored == ("top1", "mbxp")
    with pytest.raises(RunError, match="MLPerf's gate needs mbxp"):
        ruled({"top1": 76.0}, bounds)
    with pytest.raises(RunError, match=r"\[workload\] reference names mbxp"):
        ruled({"top1": 76.0}, bounds, whose=OWN_REFERENCE, complete=False)
    with pytest.raises(
        RunError, match=r"needs top1, .* the scorer returned only accuracy, top5"
    ) as caught:
        ruled({"accuracy": 1.0, "top5": 2.0})
    assert caught.value.layer == "scorer"


def test_a_window_has_two_sides_and_a_score_that_is_better_when_lower_a_ceiling() -> None:
    for name, window, score, outcome, headline in (
        ("tokens", TOKENS, 294.45, Outcome.OK, "294.450 ≥ 265.005, 90 %"),
        ("tokens", TOKENS, 265.005, Outcome.OK, "265.005 ≥ 265.005, 90 %"),
        ("tokens", TOKENS, 323.895, Outcome.OK, "323.895 ≥ 265.005, 90 %"),
        ("tokens", TOKENS, 200.0, Outcome.GATE_FAIL, "200.000 < 265.005, 90 %"),
        ("tokens", TOKENS, 400.0, Outcome.GATE_FAIL, "400.000 > 323.895, 110 %"),
        ("fid", FID, 23.5, Outcome.OK, "23.500 ≥ 23.011, 98 %"),
        ("fid", FID, 23.95007627, Outcome.GATE_FAIL, "23.95007627 > 23.95007626, 102 %"),
        ("fid", FID, 22.0, Outcome.GATE_FAIL, "22.000 < 23.011, 98 %"),
        ("ne", ENTROPY, 0.86, Outcome.OK, "0.860 ≤ 0.868, 100.1 %"),
        ("ne", ENTROPY, 0.90, Outcome.GATE_FAIL, "0.900 > 0.868, 100.1 %"),
    ):
        ruling = ruled({name: score}, {name: window})
        expected = (outcome, f"{name} {headline} of MLPerf's reference")
        assert (ruling.outcome, sentence(ruling.headline)) == expected


def test_a_score_within_two_rerun_deviations_is_near_its_gate() -> None:
    """It is reported whatever the baseline is, and for both ends of a window."""
    fell = Ruling(
        outcome=Outcome.ACC_DROP, headline="top1 fell", paired=(), more=False, notes=("other",)
    )
    for score, sd, near in (
        (75.70, 0.01, (0.0046, False)),
        (75.69, 0.01, (0.0054, True)),
        (75.7150, 0.01, (0.0196, False)),
        (75.7155, 0.01, None),  # a little more than two
        (76.46, 0.01, None),
        (60.0, 0.01, None),
        (75.70, 0.0, None),  # a build that repeats itself is not near: it is above
        (75.70, None, None),  # nobody repeated a pass
    ):
        ruling = ruled({"top1": score}, rerun_sd={} if sd is None else {"top1": sd})
        assert ruling.outcome is (Outcome.OK if score >= 75.6954 else Outcome.GATE_FAIL)
        assert len(ruling.notes) == (near is not None)
        for note in ruling.notes:
            assert isinstance(note, Note)
            assert near is not None
            assert note.values["distance"] == pytest.approx(near[0], abs=1e-4)
            assert (note.key, note.values["missed"]) == ("near_gate", near[1])
            for against in (None, fell):
                assert combine(ruling, against, "record it").notes[0] == note
    for fid, side in ((23.02, (0.0091, False)), (23.0, (0.0109, True)), (23.95, (7.6e-5, False)),
                      (23.5, None)):  # fmt: skip
        ruling = ruled({"fid": fid}, {"fid": FID}, rerun_sd={"fid": 0.02})
        assert len(ruling.notes) == (side is not None)
        for note in ruling.notes:
            assert isinstance(note, Note)
            assert side is not None
            assert note.values["distance"] == pytest.approx(side[0], abs=1e-4)
            assert note.values["missed"] is side[1]
