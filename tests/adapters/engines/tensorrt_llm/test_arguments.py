"""Test the arguments that TensorRT-LLM gets from the options of a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.tensorrt_llm import TensorRtLlmOptions, llm_arguments
from pytest_mlperf.adapters.engines.tensorrt_llm._requests import sampling_arguments

LEFT_OPEN: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_batch_size": None,
    "max_num_tokens": None,
    "max_seq_len": None,
    "kv_cache_dtype": "auto",
    "kv_cache_free_gpu_memory_fraction": 0.9,
    "tokens_per_block": None,
    "enable_block_reuse": False,
    "cuda_graphs": True,
    "cuda_graph_padding": None,
    "scheduler_policy": None,
    "enable_chunked_prefill": False,
    "load_format": "auto",
    "attn_backend": None,
    "stream_interval": 1,
    "stream": True,
    "llm": {},
}


def arguments(precision: str = "bf16", **options: Any) -> dict[str, Any]:
    return llm_arguments(
        Path("/models/llama"), precision, TensorRtLlmOptions(**{**LEFT_OPEN, **options})
    )


def generation(**options: Any) -> Generation:
    fields = {"max_new_tokens": 8, "min_new_tokens": 1, "num_beams": 1, "ignore_eos": False}
    return Generation(**{**fields, "eos": (2,), **options})


def test_unset_options_are_left_to_tensorrt_llm() -> None:
    assert arguments() == {
        "model": "/models/llama",
        "skip_tokenizer_init": True,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "dtype": "bfloat16",
        "load_format": "auto",
        "enable_chunked_prefill": False,
        "stream_interval": 1,
        "return_perf_metrics": True,
        "kv_cache_config": {
            "enable_block_reuse": False,
            "free_gpu_memory_fraction": 0.9,
            "dtype": "auto",
        },
        "cuda_graph_config": {"enable_padding": True},
    }


def test_a_quantised_checkpoint_keeps_the_type_of_its_other_layers() -> None:
    types = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "auto"}
    assert {precision: arguments(precision)["dtype"] for precision in types} == types


def test_cuda_graphs_are_off_or_for_the_batches_that_can_be() -> None:
    padded = {"enable_padding": True}
    for options, graphs in (
        ({"cuda_graphs": [8, 1]}, {**padded, "batch_sizes": [1, 8]}),
        ({}, padded),
        ({"cuda_graph_padding": True}, padded),
        ({"cuda_graph_padding": False}, {"enable_padding": False}),
        ({"max_batch_size": 512}, {**padded, "max_batch_size": 512}),  # its own choice ends at 128
        ({"max_batch_size": 512, "cuda_graphs": [64]}, {**padded, "batch_sizes": [64]}),
    ):
        assert arguments(**options)["cuda_graph_config"] == graphs
    assert arguments(cuda_graphs=False)["cuda_graph_config"] is None


def test_further_arguments_join_those_of_the_options() -> None:
    made = arguments(
        scheduler_policy="max_utilization",
        llm={
            "moe_config": {"backend": "CUTLASS"},
            "kv_cache_config": {"host_cache_size": 0},
            "scheduler_config": {"context_chunking_policy": "FIRST_COME_FIRST_SERVED"},
        },
    )

    assert made["moe_config"] == {"backend": "CUTLASS"}
    assert made["kv_cache_config"]["host_cache_size"] == 0
    assert made["kv_cache_config"]["enable_block_reuse"] is False
    assert made["scheduler_config"] == {
        "capacity_scheduler_policy": "MAX_UTILIZATION",
        "context_chunking_policy": "FIRST_COME_FIRST_SERVED",
    }


def test_answers_are_greedy_and_end_at_the_models_end_tokens() -> None:
    greedy = {"max_tokens": 8, "top_k": 1, "detokenize": False}
    ids = {"end_id": 2, "pad_id": 2}
    stops = {"stop_token_ids": [7, 9], "include_stop_str_in_output": True}
    ending, ignoring = {"ignore_eos": False, "min_tokens": 1}, {"ignore_eos": True}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, ids | ending),
        ({"eos": (2, 7, 9)}, ids | ending | stops),
        ({"eos": (2, 7), **ignoring}, ids | ignoring),
        ({"eos": (), **ignoring}, {"end_id": -1, "pad_id": 0, **ignoring}),
        ({"min_new_tokens": 0}, ids | {"ignore_eos": False}),
    ]
    for options, more in cases:
        assert sampling_arguments(generation(**options)) == greedy | more
    # Tokens of the prompt are counted in where the sampler counts them.
    assert sampling_arguments(generation(min_new_tokens=3), further=17)["min_tokens"] == 20
