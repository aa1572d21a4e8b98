"""What a suite may say, refused or not before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm.model_folder import Config, read_quantisation
from pytest_mlperf.adapters.engines.vllm import RESERVED, VllmEngine, check_agrees, engine_arguments
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.suite.trial import wrong_values
from tests.adapters.engines.recording import Samples
from tests.refusals import unrefused


def engine(model: Path | None, precision: str = "bf16", **options: Any) -> VllmEngine:
    named = None if model is None else str(model)
    return VllmEngine(dataset=Samples([]), model=named, precision=precision, **options)


def arguments(folder: Path, precision: str = "bf16", **options: Any) -> dict[str, Any]:
    return engine_arguments(folder, precision, engine(folder, precision, **options)._options)


def test_a_wrong_option_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    """The engine is named, the option, its value, and what would be right."""
    rows: list[tuple[dict[str, Any], str]] = [
        ({"api": "sync"}, "api = 'sync' is not one of async, offline"),
        ({"load_format": "gguf"}, "load_format = 'gguf' is not one of auto, dummy"),
        ({"max_num_seqs": 0}, "max_num_seqs = 0 is not a whole number, at least 1"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size = True is not a whole number"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size = 0 is not"),
        ({"max_model_len": -1}, "max_model_len = -1 is not"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens = 0 is not"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization = 0 is not above 0 and at most 1"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization = 1.1 is not above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0 is not at least 1"),
        ({"min_new_tokens": 129}, "min_new_tokens = 129 is not from 0 to max_new_tokens = 128"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens = 0 is not at least 1"),
        ({"mm_processor_cache_gb": -1}, "mm_processor_cache_gb = -1 is not a size in GB, 0"),
        ({"batch_size": 8}, 'batch_size needs api = "offline"'),
        ({"api": "offline", "batch_size": 0}, "batch_size = 0 is not a whole number"),
        ({"precision": "tf32"}, "precision = 'tf32' is not one of fp32, bf16, fp16, fp8"),
        ({"quantization": "fp8"}, 'precision = "bf16" says that they are not'),
        (
            {"quantization": "fp8", "precision": "int4"},
            'quantization = "fp8" quantises to fp8, but precision = "int4"',
        ),
        *(
            ({"engine_args": {name: 1}}, rf"engine_args\.{name} is set by .*leave it out")
            for name in RESERVED
        ),
        ({"model": None}, r"no model; set workload\.model"),
    ]

    def make(options: dict[str, Any]) -> None:
        engine(**{"model": folder, **options})

    rows = [(options, f"^engine vllm: .*{message}") for options, message in rows]
    assert unrefused(make, SuiteError, rows) == []
    with pytest.raises(UnavailableError, match="does not exist"):
        engine(tmp_path / "none")
    assert wrong_values("engines", "vllm", {"engine_args": [1]}) == {
        "engine_args": "engine_args is [1]; a table is needed"
    }


def test_unset_options_are_left_to_vllm(folder: Path) -> None:
    assert arguments(folder) == {
        "model": str(folder),
        "dtype": "bfloat16",
        "load_format": "auto",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "seed": 0,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "kv_cache_dtype": "auto",
        "enable_prefix_caching": False,
        "enforce_eager": False,
        "disable_log_stats": False,
    }


def test_an_option_reaches_vllm_under_its_own_name(folder: Path) -> None:
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("fp32", {}, {"dtype": "float32"}),
        ("fp16", {}, {"dtype": "float16"}),
        ("fp8", {"quantization": "fp8"}, {"dtype": "auto", "quantization": "fp8"}),
        ("fp8", {"kv_cache_dtype": "fp8"}, {"dtype": "auto", "kv_cache_dtype": "fp8"}),
        ("int4", {}, {"dtype": "auto"}),
        ("bf16", {"max_num_seqs": 64}, {"max_num_seqs": 64}),
        ("bf16", {"enable_prefix_caching": True}, {"enable_prefix_caching": True}),
        ("bf16", {"load_format": "dummy"}, {"load_format": "dummy"}),
        ("bf16", {"request_metrics": False}, {"disable_log_stats": True}),
        ("bf16", {"engine_args": {"stream_interval": 4}}, {"stream_interval": 4}),
    ]
    for precision, options, expected in cases:
        vllm_arguments = arguments(folder, precision, **options)
        assert {name: vllm_arguments.get(name) for name in expected} == expected


def compressed(*kinds: tuple[int, str]) -> dict[str, Any]:
    groups = {
        f"group_{number}": {"weights": {"num_bits": bits, "type": kind}}
        for number, (bits, kind) in enumerate(kinds)
    }
    return {"quant_method": "compressed-tensors", "config_groups": groups}


def test_the_precision_is_that_of_the_weights(folder: Path) -> None:
    """A baseline of one precision is never compared with weights of another."""
    cases: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, ["fp32", "bf16", "fp16"], ["fp8", "int4"]),
        ({"quant_method": "fp8"}, ["fp8"], ["bf16", "int8"]),
        ({"quant_method": "awq", "bits": 4}, ["int4-awq", "int4"], ["bf16", "gptq"]),
        ({"quant_method": "gptq", "bits": 4}, ["gptq", "int4"], ["int8", "int4-awq"]),
        ({"quant_method": "gptq", "bits": 8}, ["gptq", "int8"], ["int4"]),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ["nvfp4"], ["fp8"]),
        (compressed((4, "int")), ["int4"], ["fp8", "fp16"]),
        (compressed((4, "int"), (8, "float")), ["int4", "fp8"], ["bf16"]),
        ({"quant_method": "torchao"}, ["int4", "int8", "fp8"], ["fp32"]),
    ]
    for quantisation, right, wrong in cases:
        config = Config(quantization=quantisation)
        for precision in right:
            check_agrees(folder, precision, None, config)
        for precision in wrong:
            with pytest.raises(SuiteError, match=f'precision = "{precision}", but'):
                check_agrees(folder, precision, None, config)
    check_agrees(folder, "fp8", "fp8", Config())  # quantised while they are loaded


def test_modelopt_says_it_in_a_file_of_its_own(folder: Path) -> None:
    """hf_quant_config.json counts before config.json; one that cannot be read is an error."""
    file = folder / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}), "utf-8")
    assert read_quantisation(folder, Config()).names == ("fp8",)
    file.write_text("[]", "utf-8")
    with pytest.raises(
        RunError,
        match=(r"hf_quant_config.json: is not a JSON object"),
    ):
        read_quantisation(folder, Config())


@pytest.mark.usefixtures("absent")
def test_without_vllm_the_ways_to_it_are_named(folder: Path) -> None:
    with pytest.raises(EnvironmentFault) as fault, engine(folder):
        pass

    for way in ("vllm/bin/pip install vllm", "python = ", 'use = "openai"', "serve = "):
        assert way in str(fault.value)
