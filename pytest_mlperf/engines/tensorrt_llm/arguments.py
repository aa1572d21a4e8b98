"""What is handed to TensorRT-LLM, as plain values: checked against its sources without it.

Whatever of its API is used is named in this module: the arguments that the two functions make, and
`READ` for what is read from its objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.engines.generation import Generation
from pytest_mlperf.engines.tensorrt_llm.options import Options

READ: Mapping[str, tuple[str, ...]] = {
    "tensorrt_llm": ("LLM", "SamplingParams", "__version__", "llmapi"),
    "LLM": ("args", "generate_async", "shutdown"),
    "LlmArgs": ("max_batch_size", "max_num_tokens", "max_seq_len"),
    "RequestOutput": ("outputs", "__aiter__", "__await__"),
    "CompletionOutput": ("token_ids", "finish_reason", "request_perf_metrics"),
    "RequestPerfMetrics": ("timing_metrics",),
    "TimingMetrics": ("arrival_time", "first_token_time"),
}
"""Attributes of its modules and objects that the engine reads or calls, by module or class."""

CALLED: Mapping[str, tuple[str, ...]] = {
    "LLM.generate_async": ("inputs", "sampling_params", "streaming"),
}
"""Arguments of its methods that the engine gives."""

DTYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration object to be made.

    Attributes:
        cls: Its class in `tensorrt_llm.llmapi`.
        values: Its arguments.
    """

    cls: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration.

    Attributes:
        cls: The enumeration in `tensorrt_llm.llmapi`.
        name: The member's name.
    """

    cls: str
    name: str


def llm_arguments(folder: Path, precision: str, options: Options) -> dict[str, Any]:
    """Return the arguments of LLM; what the suite leaves open is left to TensorRT-LLM.

    Args:
        folder: The model's.
        precision: A quantised one is the checkpoint's own, and its other layers keep their type.
        options: What the suite says.
    """
    given = {
        "model": str(folder),
        # Its tokenizer would cost time in every request: prompts are token ids, answers too.
        "skip_tokenizer_init": True,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "dtype": DTYPES.get(precision, "auto"),
        "load_format": options.load_format,
        "enable_chunked_prefill": options.enable_chunked_prefill,
        "stream_interval": options.stream_interval,
        "return_perf_metrics": True,
        "max_batch_size": options.max_batch_size,
        "max_num_tokens": options.max_num_tokens,
        "max_seq_len": options.max_seq_len,
        "attn_backend": options.attn_backend,
    }
    made = {name: value for name, value in given.items() if value is not None}
    further = dict(options.llm)
    for name, config in _configs(options).items():
        more = further.pop(name, {})
        made[name] = config and Config(config.cls, {**config.values, **more})
    return {**made, **further}


def sampling_arguments(generation: Generation, *, beside: int = 0) -> dict[str, Any]:
    """Return the arguments of SamplingParams: greedy, token ids only.

    Args:
        beside: Tokens that TensorRT-LLM counts in min_tokens beside those of the answer.
        generation: Lengths and end tokens. The first ends an answer as TensorRT-LLM's end_id, which
            min_new_tokens holds back; the others as stop tokens, which it does not.
    """
    end = generation.eos[0] if generation.eos else -1
    others = list(generation.eos[1:])
    # With ignore_eos there is no end to hold back, and the last token of all would be held back.
    held = generation.min_new_tokens and not generation.ignore_eos
    least = generation.min_new_tokens + beside if held else None
    made: dict[str, Any] = {
        "max_tokens": generation.max_new_tokens,
        "min_tokens": least,
        "top_k": 1,
        "end_id": end,
        "pad_id": generation.padding,
        "ignore_eos": generation.ignore_eos,
        "detokenize": False,
    }
    if others and not generation.ignore_eos:
        made |= {"stop_token_ids": others, "include_stop_str_in_output": True}
    return {name: value for name, value in made.items() if value is not None}


def make(value: Any, api: Any) -> Any:
    """Return a value with its configurations and members made from `tensorrt_llm.llmapi`."""
    if isinstance(value, Config):
        return getattr(api, value.cls)(**make(dict(value.values), api))
    if isinstance(value, Member):
        return getattr(getattr(api, value.cls), value.name)
    if isinstance(value, dict):
        return {name: make(each, api) for name, each in value.items()}
    return value


def _configs(options: Options) -> dict[str, Config | None]:
    """Return the configurations by argument; None turns CUDA graphs off."""
    cache = {
        "enable_block_reuse": options.enable_block_reuse,
        "free_gpu_memory_fraction": options.kv_cache_free_gpu_memory_fraction,
        "dtype": options.kv_cache_dtype,
        "tokens_per_block": options.tokens_per_block,
    }
    found: dict[str, Config | None] = {
        "kv_cache_config": Config(
            "KvCacheConfig", {name: each for name, each in cache.items() if each is not None}
        ),
        "cuda_graph_config": _graphs(options),
    }
    if options.scheduler_policy is not None:
        policy = Member("CapacitySchedulerPolicy", options.scheduler_policy.upper())
        found["scheduler_config"] = Config("SchedulerConfig", {"capacity_scheduler_policy": policy})
    return found


def _graphs(options: Options) -> Config | None:
    if options.cuda_graphs is False:
        return None
    values: dict[str, Any] = {"enable_padding": options.cuda_graph_padding}
    if isinstance(options.cuda_graphs, list):
        values["batch_sizes"] = sorted(options.cuda_graphs)
    elif options.max_batch_size is not None:
        # Its own choice ends at 128, and larger batches would run without a graph.
        values["max_batch_size"] = options.max_batch_size
    return Config("CudaGraphConfig", values)
