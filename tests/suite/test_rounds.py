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

from pytest_mlperf.datasets.kits19 import OFFICIAL_MD5
from pytest_mlperf.rounds import (
    ENDPOINTS,
    LOADGEN,
    ROUNDS,
    Ends,
    RoundMetric,
    RoundScenario,
    RoundWorkload,
    load_round,
)
from tests.suite.round_tables import (
    GATES,
    KITS19_MD5,
    OWN_OF_A_SCENARIO,
    RUNS,
    SEEDS,
    SIZES,
    rows,
)

EVERY = [(name, workload) for name in ROUNDS for workload in load_round(name).workloads]

LETTERS = {"O": "Offline", "S": "Server", "I": "Interactive", "1": "SingleStream"} | {
    "M": "MultiStream"
}

OUR_NAMES = {
    "acc": "accuracy",
    "ACCURACY": "accuracy",
    "AUC": "auc",
    "CLIP_SCORE": "clip",
    "DICE": "dice",
    "DLRM_ACC": "accuracy",
    "DLRM_AUC": "gauc",
    "DLRM_NE": "normalized_entropy",
    "E2E_ACCURACY": "accuracy",
    "exact_match": "exact_match",
    "F1": "f1",
    "F1_HIERARCHICAL": "f1",
    "FID_SCORE": "fid",
    "GEN_LEN": "gen_len",
    "gsm8k_accuracy": "gsm8k",
    "mAP": "map",
    "mbxp_accuracy": "mbxp",
    "ROUGE1": "rouge1",
    "ROUGE2": "rouge2",
    "ROUGEL": "rougeL",
    "ROUGELSUM": "rougeLsum",
    "TOKENS_PER_SAMPLE": "tokens_per_sample",
    "vbench_score": "vbench",
    "-": "normalized",
}
NAMED_OTHERWISE = {
    ("resnet50", "acc"): "top1",
    ("rgat", "acc"): "top1",
    ("qwen3.6-27b", "mAP"): "accuracy",
    ("e2e-rag-db", "-"): "store",
}

MARGINS = {"map": 0.005, "auc": 0.0005, "fid": 0.01, "clip": 0.001}
"""Half of what the tightest gate allows, of whole-set scores."""

HARNESSES = {
    **dict.fromkeys(
        (
            ("v6.1", name)
            for name in (
                *("llama3_1-8b", "llama3_1-8b-edge", "deepseek-r1", "gpt-oss-120b"),
                "wan-2.2-t2v-a14b",
            )
        ),
        (LOADGEN, ENDPOINTS),
    ),
    ("v6.1", "qwen3-vl-235b-a22b"): (ENDPOINTS,),
    ("v6.1", "qwen3.6-27b"): (ENDPOINTS,),
}
"""What runs a workload where that is not LoadGen alone."""

SCORERS = {
    "resnet50": "top1",
    "retinanet": "map",
    "bert": "squad",
    "dlrm-v2": "auc",
    "3d-unet": "dice",
    "gptj": "rouge",
    "llama2-70b": "rouge",
    "stable-diffusion-xl": "clip_fid",
    "mixtral-8x7b": "mixtral",
    "llama3_1-405b": "long_context",
    "deepseek-r1": "deepseek_r1",
    "gpt-oss-120b": "gpt_oss",
    "llama3_1-8b": "rouge",
    "llama3_1-8b-edge": "rouge",
    "whisper": "word_accuracy",
    "rgat": "top1",
    "yolo": "map",
    "pointpainting": "pointpainting",
    "dlrm-v3": "ranking",
    "qwen3.6-27b": "function_calls",
    "qwen3-vl-235b-a22b": "category_f1",
    "e2e-rag-db": "ingestion",
}
"""Other workloads have none in this release."""


def workload(round_name: str, name: str) -> RoundWorkload:
    return load_round(round_name).workloads[name]


def same(found: Ends, expected: Ends) -> bool:
    """Compare ends of a window: as far as two ways to multiply agree."""
    return all(
        theirs is None
        if ours is None
        else theirs is not None and math.isclose(ours, theirs, rel_tol=1e-12)
        for ours, theirs in zip(found, expected, strict=True)
    )


# --- one transcription against the other -----------------------------------------------------


def test_every_round_has_its_tables() -> None:
    assert tuple(SEEDS) == tuple(SIZES) == tuple(RUNS) == tuple(GATES) == ROUNDS


@pytest.mark.parametrize("name", ROUNDS)
def test_the_seeds_are_the_rounds(name: str) -> None:
    found = load_round(name)

    assert (found.qsl_seed, found.sample_index_seed, found.schedule_seed) == SEEDS[name]
    assert found.name == name


@pytest.mark.parametrize("name", ROUNDS)
def test_the_workloads_are_the_rounds(name: str) -> None:
    expected = set(rows(SIZES[name]))

    assert set(load_round(name).workloads) == expected
    assert set(rows(RUNS[name])) == set(rows(GATES[name])) == expected


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_names_sizes_and_tests_are_the_rounds(round_name: str, name: str) -> None:
    own = workload(round_name, name)
    tokens = (own.min_output_tokens, own.max_output_tokens, own.accuracy_output_tokens)
    traits = [
        "e" if own.equal_issue else "",
        "t" if own.tokens else "",
        f"i{own.inferred_tokens}" if own.inferred_tokens else "",
    ]
    found = [
        own.checker,
        str(own.dataset_samples),
        str(own.performance_samples),
        str(own.accuracy_samples or "-"),
        _output_tokens(tokens),
        ",".join(filter(None, traits)) or "-",
        own.interactive_checker or "-",
        ",".join(test.removeprefix("TEST") for test in own.compliance) or "-",
    ]

    assert found == rows(SIZES[round_name])[name]
    assert own.name == name


def _output_tokens(tokens: tuple[int | None, int | None, int | None]) -> str:
    least, most, accuracy = tokens
    if most is None:
        return "-"
    return f"{least or ''}-{most}" + (f"/{accuracy}" if accuracy else "")


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_systems_are_the_rounds(round_name: str, name: str) -> None:
    datacenter, edge, *_ = rows(RUNS[round_name])[name]
    expected = {
        kind: _system(text)
        for kind, text in (("datacenter", datacenter), ("edge", edge))
        if text != "-"
    }
    found = {
        kind: (set(own.required), set(own.optional), own.targets)
        for kind, own in workload(round_name, name).systems.items()
    }

    assert found == expected
    for own in workload(round_name, name).systems.values():
        assert own.one_optional == (round_name == "v6.1" and bool(own.optional))


def _system(text: str) -> tuple[set[str], set[str], tuple[float, ...] | None]:
    letters, _, target = text.partition("@")
    required, _, optional = letters.partition("+")
    only = (float(target) / 100,) if target else None
    return {LETTERS[x] for x in required}, {LETTERS[x] for x in optional}, only


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_scenarios_are_the_rounds(round_name: str, name: str) -> None:
    datacenter, edge, *figures = rows(RUNS[round_name])[name]
    letters = set(datacenter + edge.partition("@")[0]) - set("+-")
    if (round_name, name) == ("v6.0", "retinanet"):
        # A model of the checker, with scenarios for systems of both types at once only.
        letters = set("SO1M")
    expected = {
        LETTERS[letter]: _scenario(round_name, name, LETTERS[letter], figures) for letter in letters
    }

    assert workload(round_name, name).scenarios == expected


def _scenario(round_name: str, name: str, scenario: str, figures: list[str]) -> RoundScenario:
    offline, server, interactive, reported = figures
    limit = {"Server": server, "Interactive": interactive}.get(scenario, "-")
    ttft, _, tpot = limit.partition("/")
    fewest = {"Offline": int(offline) if offline != "-" else 0, "MultiStream": 662}
    samples, gate = OWN_OF_A_SCENARIO.get((round_name, name, scenario), (None, ""))
    metrics = {}
    if gate:
        key, reference = gate.split()
        metrics = {
            OUR_NAMES[key]: RoundMetric(
                name=OUR_NAMES[key], checker=key, reference=float(reference)
            )
        }
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


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_gates_are_the_rounds(round_name: str, name: str) -> None:
    """Every score, its key, reference, direction and bounds at every target."""
    own = workload(round_name, name)
    targets, *cells = rows(GATES[round_name])[name]
    shares = tuple(float(text) / 100 for text in targets.strip("()").split(","))
    keys, texts = cells[::2], cells[1::2]
    expected_names = {NAMED_OTHERWISE.get((name, key), OUR_NAMES[key]): key for key in keys}

    assert own.targets == pytest.approx(shares, abs=1e-12)
    assert own.suffixed == (not targets.startswith("("))
    assert {metric.name: metric.checker for metric in own.metrics.values()} == expected_names
    assert list(own.metrics) == [metric.name for metric in own.metrics.values()]
    for metric, text in zip(own.metrics.values(), texts, strict=True):
        reference, _ = _gate(text, 1)
        assert metric.reference == reference
        assert metric.better == _better(metric.name, text)
        assert metric.margin == MARGINS.get(metric.name)
        for share in shares:
            _, bounds = _gate(text, share)
            assert same(metric.bounds(share), bounds)


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


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_what_mlperf_publishes_of_data_files(round_name: str, name: str) -> None:
    expected: dict[str, str] = {}
    if name == "dlrm-v2":
        trace = "dlrm_trace_of_aggregated_samples.txt"
        expected = {trace: "md5:3db90209564316f2506c99cc994ad0b2"}
    elif name == "whisper":
        expected = {
            "dev-clean.tar.gz": "md5:42e2234ba48799c1f50f24a7926300a1",
            "dev-other.tar.gz": "md5:c8d0bcc9cca99d4f8b62fcc847357931",
        }
    elif (round_name, name) == ("v6.1", "stable-diffusion-xl"):
        digest = "031296bbc80c45a1d1f76bf9a90ead27e94e99ec629208449507a4917a3bf009"
        expected = {"annotations_trainval2014.zip": f"sha256:{digest}"}
    elif (round_name, name) == ("v6.1", "deepseek-r1"):
        digest = "36facfae18f42587b7e4863e16a0e96446470761017d207791e609537d0f6f02"
        expected = {"deepseek_r1_eval.parquet": f"sha256:{digest}"}
    elif name == "qwen3.6-27b":
        digest = "753e396031ec955718ab0ffe85f21fb9f5f8b1ab6de38bc4fb9f71d8332f1733"
        expected = {"bfcl_v4_single_turn.parquet": f"sha256:{digest}"}

    assert workload(round_name, name).checksums == expected


def test_the_cases_of_kits19_have_mlperfs_checksums() -> None:
    assert OFFICIAL_MD5.split() == KITS19_MD5.split()
    assert len(OFFICIAL_MD5.split()) == 2 * workload("v4.1", "3d-unet").dataset_samples


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_workloads_have_words_and_the_scorers_of_this_release(round_name: str, name: str) -> None:
    own = workload(round_name, name)

    assert own.scorer == SCORERS.get(name, "")
    assert own.title
    assert own.dataset
    assert " " not in own.task
    assert own.harnesses == HARNESSES.get((round_name, name), (LOADGEN,))


# --- the type --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({}, (99.0, None)),
        ({"better": "lower"}, (None, 101.0)),
        ({"better": "neither", "share": (0.9, 1.1)}, (90.0, 110.0)),
        ({"better": "neither", "share": (0.9, None)}, (90.0, None)),
        ({"better": "neither", "share": (None, 1.1)}, (None, 110.0)),
        ({"within": (98.0, 103.0)}, (98.0, 103.0)),
        ({"better": "lower", "within": (98.0, 103.0), "share": (0.5, 2.0)}, (98.0, 103.0)),
        ({"better": "neither"}, (None, None)),
    ],
)
def test_bounds_are_the_window_else_the_target(metric: dict[str, Any], expected: Ends) -> None:
    own = RoundMetric(name="x", checker="X", reference=100.0, **metric)

    assert same(own.bounds(0.99), expected)


@given(st.floats(0.5, 1), st.floats(1e-3, 1e9), st.sampled_from(["higher", "lower"]))
def test_the_reference_passes_its_own_gate(target: float, reference: float, better: Any) -> None:
    low, high = RoundMetric(name="x", checker="X", reference=reference, better=better).bounds(
        target
    )

    assert (low is None) != (high is None)
    assert low is None or low <= reference
    assert high is None or high >= reference


@pytest.mark.parametrize(("round_name", "name"), EVERY)
def test_every_metric_has_a_bound(round_name: str, name: str) -> None:
    own = workload(round_name, name)
    scenarios = [metric for each in own.scenarios.values() for metric in each.metrics.values()]

    for metric in (*own.metrics.values(), *scenarios):
        assert metric.bounds(own.targets[0]) != (None, None)


def test_gptjs_length_of_answers_has_no_upper_end() -> None:
    llama2, gptj = workload("v4.1", "llama2-70b").metrics, workload("v4.1", "gptj").metrics

    assert {name: one.share for name, one in llama2.items() if one.share} == {
        "tokens_per_sample": (0.9, 1.1)
    }
    assert llama2["tokens_per_sample"].reference == 294.45
    assert not any(one.share and one.share[1] for one in gptj.values())
    assert gptj["gen_len"].reference == 4016878


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("round_name", ROUNDS)
def test_every_name_means_one_workload(round_name: str) -> None:
    found = load_round(round_name)

    assert len(found.names) == len(set(found.names))
    for name in found.names:
        own = found.find(name)
        assert own is not None
        assert name in own.names or name in found.workloads[own.name].names


@pytest.mark.parametrize(
    ("round_name", "name", "workload_name", "target"),
    [
        ("v4.1", "llama2-70b", "llama2-70b", 0.99),
        ("v4.1", "llama2-70b-99", "llama2-70b", 0.99),
        ("v4.1", "llama2-70b-99.9", "llama2-70b", 0.999),
        ("v6.1", "llama2-70b", "llama2-70b", 0.999),
        ("v6.1", "llama2-70b-99.9", "llama2-70b", 0.999),
        ("v4.1", "resnet50", "resnet50", 0.99),
        ("v4.1", "resnet", "resnet50", 0.99),
        ("v5.1", "llama3.1-8b", "llama3_1-8b", 0.99),
        ("v5.1", "llama3_1-8b-edge", "llama3_1-8b-edge", 0.99),
        ("v6.1", "yolo-95", "yolo", 0.95),
        ("v6.1", "yolo-99", "yolo", 0.99),
        ("v5.0", "bert-99.9", "bert", 0.999),
        ("v6.0", "dlrm-v3", "dlrm-v3", 0.999),
    ],
)
def test_a_name_says_which_workload_and_target_is_meant(
    round_name: str, name: str, workload_name: str, target: float
) -> None:
    found = load_round(round_name).find(name)

    assert found is not None
    assert (found.name, found.targets) == (workload_name, (target,))


@pytest.mark.parametrize(
    ("round_name", "name"),
    [
        ("v6.1", "llama2-70b-99"),
        ("v4.1", "resnet50-99"),
        ("v5.1", "llama3_1-8b-99"),
        ("v4.1", "llama2"),
        ("v4.1", ""),
        ("v4.1", "llama3_1-405b"),
        ("v6.1", "retinanet"),
        ("v6.1", "mixtral-8x7b"),
        ("v5.1", "gptj"),
    ],
)
def test_other_names_are_no_workloads(round_name: str, name: str) -> None:
    assert load_round(round_name).find(name) is None


def test_a_target_that_a_type_of_system_lacks_is_not_there() -> None:
    """In v4.1 the edge had bert-99, not bert-99.9."""
    v4_1 = load_round("v4.1")
    easy, hard = v4_1.find("bert-99"), v4_1.find("bert-99.9")

    assert easy is not None
    assert hard is not None
    assert set(easy.systems) == {"datacenter", "edge"}
    assert set(hard.systems) == {"datacenter"}


@pytest.mark.parametrize(
    ("round_name", "name", "expected"),
    [
        ("v4.1", "resnet50", ("resnet",)),
        ("v4.1", "bert", ("bert-99", "bert-99.9")),
        ("v6.1", "llama2-70b", ("llama2-70b-99.9",)),
        ("v5.1", "llama3_1-8b", ("llama3.1-8b",)),
        (
            "v5.0",
            "llama2-70b",
            (
                "llama2-70b-99",
                "llama2-70b-99.9",
                "llama2-70b-interactive-99",
                "llama2-70b-interactive-99.9",
            ),
        ),
    ],
)
def test_the_checkers_names(round_name: str, name: str, expected: tuple[str, ...]) -> None:
    assert workload(round_name, name).checker_names == expected


def test_an_unknown_round_is_a_key_error() -> None:
    with pytest.raises(KeyError, match=r"v4\.2"):
        load_round("v4.2")


# --- LoadGen itself --------------------------------------------------------------------------

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

NOT_IN_MLPERF_CONF = {
    ("dlrm-v3", "performance_samples"): 0,
    ("dlrm-v3", "Offline"): 100,
    ("gpt-oss-120b", "Offline"): 100,
    ("yolo", "Offline"): 100,
    ("e2e-rag-qna", "performance_samples"): 0,
    ("e2e-rag-qna", "Offline"): 100,
    ("e2e-rag-db", "performance_samples"): 0,
    ("e2e-rag-db", "Offline"): 100,
}
"""What LoadGen 6.0.17 says where only the checker, or e2e-rag's own user.conf, has a figure."""


def of_v6_1() -> Iterator[tuple[RoundWorkload, str, RoundScenario, dict[str, Any]]]:
    """Yield every scenario of the round with what LoadGen is told for it."""
    # In a process of its own: LoadGen never comes into pytest's.
    wanted = [
        (own, name, scenario)
        for own in load_round("v6.1").workloads.values()
        if own.name != "qwen3.6-27b"
        for name, scenario in own.scenarios.items()
        if (own.name, name) != ("qwen3-vl-235b-a22b", "Interactive")
    ]
    asked = [
        (f"{own.name}-interactive", "Server") if name == "Interactive" else (own.name, name)
        for own, name, _ in wanted
    ]
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    for (own, name, scenario), theirs in zip(wanted, json.loads(done.stdout), strict=True):
        yield own, name, scenario, theirs


@pytest.mark.process
def test_v6_1_is_what_the_installed_loadgen_carries() -> None:
    """Seeds, lengths, limits, percentiles and samples in memory of every workload and scenario."""
    ours = load_round("v6.1")
    seen = set()

    for own, name, scenario, theirs in of_v6_1():
        where = f"{own.name} {name}"
        seen.add(own.name)
        assert theirs["qsl_rng_seed"] == ours.qsl_seed, where
        assert theirs["sample_index_rng_seed"] == ours.sample_index_seed, where
        assert theirs["schedule_rng_seed"] == ours.schedule_seed, where
        # 0 is every sample.
        held = 0 if own.name == "3d-unet" else own.performance_samples
        held = NOT_IN_MLPERF_CONF.get((own.name, "performance_samples"), held)
        assert theirs["performance_sample_count_override"] == held, where
        assert theirs["accuracy_sample_count_override"] == (own.accuracy_samples or 0), where
        fewest = NOT_IN_MLPERF_CONF.get((own.name, name), scenario.min_query_count)
        assert theirs["min_query_count"] == fewest, where
        # e2e-rag's user.conf takes the shortest run away; qwen3.6-27b is not LoadGen's.
        shortest = scenario.min_duration_ms or 600_000
        assert theirs["min_duration_ms"] == shortest, where
        assert theirs["sample_concatenate_permutation"] == own.equal_issue, where
        assert theirs["use_token_latencies"] == own.tokens, where
        assert theirs["infer_token_latencies"] == (own.inferred_tokens is not None), where
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
    found: dict[str, float] = {"server_target_latency_percentile": scenario.latency_percentile}
    if scenario.ttft_limit_ms is not None and scenario.tpot_limit_ms is not None:
        found["ttft_latency"] = scenario.ttft_limit_ms * 1e6
        found["tpot_latency"] = scenario.tpot_limit_ms * 1e6
        found["server_target_latency_ns"] = 0
    else:
        assert scenario.latency_limit_ms is not None
        found["server_target_latency_ns"] = scenario.latency_limit_ms * 1e6
    return found
