"""The noise of a machine is learnt from repeats, and the less the fewer they are."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.bench.policy import rule_for
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.noise import (
    Noise,
    Series,
    digamma,
    learn,
    moderated,
    session_noise,
    spread,
    total_variance,
    trigamma,
    trigamma_inverse,
    uncalibrated,
)
from pytest_mlperf.core.noise.calibration import (
    Calibrated,
    CalibratedCase,
    Calibration,
    CalibrationRun,
    best_length,
    drift,
    merged,
    runs_to_detect,
    settings_of,
)
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction, SessionNoise
from pytest_mlperf.judge.rule_r import RuleR, Value, judge, minimum_detectable_change
from tests.core.made import present

GPU = uncalibrated("H200")


def values(
    rng: random.Random,
    sd: float,
    share: float,
    *,
    sessions: int,
    runs: int,
    within: float = 0.0,
    machine: Sequence[float] = (),
) -> tuple[Value, ...]:
    """Draw runs of one case whose variance is sd², a share of it the session's.

    `machine` is the shift that all cases of a session share, in standard deviations.
    """
    values_found = []
    for session in range(sessions):
        common = sd * math.sqrt(share) * (machine[session] if machine else rng.gauss(0, 1))
        for _ in range(runs):
            x = common + rng.gauss(0, sd * math.sqrt(1 - share))
            values_found.append(
                Value(value=math.exp(5 + x), within_se=within, session=f"s{session}")
            )
    return tuple(values_found)


def sd_of_a_case(rng: random.Random, truth: Noise, within: float = 0.0) -> float:
    """Draw the standard deviation of a case: ν0·(s0² + w²) / χ²(ν0)."""
    chi_square = rng.gammavariate(truth.prior_df / 2, 2)
    return math.sqrt(truth.prior_df * (truth.prior_sd**2 + within**2) / chi_square)


def drawn(
    seed: int,
    truth: Noise,
    *,
    cases: int,
    sessions: int,
    runs: int,
    within: float = 0.0,
    shared: bool = False,
) -> list[Series]:
    rng = random.Random(seed)
    machine = [rng.gauss(0, 1) for _ in range(sessions)] if shared else []
    return [
        Series(
            case=f"case {number}",
            metric="throughput",
            runs=values(
                rng,
                sd_of_a_case(rng, truth, within),
                truth.session_share,
                sessions=sessions,
                runs=runs,
                within=within,
                machine=machine,
            ),
        )
        for number in range(cases)
    ]


@given(st.floats(1e-3, 1e7))
def test_polygammas_are_scipys(x: float) -> None:
    """ψ and ψ' to 1e-11, and the inverse of ψ' gives the argument back."""
    from scipy import special

    assert digamma(x) == pytest.approx(float(special.digamma(x)), rel=1e-11, abs=1e-13)
    assert trigamma(x) == pytest.approx(float(special.polygamma(1, x)), rel=1e-11)
    assert trigamma_inverse(trigamma(x)) == pytest.approx(x, rel=1e-9)


def test_uncalibrated_noise_is_the_judges_own_and_polygammas_refuse_values_outside_the_domain() -> (
    None
):
    for function in (digamma, trigamma, trigamma_inverse):
        for x in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="positive and finite"):
                function(x)

    for accelerator in ("cpu", "H200", "8xH100", "cpu-vs-H200"):
        assert uncalibrated(accelerator).rule(5) == rule_for(accelerator)


def logs(*sessions: Sequence[float], within: float = 0.0) -> tuple[Value, ...]:
    return tuple(
        Value(value=math.exp(x), within_se=within, session=f"s{number}")
        for number, session in enumerate(sessions)
        for x in session
    )


def test_the_mean_squares_of_small_tables_are_those_by_hand() -> None:
    """Sessions (0, 2) and (4, 6, 8): MSW = (2 + 8)/3, MSB = 2·3² + 3·2², n0 = 5 - 13/5.

    Sessions that differ less than their runs have variance 0, one session none, and single runs
    show nothing.
    """
    estimate = present(spread(logs([0, 2], [4, 6, 8], within=0.5)))
    alike, single = present(spread(logs([0, 2], [0, 2]))), present(spread(logs([0, 2])))

    assert (estimate.run_df, estimate.between_df, estimate.within) == (3, 1, 0.25)
    numbers = (estimate.run, estimate.between, estimate.runs_per_session, estimate.session)
    assert numbers == pytest.approx((10 / 3, 2 * 9 + 3 * 4, 5 - 13 / 5, (30 - 10 / 3) / 2.4))
    assert (alike.session, single.session, single.between_df) == (0, None, 0)
    assert spread(logs([0], [2], [4])) is None


def test_the_total_variance_is_recovered_whatever_the_sessions() -> None:
    """Mean over 1,000 cases, within 5 %. Cases of one session say no more of sessions than one."""
    rng = random.Random(7)
    for sessions, runs in ((1, 8), (4, 2), (3, 5)):
        estimates = [
            spread(values(rng, 0.02, 0.3, sessions=sessions, runs=runs)) for _ in range(1000)
        ]
        total = [total_variance(each, 0.3) for each in estimates if each]

        assert sum(total) / len(total) == pytest.approx(0.02**2, rel=0.05), (sessions, runs)

    truth = Noise(prior_df=4, prior_sd=0.01, session_share=0.8)
    few, many = (learn(drawn(5, truth, cases=n, sessions=2, runs=4), GPU) for n in (2, 200))
    low, high = present(many.share)

    assert few.noise.session_df == many.noise.session_df == 1
    assert high - low > 0.4


@pytest.mark.slow
def test_drawn_parameters_are_learnt_from_much_data() -> None:
    """200 cases x 12 sessions x 3 runs: s0 within 15 %, ν0 within 35 %, φ within 0.1.

    As usual, noisy, with half of it inside the runs, and without an effect of sessions.
    """
    for prior_df, prior_sd, share, within in (
        (4, 0.007, 0.25, 0.0),
        (6, 0.04, 0.25, 0.0),
        (6, 0.01, 0.4, 0.01),
        (8, 0.003, 0.0, 0.001),
    ):
        truth = Noise(prior_df=prior_df, prior_sd=prior_sd, session_share=share)
        learnt = learn(drawn(11, truth, cases=200, sessions=12, runs=3, within=within), GPU)
        assert learnt.noise.prior_sd == pytest.approx(prior_sd, rel=0.15)
        assert learnt.noise.prior_df == pytest.approx(prior_df, rel=0.35)
        assert learnt.noise.session_share == pytest.approx(share, abs=0.1)
        assert (learnt.cases, learnt.runs, learnt.sessions) == (200, 7200, 12)


def holds(interval: tuple[float, float] | None, truth: float) -> bool:
    low, high = present(interval)
    return low <= truth <= high


FEW_DRAWS = ((3, 3, 1), (6, 8, 5), (20, 3, 1))
MANY_DRAWS = tuple((cases, runs, 14) for cases in (1, 3, 6, 20) for runs in (3, 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    "draws", [FEW_DRAWS, pytest.param(MANY_DRAWS, marks=pytest.mark.nightly)], ids=["few", "many"]
)
@pytest.mark.parametrize("shared", [True, False], ids=["of the machine", "of each case"])
def test_the_intervals_hold_what_they_say_whatever_share_is_the_sessions(
    shared: bool, draws: tuple[tuple[int, int, int], ...]
) -> None:
    """Those of 90 % hold in 85 % and more, and half of all s0 are within 35 % of the truth.

    The few draws show a wrong interval, the many its rate: 1, 3, 6 and 20 cases of 3 and 8 runs.
    """
    for share in (0.25, 0.7):
        truth = Noise(prior_df=4, prior_sd=0.02, session_share=share)
        for sessions in (2, 6):
            learnt = [
                learn(
                    drawn(seed, truth, cases=cases, sessions=sessions, runs=runs, shared=shared),
                    GPU,
                )
                for cases, runs, count in draws
                for seed in range(100 * cases + runs, 100 * cases + runs + 5 * count, 5)
            ]
            least = 0.85 if draws is MANY_DRAWS else 0.7
            assert median(abs(one.noise.prior_sd / 0.02 - 1) for one in learnt) < 0.35
            if share == 0.7 and not shared:  # believed, however little two sessions prove
                assert median(one.noise.session_share for one in learnt) > 0.5
                widths = [high - low for low, high in (present(one.share) for one in learnt)]
                assert sessions > 2 or median(widths) > 0.5
            assert sum(holds(one.sd, 0.02) for one in learnt) / len(learnt) >= least
            assert sum(holds(one.share, share) for one in learnt) / len(learnt) >= least


def test_one_session_has_no_interval_and_neither_have_cases_of_one_session_each() -> None:
    """They do not show what sessions differ by, so s0, which holds that too, is not known."""
    learnt = learn(drawn(1, GPU, cases=20, sessions=1, runs=8), GPU)
    stored = settings_of(learnt, date="2026-11-21", max_runs=5)
    a, b = drawn(1, GPU, cases=2, sessions=1, runs=8)
    other = tuple(dataclasses.replace(run, session="other") for run in b.runs)
    apart = learn([a, dataclasses.replace(b, runs=other)], GPU)

    assert (learnt.sd, learnt.share, learnt.noise.session_df) == (None, None, 0)
    assert learnt.noise.session_share == GPU.session_share
    assert (stored.prior_sd_low, stored.prior_sd_high, stored.session_df) == (None, None, 0)
    assert (apart.sessions, apart.noise.session_df, apart.share) == (2, 0, None)


def test_the_fewer_the_data_the_nearer_is_the_default() -> None:
    """Truth 5 %, default 0.7 %: the weight of the data rises with cases and sessions."""
    truth = Noise(prior_df=4, prior_sd=0.05, session_share=0.6)
    few, more, many = (
        learn(drawn(3, truth, cases=cases, sessions=sessions, runs=4), GPU)
        for cases, sessions in ((1, 1), (4, 2), (60, 10))
    )

    for position in range(2):
        weights = [one.weights[position] for one in (few, more, many)]
        assert weights == sorted(weights)
        assert weights[0] < weights[2] < 1
    assert few.weights[0] == 0
    assert [one.noise.session_df for one in (few, more, many)] == [0, 1, 9]
    assert few.noise.session_share == GPU.session_share
    assert few.noise.prior_df == pytest.approx(GPU.prior_df, rel=1e-6)
    (low, high), (lowest, highest) = present(more.sd), present(many.sd)
    assert high / low > highest / lowest


def test_equal_variances_no_variance_and_one_that_is_inside_the_runs() -> None:
    """A finite weight; no proof of no noise; a learnt s0 near the default."""
    same = values(random.Random(2), 0.01, 0.25, sessions=1, runs=8)
    flat = tuple(Value(value=100.0, session="s") for _ in range(8))
    truth = Noise(prior_df=6, prior_sd=1e-4, session_share=0.0)

    equal = learn([Series(case=str(n), metric="throughput", runs=same) for n in range(100)], GPU)
    still = learn([Series(case="a", metric="throughput", runs=flat)], GPU)
    inside = learn(drawn(1, truth, cases=5, sessions=2, runs=4, within=0.05), GPU)

    assert equal.noise.prior_df == 30
    assert 0.001 <= still.noise.prior_sd < GPU.prior_sd
    assert inside.weights[1] < 0.2
    assert inside.noise.prior_sd == pytest.approx(GPU.prior_sd, rel=0.2)


def test_metrics_of_one_case_weigh_as_one_case_and_single_runs_teach_nothing() -> None:
    """Two runs of one case in one session is the least."""
    alone = drawn(4, GPU, cases=1, sessions=2, runs=4)
    two = [*alone, dataclasses.replace(alone[0], metric="tokens_per_second")]
    lone = Series(case="a", metric="throughput", runs=logs([0], [1]))

    assert learn(alone, GPU).weights[1] == pytest.approx(learn(two, GPU).weights[1], rel=0.05)
    assert (learn(two, GPU).cases, learn(two, GPU).runs) == (1, 8)
    with pytest.raises(ValueError, match="at least two runs of one case in one session"):
        learn([lone], GPU)


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=2, max_size=6), min_size=1, max_size=4),
    st.floats(0, 0.1),
)
def test_any_measurements_give_a_rule(table: list[list[float]], within: float) -> None:
    series = Series(case="a", metric="throughput", runs=logs(*table, within=within))
    learnt = learn([series], GPU)

    assert learnt.noise.rule(5).prior_sd >= 0.001
    assert (learnt.sd is None) is (len(table) == 1)
    assert learnt.sd is None or holds(learnt.sd, learnt.noise.prior_sd)
    assert moderated(present(spread(series.runs)), learnt.noise) > 0


@pytest.mark.parametrize("cases", [60, pytest.param(600, marks=pytest.mark.nightly)])
def test_false_alarms_stay_below_one_per_cent_with_learnt_noise(cases: int) -> None:
    """4 calibrations of 6 cases x 4 runs x 2 sessions, each then judges unchanged cases.

    CPU noise of 3 %, sessions as in the truth. The promise is 1 %; the rule is conservative.
    """
    truth = Noise(prior_df=4, prior_sd=0.03, session_share=0.25)
    failed = missed = 0
    for seed in range(4):
        rng = random.Random(100 + seed)
        learnt = learn(drawn(seed, truth, cases=6, sessions=2, runs=4), uncalibrated("cpu"))
        rule = learnt.noise.rule(5)
        for _ in range(cases):
            sd = sd_of_a_case(rng, truth)
            baseline = values(rng, sd, 0.25, sessions=4, runs=2)
            new_values = values(rng, sd, 0.25, sessions=1, runs=5)
            slow = [dataclasses.replace(run, value=run.value * 0.9) for run in new_values]
            outcomes = [
                judge(baseline, runs, direction=Direction.HIGHER, limit=0.1, rule=rule).outcome
                for runs in (new_values, slow)
            ]
            failed += outcomes[0] is Answer.FAIL
            missed += outcomes[1] is Answer.PASS

    assert failed <= 0.01 * 4 * cases
    assert missed <= 0.05 * 4 * cases


def test_the_best_length_is_where_the_time_for_a_precision_is_least() -> None:
    """The typical GPU of the derivation, 44 s: windows vary by 2 %, runs by 0.7 %, 60 s to start.

    Bounds are one second and MLPerf's ten minutes; None if the variance inside a run is unknown.
    """
    runs = values(random.Random(3), 0.02, 0.0, sessions=1, runs=200, within=0.015)
    noise = Noise(prior_df=1, prior_sd=0.013, session_share=0.0)
    a, b = 0.015**2 * 60, moderated(present(spread(runs)), noise) - 0.015**2
    best = min(range(1, 6000), key=lambda tenths: (45 + tenths / 10) * (b + a / (tenths / 10)))
    inside = 0.02 * math.sqrt((1 + 0.6) / (1 - 0.6) / 60)
    sd = math.sqrt(0.007**2 + inside**2)
    many = values(random.Random(1), sd, 0.0, sessions=1, runs=4000, within=inside)
    typical = Noise(prior_df=4, prior_sd=0.007, session_share=0.0)

    assert best_length(runs, noise, length_s=60, start_s=45) == pytest.approx(best / 10, abs=0.1)
    assert best_length(many, typical, length_s=60, start_s=60) == pytest.approx(44, rel=0.06)
    for within, sd, start_s, seconds in (
        (0.0, 0.01, 60, None),
        (1e-6, 0.05, 1, 1.0),
        (0.5, 0.5, 300, 600.0),
    ):
        runs = values(random.Random(1), sd, 0.0, sessions=1, runs=8, within=within)
        assert best_length(runs, GPU, length_s=60, start_s=start_s) == seconds


def test_k_is_the_fewest_runs_that_prove_every_limit_that_can_be_proven() -> None:
    runs = values(random.Random(6), 0.01, 0.25, sessions=4, runs=2)
    least = {k: minimum_detectable_change(runs, rule=GPU.rule(k)) for k in range(3, 9)}

    assert runs_to_detect([(runs, 0.5)], GPU) == 3
    for k in range(4, 9):
        between = (least[k] + least[k - 1]) / 2
        assert runs_to_detect([(runs, between), (runs, 0.5), (runs, 1e-4)], GPU) == k
    assert runs_to_detect([(runs, 1e-4)], GPU) == runs_to_detect([], GPU) == 5


def series_of(case: str, metric: str, *xs: float, session: str = "s") -> Series:
    values_of_series = tuple(Value(value=math.exp(x), session=session) for x in xs)
    return Series(case=case, metric=metric, runs=values_of_series)


def test_a_drift_that_all_cases_share_is_seen_and_noise_seldom_called_so() -> None:
    """At most 1 of 300 quiet sessions of 3 cases x 6 runs; never from two runs or elsewhere."""
    rng, slower = random.Random(4), [-0.01 * n for n in range(8)]
    series = [
        series_of("a", "throughput", *(x + rng.gauss(0, 0.002) for x in slower)),
        series_of("b", "latency_p90", *(-x + rng.gauss(0, 0.002) for x in slower)),
    ]
    drift_found, called, rng = present(drift(series, "s")), 0, random.Random(5)
    for _ in range(300):
        series = [
            series_of(c, "throughput", *(rng.gauss(0, 0.01) for _ in range(6))) for c in "abc"
        ]
        called += present(drift(series, "s")).proven

    assert drift_found.proven
    assert drift_found.change == pytest.approx(math.expm1(-0.07), abs=0.01)
    assert called <= 1
    assert drift([series_of("a", "throughput", 0, 1)], "s") is None
    assert drift([series_of("a", "throughput", 0, 1, 2, 3)], "another") is None


def run(number: int, session: str = "s1", value: float = 100.0) -> CalibrationRun:
    return CalibrationRun(
        number=number,
        session=session,
        started="2026-11-21T10:00:00+00:00",
        metrics={"latency_p50": 1.0, "throughput": value},
        within_se={"throughput": 0.01},
        duration_s=60.0,
        start_s=12.5,
    )


def case(*runs: CalibrationRun, digest: str = "x", name: str = "a") -> CalibratedCase:
    return CalibratedCase(
        case=name,
        profile="quick",
        digest=digest,
        target_qps=None,
        limits={"latency_p50": 0.05, "throughput": 0.03, "samples_per_joule": 0.05},
        runs=runs,
    )


def test_sessions_of_one_build_are_put_together_each_run_once() -> None:
    """A machine replaces its own entry only."""
    old, new = case(run(1), run(2)), case(run(2, value=200.0), run(1, "s2"))
    (series,), notes = merged([old], [new])
    others, left_out = merged([old, case(run(1), name="b")], [case(run(1, "s2"), digest="y")])
    a: dict[str, Property] = {"cpu": "a", "cores": 2}
    b: dict[str, Property] = {**a, "cpu": "b"}
    first = Calibrated(identity=a, settings=None, cases=())
    whole = Calibration(accelerator="cpu", machines=())
    whole = whole.having(first).having(Calibrated(identity=b, settings=None, cases=()))
    whole = whole.having(dataclasses.replace(first, cases=(case(run(1)),)))

    assert [(r.session, r.number) for r in series.runs] == [("s1", 1), ("s1", 2), ("s2", 1)]
    assert (series.runs[1].metrics["throughput"], notes) == (200, ())
    assert [(c.case, len(c.runs)) for c in others] == [("a", 1), ("b", 1)]
    assert left_out == ("a: 2 older runs left out: engine, options, data or run length changed",)
    assert [s.metric for s in old.series] == ["throughput", "latency_p50"]
    assert [len(m.cases) for m in whole.machines] == [0, 1]
    assert whole.of(a) == whole.machines[1]
    assert whole.of({**a, "cores": 4}) is None


def test_stored_settings_are_the_rule_and_impossible_runs_are_refused() -> None:
    learnt = learn(drawn(8, GPU, cases=3, sessions=2, runs=4), GPU)
    stored = settings_of(learnt, date="2026-11-21", max_runs=4)

    assert stored.rule(6).max_runs == 6
    assert stored.rule(5).prior_sd == pytest.approx(learnt.noise.prior_sd, rel=1e-3)
    assert stored.rule(5).prior_df == pytest.approx(learnt.noise.prior_df, rel=1e-3)
    assert (stored.session_df, stored.noise.session_df) == (1, 1)
    assert stored.in_words == "noise as calibrated 2026-11-21: 3 cases, 24 runs on 2 days"

    for field, value, says in (
        ("metrics", {"throughput": 0.0}, "metric 'throughput' is 0.0"),
        ("metrics", {"throughput": math.inf}, "metric 'throughput' is inf"),
        ("within_se", {"throughput": -1.0}, "'throughput' is -1.0"),
        ("duration_s", 0.0, "duration_s is 0.0"),
        ("start_s", -1.0, "'start_s' is -1.0"),
    ):
        with pytest.raises(ValueError, match=says):
            dataclasses.replace(run(1), **{field: value})  # type: ignore[arg-type]


RULE = RuleR(prior_sd=0.005)


def build(*sessions: Sequence[float]) -> tuple[Value, ...]:
    """Return the runs of one build, by session, in percent of 1 above it."""
    return logs(*([x / 100 for x in session] for session in sessions))


def test_sessions_of_a_build_that_agree_say_so_whatever_its_level() -> None:
    """Nothing is learnt if no build has two sessions."""
    quiet = build([0.4, -0.4], [0.3, -0.3])
    faster = [Value(value=1.5 * one.value, session=f"later {one.session}") for one in quiet]
    agreeing = build([0.4, -0.4], [0.3, -0.3], [0.5, -0.5])

    for builds in ([agreeing], [quiet, faster]):
        assert session_noise(builds, rule=RULE) == SessionNoise(ratio=0.0, df=2.0)
    for builds in ([], [build([0.1, -0.1, 0.2])], [build([0.1]), build([5.0])]):
        assert session_noise(builds, rule=RULE) is None


def test_the_ratio_comes_back_and_other_cases_count_by_a_quarter() -> None:
    """Whatever the runs a session, also from one run each, where only rule R's prior says sd."""
    rule = RuleR(prior_sd=0.004, session_share=0.0)
    for ratio in (0.0, 1.0, 16.0):
        sd, share = 0.004 * math.sqrt(1 + ratio), ratio / (1 + ratio)
        for runs in (1, 2, 8):
            chance = random.Random(7)
            builds = [values(chance, sd, share, sessions=40, runs=runs) for _ in range(25)]
            noises = [present(session_noise([build], rule=rule)) for build in builds]
            assert median(one.ratio for one in noises) == pytest.approx(ratio, rel=0.25, abs=0.25)
            assert {one.df for one in noises} == {39.0}

    far = [build([3.0, 3.1], [-3.0, -3.1], [0.0, 0.1]) for _ in range(50)]

    alone = present(session_noise([], far, rule=RULE))
    both = present(session_noise([build([0.4, -0.4], [0.3, -0.3])], far, rule=RULE))

    assert (alone.df, both.df) == (0.5, 1.5)
    assert 0 < both.ratio < alone.ratio / 2


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.floats(-20, 20), min_size=1, max_size=4), min_size=2, max_size=6),
    st.floats(1e-6, 1e6),
)
def test_the_unit_of_the_metric_and_the_order_of_runs_do_not_matter(
    sessions: list[list[float]], unit: float
) -> None:
    plain = build(*sessions)
    other = [
        Value(value=unit * one.value, session=one.session, within_se=one.within_se)
        for one in reversed(plain)
    ]

    noise, again = (present(session_noise([runs], rule=RULE)) for runs in (plain, other))

    assert noise.df == again.df == len(sessions) - 1
    assert again.ratio == pytest.approx(noise.ratio, rel=1e-6, abs=1e-6)
