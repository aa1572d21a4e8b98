"""MLPerf's constants are those of the rounds: transcribed twice, and asked of LoadGen itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pytest_mlperf.rounds import ROUNDS, RoundScenario, load_round

SEEDS = {
    # qsl_rng_seed, sample_index_rng_seed, schedule_rng_seed
    "v4.1": (3066443479025735752, 10688027786191513374, 14962580496156340209),
    "v5.0": (6023615788873153749, 15036839855038426416, 9933818062894767841),
    "v5.1": (1780908523862526354, 14771362308971278857, 18209322760996052031),
    "v6.0": (2465351861681999779, 14276810075590677512, 3936089224930324775),
    "v6.1": (2085463073848966840, 2747215439041700203, 16159082839903944936),
}
DATACENTER_AND_EDGE = {"Offline", "Server", "SingleStream", "MultiStream"}
EDGE_ONLY = {"Offline", "SingleStream", "MultiStream"}
RESNET50_SCENARIOS = {
    "v4.1": DATACENTER_AND_EDGE,
    "v5.0": DATACENTER_AND_EDGE,
    "v5.1": EDGE_ONLY,
    "v6.0": EDGE_ONLY,
    "v6.1": EDGE_ONLY,
}


def test_every_round_has_a_row_here() -> None:
    assert tuple(SEEDS) == ROUNDS == tuple(RESNET50_SCENARIOS)


@pytest.mark.parametrize("name", ROUNDS)
def test_the_seeds_are_the_rounds(name: str) -> None:
    found = load_round(name)

    assert (found.qsl_seed, found.sample_index_seed, found.schedule_seed) == SEEDS[name]
    assert found.name == name


@pytest.mark.parametrize("name", ROUNDS)
def test_resnet50_is_as_the_round_defines_it(name: str) -> None:
    resnet50 = load_round(name).workloads["resnet50"]

    assert (resnet50.dataset_samples, resnet50.performance_samples) == (50_000, 1024)
    assert resnet50.reference == {"top1": 76.46}
    assert resnet50.targets == (0.99,)
    assert resnet50.reference["top1"] * resnet50.targets[0] == pytest.approx(75.6954, abs=1e-9)
    assert resnet50.scorer == "top1"
    assert not resnet50.tokens
    assert not resnet50.equal_issue
    assert set(resnet50.scenarios) == RESNET50_SCENARIOS[name]


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("Offline", RoundScenario(min_query_count=24_576, min_duration_ms=600_000)),
        (
            "Server",
            RoundScenario(
                min_query_count=100,
                min_duration_ms=600_000,
                latency_limit_ms=15.0,
                latency_percentile=0.99,
            ),
        ),
        (
            "SingleStream",
            RoundScenario(min_query_count=100, min_duration_ms=600_000, latency_percentile=0.9),
        ),
        (
            "MultiStream",
            RoundScenario(
                min_query_count=662,
                min_duration_ms=600_000,
                latency_percentile=0.99,
                samples_per_query=8,
            ),
        ),
    ],
)
def test_resnet50_asks_the_rounds_lengths_and_limits(
    name: str, scenario: str, expected: RoundScenario
) -> None:
    found = load_round(name).workloads["resnet50"].scenarios.get(scenario)

    assert found == (expected if scenario in RESNET50_SCENARIOS[name] else None)


LLAMA2_LIMITS_MS = {"Server": (2000.0, 200.0), "Interactive": (450.0, 40.0)}
"""TTFT and TPOT."""


@pytest.mark.parametrize("name", ROUNDS)
def test_llama2_70b_is_as_the_round_defines_it(name: str) -> None:
    llama2 = load_round(name).workloads["llama2-70b"]

    assert (llama2.dataset_samples, llama2.performance_samples) == (24_576, 24_576)
    assert llama2.reference == {
        "rouge1": 44.4312,
        "rouge2": 22.0352,
        "rougeL": 28.6162,
        "tokens_per_sample": 294.45,
    }
    assert llama2.windows == {"tokens_per_sample": (0.9, 1.1)}
    assert llama2.targets == ((0.999,) if name == "v6.1" else (0.99, 0.999))
    assert llama2.scorer == "rouge"
    assert llama2.tokens
    assert llama2.equal_issue
    assert llama2.scenarios["Offline"] == RoundScenario(
        min_query_count=24_576, min_duration_ms=600_000
    )
    loaded = {key: value for key, value in llama2.scenarios.items() if key != "Offline"}
    assert set(loaded) == ({"Server"} if name == "v4.1" else set(LLAMA2_LIMITS_MS))
    for scenario, constants in loaded.items():
        ttft_ms, tpot_ms = LLAMA2_LIMITS_MS[scenario]
        assert constants == RoundScenario(
            min_query_count=100,
            min_duration_ms=600_000,
            ttft_limit_ms=ttft_ms,
            tpot_limit_ms=tpot_ms,
        )


@pytest.mark.parametrize(
    ("round_name", "name", "target"),
    [
        ("v4.1", "llama2-70b-99", 0.99),
        ("v4.1", "llama2-70b-99.9", 0.999),
        ("v6.1", "llama2-70b-99.9", 0.999),
        ("v4.1", "resnet50", 0.99),
    ],
)
def test_a_name_says_which_target_is_meant(round_name: str, name: str, target: float) -> None:
    found = load_round(round_name).find(name)

    assert found is not None
    assert found.targets == (target,)


@pytest.mark.parametrize(
    ("round_name", "name"),
    [("v6.1", "llama2-70b-99"), ("v4.1", "resnet50-99"), ("v4.1", "llama2"), ("v4.1", "")],
)
def test_other_names_are_no_workloads(round_name: str, name: str) -> None:
    assert load_round(round_name).find(name) is None


def test_an_unknown_round_is_a_key_error() -> None:
    with pytest.raises(KeyError, match=r"v4\.2"):
        load_round("v4.2")


ASK_TOKENS = """
import json
import mlperf_loadgen

found = {}
for model, scenario in (("llama2-70b", "Server"), ("llama2-70b-interactive", "Server"),
                        ("llama2-70b", "Offline")):
    settings = mlperf_loadgen.TestSettings()
    assert settings.FromConfig("", model, scenario, 0) == 0
    found[f"{model} {scenario}"] = [
        settings.use_token_latencies, settings.ttft_latency, settings.tpot_latency,
        settings.min_query_count, settings.performance_sample_count_override,
        settings.sample_concatenate_permutation,
    ]
print(json.dumps(found))
"""


def test_token_limits_of_v6_1_are_what_the_installed_loadgen_carries() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK_TOKENS], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout)
    llama2 = load_round("v6.1").workloads["llama2-70b"]

    for model, scenario in (("llama2-70b", "Server"), ("llama2-70b-interactive", "Interactive")):
        constants = llama2.scenarios[scenario]
        assert constants.ttft_limit_ms is not None
        assert constants.tpot_limit_ms is not None
        assert theirs[f"{model} Server"][:4] == [
            llama2.tokens,
            constants.ttft_limit_ms * 1e6,
            constants.tpot_limit_ms * 1e6,
            constants.min_query_count,
        ]
    offline = theirs["llama2-70b Offline"]
    assert offline[3] == llama2.scenarios["Offline"].min_query_count
    assert offline[4:] == [llama2.performance_samples, llama2.equal_issue]


ASK_LOADGEN = """
import json
import mlperf_loadgen

NAMES = %r
found = {}
for scenario in ("Offline", "Server", "SingleStream", "MultiStream"):
    settings = mlperf_loadgen.TestSettings()
    assert settings.FromConfig("", "resnet50", scenario, 0) == 0
    found[scenario] = {name: getattr(settings, name) for name in NAMES}
print(json.dumps(found))
"""


def test_v6_1_is_what_the_installed_loadgen_carries() -> None:
    names = [
        "qsl_rng_seed",
        "sample_index_rng_seed",
        "schedule_rng_seed",
        "performance_sample_count_override",
        "min_query_count",
        "min_duration_ms",
        "single_stream_target_latency_percentile",
        "multi_stream_target_latency_percentile",
        "multi_stream_samples_per_query",
        "sample_concatenate_permutation",
    ]
    # In a process of its own: LoadGen never comes into pytest's.
    done = subprocess.run(
        [sys.executable, "-c", ASK_LOADGEN % names], capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout)
    ours = load_round("v6.1")
    resnet50 = ours.workloads["resnet50"]

    for scenario, constants in resnet50.scenarios.items():
        asked = theirs[scenario]
        assert asked["qsl_rng_seed"] == ours.qsl_seed
        assert asked["sample_index_rng_seed"] == ours.sample_index_seed
        assert asked["schedule_rng_seed"] == ours.schedule_seed
        assert asked["performance_sample_count_override"] == resnet50.performance_samples
        assert asked["min_query_count"] == constants.min_query_count
        assert asked["min_duration_ms"] == constants.min_duration_ms
        assert asked["sample_concatenate_permutation"] == resnet50.equal_issue
    single, multi = resnet50.scenarios["SingleStream"], resnet50.scenarios["MultiStream"]
    asked = theirs["SingleStream"]["single_stream_target_latency_percentile"]
    assert asked == single.latency_percentile
    asked = theirs["MultiStream"]["multi_stream_target_latency_percentile"]
    assert asked == multi.latency_percentile
    assert theirs["MultiStream"]["multi_stream_samples_per_query"] == multi.samples_per_query
