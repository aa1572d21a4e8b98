"""MLPerf's constants are those of the rounds: transcribed twice, and asked of LoadGen itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.datasets.kits19 import OFFICIAL_MD5
from pytest_mlperf.rounds import (
    LOADGEN,
    ROUNDS,
    AnswerLengths,
    Ends,
    RoundMetric,
    RoundScenario,
    RoundWorkload,
    load_round,
)
from tests.suite.round_tables import (
    CHECKER_NAMES,
    CHECKSUMS,
    GATES,
    HARNESSES,
    KITS19_MD5,
    MEANING,
    NAMES,
    NAMES_OF_WORKLOADS,
    NOT_IN_MLPERF_CONF,
    OWN_OF_A_SCENARIO,
    RUNS,
    SCORERS,
    SEEDS,
    SIZES,
    rows,
)

EVERY = {
    (round_name, name): own
    for round_name in ROUNDS
    for name, own in load_round(round_name).workloads.items()
}

LETTERS = {"O": "Offline", "S": "Server", "I": "Interactive", "1": "SingleStream"} | {
    "M": "MultiStream"
}

MARGINS = {"map": 0.005, "auc": 0.0005, "fid": 0.01, "clip": 0.001}
"""Half of what the tightest gate allows, of whole-set scores."""


def expected_rows(table: dict[str, str]) -> dict[tuple[str, str], list[str]]:
    """Return the cells of every round and workload of a table."""
    return {
        (round_name, name): cells
        for round_name in ROUNDS
        for name, cells in rows(table[round_name]).items()
    }


def workload(round_name: str, name: str) -> RoundWorkload:
    return load_round(round_name).workloads[name]


def same(our_ends: Ends, expected: Ends) -> bool:
    """Compare ends of a window, up to the rounding of two ways to multiply."""
    return all(
        theirs is None
        if ours is None
        else theirs is not None and math.isclose(ours, theirs, rel_tol=1e-12)
        for ours, theirs in zip(our_ends, expected, strict=True)
    )


def test_every_round_has_its_tables_and_seeds() -> None:
    """KiTS19's cases have MLPerf's checksums; an unknown round is a key error."""
    assert tuple(SEEDS) == tuple(SIZES) == tuple(RUNS) == tuple(GATES) == ROUNDS
    for name in ROUNDS:
        loaded_round = load_round(name)
        assert loaded_round.name == name
        assert (
            loaded_round.seeds.qsl,
            loaded_round.seeds.sample_index,
            loaded_round.seeds.schedule,
        ) == SEEDS[name]
    assert OFFICIAL_MD5.split() == KITS19_MD5.split()
    assert len(OFFICIAL_MD5.split()) == 2 * workload("v4.1", "3d-unet").dataset_samples
    with pytest.raises(KeyError, match=r"v4\.2"):
        load_round("v4.2")


def test_names_sizes_and_tests_are_the_rounds() -> None:
    assert {key: _sizes(own) for key, own in EVERY.items()} == expected_rows(SIZES)
    assert {key: own.name for key, own in EVERY.items()} == {key: key[1] for key in EVERY}
    names = {key: list(workload(*key.split()).checker_names) for key in CHECKER_NAMES}
    assert names == CHECKER_NAMES
    for round_name in ROUNDS:
        tables = load_round(round_name)
        assert len(tables.names) == len(set(tables.names))
        for name in tables.names:
            round_workload = tables.find(name)
            assert round_workload is not None, name
            assert (
                name in round_workload.names or name in tables.workloads[round_workload.name].names
            ), name
    meanings = {}
    for key in MEANING:
        round_name, _, name = key.partition(" ")
        round_workload = load_round(round_name).find(name)
        meanings[key] = [round_workload.name, *round_workload.targets] if round_workload else []
    assert meanings == MEANING


def _sizes(workload: RoundWorkload) -> list[str]:
    traits = [
        "e" if workload.equal_issue else "",
        "t" if workload.tokens else "",
        f"i{workload.lengths.inferred_tokens}" if workload.lengths.inferred_tokens else "",
    ]
    return [
        workload.checker,
        str(workload.dataset_samples),
        str(workload.performance_samples),
        str(workload.accuracy_samples or "-"),
        _output_tokens(workload.lengths),
        ",".join(filter(None, traits)) or "-",
        workload.interactive_checker or "-",
        ",".join(test.removeprefix("TEST") for test in workload.compliance) or "-",
    ]


def _output_tokens(lengths: AnswerLengths) -> str:
    if lengths.max_output_tokens is None:
        return "-"
    most = lengths.accuracy_output_tokens
    lengths_shown = f"{lengths.min_output_tokens or ''}-{lengths.max_output_tokens}"
    return lengths_shown + (f"/{most}" if most else "")


def test_systems_are_the_rounds() -> None:
    expected = {
        key: {
            kind: _system(text)
            for kind, text in (("datacenter", datacenter), ("edge", edge))
            if text != "-"
        }
        for key, (datacenter, edge, *_) in expected_rows(RUNS).items()
    }

    assert {
        key: {
            kind: (set(system.required), set(system.optional), system.targets)
            for kind, system in own.systems.items()
        }
        for key, own in EVERY.items()
    } == expected
    for (round_name, _), tables in EVERY.items():
        for system in tables.systems.values():
            assert system.one_optional == (round_name == "v6.1" and bool(system.optional))


def _system(text: str) -> tuple[set[str], set[str], tuple[float, ...] | None]:
    letters, _, target = text.partition("@")
    required, _, optional = letters.partition("+")
    only = (float(target) / 100,) if target else None
    return {LETTERS[x] for x in required}, {LETTERS[x] for x in optional}, only


def test_scenarios_are_the_rounds() -> None:
    expected = {}
    for (round_name, name), (datacenter, edge, *figures) in expected_rows(RUNS).items():
        letters = set(datacenter + edge.partition("@")[0]) - set("+-")
        if (round_name, name) == ("v6.0", "retinanet"):
            # A model of the checker, with scenarios for systems of both types at once only.
            letters = set("SO1M")
        expected[round_name, name] = {
            LETTERS[letter]: _scenario(round_name, name, LETTERS[letter], figures)
            for letter in letters
        }

    assert {key: own.scenarios for key, own in EVERY.items()} == expected


def _scenario(round_name: str, name: str, scenario: str, figures: list[str]) -> RoundScenario:
    offline, server, interactive, reported = figures
    limit = {"Server": server, "Interactive": interactive}.get(scenario, "-")
    ttft, _, tpot = limit.partition("/")
    fewest = {"Offline": int(offline) if offline != "-" else 0, "MultiStream": 662}
    samples, gate = OWN_OF_A_SCENARIO.get((round_name, name, scenario), (None, ""))
    metrics = {}
    if gate:
        key, reference = gate.split()
        metric = RoundMetric(name=NAMES[key], checker=key, reference=float(reference))
        metrics = {metric.name: metric}
    single = 0.999 if name == "pointpainting" else 0.9
    return RoundScenario(
        min_query_count=995 if reported == "endpoints" else fewest.get(scenario, 100),
        min_duration_ms=0 if name.startswith(("e2e-rag", "qwen3.6")) else 600_000,
        latency_limit_ms=float(limit) if limit != "-" and not tpot else None,
        ttft_limit_ms=float(ttft) if tpot else None,
        tpot_limit_ms=float(tpot) if tpot else None,
        latency_percentile=single if scenario == "SingleStream" else 0.99,
        accuracy_samples=samples,
        metrics=metrics,
        result=_result(name, scenario, reported),
    )


def _result(name: str, scenario: str, reported: str) -> str:
    if scenario == "MultiStream":
        return "early_stopping_latency_ms"
    if scenario == "SingleStream":
        if reported == "endpoints":
            return "result_mean_latency_ns"
        edge = name == "llama3_1-8b-edge"
        return "result_90.00_percentile_latency_ns" if edge else "early_stopping_latency_ss"
    if reported == "samples":
        offline = scenario == "Offline"
        return "result_samples_per_second" if offline else "result_completed_samples_per_sec"
    inferred = "inferred_" if reported == "inferred" else ""
    completed = "" if scenario == "Offline" else "completed_"
    return f"result_{inferred}{completed}tokens_per_second"


def test_gates_are_the_rounds() -> None:
    """Every score, its key, reference, direction and bounds at every target."""
    assert {*EVERY} == {*expected_rows(GATES)}
    for (round_name, name), (targets, *cells) in expected_rows(GATES).items():
        where = f"{round_name} {name}"
        workload = EVERY[round_name, name]
        shares = tuple(float(text) / 100 for text in targets.strip("()").split(","))
        keys, texts = cells[::2], cells[1::2]
        names = {NAMES_OF_WORKLOADS.get(f"{name} {key}", NAMES[key]): key for key in keys}

        assert workload.targets == pytest.approx(shares, abs=1e-12), where
        assert workload.suffixed == (not targets.startswith("(")), where
        assert {metric.name: metric.checker for metric in workload.metrics.values()} == names, where
        assert list(workload.metrics) == [metric.name for metric in workload.metrics.values()], (
            where
        )
        for metric, text in zip(workload.metrics.values(), texts, strict=True):
            reference, _ = _gate(text, 1)
            assert metric.reference == reference, where
            assert metric.better == _better(metric.name, text), where
            assert metric.margin == MARGINS.get(metric.name), where
            for share in shares:
                assert same(metric.bounds(share), _gate(text, share)[1]), where


def test_every_metric_has_a_bound() -> None:
    unbound = [
        (key, metric.name)
        for key, own in EVERY.items()
        for table in (own.metrics, *(scenario.metrics for scenario in own.scenarios.values()))
        for metric in table.values()
        if metric.bounds(own.targets[0]) == (None, None)
    ]

    assert unbound == []


def _gate(text: str, target: float) -> tuple[float, Ends]:
    """Read a cell of GATES: the reference, and the lowest and highest score that pass."""
    for sign in "*=":
        if sign in text:
            reference, _, window = text.partition(sign)
            scale = float(reference) if sign == "*" else 1.0
            low, _, high = window.partition("..")
            return float(reference), (
                scale * float(low) if low else None,
                scale * float(high) if high else None,
            )
    if text.endswith("v"):
        reference = text.removesuffix("v")
        return float(reference), (None, float(reference) + float(reference) * (1 - target))
    return float(text), (float(text) * target, None)


def _better(name: str, text: str) -> str:
    if name in {"tokens_per_sample", "gen_len"}:
        return "neither"
    return "lower" if text.endswith("v") or name == "fid" else "higher"


def test_workloads_have_words_scorers_harnesses_and_checksums() -> None:
    for (round_name, name), workload in EVERY.items():
        where = f"{round_name} {name}"
        assert workload.checksums == CHECKSUMS.get(where, CHECKSUMS.get(name, {})), where
        assert workload.scorer == SCORERS.get(name, ""), where
        assert workload.title, where
        assert workload.dataset, where
        assert " " not in workload.task, where
        assert list(workload.harnesses) == HARNESSES.get(where, [LOADGEN]), where


INT32_LOGS = {"deepseek-r1", "gpt-oss-120b", "e2e-rag-qna"}
"""Workloads whose scripts read int32 by default: eval_accuracy.py, eval_mlperf_accuracy.py, and
TEST09. The others' --dtype is int64 unless told otherwise, at every tag since v4.1."""


def test_logs_have_the_type_that_mlperfs_scripts_read_by_default() -> None:
    for (_, name), workload in EVERY.items():
        generates = workload.tokens or name in {"gptj", *INT32_LOGS}
        assert workload.log_dtype == ("int32" if name in INT32_LOGS else "int64" * generates)


def test_bounds_are_the_window_else_the_target() -> None:
    cases: list[tuple[dict[str, Any], Ends]] = [
        ({}, (99.0, None)),
        ({"better": "lower"}, (None, 101.0)),
        ({"better": "neither", "share": (0.9, 1.1)}, (90.0, 110.0)),
        ({"better": "neither", "share": (0.9, None)}, (90.0, None)),
        ({"better": "neither", "share": (None, 1.1)}, (None, 110.0)),
        ({"within": (98.0, 103.0)}, (98.0, 103.0)),
        ({"better": "lower", "within": (98.0, 103.0), "share": (0.5, 2.0)}, (98.0, 103.0)),
        ({"better": "neither"}, (None, None)),
    ]
    for metric, expected in cases:
        metric_of_round = RoundMetric(name="x", checker="X", reference=100.0, **metric)
        assert same(metric_of_round.bounds(0.99), expected), metric


@given(st.floats(0.5, 1), st.floats(1e-3, 1e9), st.sampled_from(["higher", "lower"]))
def test_the_reference_passes_its_own_gate(target: float, reference: float, better: Any) -> None:
    low, high = RoundMetric(name="x", checker="X", reference=reference, better=better).bounds(
        target
    )

    assert (low is None) != (high is None)
    assert low is None or low <= reference
    assert high is None or high >= reference


def test_a_target_that_a_type_of_system_lacks_is_not_there() -> None:
    """In v4.1 the edge had bert-99, not bert-99.9; GPT-J's length of answers has no upper end."""
    v4_1 = load_round("v4.1")
    easy, hard = v4_1.find("bert-99"), v4_1.find("bert-99.9")
    assert easy is not None
    assert hard is not None
    assert set(easy.systems) == {"datacenter", "edge"}
    assert set(hard.systems) == {"datacenter"}
    llama2, gptj = workload("v4.1", "llama2-70b").metrics, workload("v4.1", "gptj").metrics
    assert {name: one.share for name, one in llama2.items() if one.share} == {
        "tokens_per_sample": (0.9, 1.1)
    }
    assert llama2["tokens_per_sample"].reference == 294.45
    assert not any(one.share and one.share[1] for one in gptj.values())
    assert gptj["gen_len"].reference == 4016878


ASK = """
import json, sys
import mlperf_loadgen

found = []
for model, scenario in json.load(sys.stdin):
    settings = mlperf_loadgen.TestSettings()
    assert settings.FromConfig("", model, scenario, 0) == 0
    found.append({
        name: getattr(settings, name)
        for name in dir(settings)
        if not name.startswith("_") and isinstance(getattr(settings, name), int | float)
    })
json.dump(found, sys.stdout)
"""


def of_v6_1() -> Iterator[tuple[RoundWorkload, str, RoundScenario, dict[str, Any]]]:
    """Yield every scenario of the round with LoadGen's settings for it."""
    # In a process of its own: LoadGen never comes into pytest's.
    scenarios = [
        (own, name, scenario)
        for own in load_round("v6.1").workloads.values()
        if own.name != "qwen3.6-27b"
        for name, scenario in own.scenarios.items()
        if (own.name, name) != ("qwen3-vl-235b-a22b", "Interactive")
    ]
    names = [
        (f"{own.name}-interactive", "Server") if name == "Interactive" else (own.name, name)
        for own, name, _ in scenarios
    ]
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
    )
    for (workload, name, scenario), theirs in zip(scenarios, json.loads(done.stdout), strict=True):
        yield workload, name, scenario, theirs


@pytest.mark.process
def test_v6_1_is_what_the_installed_loadgen_carries() -> None:
    """Seeds, lengths, limits, percentiles and samples in memory of every workload and scenario."""
    ours = load_round("v6.1")
    seen = set()

    for workload, name, scenario, theirs in of_v6_1():
        where = f"{workload.name} {name}"
        seen.add(workload.name)
        assert theirs["qsl_rng_seed"] == ours.seeds.qsl, where
        assert theirs["sample_index_rng_seed"] == ours.seeds.sample_index, where
        assert theirs["schedule_rng_seed"] == ours.seeds.schedule, where
        # 0 is every sample.
        held = 0 if workload.name == "3d-unet" else workload.performance_samples
        held = NOT_IN_MLPERF_CONF.get(f"{workload.name} performance_samples", held)
        assert theirs["performance_sample_count_override"] == held, where
        assert theirs["accuracy_sample_count_override"] == (workload.accuracy_samples or 0), where
        fewest = NOT_IN_MLPERF_CONF.get(where, scenario.min_query_count)
        assert theirs["min_query_count"] == fewest, where
        # e2e-rag's user.conf takes the shortest run away; qwen3.6-27b is not LoadGen's.
        shortest = scenario.min_duration_ms or 600_000
        assert theirs["min_duration_ms"] == shortest, where
        assert theirs["sample_concatenate_permutation"] == workload.equal_issue, where
        assert theirs["use_token_latencies"] == workload.tokens, where
        assert theirs["infer_token_latencies"] == (workload.lengths.inferred_tokens is not None), (
            where
        )
        for key, value in limits(name, scenario).items():
            assert theirs[key] == value, f"{where}: {key}"

    assert seen == set(ours.workloads) - {"qwen3.6-27b"}


def limits(name: str, scenario: RoundScenario) -> dict[str, float]:
    """Return what LoadGen calls the figures of a scenario, in its units."""
    if name == "SingleStream":
        return {"single_stream_target_latency_percentile": scenario.latency_percentile}
    if name == "MultiStream":
        return {
            "multi_stream_target_latency_percentile": scenario.latency_percentile,
            "multi_stream_samples_per_query": scenario.samples_per_query,
        }
    if name == "Offline":
        return {}
    limits_by_key: dict[str, float] = {
        "server_target_latency_percentile": scenario.latency_percentile
    }
    if scenario.ttft_limit_ms is not None and scenario.tpot_limit_ms is not None:
        limits_by_key["ttft_latency"] = scenario.ttft_limit_ms * 1e6
        limits_by_key["tpot_latency"] = scenario.tpot_limit_ms * 1e6
        limits_by_key["server_target_latency_ns"] = 0
    else:
        assert scenario.latency_limit_ms is not None
        limits_by_key["server_target_latency_ns"] = scenario.latency_limit_ms * 1e6
    return limits_by_key
