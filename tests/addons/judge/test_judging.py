"""Judge sides of runs: sessions, runs in turns, curves, duplicates, error rates."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.judge.judging import CURVE, NO_HOST, compare
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.planning import needed_pairs, plans, schedule
from pytest_mlperf.addons.judge.rows import FileComparison, Settings, usual_metrics
from tests.addons.judge.files import DATA, both, judged, notes, outcomes, read, write

DAY = 86_400.0


def run(
    value: float,
    *,
    day: float = 0.0,
    host: str | None = "h1",
    concurrency: float | None = None,
    rate: float | None = None,
    **more: Any,
) -> ToolRun:
    """Return a run with a median TTFT, and a throughput if one is stated."""
    metrics = {"ttft_p50": value} if rate is None else {"output_tokens_per_second": rate}
    name = "one" if concurrency is None else f"concurrency {concurrency:g}"
    point = ToolPoint(name=name, metrics=metrics, axis=concurrency)
    digest = f"{value} {day} {host} {concurrency} {rate}"
    return ToolRun(
        tool="vllm",
        source=f"{digest}.json",
        digest=digest,
        points=(point,),
        started=day * DAY + 1e9,
        host=host,
        **more,
    )


def side(mean: float, days: Sequence[float], seed: int, sd: float = 0.01) -> list[ToolRun]:
    noise = random.Random(seed)
    return [run(mean * (1 + noise.gauss(0, sd)), day=day) for day in days]


def verdict(base: Sequence[ToolRun], new: Sequence[ToolRun], **settings: Any) -> FileComparison:
    return compare(base, new, Settings(**settings))


# ---------------------------------------------------------------- sessions


def test_one_session_a_side_proves_nothing() -> None:
    base, new = side(1.0, [0.0, 0.01, 0.02], 1), side(1.3, [1.0, 1.01, 1.02], 2)
    result = verdict(base, new)

    assert result.one_session
    assert outcomes(result) == {"ttft_p50": "PROVISIONAL"}
    assert [row.direction for row in result.rows] == ["drop"]


def test_sessions_of_several_days_prove_a_drop_and_exclude_one() -> None:
    base = side(1.0, range(6), 1)
    slower, equal = side(1.11, range(10, 16), 2), side(1.01, range(10, 16), 3)

    assert outcomes(verdict(base, slower)) == {"ttft_p50": "PERF DROP"}
    assert outcomes(verdict(base, equal)) == {"ttft_p50": "ok"}
    assert verdict(base, equal).rows[0].sessions == (6, 6)


def test_a_host_and_a_commit_are_sessions_of_their_own() -> None:
    base = [run(1.0 + n / 1e3, host=f"h{n}") for n in range(5)]
    new = [run(1.0 + n / 1e3, day=1.0, commit=f"c{n}") for n in range(5)]

    assert verdict(base, new).rows[0].sessions == (5, 5)


def test_a_field_tells_sessions_apart() -> None:
    base = [run(1.0 + n / 1e3, details={"label": f"s{n}"}) for n in range(4)]
    new = [run(1.0 + n / 1e3, day=0.5, details={"label": f"t{n}"}) for n in range(4)]

    assert verdict(base, new).one_session
    assert verdict(base, new, session_by="label").rows[0].sessions == (4, 4)


# ---------------------------------------------------------------- runs in turns


def in_pairs(result: FileComparison) -> bool:
    return "neighbouring runs in pairs" in result.how


def in_turns(
    pairs: int, slower: float, hosts: tuple[str | None, str | None]
) -> list[list[ToolRun]]:
    """Return both sides of pairs in the order A B, B A on a machine that drifts by 10 %."""
    noise = random.Random(5)
    sides: list[list[ToolRun]] = [[], []]
    for pair in range(pairs):
        for place, of in enumerate((0, 1) if pair % 2 == 0 else (1, 0)):
            when = (2 * pair + place) / 1000
            mean = (1 + 10 * when) * (slower if of else 1.0) * (1 + noise.gauss(0, 0.005))
            sides[of].append(run(mean, day=when, host=hosts[of]))
    return sides


@pytest.mark.parametrize(("slower", "outcome"), [(1.0, "ok"), (1.1, "PERF DROP")])
def test_runs_in_turns_on_one_host_are_final_on_the_first_day(slower: float, outcome: str) -> None:
    base, new = in_turns(6, slower, ("h1", "h1"))
    result = verdict(base, new)

    assert in_pairs(result)
    assert not result.one_session
    assert outcomes(result) == {"ttft_p50": outcome}


def test_runs_in_turns_need_one_known_host() -> None:
    apart = verdict(*in_turns(6, 1.1, ("h1", "h2")))
    unknown = verdict(*in_turns(6, 1.1, (None, None)))
    stated = verdict(*in_turns(6, 1.1, (None, None)), ignored=("host",))

    assert (in_pairs(apart), in_pairs(unknown), in_pairs(stated)) == (False, False, True)
    assert unknown.one_session
    assert [NO_HOST in result.notes for result in (apart, unknown, stated)] == [False, True, False]


def test_blocks_of_runs_are_not_in_turns() -> None:
    base = [run(1.0 + n / 1e3, day=n / 100) for n in range(4)]
    new = [run(1.0 + n / 1e3, day=(n + 4) / 100) for n in range(4)]

    assert not in_pairs(verdict(base, new))


# ---------------------------------------------------------------- points and curves


def curve(scale: float, seed: int, first_day: int) -> list[ToolRun]:
    noise = random.Random(seed)
    return [
        run(
            1.0,
            day=first_day + day,
            concurrency=float(concurrency),
            rate=concurrency * 100 * scale * (1 + noise.gauss(0, 0.01)),
        )
        for day in range(5)
        for concurrency in (1, 8, 64)
    ]


def test_a_curve_is_judged_as_one_beside_its_points() -> None:
    equal = verdict(curve(1.0, 1, 0), curve(1.0, 2, 10))
    slower = verdict(curve(1.0, 1, 0), curve(0.93, 2, 10))

    assert outcomes(equal)[f"{CURVE}: output_tokens_per_second"] == "ok"
    assert outcomes(slower)[f"{CURVE}: output_tokens_per_second"] == "PERF DROP"
    assert len(outcomes(slower)) == 4


def test_points_of_other_settings_are_another_curve() -> None:
    """As InferenceX has them: one file for each concurrency and number of GPUs."""

    def renamed(runs: Sequence[ToolRun], end: str) -> list[ToolRun]:
        return [
            replace(one, points=(replace(one.points[0], name=one.points[0].name + end),))
            for one in runs
        ]

    base = [*renamed(curve(1.0, 1, 0), ", tp4"), *renamed(curve(1.0, 2, 0), ", tp8")]
    new = [*renamed(curve(1.0, 3, 10), ", tp4"), *renamed(curve(0.93, 4, 10), ", tp8")]
    curves = {name: text for name, text in outcomes(verdict(base, new)).items() if "curve" in name}

    assert curves == {
        "curve: concurrency *, tp4: output_tokens_per_second": "ok",
        "curve: concurrency *, tp8: output_tokens_per_second": "PERF DROP",
    }


def test_a_curve_needs_all_its_points() -> None:
    base, new = curve(1.0, 1, 0), curve(1.0, 2, 10)
    part = [one for one in new if one.points[0].axis != 64]
    result = verdict(base, part)

    assert outcomes(result)["concurrency 64: point"] == "INVALID"
    assert str(result.outcome) == "INVALID"


# ---------------------------------------------------------------- facts


def with_fact(value: str | float | None, day: float, **more: Any) -> ToolRun:
    one = run(1.0 + day / 1e4, day=day)
    fact = Fact(value, **more)
    return ToolRun(
        tool="vllm",
        source=one.source,
        digest=one.digest,
        started=one.started,
        points=(ToolPoint(name="one", metrics=one.points[0].metrics, facts={"model": fact}),),
    )


@pytest.mark.parametrize(
    ("old", "new", "more", "outcome", "note"),
    [
        ("a", "a", {}, "ok", ""),
        ("a", "b", {}, "INVALID", "model differs: a before, b now"),
        (None, "b", {}, "ok", "model: not recorded in the baseline"),
        ("a", None, {}, "ok", "model: not recorded in the new runs"),
        (None, None, {}, "ok", ""),
        (100.0, 101.0, {"tolerance": 0.02}, "ok", ""),
        (100.0, 103.0, {"tolerance": 0.02}, "INVALID", "model differs: 100 before, 103 now"),
        (0.01, 0.04, {"tolerance": 0.05, "absolute": True}, "ok", ""),
        (1.0, "1", {}, "INVALID", "model differs: 1 before, 1 now"),
        ("a", "b", {"bases": ("goodput",)}, "ok", ""),
        ("a", "b", {"bases": ("ttft",)}, "INVALID", "model differs: a before, b now"),
    ],
)
def test_conditions_must_be_equal(
    old: str | float | None,
    new: str | float | None,
    more: dict[str, Any],
    outcome: str,
    note: str,
) -> None:
    base = [with_fact(old, float(day), **more) for day in range(5)]
    result = verdict(base, [with_fact(new, float(day + 10), **more) for day in range(5)])

    assert outcomes(result) == {"ttft_p50": outcome}
    assert note in notes(result)
    assert "differs" not in notes(result) or note


def test_a_condition_that_differs_inside_the_baseline_names_the_file() -> None:
    base = [with_fact("b" if day == 3 else "a", float(day)) for day in range(5)]
    result = verdict(base, [with_fact("a", float(day + 10)) for day in range(5)])

    assert outcomes(result) == {"ttft_p50": "INVALID"}
    assert f"differs inside the baseline: a, and b in {base[3].source}" in notes(result)


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ((None, "a"), ("b", "b"), "model differs: a before, b now"),
        ((None, None), ("a", "b"), "model differs inside the new runs: a, and b in"),
    ],
)
def test_a_condition_that_the_first_run_lacks_is_compared(
    old: tuple[str | None, ...], new: tuple[str, ...], note: str
) -> None:
    base = [with_fact(old[day % 2], float(day)) for day in range(6)]
    result = verdict(base, [with_fact(new[day % 2], float(day + 10)) for day in range(6)])

    assert outcomes(result) == {"ttft_p50": "INVALID"}
    assert note in notes(result)
    assert "model: not recorded in the baseline" in notes(result)


# ---------------------------------------------------------------- failures and missing values


def requests(sent: int, failed: int | None, day: float) -> ToolRun:
    point = ToolPoint(name="one", metrics={"ttft_p50": 1 + day / 1e4}, sent=sent, failed=failed)
    return ToolRun(
        tool="vllm", source=f"{day}", digest=f"{day}", started=1e9 + day * DAY, points=(point,)
    )


@pytest.mark.parametrize(
    ("old", "new", "limits", "expected"),
    [
        (0, 0, {}, {"ttft_p50": "ok"}),
        (0, 10, {}, {"success_share": "PERF DROP", "ttft_p50": "INVALID"}),
        (10, 0, {}, {"success_share": "INVALID", "ttft_p50": "INVALID"}),
        (10, 10, {}, {"success_share": "INVALID", "ttft_p50": "INVALID"}),
        (1, 1, {"success_share": 0.01}, {"ttft_p50": "ok"}),
        (None, None, {}, {"ttft_p50": "ok"}),
        (0, 1000, {}, {"success_share": "PERF DROP", "ttft_p50": "INVALID"}),
        (1000, 1000, {}, {"success_share": "INVALID", "ttft_p50": "INVALID"}),
    ],
)
def test_failed_requests_block_the_other_figures(
    old: int | None, new: int | None, limits: dict[str, float], expected: dict[str, str]
) -> None:
    base = [requests(1000, old, day) for day in range(5)]
    current = [requests(1000, new, day + 10) for day in range(5)]

    assert outcomes(verdict(base, current, limits=limits)) == expected


def test_a_failure_in_one_run_is_invalid_and_not_dropped() -> None:
    base = [requests(1000, 0, day) for day in range(5)]
    new = [requests(1000, 1 if day == 2 else 0, day + 10) for day in range(5)]

    assert outcomes(verdict(base, new)) == {"success_share": "INVALID", "ttft_p50": "INVALID"}


def broken_run(broken: str, day: float) -> ToolRun:
    whole = run(1.0 + day / 1e3, day=day)
    failed = ToolPoint(name="gone", broken=broken)
    points = (*whole.points, failed if broken else ToolPoint(name="gone", metrics={"tpot_p50": 1}))
    return replace(whole, points=points)


@pytest.mark.parametrize(
    ("texts", "allowed", "outcome"),
    [
        (("x", "y"), False, "INVALID"),
        (("x", "y"), True, None),
        (("x", ""), True, "INVALID"),
        (("", "y"), True, "PERF DROP"),
    ],
)
def test_a_case_that_fails_on_both_sides_may_be_allowed(
    texts: tuple[str, str], allowed: bool, outcome: str | None
) -> None:
    sides = [
        [broken_run(text, side * 10 + day) for day in range(4)] for side, text in enumerate(texts)
    ]
    (row,) = (
        row for row in verdict(*sides, allow_missing=allowed).rows if row.metric == "success_share"
    )

    assert row.outcome == outcome
    assert any(text in row.note for text in texts if text)


def test_a_case_that_fails_in_some_runs_is_not_allowed() -> None:
    sides = [
        [broken_run("x" if day == 1 else "", side * 10 + day) for day in range(4)]
        for side in range(2)
    ]

    assert outcomes(verdict(*sides, allow_missing=True))["gone: success_share"] == "INVALID"


def test_a_value_that_one_run_lacks_is_named() -> None:
    base = side(1.0, range(5), 1)
    new = side(1.0, range(10, 15), 2)
    lacking = run(1.0, day=20)
    lacking = ToolRun(
        tool="vllm", source="gone.json", digest="x", points=(ToolPoint(name="one"),), started=2e9
    )
    result = verdict(base, [*new, lacking])

    assert outcomes(result) == {"ttft_p50": "INVALID"}
    assert "not measured in 1 of 6 runs of the new runs (gone.json)" in notes(result)


# ---------------------------------------------------------------- the same run twice


def test_a_copy_and_a_link_count_once(tmp_path: Path) -> None:
    original = shutil.copy(DATA / "vllm-serve.json", tmp_path / "a.json")
    shutil.copy(original, tmp_path / "b.json")
    (tmp_path / "c.json").symlink_to(original)
    result = read([tmp_path])

    assert len(result.runs) == 1
    assert [note.endswith("counted once") for note in result.notes] == [True, True]


def test_equal_figures_of_a_small_table_are_two_runs(tmp_path: Path) -> None:
    """A rounded figure repeats; a link to the same file is the same run."""
    rate = {"elapsed_time": 1.0, "num_requests": 5, "requests_per_second": 5.0}
    first = write(tmp_path / "a.json", rate)
    second = write(tmp_path / "b.json", rate)
    (tmp_path / "c.json").symlink_to(first)
    side = read([tmp_path])

    assert [run.source for run in side.runs] == [str(first), str(second)]
    assert set(outcomes(judged(first, second)).values()) == {"PROVISIONAL"}
    with pytest.raises(MlperfError, match="are the same run, which cannot"):
        judged(first, tmp_path / "c.json")


def test_a_run_on_both_sides_is_refused(tmp_path: Path) -> None:
    one = Path(shutil.copy(DATA / "vllm-serve.json", tmp_path / "a.json"))
    with pytest.raises(MlperfError, match="are the same run, which cannot"):
        judged(DATA / "vllm-serve.json", one)


def test_equal_scores_of_documents_are_no_duplicate(tmp_path: Path) -> None:
    name = "samples_gsm8k_2026-11-12T08-00-00.jsonl"
    same = Path(shutil.copy(DATA / name, tmp_path / name))

    assert set(outcomes(judged(DATA / name, same)).values()) <= {"ok", "INCONCLUSIVE"}


# ---------------------------------------------------------------- what is judged


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99"], ["ttft_p50", "ttft_p99"]),
        (["ttft_mean"], ["ttft_mean"]),
        (["requests_per_second", "output_tokens_per_second"], ["output_tokens_per_second"]),
        (["requests_per_second"], ["requests_per_second"]),
        (["time_min", "time_mean", "bytes_per_second"], ["time_mean"]),
        (["goodput", "requests_per_second"], ["goodput", "requests_per_second"]),
    ],
)
def test_usual_metrics(names: list[str], chosen: list[str]) -> None:
    assert usual_metrics(names) == chosen


def test_the_user_chooses_metrics_and_limits() -> None:
    base, new = side(1.0, range(6), 1), side(1.11, range(10, 16), 2)

    assert outcomes(verdict(base, new, metrics=("tpot",))) == {}
    assert outcomes(verdict(base, new, metrics=("ttft",))) == {"ttft_p50": "PERF DROP"}
    assert outcomes(verdict(base, new, limits={"ttft_p50": 0.2})) == {"ttft_p50": "ok"}
    assert outcomes(verdict(base, new, limits={"ttft": 0.2})) == {"ttft_p50": "ok"}


def test_a_metric_of_unknown_direction_is_reported_with_a_question(tmp_path: Path) -> None:
    def make(factor: float, size: float) -> dict[str, Any]:
        row = [[size * factor], [], "v1"]
        about = {"result_columns": ["result", "params", "version"], "env_name": "e"}
        return {**about, "commit_hash": "c", "results": {"track_size": row}}

    result = both(tmp_path, make, {"size": 10.0}, {"size": 20.0})

    assert outcomes(result) == {}
    assert "unknown whether higher or lower is better" in notes(result)


# ---------------------------------------------------------------- plans


def test_a_plan_needs_more_pairs_for_noisier_runs_and_smaller_limits() -> None:
    quiet, noisy = needed_pairs(0.005, 0.05, 4), needed_pairs(0.02, 0.05, 4)
    assert quiet is not None
    assert noisy is not None
    assert quiet < noisy
    assert needed_pairs(0.005, 0.02, 4) > quiet  # type: ignore[operator]
    assert needed_pairs(0.5, 0.01, 4) is None


def test_a_plan_is_enough_for_its_promise() -> None:
    """Of drops of twice the limit and of unchanged builds, 95 in 100 are decided rightly."""
    noise = random.Random(7)
    pairs = needed_pairs(0.01, 0.05, 1)
    assert pairs is not None
    right = 0
    for repeat in range(100):
        slower = 1.05 if repeat % 2 else 1.0
        base = [run(1 + noise.gauss(0, 0.01), day=p / 100) for p in range(pairs)]
        new = [run(slower * (1 + noise.gauss(0, 0.01)), day=p / 100 + 1e-3) for p in range(pairs)]
        outcome = outcomes(verdict(base, new))["ttft_p50"]
        right += outcome == ("PERF DROP" if repeat % 2 else "ok")
    assert right >= 85


def test_the_schedule_alternates_and_tells_its_time() -> None:
    runs = [run(1 + n / 100, day=n / 100, duration_s=110.0) for n in range(4)]
    (plan,) = plans(runs, Settings(limits={"ttft": 0.1}))
    text = " ".join(schedule(runs, Settings(limits={"ttft": 0.1})))

    assert plan.df == 3
    assert f"{plan.pairs} pairs of runs" in text
    assert "A B B A" in text
    assert "measuring takes about" in text


# ---------------------------------------------------------------- error rates


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [2, 4, 8])
def test_unchanged_runs_are_red_in_1_of_100_and_drops_of_the_limit_pass_in_5(
    sessions: int,
) -> None:
    """Sessions vary by 1 %, runs in them by 0.5 %; three metrics, one of which drops."""
    noise = random.Random(sessions)
    repeats, red, passed = 300, 0, 0

    def runs_of(first: int, factor: float) -> list[ToolRun]:
        made = []
        for session in range(sessions):
            effect = noise.gauss(0, 0.01)
            for repeat in range(2):
                metrics = {
                    name: scale * (1 + effect + noise.gauss(0, 0.005))
                    for name, scale in (("ttft_p50", factor), ("tpot_p50", 1.0), ("itl_p50", 1.0))
                }
                made.append(
                    ToolRun(
                        tool="vllm",
                        source="r",
                        digest=f"{first} {session} {repeat}",
                        started=1e9 + (first + session) * DAY + repeat * 60,
                        points=(ToolPoint(name="one", metrics=metrics),),
                    )
                )
        return made

    for _ in range(repeats):
        base = runs_of(0, 1.0)
        red += str(verdict(base, runs_of(100, 1.0)).outcome) == "PERF DROP"
        passed += outcomes(verdict(base, runs_of(200, 1.05)))["ttft_p50"] in {"ok", "improved"}
    # With a probability of 0.1 % more than 9 and 28 of 300 at rates of 1 and 5 %.
    assert red <= 9
    assert passed <= 28


def test_files_of_two_tools_on_each_side_are_compared_tool_by_tool(tmp_path: Path) -> None:
    for name in ("a", "b"):
        content = {
            "elapsed_time": 1.0,
            "num_requests": 5,
            "requests_per_second": 5.0 + (name == "b"),
        }
        write(tmp_path / name / "t.json", content)
    for name in ("a", "b"):
        latency = {"avg_latency": 1.0 + (name == "b") / 100, "latencies": [1.0], "percentiles": {}}
        write(tmp_path / name / "l.json", latency)
    result = judged(tmp_path / "a", tmp_path / "b")

    assert {row.tool for row in result.rows} == {"vllm-throughput", "vllm-latency"}


# ---------------------------------------------------------------- sweeps, large changes, noise


def test_sweeps_in_turns_are_judged_point_by_point() -> None:
    """Each build runs both concurrencies, then the other build does: A B B A."""
    sides: list[list[ToolRun]] = [[], []]
    noise = random.Random(3)
    when = 0.0
    for of in (0, 1, 1, 0, 0, 1, 1, 0):
        for concurrency in (1.0, 64.0):
            when += 0.01
            rate = 100 * concurrency * (1 + noise.gauss(0, 0.004))
            sides[of].append(run(1.0, day=when, concurrency=concurrency, rate=rate))
    result = verdict(*sides)

    assert in_pairs(result)
    assert set(outcomes(result).values()) <= {"ok", "INCONCLUSIVE"}
    assert f"{CURVE}: output_tokens_per_second" in outcomes(result)


@pytest.mark.parametrize("factor", [0.1, 20.0])
def test_a_change_of_another_order_is_judged_if_it_is_meant(factor: float) -> None:
    base, new = side(1.0, range(6), 1), side(factor, range(10, 16), 2)
    meant = verdict(base, new, ignored=("implausible change",))

    assert outcomes(verdict(base, new)) == {"ttft_p50": "INVALID"}
    assert outcomes(meant) == {"ttft_p50": "improved" if factor < 1 else "PERF DROP"}


def test_more_metrics_and_more_noise_never_make_a_verdict_surer() -> None:
    base, new = side(1.0, range(5), 1, sd=0.02), side(1.06, range(10, 15), 2, sd=0.02)
    row = verdict(base, new).rows[0]
    noisier = verdict(side(1.0, range(5), 1, sd=0.08), side(1.06, range(10, 15), 2, sd=0.08)).rows[
        0
    ]

    assert noisier.high is not None
    assert row.high is not None
    assert noisier.high - (noisier.change or 0) > row.high - (row.change or 0)
