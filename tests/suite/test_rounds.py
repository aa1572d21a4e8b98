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


def test_an_unknown_round_is_a_key_error() -> None:
    with pytest.raises(KeyError, match=r"v4\.2"):
        load_round("v4.2")


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
