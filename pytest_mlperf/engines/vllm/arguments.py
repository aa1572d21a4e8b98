"""What is handed to vLLM, as plain values: checked against its sources without it.

Whatever of its API is used is named in this module: the arguments that the two functions make, and
tables of what is imported, called and read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.engines.generation import Generation
from pytest_mlperf.engines.vllm.options import Options
from pytest_mlperf.engines.vllm.quantisation import DTYPES

OLDEST = (0, 20)
"""The oldest vLLM that has all of it."""

UUIDS = (0, 24)
"""The oldest vLLM that takes a GPU's UUID in CUDA_VISIBLE_DEVICES; others take numbers alone."""

IMPORTED: Mapping[str, str] = {
    "AsyncEngineArgs": "vllm.engine.arg_utils",
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "LLM": "vllm.entrypoints.llm",
    "RequestOutputKind": "vllm.sampling_params",
    "SamplingParams": "vllm.sampling_params",
    "tokens_input": "vllm.inputs",
}
"""The modules of what is imported, by name."""

CALLED: Mapping[str, tuple[str, ...]] = {
    "AsyncLLM.from_engine_args": ("engine_args",),
    "AsyncLLM.generate": ("prompt", "sampling_params", "request_id"),
    "AsyncLLM.shutdown": (),
    "LLM.generate": ("prompts", "sampling_params", "use_tqdm"),
    "tokens_input": ("prompt_token_ids",),
}
"""Arguments that are given to its functions, beside those made below."""

READ: Mapping[str, tuple[str, ...]] = {
    "AsyncLLM": ("vllm_config",),
    "LLM": ("llm_engine",),
    "LLMEngine": ("engine_core", "vllm_config"),
    "RequestOutputKind": ("CUMULATIVE", "DELTA", "FINAL_ONLY"),
    "RequestOutput": ("outputs", "metrics"),
    "CompletionOutput": ("token_ids", "finish_reason"),
    "RequestStateStats": ("first_token_ts", "last_token_ts", "num_generation_tokens"),
    "TokensPrompt": ("prompt_token_ids",),
}
"""Attributes that are read of its objects, by class."""

SETTINGS: Mapping[str, str] = {
    "max_model_len": "model_config.max_model_len",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "async_scheduling": "scheduler_config.async_scheduling",
    "block_size": "cache_config.block_size",
    "num_gpu_blocks": "cache_config.num_gpu_blocks",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "device": "device_config.device_type",
}
"""What vLLM settled on itself, read from its `vllm_config` once it is loaded."""


def engine_arguments(folder: Path, precision: str, options: Options) -> dict[str, Any]:
    """Return the arguments of AsyncEngineArgs, and of LLM; what the suite leaves open is left out.

    Args:
        folder: The model's.
        precision: The suite's word.
        options: What else it says.
    """
    given = {
        "model": str(folder),
        "dtype": DTYPES.get(precision, "auto"),
        "quantization": options.quantization,
        "load_format": options.load_format,
        # Prompts and answers are token ids; a tokenizer might bring an end token of its own.
        "skip_tokenizer_init": True,
        # Sampling settings beside the weights are not read.
        "generation_config": "vllm",
        "seed": 0,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "kv_cache_dtype": options.kv_cache_dtype,
        "enable_prefix_caching": options.enable_prefix_caching,
        "enforce_eager": options.enforce_eager,
        "disable_log_stats": not options.request_metrics,
        **options.engine_args,
    }
    return {name: value for name, value in given.items() if value is not None}


def most_together(
    arguments: Mapping[str, Any], settled: Mapping[str, str], batch_size: int | None
) -> dict[str, str]:
    """Return the fact of how many samples are worked on together at most; none where drafts count.

    Args:
        arguments: The engine's; copies of a model that share experts make one step of them all.
        settled: Facts of what vLLM settled on.
        batch_size: Samples per call of the offline API.
    """
    most = settled.get("settled.max_num_seqs", "")
    if arguments.get("speculative_config") or not most.isdecimal():
        return {}
    together = int(most) * int(arguments.get("data_parallel_size") or 1)
    return {"work.batch": str(min(together, batch_size or together))}


def sampling_arguments(generation: Generation, output_kind: Any) -> dict[str, Any]:
    """Return the arguments of SamplingParams: greedy, ended by our end tokens and no others."""
    return {
        "temperature": 0.0,
        "max_tokens": generation.max_new_tokens,
        "min_tokens": generation.min_new_tokens,
        "ignore_eos": generation.ignore_eos,
        "stop_token_ids": list(generation.ends),
        "detokenize": False,
        "output_kind": output_kind,
    }


def describe_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return what the fingerprint says of the arguments, which are the same on every machine."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in arguments.items()
        if name != "model"
    }
