"""What the scores of a case say together, of a part and of a whole data set, and of repeats."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import pytest

from pytest_mlperf.core.baseline import AccuracyBaseline, Rerun, steps_per_point
from pytest_mlperf.core.measurement import Accuracy, Scored
from pytest_mlperf.core.notes import Note, NoteKey, Words
from pytest_mlperf.core.rulings.accuracy import (
    Margin,
    PassContext,
    pooled,
    rerun_noise,
    rule_on_scores,
)
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.reports.sentences import sentence
from tests.core.made import make_accuracy_baseline, present

N = 4000

Values = Sequence[float | None]


def spread(mean: float, index: int) -> float:
    """Return a score that varies from sample to sample, by the same amount in every pass."""
    return mean + (index * 7919 % 101 - 50) / 10


def ruled(
    baseline_scores: Mapping[str, Values],
    new_scores: Mapping[str, Values],
    *,
    samples: int = 0,
    total: int = N,
    margin: Mapping[str, float] | None = None,
    lower: tuple[str, ...] = (),
    whole: tuple[str, ...] = (),
    outputs: tuple[Sequence[int], Sequence[int]] | None = None,
    same_build: bool = False,
    groups: Sequence[int] | None = None,
    leverage: Mapping[str, Leverage] | None = None,
) -> Ruling:
    """Judge the first samples of `now` against `before`; margins in points, outputs as digests."""
    means = {
        name: sum(v for v in values if v is not None) / max(1, len(values))
        for name, values in baseline_scores.items()
    }
    steps = {name: steps_per_point(values) for name, values in baseline_scores.items()}
    samples = samples or total
    accuracy = Accuracy(
        scores=means, samples=samples, total=total, full=samples == total, folder="", lower=lower,
        whole=whole,
    )  # fmt: skip
    return rule_on_scores(
        make_accuracy_baseline(samples=total, scores=means, steps=steps),
        baseline_scores,
        accuracy,
        Scored(
            indices=tuple(range(samples)),
            per_sample={name: values[:samples] for name, values in new_scores.items()},
            groups=None if groups is None else tuple(groups[:samples]),
            leverage=leverage or {},
            outputs=tuple(outputs[1][:samples]) if outputs else None,
        ),
        range(total),
        margin=lambda name: Margin(value=(margin or {}).get(name, 0.5), is_share=False),
        sequential=True,
        context=PassContext(same_build=same_build, outputs=outputs[0] if outputs else None),
    )


SAME = [spread(50.0, i) for i in range(N)]


def moved(by: float) -> list[float]:
    return [value + by + (1 if i % 2 else -1) for i, value in enumerate(SAME)]


def test_worse_is_lower_or_higher_as_the_scorer_says() -> None:
    """A worsening smaller than the margin is mentioned."""
    for change, lower, outcome, headline in (
        (-2.0, False, Outcome.ACC_DROP, "s −2.00 points (−2.07 to −1.92); limit −0.50 exceeded"),
        (+2.0, False, Outcome.OK, "s +2.00 points (+1.81 to +2.08); within limit −0.50"),
        (+2.0, True, Outcome.ACC_DROP, "s +2.00 points (+1.92 to +2.07); limit +0.50 exceeded"),
        (-2.0, True, Outcome.OK, "s −2.00 points (−2.08 to −1.93); within limit +0.50"),
    ):
        ruling = ruled({"s": SAME}, {"s": moved(change)}, lower=("s",) if lower else ())
        (paired,) = ruling.paired
        ends = (paired.low, paired.high)
        assert (ruling.outcome, sentence(ruling.headline)) == (outcome, headline)
        assert (paired.low or math.inf) < paired.change < (paired.high or -math.inf)
        assert paired.change == pytest.approx(change)
        assert paired.down == (1024 if outcome is Outcome.ACC_DROP else 0)
        assert (paired.worst, paired.best) == (ends[::-1] if lower else ends)

    small = ruled({"fid": SAME}, {"fid": moved(0.2)}, lower=("fid",))
    assert small.outcome is Outcome.OK
    assert [key_of(note) for note in small.notes] == ["small_drop"]


def only(values: Values, part: int) -> list[float | None]:
    """Return the scores of every third sample: the others belong to another data set."""
    return [value if i % 3 == part else None for i, value in enumerate(values)]


def test_scores_of_parts_are_judged_by_the_samples_they_apply_to() -> None:
    """A part is compared with the same samples of the baseline, whatever the others scored."""
    baseline_scores = {"rouge1": only(SAME, 0), "gsm8k": only([100.0] * N, 1)}
    new_scores = {"rouge1": only(moved(-2.0), 0), "gsm8k": only([100.0] * N, 1)}
    late: Values = [None if i < 2000 else 80.0 for i in range(N)]

    ruling = ruled(baseline_scores, new_scores, samples=1024)
    waiting = ruled({"s": SAME}, {"s": [None, None, *SAME[2:]]}, samples=1024)

    assert ruling.outcome is Outcome.ACC_DROP
    assert sentence(ruling.headline).startswith("rouge1 −2.00")
    assert [paired.samples for paired in ruling.paired] == [342, 341]
    assert ruled({"late": late}, {"late": late}, samples=1024).more
    assert not ruled({"late": late}, {"late": late}).more
    assert (waiting.outcome, waiting.paired[0].samples) == (Outcome.OK, 1022)

    worse_elsewhere = [value if i < 1024 else value - 40 for i, value in enumerate(SAME)]

    ruling = ruled({"s": SAME}, {"s": worse_elsewhere}, samples=1024)

    (paired,) = ruling.paired
    assert (ruling.outcome, paired.samples, paired.changed) == (Outcome.OK, 1024, 0)
    headline = f"s {paired.now:.3f}, every sample of 1,024 scored as in the baseline"
    assert sentence(ruling.headline) == headline


def test_scores_of_other_samples_are_not_compared_and_one_of_the_whole_waits_for_it() -> None:
    missing = ruled({"s": SAME}, {"s": [None, *SAME[1:]]})
    added = ruled({"s": [*SAME[:7], None, *SAME[8:]]}, {"s": SAME})

    assert (missing.outcome, added.outcome) == (Outcome.INVALID,) * 2
    assert missing.headline == Note.of("score_lost", metric="s", sample=0)
    assert added.headline == Note.of("score_added", metric="s", sample=7)

    baseline_scores, new_scores = {"map": SAME, "top1": SAME}, {"map": moved(-2.0), "top1": SAME}

    part = ruled(baseline_scores, new_scores, samples=1024, whole=("map",))
    ruling = ruled(baseline_scores, new_scores, whole=("map",))
    alone = ruled({"fid": SAME}, {"fid": moved(9.0)}, samples=1024, whole=("fid",))

    assert (part.more, [paired.metric for paired in part.paired]) == (True, ["top1"])
    assert (ruling.more, ruling.outcome) == (False, Outcome.ACC_DROP)
    assert [paired.metric for paired in ruling.paired] == ["map", "top1"]
    assert (alone.more, alone.outcome, alone.paired) == (True, Outcome.INCONCLUSIVE, ())
    assert alone.headline == Note.of("whole_only", metrics=("fid",))


def test_each_score_has_its_own_margin_and_counts_of_output_their_samples() -> None:
    baseline_scores, new_scores = {"a": SAME, "b": SAME}, {"a": moved(-0.3), "b": moved(-0.3)}
    counts: Values = [None if i % 2 else 40.0 for i in range(N)]

    ruling = ruled(baseline_scores, new_scores, margin={"a": 1.0, "b": 0.2})
    counted = ruled({"s": SAME, "gen_len": counts}, {"s": SAME, "gen_len": counts})

    words = {paired.metric: paired.outcome for paired in ruling.paired}
    assert words == {"a": Outcome.OK, "b": Outcome.ACC_DROP}
    assert (counted.paired[1].samples, counted.paired[1].now) == (N // 2, 40.0)


def test_scores_without_a_change_state_their_detectable_change() -> None:
    """The drop is none on these samples; of others as large a one as 4,000 leave possible."""
    right: Values = [100.0] * N

    close = ruled({"s": right}, {"s": right}, margin={"s": 0.05})
    wide = ruled({"s": right}, {"s": right}, margin={"s": 0.5})
    part = ruled({"s": right}, {"s": right}, margin={"s": 0.1}, samples=1024)

    assert close.outcome is wide.outcome is Outcome.OK
    assert sentence(close.headline) == "s 100.000, every sample scored as in the baseline"
    (alike,) = close.notes
    assert isinstance(alike, Note)
    assert (alike.key, alike.values["samples"]) == ("scored_alike", 4_000)
    assert alike.values["unseen"] == pytest.approx(0.1, abs=0.005)
    assert wide.notes == ()
    assert (part.outcome, part.more) == (Outcome.INCONCLUSIVE, True)
    assert sentence(part.headline) == "s +0.00 points (−0.34 to +0.00); undecided at −0.10"


def test_samples_that_change_by_groups_are_judged_by_them_with_a_note() -> None:
    """Every second article falls by 1.6 points, every other one rises by 1."""
    of = [index // 100 for index in range(N)]
    new_scores = [score + (1.0 if of[i] % 2 else -1.6) for i, score in enumerate(SAME)]

    alone = ruled({"s": SAME}, {"s": new_scores})
    grouped = ruled({"s": SAME}, {"s": new_scores}, groups=of)

    assert alone.outcome is Outcome.ACC_DROP
    assert grouped.outcome is Outcome.INCONCLUSIVE
    (note,) = grouped.notes
    assert isinstance(note, Note)
    assert (note.key, note.values["groups"]) == ("grouped", 40)
    assert note.values["widened"] == pytest.approx(10.1, abs=0.05)


DIGESTS = [index % 65_536 for index in range(N)]


def touched(every: int) -> list[int]:
    """Return digests of which one in `every` is another one."""
    return [(own + 1) % 65_536 if i % every == 0 else own for i, own in enumerate(DIGESTS)]


def touched_scores(every: int) -> list[float]:
    """Return scores of which one in `every` is 0.3 points higher."""
    return [value + 0.3 * (i % every == 0) for i, value in enumerate(SAME)]


def outputs_note(key: NoteKey, changed: int, of: int, rescored: int) -> Note:
    return Note.of(key, changed=changed, of=of, rescored=rescored)


def key_of(note: Words) -> NoteKey | None:
    return note.key if isinstance(note, Note) else None


def test_changed_outputs_are_distinguished_from_changed_scores() -> None:
    scored = touched_scores(200)
    cases: list[tuple[list[float], list[int] | None, int, list[Note]]] = [
        (SAME, None, N, []),
        (touched_scores(9), None, N, []),
        (SAME, DIGESTS, N, []),
        (SAME, touched(100), N, [outputs_note("outputs_only", 40, N, 0)]),
        (SAME, touched(100), 1024, [outputs_note("outputs_only", 11, 1024, 0)]),
        (scored, touched(100), N, [outputs_note("outputs_changed", 40, N, 20)]),
        (scored, DIGESTS, N, [outputs_note("scores_only", 0, N, 20)]),
    ]
    for scores, digests, samples, notes in cases:
        outputs = None if digests is None else (DIGESTS, digests)
        ruling = ruled({"s": SAME}, {"s": scores}, samples=samples, outputs=outputs)
        assert (ruling.outcome, list(ruling.notes)) == (Outcome.OK, notes)


def test_passes_that_hardly_agree_are_called_so() -> None:
    """A build that differs from itself a little is near-deterministic."""
    shuffled = [SAME[(index * 1237) % N] for index in range(N)]
    near = ruled({"s": SAME}, {"s": touched_scores(200)}, same_build=True)

    (note,) = near.notes
    assert isinstance(note, Note)
    assert (note.key, note.values["changed"]) == ("near_deterministic", 6)
    for same_build in (True, False):
        ruling = ruled({"s": SAME}, {"s": shuffled}, margin={"s": 5.0}, same_build=same_build)
        (note,) = ruling.notes
        assert isinstance(note, Note)
        assert (note.key, note.values["same_build"]) == ("passes_disagree", same_build)


def test_samples_that_show_too_little_of_chance_decide_nothing_with_a_reason() -> None:
    baseline_scores, new_scores = {"map": SAME}, {"map": moved(-2.0)}
    enough = ruled(
        baseline_scores, new_scores, whole=("map",), leverage={"map": Leverage(seen=0.9, df=50)}
    )
    little = ruled(
        baseline_scores, new_scores, whole=("map",), leverage={"map": Leverage(seen=0.254, df=50)}
    )

    assert enough.outcome is Outcome.ACC_DROP
    assert "chance_unseen" not in map(key_of, enough.notes)
    assert (little.outcome, little.more) == (Outcome.INCONCLUSIVE, False)
    assert sentence(little.headline) == "map −2.00 points; undecided at −0.50"
    assert little.notes[0] == Note.of(
        "chance_unseen", metric="map", samples=N, seen=0.254, needed=0.5
    )


SAMPLES = 400


def baseline(**steps: int) -> AccuracyBaseline:
    return make_accuracy_baseline(samples=SAMPLES, steps=steps)


def passes(rng: random.Random, count: int, sd: float) -> list[list[float]]:
    """Return scores of passes of one build: a spread of 22 that they share, and their own."""
    common = [44 + 22 * rng.gauss(0, 1) for _ in range(SAMPLES)]
    return [[value + sd * rng.gauss(0, 1) for value in common] for _ in range(count)]


def scored(**values: list[float | None] | list[float]) -> Scored:
    return Scored(indices=tuple(range(SAMPLES)), per_sample=values)


def test_the_spread_of_a_score_is_estimated_from_two_passes() -> None:
    """A deterministic build has none; counts, new metrics and missing scores are left out."""
    baseline_pass, new_pass, *more = passes(random.Random(1), 300, sd=5.0)
    (same,) = passes(random.Random(2), 1, sd=0.0)
    some: list[float | None] = [None if i % 2 else float(i) for i in range(SAMPLES)]
    single: list[float | None] = [1.0, *[None] * (SAMPLES - 1)]

    spread = rerun_noise(baseline(s=100), {"s": baseline_pass}, scored(s=new_pass))["s"]
    still = rerun_noise(
        baseline(s=100), {"s": [round(value, 2) for value in same]}, scored(s=same)
    )["s"]
    left = rerun_noise(
        baseline(s=100, gen_len=100, one=100),
        {"s": some, "gen_len": some, "one": single},
        scored(s=some, gen_len=some, fresh=some, one=single),
    )

    correlation = present(spread.correlation)
    assert spread.sd == pytest.approx(stdev(fmean(values) for values in more), rel=0.15)
    assert correlation == pytest.approx(22**2 / (22**2 + 5**2), abs=0.02)
    by_hand = stdev(baseline_pass) * math.sqrt((1 - correlation) / SAMPLES)
    assert (spread.sd, spread.passes) == pytest.approx((by_hand, 1), rel=0.1)
    assert (still.sd, still.correlation) == pytest.approx((0.0, 1.0))
    assert (list(left), left["s"].sd) == (["s"], 0.0)


def test_more_passes_are_averaged_and_an_impossible_one_is_refused() -> None:
    def repeated(*fields: Any) -> dict[str, Rerun]:
        return {"s": Rerun(**dict(zip(("sd", "correlation", "passes"), fields, strict=True)))}

    for old, new, expected in (
        (None, (2.0, 0.9, 1), (2.0, 0.9, 1)),
        ((1.0, 0.8, 1), (3.0, 0.9, 1), (math.sqrt(5.0), 0.85, 2)),
        ((1.0, 0.8, 3), (3.0, None, 1), (math.sqrt(3.0), 0.8, 4)),
        ((1.0, None, 1), None, (1.0, None, 1)),
    ):
        spread = pooled(*(repeated(*side) if side else {} for side in (old, new)))["s"]
        assert (spread.sd, spread.correlation, spread.passes) == pytest.approx(expected)
    for fields in ((-1.0, None, 1), (math.nan, None, 1), (1.0, None, 0)):
        with pytest.raises(ValueError, match="sd must be finite and at"):
            repeated(*fields)
