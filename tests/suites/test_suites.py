"""The suites for real hardware: MLPerf's own workloads, scenarios and data, as the round says."""

from __future__ import annotations

import re
from functools import cache
from math import prod
from pathlib import Path

import pytest

from pytest_mlperf.cli.suites import read_suites
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import known_gpus
from pytest_mlperf.rounds import ROUNDS, load_round
from pytest_mlperf.rounds.work import find_work
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.resolve import dataset_of, model_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    kind: sorted((ROOT / "suites" / kind).glob("*.mlperf.toml")) for kind in ("datacenter", "edge")
}
FILES = [(kind, file) for kind, files in FOLDERS.items() for file in files]
POWER, SERVING = (
    sorted((ROOT / "suites" / kind).glob("*.mlperf.toml")) for kind in ("power", "serving")
)
GPUS = {"H100", "H200", "B200", "GH200", "A100", "L40S"}
NEWER = {"B300", "GB300", "RTX_PRO_6000"}
EDGE = {"L4", "L40S", "A10", "RTX_PRO_6000", "GB10", "Thor"}
SYSTEMS = {"2xH100", "8xH100", "8xH200", "8xB200", "8xA100", "8xL40S"}
NEWER_SYSTEMS = {"8xB300", "4xGB300", "8xRTX_PRO_6000"}

OF_ONE_SCENARIO = {
    "llama2-70b-interactive.mlperf": {"Interactive"},
    "wan-2.2-t2v-a14b.mlperf": {"Offline"},
    "wan-2.2-t2v-a14b-single-stream.mlperf": {"SingleStream"},
}
"""Suites that leave the other scenarios to another file."""

NOT_NEWEST = {"llama3_1-405b": {"v5.1"}}
"""Of v6.0 the rules are the same."""


@cache
def planned_of(file: Path) -> list[Planned]:
    return plan_suite(file)


def workload_of(planned: Planned) -> str:
    assert planned.suite.rules is not None
    return planned.suite.rules.name


@pytest.mark.parametrize("kind", FOLDERS)
def test_there_is_a_suite_for_each_workload_of_v4_1_and_v6_1(kind: str) -> None:
    """Those of v4.1 have v4.1's rules, later ones those of the newest round that has them."""
    planned = [planned_of(file)[0] for file in FOLDERS[kind]]
    first, newest = (
        {name for name, own in load_round(each).workloads.items() if kind in own.systems}
        for each in ("v4.1", "v6.1")
    )

    assert {workload_of(case) for case in planned if case.suite.round == "v4.1"} == first
    assert newest <= {workload_of(case) for case in planned}
    for case in planned:
        others = [each for each in ROUNDS if workload_of(case) in load_round(each).workloads]
        expected = {"v4.1", others[-1]} if "v4.1" in others else {others[-1]}
        assert case.suite.round in expected | NOT_NEWEST.get(workload_of(case), set())


def test_suites_are_mlperfs_own_in_every_scenario_of_their_kind() -> None:
    datacenter = {*GPUS, *SYSTEMS, *NEWER, *NEWER_SYSTEMS}
    for kind, file in FILES:
        planned = planned_of(file)
        suite = planned[0].suite

        assert (suite.is_mlperf, suite.profile) == (True, "quick"), file
        assert suite.rules is not None
        systems = suite.rules.systems[kind]
        scenarios = OF_ONE_SCENARIO.get(file.stem, {*systems.required, *systems.optional})
        assert {case.case.scenario for case in planned} == scenarios, file
        assert planned[0].data.expected().samples == suite.rules.dataset_samples, file
        accelerators = datacenter if kind == "datacenter" else {*EDGE, "cpu"}
        assert {case.case.accelerator for case in planned} <= accelerators, file


def test_the_official_profile_has_mlperfs_gate() -> None:
    """What nothing scores is refused, and what LoadGen does not run; quick says which it is."""
    for file in (*(file for _, file in FILES), *POWER):
        if planned_of(file)[0].suite.gaps:
            with pytest.raises(SuiteError, match="an official result needs"):
                read_suites([file], "official")
            continue
        for case in read_suites([file], "official"):
            assert case.suite.rules is not None
            assert set(case.bounds(()) or ()) == set(case.suite.rules.metrics), file


def datacenter(engine: str) -> list[Planned]:
    cases = [case for file in FOLDERS["datacenter"] for case in planned_of(file)]
    return [case for case in cases if case.engine.use == engine]


def test_options_of_servers_keep_mlperfs_rules_and_fit() -> None:
    """Prompts that a suite has room for, no prefix caches, and experts divided where blocks end."""
    for case in datacenter("tensorrt_llm"):
        options = case.options
        longest = options["max_seq_len"] - options["max_new_tokens"]
        chunked = options.get("enable_chunked_prefill", False)
        assert chunked or longest <= options.get("max_num_tokens", 8192), case.case.id
    off = {"--no-enable-prefix-caching", "--disable-radix-cache"}
    served = [case for case in datacenter("openai") if "serve" in case.options]
    assert served
    assert [case.case.id for case in served if not off & {*case.options["serve"]}] == []
    whole = [case for case in datacenter("vllm") if case.case.workload.startswith("qwen3-vl")]
    served = [case for case in datacenter("openai") if case.case.workload.startswith("qwen3-vl")]

    fp8 = [case.options for case in whole if case.case.precision == "fp8"]
    assert fp8
    assert all(one["engine_args"]["enable_expert_parallel"] for one in fp8)
    commands = [case.options["serve"] for case in served if case.case.precision == "fp8"]
    assert commands
    assert all("--enable-expert-parallel" in one for one in commands)


KEYS_AND_VALUES = {
    "gptj": (2 * 28 * 16 * 256, 1919),
    "llama2-70b": (2 * 80 * 8 * 128, 1024),
    "mixtral-8x7b": (2 * 32 * 8 * 128, 2048),
    "llama3_1-8b": (2 * 32 * 8 * 128, 4096 - 128),
    "llama3_1-405b": (2 * 126 * 8 * 128, 24576 - 2000),
}
"""Numbers that a model keeps of a token, 2 bytes each; and tokens of the longest prompt."""


def test_a_batch_of_transformers_fits_with_the_weights() -> None:
    """Longest prompts come first, so what does not fit fails at once; a tenth is for the rest."""
    specs = known_gpus().values()
    for case in datacenter("torch"):
        numbers, longest = KEYS_AND_VALUES[workload_of(case)]
        parameters = find_work(workload_of(case)).parameters  # type: ignore[union-attr]
        weights = parameters * (1 if case.case.precision == "int8" else 2)
        kind = split(case.case.accelerator)[1]
        sizes = [spec.memory or 0.0 for spec in specs if spec.accelerator == kind]
        rows = case.options["batch_size"] * case.options.get("num_beams", 1)
        cache = rows * (longest + case.options["max_new_tokens"]) * numbers * 2
        assert weights + cache < 0.9 * min(s for s in sizes if s > weights), case.case.id


BYTES_PER_WEIGHT = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "int4-awq": 0.5, "gptq": 0.5}
"""Least bytes of a weight; scales of the four-bit integers come on top."""


def test_a_copy_of_a_model_and_its_longest_sample_fit_into_its_gpus() -> None:
    """Libraries share memory out among samples themselves: one at least must fit."""
    specs, checked = known_gpus().values(), set()
    for case in (*datacenter("tensorrt_llm"), *datacenter("vllm")):
        name, options = workload_of(case), case.options
        if name not in KEYS_AND_VALUES:
            continue
        numbers, longest = KEYS_AND_VALUES[name]
        parameters = find_work(name).parameters  # type: ignore[union-attr]
        cache_bytes = 1 if options.get("kv_cache_dtype") == "fp8" else 2
        cache = (longest + options["max_new_tokens"]) * numbers * cache_bytes
        parts = prod(options.get(f"{way}_parallel_size", 1) for way in ("tensor", "pipeline"))
        kind = split(case.case.accelerator)[1]
        sizes = [parts * (spec.memory or 0.0) for spec in specs if spec.accelerator == kind]
        weights = parameters * BYTES_PER_WEIGHT[case.case.precision]
        assert weights + cache < 0.95 * min(s for s in sizes if s > weights), case.case.id
        checked.add((name, case.case.precision))
    assert {("llama2-70b", "gptq"), ("llama2-70b", "bf16"), ("mixtral-8x7b", "fp8")} <= checked


def test_serving_asks_for_throughput_at_a_latency_and_for_the_least_latency() -> None:
    requests, rate, users, parallel = (planned_of(file) for file in SERVING)
    searched = [case for case in rate if case.scenario.find]
    assert {case.scenario.find.in_words for case in searched} == {"ttft_p99 < 1 s"}  # type: ignore[union-attr]
    assert {case.case.engine for case in searched} == {"tensorrt-llm-ttft", "vllm-ttft"}
    for case in requests:
        find = case.scenario.find
        assert find is not None
        assert (find.maximise, find.in_words) == ("concurrency", "ttft_p99 < 1 s")
        assert case.limits.keys() == {"tokens_per_second", "concurrency"}
    suite = rate[0].suite
    assert suite.min_official_share == 0.4
    assert suite.price("8xH200") is not None
    assert {case.case.scenario for case in (*requests, *users, *parallel)} == {"Concurrency"}
    assert users[0].suite.price("H200") is not None
    claims = {(pair.case.engine, pair.metric) for pair in plan_pairs(parallel)}
    assert claims == {
        (f"{use}-{a}-vs-{use}-{b}", metric)
        for use in ("tensorrt-llm", "vllm")
        for a, b, metric in (
            ("tp8", "pp8", "tps_per_user@1"),
            ("pp8", "tp8", "tokens_per_second@256"),
        )
    }
    others = {case.case.id for file in FOLDERS["datacenter"] for case in planned_of(file)}
    assert not others & {case.case.id for case in (*requests, *rate, *users, *parallel)}


def test_the_matrix_has_engines_accelerators_and_scenarios() -> None:
    named = {case.case.accelerator for file in FOLDERS["datacenter"] for case in planned_of(file)}
    assert named == GPUS | NEWER | SYSTEMS | NEWER_SYSTEMS
    ids = {case.case.id for file in FOLDERS["datacenter"] for case in planned_of(file)}
    assert {
        "resnet50-Offline-ort-tensorrt-fp16-H100",
        "mixtral-8x7b-Server-torch-int8-A100",
        "3d-unet-99.9-Offline-ort-cuda-fp32-L40S",
        "stable-diffusion-xl-Server-torch-diffusion-fp16-GH200",
        "dlrm-v2-99-Offline-dlrm-fp32-B200",
        "llama2-70b-99.9-Interactive-vllm-nvfp4-4xGB300",
        "deepseek-r1-Server-vllm-tp8-nvfp4-8xB300",
        "gpt-oss-120b-Offline-tensorrt_llm-mxfp4-RTX_PRO_6000",
        "whisper-Offline-torch-whisper-bf16-B300",
        "whisper-Offline-vllm-bf16-8xH200",
        "qwen3-vl-235b-a22b-Interactive-vllm-fp8-4xGB300",
        *(f"llama2-70b-99.9-Offline-{use}-fp8-H100" for use in ("vllm", "tensorrt_llm")),
        *(f"llama2-70b-99.9-Server-vllm{form}-bf16-8xA100" for form in ("", "-tp8")),
        *(f"llama2-70b-99-Offline-tensorrt_llm-int4-awq-{gpu}" for gpu in ("H100", "A100")),
        *(f"llama2-70b-99-Server-vllm-gptq-{gpu}" for gpu in ("H100", "A100", "8xA100")),
        "stable-diffusion-xl-Server-torch-diffusion-fp16-8xL40S",
        *(f"bert-99-Offline-{one}-H100" for one in ("ort-tensorrt-int8", "torch-fp8")),
    } <= ids


def test_missing_files_are_reported_with_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the folders there and empty, each data set says which file it lacks."""
    for name in ("MLPERF_MODELS", "MLPERF_DATA"):
        monkeypatch.delenv(name, raising=False)

    for _, file in FILES:
        case = planned_of(file)[0]
        with pytest.raises(UnavailableError, match=r"\{MLPERF_MODELS\} is not set; set it so that"):
            model_of(case)
        with pytest.raises(UnavailableError, match=r"\{MLPERF_DATA\} is not set"):
            dataset_of(case)
    monkeypatch.setenv("MLPERF_DATA", str(tmp_path))
    monkeypatch.setenv("MLPERF_MODELS", str(tmp_path))
    lacking = {}
    for file in FOLDERS["datacenter"]:
        case = planned_of(file)[0]
        path = case.suite.workload.dataset.path
        assert path is not None
        data_path = Path(path.replace("${MLPERF_DATA}", str(tmp_path)))
        if not data_path.suffix:
            data_path.mkdir(parents=True, exist_ok=True)
            with pytest.raises(UnavailableError) as caught:
                dataset_of(case)
            lacking[workload_of(case)] = str(caught.value)

    for name, words in {
        "resnet50": "val_map.txt",
        "retinanet": "openimages-mlperf.json",
        "bert": "dev-v1.1.json",
        "3d-unet": "preprocessed_files.pkl",
        "dlrm-v2": "day_23",
        "stable-diffusion-xl": "captions",
    }.items():
        assert words in lacking[name], lacking[name]


def test_every_file_that_a_suite_needs_is_on_the_page_of_workloads() -> None:
    """docs/workloads.md names MLPerf's source of each path."""
    page = (ROOT / "docs" / "workloads.md").read_text("utf-8")
    lacking = []
    for file in (*(file for _, file in FILES), *POWER, *SERVING):
        named = re.findall(r'"\$\{(MLPERF_\w+)\}(/[^"]+)"', file.read_text("utf-8"))
        assert len(named) >= 2, file
        lacking += [
            f"${name}{path}" for name, path in named if not re.search(rf"`\${name}{path}[`/]", page)
        ]

    assert lacking == []


def test_suites_of_power_gate_energy_on_h200s_and_share_no_baseline() -> None:
    """A sweep has a case at each power limit and gates none."""
    networks = {workload_of(planned_of(file)[0]) for file in POWER}
    assert networks == {
        name for name, own in load_round("v4.1").workloads.items() if "datacenter" in own.systems
    }
    planned = [case for file in POWER if "sweep" in file.name for case in planned_of(file)]
    assert {case.case.accelerator for case in planned} == {"H200"}
    assert {case.case.engine.rpartition("-")[2] for case in planned} == {"400W", "550W", "700W"}
    assert not any("samples_per_joule" in case.suite.limits for case in planned)
    others = {case.case.id for file in FOLDERS["datacenter"] for case in planned_of(file)}

    for file in POWER:
        if "sweep" not in file.name:
            planned = planned_of(file)
            assert {case.case.accelerator for case in planned} == {"H200", "8xH200"}, file
            assert not others & {case.case.id for case in planned}
            assert {"samples_per_joule", "tokens_per_joule"} & set(planned[0].suite.limits), file
