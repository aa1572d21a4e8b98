"""Judge sixteen published situations in which a plain comparison of result files is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from tests.addons.judge.files import both, judged, notes, outcomes, runs_of, spread, write
from tests.addons.judge.recorded import samples

# ---------------------------------------------------------------- files of tools


def google(
    factor: float = 1.0, time: float = 950.0, unit: str = "ns", **context: Any
) -> dict[str, Any]:
    row = {"name": "BM", "run_name": "BM", "run_type": "iteration", "repetitions": 1}
    return {
        "context": {"num_cpus": 4, "mhz_per_cpu": 3600, "json_schema_version": 1, **context},
        "benchmarks": [{**row, "real_time": time * factor, "time_unit": unit, "iterations": 1000}],
    }


def vllm(factor: float = 1.0, inverse: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """A file of vLLM's benchmark: times are multiplied by the factor, rates divided."""
    raw: dict[str, Any] = {
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": 1000,
        "completed": 1000,
        "failed": 0,
        "request_rate": "inf",
        "max_concurrency": 64,
        "duration": 110.0,
        **fields,
    }
    for key, value in raw.items():
        if key.endswith("_ms"):
            raw[key] = value * factor
        elif key.endswith("throughput") or key.startswith("request_goodput"):
            raw[key] = value and value / factor
    return raw


def sglang(factor: float = 1.0, **fields: Any) -> str:
    raw = {"backend": "sglang", "dataset_name": "random", "completed": 1000, "random_input_len": 1}
    lines = json.dumps(vllm(factor, **{**raw, **fields}))
    mine = {k: v for k, v in json.loads(lines).items() if k not in {"num_prompts", "failed"}}
    del mine["model_id"]
    return json.dumps({**mine, "request_rate": float("inf")})


def inferencex(factor: float, **fields: float) -> dict[str, Any]:
    return {"hw": "h200", "conc": 64, "tput_per_gpu": 100.0 / factor} | {
        key: value * factor for key, value in fields.items()
    }


def locust(factor: float, count: int, failures: int, average: float) -> str:
    heading = "Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time"
    return f"{heading}\nGET,/,{count},{failures},{average * factor},{average * factor}\n"


def criterion(folder: Path, times: dict[str, float], side: int, runs: int) -> Path:
    for number, factor in enumerate(spread(side, runs)):
        for name, milliseconds in times.items():
            new = folder / f"session-{number}" / name / "new"
            estimate = {
                "point_estimate": milliseconds * 1e6 * factor,
                "standard_error": milliseconds * 1e3,
            }
            write(new / "estimates.json", {"mean": estimate, "median": estimate, "slope": None})
            write(new / "benchmark.json", {"full_id": name})
    return folder


def asv(factor: float, results: list[Any], calls: int = 10) -> str:
    scaled = [value * factor if isinstance(value, float) else value for value in results]
    names = [[f"'{number}'" for number in range(len(scaled))]]
    row = [scaled, names, "v1", None, None, None, None, None, None, [calls] * len(scaled)]
    columns = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a"]
    columns += ["stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number"]
    return json.dumps(
        {
            "version": 2,
            "commit_hash": "abc",
            "env_name": "py",
            "result_columns": columns,
            "results": {"bench.time_x": row},
        }
    ).replace('"NaN"', "NaN")


def inference_perf(factor: float, rate: float = 1000.0, **latency: Any) -> dict[str, Any]:
    scaled = {
        name: value and {key: number * factor for key, number in value.items()}
        for name, value in latency.items()
    }
    return {
        "benchmark_time_seconds": 100.0,
        "load_summary": {"count": 500, "requested_rate": 5.0},
        "successes": {
            "count": 500,
            "latency": scaled,
            "throughput": {"output_tokens_per_sec": rate / factor},
        },
        "failures": {"count": 0},
    }


def k6(factor: float, passes: int, fails: int, **more: Any) -> dict[str, Any]:
    share = passes / (passes + fails)
    metrics = {
        "http_req_duration": {"avg": 80.0 * factor, "med": 78.0 * factor, "p(95)": 120 * factor},
        "http_reqs": {"count": passes + fails, "rate": 50.0 / factor},
        "http_req_failed": {"passes": passes, "fails": fails, "value": share},
    }
    metrics["http_req_duration"] |= more
    return {"metrics": metrics, "root_group": {}}


def llama_bench(factor: float, rate: float) -> list[dict[str, Any]]:
    test = {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "model_type": "llama 8B", "n_threads": 8}
    return [{**test, "avg_ts": rate / factor, "avg_ns": 512e9 / rate * factor}]


def lm_eval(
    task: str = "gsm8k", scores: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "results": {task: scores},
        "versions": {task: 2},
        "n-shot": {task: 5},
        "higher_is_better": {task: {"exact_match": True, "acc": True, "perplexity": False}},
        "config": {"limit": None, "gen_kwargs": None},
        "chat_template_sha": None,
        "lm_eval_version": "0.4.2",
        **fields,
    }


def aiperf(factor: float, **averages: float) -> dict[str, Any]:
    units = {"request_latency": "ms", "inter_token_latency": "ms", "time_to_first_token": "ms"}
    content: dict[str, Any] = {"schema_version": "1.5", "input_config": {}}
    for name, value in averages.items():
        scaled = value * factor if name in units else value
        scaled = value / factor if name.endswith("throughput") else scaled
        content[name] = {"unit": units.get(name, "tokens/sec"), "avg": scaled}
    return content


def records(turns: dict[int, float], seed: int) -> str:
    lines = []
    for conversation in range(20):
        for turn, milliseconds in turns.items():
            wobble = 1 + 0.01 * ((conversation * 7 + turn * 3 + seed * 5) % 11 - 5) / 5
            value = {"value": milliseconds * wobble, "unit": "ms"}
            metadata = {"turn_index": turn, "conversation_id": f"c{conversation}"}
            metadata["benchmark_phase"] = "profiling"
            lines.append({"metadata": metadata, "metrics": {"time_to_first_token": value}})
    return "\n".join(map(json.dumps, lines))


def pytest_benchmark(times: dict[str, float]) -> dict[str, Any]:
    return {
        "machine_info": {"node": "ci", "cpu": {"brand_raw": "Xeon"}},
        "commit_info": {"id": "unversioned"},
        "benchmarks": [
            {"fullname": name, "stats": {"median": time, "mean": time, "rounds": 5}}
            for name, time in times.items()
        ],
        "version": "5.2.3",
    }


# ---------------------------------------------------------------- 1: units


def test_1a_a_file_that_changes_its_unit_is_converted(tmp_path: Path) -> None:
    result = both(tmp_path, google, {"time": 950.0}, {"time": 1.06, "unit": "us"})

    assert outcomes(result) == {"time_mean": "PERF DROP"}
    (row,) = [row for row in result.rows if row.metric == "time_mean"]
    assert row.change == pytest.approx(0.1158, abs=0.002)


def test_1b_a_derived_file_is_not_mixed_with_a_raw_one(tmp_path: Path) -> None:
    old = runs_of(tmp_path / "a", lambda f: vllm(f, median_ttft_ms=120.0))
    new = runs_of(tmp_path / "b", lambda f: inferencex(f, median_ttft=0.121), side=1)
    result = judged(old, new)

    assert set(outcomes(result).values()) == {"INVALID"}
    assert "tool differs: vllm bench serve before, InferenceX now" in notes(result)


# ---------------------------------------------------------------- 2: failed requests


def test_2a_failed_requests_are_a_drop_and_latencies_are_not_compared(tmp_path: Path) -> None:
    result = both(
        tmp_path,
        vllm,
        {"mean_ttft_ms": 900.0},
        {"mean_ttft_ms": 310.0, "completed": 640, "failed": 360},
    )

    assert outcomes(result) == {"success_share": "PERF DROP", "ttft_mean": "INVALID"}
    assert str(result.outcome) == "PERF DROP"


def test_2b_failures_of_locust(tmp_path: Path) -> None:
    old = {"count": 1000, "failures": 0, "average": 800.0}
    new = {"count": 1250, "failures": 250, "average": 641.0}
    result = both(tmp_path, locust, old, new, name="x_stats.csv")

    assert outcomes(result)["success_share"] == "PERF DROP"
    assert outcomes(result)["latency_mean"] == "INVALID"


def test_2c_a_file_without_failures_needs_equal_numbers(tmp_path: Path) -> None:
    result = both(
        tmp_path, sglang, {"mean_ttft_ms": 900.0}, {"mean_ttft_ms": 310.0, "completed": 640}
    )

    assert outcomes(result) == {"ttft_mean": "INVALID"}
    assert "requests completed differs: 1000 before, 640 now" in notes(result)


def test_2c_genai_perf_needs_equal_numbers_as_well(tmp_path: Path) -> None:
    def make(factor: float, count: int) -> dict[str, Any]:
        latency = {"unit": "ms", "avg": 900.0 * factor}
        return {"request_latency": latency, "request_count": {"avg": count}, "input_config": {}}

    result = both(tmp_path, make, {"count": 1000}, {"count": 640})

    assert outcomes(result) == {"latency_mean": "INVALID"}


# ---------------------------------------------------------------- 3: samples of one process

CRITERION = {"mine": (10.0, 10.8), "a": (5.0, 5.4), "b": (3.0, 3.24), "c": (1.0, 1.08)}


@pytest.mark.parametrize(("runs", "outcome"), [(1, "PROVISIONAL"), (10, "PERF DROP")])
def test_3_samples_of_one_process_are_one_run(tmp_path: Path, runs: int, outcome: str) -> None:
    old, new = (
        criterion(
            tmp_path / str(side),
            {name: times[side] for name, times in CRITERION.items()},
            side,
            runs,
        )
        for side in (0, 1)
    )
    result = judged(old, new)

    assert set(outcomes(result).values()) <= {outcome, "INCONCLUSIVE"}
    assert result.one_session is (runs == 1)
    if runs > 1:
        assert outcomes(result)["mine: time_p50"] == "PERF DROP"


# ---------------------------------------------------------------- 4: another machine


def test_4_another_clock_is_another_machine(tmp_path: Path) -> None:
    old = {"time": 1.0, "unit": "ms", "host_name": "ci-a"}
    new = {"time": 1.14, "unit": "ms", "host_name": "ci-b", "mhz_per_cpu": 3160}
    result = both(tmp_path, google, old, new)
    allowed = both(tmp_path / "x", google, old, new, ignored=("CPU clock [MHz]",))
    named = both(tmp_path / "y", google, old, {"time": 1.0, "unit": "ms", "host_name": "ci-b"})

    assert outcomes(result) == {"time_mean": "INVALID"}
    assert "CPU clock [MHz] differs: 3600 before, 3160 now" in notes(result)
    assert outcomes(allowed) == {"time_mean": "PERF DROP"}
    assert "CPU clock [MHz] is taken as equal because of --ignore: 3160 and 3600" in notes(allowed)
    assert outcomes(named) == {"time_mean": "ok"}
    assert "host: ci-a → ci-b" in named.changed


# ---------------------------------------------------------------- 5: a warm cache

WARM = {"mean_ttft_ms": 100.0, "output_throughput": 2100.0}
COLD = {"mean_ttft_ms": 4900.0, "output_throughput": 900.0}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_5_the_state_of_the_cache_must_be_equal(
    tmp_path: Path, reverse: bool, recorded: bool
) -> None:
    sides: list[dict[str, Any]] = [dict(WARM), dict(COLD)]
    if recorded:
        for side, share in zip(sides, (97.5, 1.2), strict=True):
            side["cache_report"] = {"cache_hit_rate_pct": share}
    if reverse:
        sides.reverse()
    result = both(tmp_path, sglang, sides[0], sides[1])

    assert outcomes(result)["ttft_mean"] == "INVALID"
    assert ("cache hits differs" in notes(result)) is recorded
    if recorded:
        assert set(outcomes(result).values()) == {"INVALID"}
    else:
        assert "implausible" in notes(result)


def test_5_the_cache_of_aiperf(tmp_path: Path) -> None:
    shared = {"request_latency": 900.0, "input_sequence_length": 1000.0}
    warm = {**shared, "usage_prompt_cache_read_tokens": 970.0}
    cold = {**shared, "usage_prompt_cache_read_tokens": 12.0}

    assert "cache hits differs: 0.97 before, 0.012 now" in notes(both(tmp_path, aiperf, warm, cold))


# ---------------------------------------------------------------- 6: other work


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            {"num_prompts": 1000, "duration": 110.0, "output_throughput": 4650.0},
            {"num_prompts": 100, "completed": 100, "duration": 14.5, "output_throughput": 3530.0},
            "prompts differs: 1000 before, 100 now",
        ),
        (
            {"total_output_tokens": 128_000, "median_e2el_ms": 2000.0},
            {"total_output_tokens": 96_000, "median_e2el_ms": 1550.0},
            "output tokens per request differs: 128 before, 96 now",
        ),
    ],
)
def test_6ab_other_work_is_not_compared(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    result = both(tmp_path, vllm, old, new)

    assert set(outcomes(result).values()) == {"INVALID"}
    assert reason in notes(result)


def test_6c_asv_with_other_calls_per_sample(tmp_path: Path) -> None:
    old, new = {"results": [0.010], "calls": 10}, {"results": [0.031], "calls": 1}
    result = both(tmp_path, asv, old, new)

    assert set(outcomes(result).values()) == {"INVALID"}
    assert "calls per sample differs: 10 before, 1 now" in notes(result)


# ---------------------------------------------------------------- 7: nothing measured


def points_of(folder: Path, concurrencies: tuple[int, ...], side: int) -> Path:
    for concurrency in concurrencies:
        for number, factor in enumerate(spread(side)):
            content = vllm(factor, max_concurrency=concurrency, median_ttft_ms=100.0)
            write(folder / f"session-{number}" / f"c{concurrency}.json", content)
    return folder


def test_7a_a_point_that_is_gone_is_named(tmp_path: Path) -> None:
    old = points_of(tmp_path / "a", (1, 8, 32, 64), 0)
    new = points_of(tmp_path / "b", (1, 8, 32), 1)
    result = judged(old, new)
    allowed = judged(old, new, allow_missing=True)

    assert outcomes(result)["concurrency 64: point"] == "INVALID"
    assert str(result.outcome) == "INVALID"
    assert "measured only in the baseline; measure it on both" in notes(result)
    assert outcomes(result)["concurrency 32: ttft_p50"] == "ok"
    assert str(allowed.outcome) == "ok"


def test_7b_an_implausible_improvement_is_no_pass(tmp_path: Path) -> None:
    old, new = {"a": 40.0, "b": 1.0}, {"a": 1.2, "b": 1.0}

    def make(factor: float, times: dict[str, float]) -> dict[str, Any]:
        return pytest_benchmark({name: time * factor for name, time in times.items()})

    result = both(tmp_path, make, {"times": old}, {"times": new})

    assert outcomes(result) == {"a: time_p50": "INVALID", "b: time_p50": "ok"}
    assert "implausible improvement: check caches, warm-up and units" in notes(result)


def test_7c_an_empty_folder_and_an_error_are_errors(tmp_path: Path) -> None:
    old = runs_of(tmp_path / "a", lambda f: vllm(f, median_ttft_ms=100.0))
    (tmp_path / "empty").mkdir()
    error = write(tmp_path / "failed" / "r.json", {"error": "server died"})

    with pytest.raises(MlperfError, match="no result file found"):
        judged(old, tmp_path / "empty")
    with pytest.raises(MlperfError, match="holds only an error"):
        judged(old, error.parent)
    with pytest.raises(MlperfError, match="holds only an error"):
        judged(old, error)


# ---------------------------------------------------------------- 8: values that are none


def test_8a_a_latency_of_0_is_not_measured(tmp_path: Path) -> None:
    result = both(
        tmp_path,
        vllm,
        {"mean_ttft_ms": 180.0, "mean_tpot_ms": 9.0},
        {"mean_ttft_ms": 0.0, "mean_tpot_ms": 9.0},
    )

    assert outcomes(result) == {"ttft_mean": "INVALID", "tpot_mean": "ok"}
    assert "not measured in the new runs: the file has 0.0" in notes(result)


def test_8b_asv_tells_skipped_from_failed(tmp_path: Path) -> None:
    result = both(tmp_path, asv, {"results": [0.012, 0.034]}, {"results": ["NaN", None]})

    assert outcomes(result) == {
        "bench.time_x('0'): time_p50": "INVALID",
        "bench.time_x('1'): success_share": "PERF DROP",
    }
    assert "skipped" in notes(result)


def test_8c_null_is_not_measured(tmp_path: Path) -> None:
    latency = {"median": 0.2, "mean": 0.2}
    result = both(
        tmp_path, inference_perf, {"time_to_first_token": latency}, {"time_to_first_token": None}
    )

    assert outcomes(result)["ttft_p50"] == "INVALID"
    assert outcomes(result)["output_tokens_per_second"] == "ok"


def test_8d_a_score_without_error_is_read(tmp_path: Path) -> None:
    scores = {"acc,none": 0.7, "acc_stderr,none": "N/A"}
    sides = [write(tmp_path / s / "r.json", lm_eval(scores=scores, date=s == "b")) for s in "ab"]
    (row,) = judged(*sides).rows

    assert (row.before, row.now, str(row.outcome)) == (0.7, 0.7, "INCONCLUSIVE")
    assert "no standard error" in row.note


def test_8e_bare_infinity_is_read(tmp_path: Path) -> None:
    assert "Infinity" in sglang(mean_ttft_ms=100.0)
    result = both(tmp_path, sglang, {"mean_ttft_ms": 100.0}, {"mean_ttft_ms": 100.0})

    assert outcomes(result) == {"ttft_mean": "ok"}


def test_8f_a_start_of_minus_1_is_ignored(tmp_path: Path) -> None:
    export = {**aiperf(1.0, request_latency=100.0), "start_time": -1.0}
    sides = [write(tmp_path / s / "r.json", {**export, "benchmark_id": s}) for s in "ab"]

    assert judged(*sides).one_session


# ---------------------------------------------------------------- 9: keys and quantities


def test_9a_two_names_of_the_median(tmp_path: Path) -> None:
    result = both(
        tmp_path,
        inference_perf,
        {"request_latency": {"p50": 0.52}},
        {"request_latency": {"median": 0.523}},
    )

    assert outcomes(result)["latency_p50"] == "ok"


def test_9b_a_total_is_recomputed_where_only_parts_are_stored(tmp_path: Path) -> None:
    tokens = {"total_input_tokens": 182_600, "total_output_tokens": 171_600}
    old = {**tokens, "input_throughput": 1660.0}
    new = {**tokens, "total_token_throughput": 3220.0}
    result = both(tmp_path, vllm, old, new)

    assert outcomes(result) == {"total_tokens_per_second": "ok"}


def test_9c_a_key_with_a_colon_is_the_same_quantity(tmp_path: Path) -> None:
    result = both(tmp_path, vllm, {"request_goodput:": 7.0}, {"request_goodput": 7.05})

    assert outcomes(result) == {"goodput": "ok"}


def test_9d_a_latency_that_changed_its_meaning(tmp_path: Path) -> None:
    result = both(
        tmp_path,
        inference_perf,
        {"inter_token_latency": {"mean": 0.010}},
        {"inter_token_latency": {"mean": 0.020}},
    )

    assert outcomes(result) == {"itl_mean": "INVALID", "output_tokens_per_second": "ok"}
    assert "its meaning differs between inference-perf 0.5 and 0.6" in notes(result)


# ---------------------------------------------------------------- 10: directions


def test_10a_passes_of_failed_requests_are_failures(tmp_path: Path) -> None:
    result = both(tmp_path, k6, {"passes": 0, "fails": 500}, {"passes": 50, "fails": 450})

    assert outcomes(result)["success_share"] == "PERF DROP"


def test_10b_true_is_a_failed_threshold_in_a_classic_summary(tmp_path: Path) -> None:
    sides = [{"passes": 0, "fails": 500, "thresholds": {"p(95)<500": bad}} for bad in (False, True)]
    result = both(tmp_path, k6, sides[0], sides[1])

    name = "threshold http_req_duration p(95)<500: success_share"
    assert outcomes(result)[name] == "PERF DROP"


def test_10c_a_rate_and_its_time_are_one_drop(tmp_path: Path) -> None:
    result = both(tmp_path, llama_bench, {"rate": 100.0}, {"rate": 90.0})

    assert outcomes(result) == {"tokens_per_second": "PERF DROP"}


def test_10d_the_file_says_which_direction_is_better(tmp_path: Path) -> None:
    sides = [
        write(
            tmp_path / s / "r.json",
            lm_eval(scores={"perplexity,none": value, "perplexity_stderr,none": 0.1}),
        )
        for s, value in (("a", 10.0), ("b", 11.0))
    ]

    assert outcomes(judged(*sides)) == {"perplexity": "ACC DROP"}


# ---------------------------------------------------------------- 11: lm-eval, other tests

SCORE = {"exact_match,strict-match": 0.75, "exact_match_stderr,strict-match": 0.01}
LOWER = {"exact_match,strict-match": 0.62, "exact_match_stderr,strict-match": 0.01}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({}, {"versions": {"gsm8k": 3}}, "task version differs: 2 before, 3 now"),
        ({}, {"n-shot": {"gsm8k": 0}}, "few-shot examples differs: 5 before, 0 now"),
        ({}, {"chat_template_sha": "ab12"}, "chat template differs: none before, ab12 now"),
        ({}, {"lm_eval_version": "0.4.3"}, "harness version differs: 0.4.2 before, 0.4.3 now"),
    ],
)
def test_11_another_test_is_not_compared(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], reason: str
) -> None:
    sides = [
        write(tmp_path / "a" / "r.json", lm_eval(scores=SCORE, **old)),
        write(tmp_path / "b" / "r.json", lm_eval(scores=LOWER, **new)),
    ]
    result = judged(*sides)

    assert set(outcomes(result).values()) == {"INVALID"}
    assert reason in notes(result)


def test_11d_equal_prompts_make_the_version_irrelevant(tmp_path: Path) -> None:
    hashes: dict[str, Any] = {"task_hashes": {"gsm8k": "f00"}}
    sides = [
        write(tmp_path / "a" / "r.json", lm_eval(scores=SCORE, **hashes)),
        write(tmp_path / "b" / "r.json", lm_eval(scores=LOWER, lm_eval_version="0.4.3", **hashes)),
    ]

    assert set(outcomes(judged(*sides)).values()) == {"ACC DROP"}


def test_11e_another_filter_is_another_score(tmp_path: Path) -> None:
    other = {"exact_match,flexible-extract": 0.62, "exact_match_stderr,flexible-extract": 0.01}
    sides = [
        write(tmp_path / s / "r.json", lm_eval(scores=scores))
        for s, scores in (("a", SCORE), ("b", other))
    ]
    result = judged(*sides)

    assert set(outcomes(result).values()) == {"INVALID"}
    assert "the new runs have no such score" in notes(result)


# ---------------------------------------------------------------- 12: the same documents


def test_12a_scores_are_paired_by_document(tmp_path: Path) -> None:
    old = [1] * 700 + [0] * 300
    new = [0] * 40 + [1] * 660 + [1] * 12 + [0] * 288
    sides = [
        write(tmp_path / s / "samples_gsm8k_2026-11-01T00-00-00.jsonl", samples(scores))
        for s, scores in (("a", old), ("b", new))
    ]
    result = judged(*sides)

    assert outcomes(result) == {"acc": "ACC DROP"}
    assert result.rows[0].p == pytest.approx(0.00006, rel=0.5)
    assert "40 documents worse, 12 better of 1,000" in notes(result)


@pytest.mark.parametrize(("documents", "is_noted"), [(10, True), (2_000, False)])
def test_12_few_documents_tell_what_they_cannot_prove(
    tmp_path: Path, documents: int, is_noted: bool
) -> None:
    lines = samples([1, 0] * (documents // 2))
    old, new = (write(tmp_path / name / "samples_t.jsonl", lines) for name in ("old", "new"))
    result = judged([old], [new])

    assert outcomes(result) == {"acc": "ok"}
    assert ("on further documents a drop of up to" in notes(result)) == is_noted


def test_12b_totals_show_little(tmp_path: Path) -> None:
    sides = [
        write(
            tmp_path / s / "r.json",
            lm_eval(scores={"acc,none": value, "acc_stderr,none": error}),
        )
        for s, value, error in (("a", 0.7, 0.0145), ("b", 0.672, 0.0149))
    ]
    result = judged(*sides)

    assert outcomes(result) == {"acc": "INCONCLUSIVE"}
    assert "total scores show only drops of 0.08" in notes(result)
    assert "give the scores by document" in notes(result)


def test_12_totals_are_reported_where_documents_are_judged(tmp_path: Path) -> None:
    for side, stderr in (("a", 0.0145), ("b", 0.0145)):
        scores = {"acc,none": 0.7, "acc_stderr,none": stderr}
        write(tmp_path / side / "results.json", lm_eval(scores=scores, date=side == "b"))
        name = "samples_gsm8k_2026-11-01T00-00-00.jsonl"
        write(tmp_path / side / name, samples([1] * 700 + [0] * 300))
    result = judged(tmp_path / "a", tmp_path / "b")

    assert {(row.tool, str(row.outcome)) for row in result.rows} == {
        ("lm-eval", "None"),
        ("lm-eval-samples", "ok"),
    }
    assert str(result.outcome) == "ok"


# ---------------------------------------------------------------- 13: recounted tokens


def test_13a_tokens_that_the_client_counts_otherwise(tmp_path: Path) -> None:
    server = {"usage_completion_tokens": 1000.0}
    old = {"request_latency": 6200.0, "output_sequence_length": 1000.0, **server}
    old |= {"output_token_throughput": 160.0, "inter_token_latency": 6.1}
    new = {"request_latency": 6300.0, "output_sequence_length": 130.0, **server}
    new |= {"output_token_throughput": 20.6, "inter_token_latency": 47.0}
    result = both(tmp_path, aiperf, old, new)

    assert outcomes(result) == {
        "latency_mean": "ok",
        "output_tokens_per_second": "INVALID",
        "itl_mean": "INVALID",
    }
    assert "counted by the client differs: 1000 before, 130 now" in notes(result)


def test_13b_two_harnesses_are_not_compared(tmp_path: Path) -> None:
    export = {"input_config": {}, "request_latency": {"unit": "ms", "avg": 6200.0}}
    old = runs_of(tmp_path / "a", lambda f: {**export, "seed": f})
    new = runs_of(tmp_path / "b", lambda f: aiperf(f, request_latency=6200.0), side=1)

    assert set(outcomes(judged(old, new)).values()) == {"INVALID"}


# ---------------------------------------------------------------- 14: goodput


def test_14a_goodput_that_is_not_measured_any_more(tmp_path: Path) -> None:
    result = both(tmp_path, vllm, {"request_goodput": 7.0}, {"request_goodput": None})

    assert outcomes(result) == {"goodput": "INVALID"}


def test_14b_goodput_of_an_unknown_target(tmp_path: Path) -> None:
    old, new = {"request_goodput": 7.0}, {"request_goodput": 2.1}
    unknown = both(tmp_path / "a", vllm, old, new)
    stated = both(tmp_path / "b", vllm, old, new, ignored=("goodput target",))

    assert outcomes(unknown) == {"goodput": "INVALID"}
    assert "--ignore 'goodput target'" in notes(unknown)
    assert outcomes(stated) == {"goodput": "PERF DROP"}


def test_14c_goodput_of_other_targets(tmp_path: Path) -> None:
    sides = []
    for index, (side, target, goodput) in enumerate((("a", 0.2, 3.0), ("b", 0.5, 4.5))):
        for number, factor in enumerate(spread(index)):
            content = inference_perf(factor)
            content["successes"]["goodput_metrics"] = {"request_goodput": goodput / factor}
            folder = tmp_path / side / f"session-{number}"
            write(folder / "summary_lifecycle_metrics.json", content)
            text = f"report:\n  goodput:\n    constraints:\n      ttft: {target}\nserver: x\n"
            write(folder / "config.yaml", text)
        sides.append(tmp_path / side)
    result = judged(sides[0], sides[1])

    assert outcomes(result)["goodput"] == "INVALID"
    assert "goodput target differs: constraints:, ttft: 0.2 before" in notes(result)


def test_14d_goodput_of_neither_side_is_left_out(tmp_path: Path) -> None:
    fields = {"request_goodput": None, "median_ttft_ms": 100.0}
    result = both(tmp_path, vllm, fields, fields)

    assert outcomes(result) == {"ttft_p50": "ok"}


# ---------------------------------------------------------------- 15: turns


def test_15a_turns_are_compared_one_by_one(tmp_path: Path) -> None:
    sides = []
    for side, turns in enumerate(({0: 400, 1: 40, 2: 40, 3: 40}, {0: 400, 1: 40})):
        for number in range(10):
            file = tmp_path / str(side) / f"s{number}" / "profile_export.jsonl"
            write(file, records({t: float(v) for t, v in turns.items()}, 10 * side + number))
        sides.append(tmp_path / str(side))
    result = judged(sides[0], sides[1])

    assert outcomes(result) == {
        "turn 0: ttft_p50": "ok",
        "turn 1: ttft_p50": "ok",
        "turn 2: point": "INVALID",
        "turn 3: point": "INVALID",
    }


def test_15b_summaries_need_equal_numbers_of_requests(tmp_path: Path) -> None:
    old = {"time_to_first_token": 40.0, "request_count": 80.0}
    new = {"time_to_first_token": 220.0, "request_count": 40.0, "request_latency": 1.0}
    result = both(tmp_path, aiperf, {**old, "request_latency": 1.0}, new)

    assert set(outcomes(result).values()) == {"INVALID"}
    assert "requests differs: 80 before, 40 now" in notes(result)


# ---------------------------------------------------------------- 16: many rows


def many(factor_of: Callable[[int, int], float], side: int, folder: Path) -> Path:
    for number in range(10):
        times = {f"b{row:03d}": factor_of(row, number) for row in range(200)}
        write(folder / f"session-{number}" / "r.json", pytest_benchmark(times))
    return folder


@pytest.mark.parametrize("slower", [None, 117])
def test_16_many_rows_are_judged_together(tmp_path: Path, slower: int | None) -> None:
    import random

    random_numbers = random.Random(16)
    sides = []
    for side in (0, 1):

        def time(row: int, number: int, side: int = side) -> float:
            slow = 1.11 if side and row == slower else 1.0
            return slow * random_numbers.gauss(1.0, 0.01)

        sides.append(many(time, side, tmp_path / str(side)))
    result = judged(sides[0], sides[1])
    drops = [row.point for row in result.rows if str(row.outcome) == "PERF DROP"]
    low = [row for row in result.rows if row.p is not None and row.p < 0.05]

    assert drops == ([] if slower is None else ["b117"])
    assert len(low) >= 5
    assert "200 metrics judged jointly" in result.how
