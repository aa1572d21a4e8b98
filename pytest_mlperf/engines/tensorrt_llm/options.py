"""What a suite may say to the tensorrt_llm engine; all else is refused before anything loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.generation import is_count

KV_CACHE_DTYPES = ("auto", "fp8", "nvfp4", "float16", "bfloat16", "float32", "fp8_ds_mla")
"""Words of all versions; one that a version does not have it refuses itself."""
LOAD_FORMATS = ("auto", "dummy")
SCHEDULER_POLICIES = ("guaranteed_no_evict", "max_utilization", "static_batch")

RESERVED: Mapping[str, str] = {
    "model": "model of the workload or of the engine entry",
    "tokenizer": "the tokenizer in the model's folder, which the engine reads itself",
    "tokenizer_mode": "the tokenizer in the model's folder, which the engine reads itself",
    "skip_tokenizer_init": "token ids, which the engine always hands over",
    "trust_remote_code": "nothing: code of a model's folder is never run",
    "dtype": "precision",
    "revision": "model: nothing is downloaded",
    "tokenizer_revision": "model: nothing is downloaded",
    "tensor_parallel_size": "the option tensor_parallel_size",
    "pipeline_parallel_size": "the option pipeline_parallel_size",
    "max_batch_size": "the option max_batch_size",
    "max_num_tokens": "the option max_num_tokens",
    "max_seq_len": "the option max_seq_len",
    "max_beam_width": "nothing: answers are greedy",
    "enable_chunked_prefill": "the option enable_chunked_prefill",
    "load_format": "the option load_format",
    "attn_backend": "the option attn_backend",
    "stream_interval": "the option stream_interval",
    "return_perf_metrics": "nothing: the engine's own stamps are always compared with ours",
    "backend": "nothing: this is the PyTorch backend",
}
"""LLM arguments that have another way in, which the value names."""

RESERVED_CONFIG: Mapping[str, Mapping[str, str]] = {
    "kv_cache_config": {
        "enable_block_reuse": "enable_block_reuse",
        "free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
        "dtype": "kv_cache_dtype",
        "tokens_per_block": "tokens_per_block",
    },
    "cuda_graph_config": {
        "batch_sizes": "cuda_graphs",
        "max_batch_size": "max_batch_size",
        "enable_padding": "cuda_graph_padding",
    },
    "scheduler_config": {"capacity_scheduler_policy": "scheduler_policy"},
}
"""Arguments of configurations that the engine makes, and the options that set them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How the engine is to run; None leaves TensorRT-LLM's own choice.

    Attributes:
        tensor_parallel_size: GPUs that share each layer.
        pipeline_parallel_size: Groups of them that share the layers among each other.
        max_batch_size: Samples in flight at most.
        max_num_tokens: Tokens per forward pass at most.
        max_seq_len: Tokens of prompt and answer together at most.
        kv_cache_dtype: One of `KV_CACHE_DTYPES`.
        kv_cache_free_gpu_memory_fraction: Of the memory that is free once weights are loaded.
        tokens_per_block: Of the paged key-value cache.
        enable_block_reuse: Take blocks of a common beginning from an earlier prompt.
        cuda_graphs: Whether to record CUDA graphs, or the batch sizes to record them for.
        cuda_graph_padding: Pad a batch to the next recorded size.
        scheduler_policy: One of `SCHEDULER_POLICIES`.
        enable_chunked_prefill: Cut long prompts into several forward passes.
        load_format: One of `LOAD_FORMATS`.
        attn_backend: Attention kernels, e.g. "TRTLLM" or "FLASHINFER".
        stream_interval: Tokens of an answer per message.
        stream: Take tokens as they come where they are timed.
        llm: Further arguments of LLM.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_batch_size: int | None
    max_num_tokens: int | None
    max_seq_len: int | None
    kv_cache_dtype: str
    kv_cache_free_gpu_memory_fraction: float
    tokens_per_block: int | None
    enable_block_reuse: bool
    cuda_graphs: bool | list[int]
    cuda_graph_padding: bool
    scheduler_policy: str | None
    enable_chunked_prefill: bool
    load_format: str
    attn_backend: str | None
    stream_interval: int
    stream: bool
    llm: Mapping[str, Any]

    def check(self) -> None:
        """Refuse what TensorRT-LLM could only refuse after the model is loaded.

        Raises:
            SuiteError: An option is out of range, or given twice.
        """
        self._check_words()
        self._check_numbers()
        self._check_graphs()
        self._check_llm()

    def _check_words(self) -> None:
        for name, value, words in (
            ("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES),
            ("load_format", self.load_format, LOAD_FORMATS),
            ("scheduler_policy", self.scheduler_policy, (None, *SCHEDULER_POLICIES)),
        ):
            if value not in words:
                known = ", ".join(word for word in words if word is not None)
                raise refused(f"{name} = {value!r} is not one of {known}")
        for name, flag in (
            ("enable_block_reuse", self.enable_block_reuse),
            ("enable_chunked_prefill", self.enable_chunked_prefill),
            ("cuda_graph_padding", self.cuda_graph_padding),
            ("stream", self.stream),
        ):
            if not isinstance(flag, bool):
                raise refused(f"{name} = {flag!r} is neither true nor false")

    def _check_numbers(self) -> None:
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "max_batch_size",
            "max_num_tokens",
            "max_seq_len",
            "tokens_per_block",
            "stream_interval",
        ):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise refused(f"{name} = {value!r} is not a whole number, at least 1")
        share: object = self.kv_cache_free_gpu_memory_fraction
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise refused(
                f"kv_cache_free_gpu_memory_fraction = {share!r} is not above 0 and at most 1"
            )

    def _check_graphs(self) -> None:
        graphs: object = self.cuda_graphs
        if not isinstance(graphs, bool) and not (
            isinstance(graphs, list) and graphs and all(map(is_count, graphs))
        ):
            raise refused(
                f"cuda_graphs = {graphs!r} is not true, false or a list of batch sizes, each at "
                "least 1"
            )
        if self.cuda_graph_padding and not graphs:
            raise refused("cuda_graph_padding = true needs CUDA graphs, but cuda_graphs = false")

    def _check_llm(self) -> None:
        if not isinstance(self.llm, Mapping):
            raise refused(f"llm = {self.llm!r} is not a table of arguments of LLM")
        for name in self.llm:
            if name in RESERVED:
                raise refused(f"llm.{name} is set by {RESERVED[name]}; leave it out of llm")
        for config, inner in RESERVED_CONFIG.items():
            more = self.llm.get(config, {})
            if not isinstance(more, Mapping):
                raise refused(f"llm.{config} = {more!r} is not a table")
            for name, option in inner.items():
                if name in more:
                    raise refused(
                        f"llm.{config}.{name} is set by the option {option}; leave it out of llm"
                    )
        if self.cuda_graphs is False and self.llm.get("cuda_graph_config"):
            raise refused("llm.cuda_graph_config needs CUDA graphs, but cuda_graphs = false")


def refused(what: str) -> SuiteError:
    """Return the error about an option."""
    return SuiteError(f"engine tensorrt_llm: {what}")
