"""What a suite may say to the vllm engine; all else is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.generation import is_count

APIS = ("async", "offline")
LOAD_FORMATS = ("auto", "dummy")

RESERVED: Mapping[str, str] = {
    "model": "the workload's model",
    "model_weights": "the workload's model",
    "tokenizer": "the tokenizer in the model's folder, which the engine reads itself",
    "skip_tokenizer_init": "nothing: prompts are always handed over as token ids",
    "dtype": "precision",
    "quantization": "the option quantization",
    "load_format": "the option load_format",
    "tensor_parallel_size": "the option tensor_parallel_size",
    "pipeline_parallel_size": "the option pipeline_parallel_size",
    "max_model_len": "the option max_model_len",
    "max_num_seqs": "the option max_num_seqs",
    "max_num_batched_tokens": "the option max_num_batched_tokens",
    "gpu_memory_utilization": "the option gpu_memory_utilization",
    "kv_cache_dtype": "the option kv_cache_dtype",
    "enable_prefix_caching": "the option enable_prefix_caching",
    "enforce_eager": "the option enforce_eager",
    "disable_log_stats": "the option request_metrics",
    "generation_config": "nothing: answers are always greedy",
    "override_generation_config": "the options max_new_tokens, min_new_tokens and ignore_eos",
    "revision": "nothing: nothing is downloaded",
    "tokenizer_revision": "nothing: nothing is downloaded",
    "code_revision": "nothing: nothing is downloaded",
    "hf_token": "nothing: nothing is downloaded",
}
"""Engine arguments of vLLM that are no business of `engine_args`, and what sets them instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How vLLM is to run; None leaves vLLM's own choice.

    Attributes:
        api: One of `APIS`.
        stream: Take tokens as they come where they are timed.
        tensor_parallel_size: GPUs that share each layer.
        pipeline_parallel_size: Groups of them that share the layers among each other.
        max_model_len: Tokens of prompt and answer together at most.
        max_num_seqs: Samples in flight at most.
        max_num_batched_tokens: Tokens per forward pass at most.
        gpu_memory_utilization: Share of a GPU's memory that vLLM takes.
        kv_cache_dtype: Type of the key-value cache, in vLLM's words.
        quantization: Method of quantised weights, in vLLM's words.
        enable_prefix_caching: Keep what prompts have in common from one to the next.
        enforce_eager: No CUDA graphs and no torch.compile.
        load_format: One of `LOAD_FORMATS`.
        request_metrics: Let vLLM stamp each request, to compare with our own stamps.
        engine_args: Further engine arguments.
    """

    api: str
    stream: bool
    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    kv_cache_dtype: str
    quantization: str | None
    enable_prefix_caching: bool
    enforce_eager: bool
    load_format: str
    request_metrics: bool
    engine_args: Mapping[str, Any]

    @property
    def dummy(self) -> bool:
        """Whether weights are random."""
        return self.load_format == "dummy"

    @property
    def sees_tokens(self) -> bool:
        """Whether tokens are seen as they come."""
        return self.api == "async" and self.stream

    def check(self, batch_size: int | None) -> None:
        """Refuse what vLLM could only refuse after seconds of loading.

        Args:
            batch_size: Samples per call, which only the offline API has.

        Raises:
            SuiteError: An option is out of range, or given twice.
        """
        self._check_words()
        self._check_numbers()
        if batch_size is not None and not is_count(batch_size):
            raise refused(f"batch_size = {batch_size!r} is not a whole number, at least 1")
        if batch_size is not None and self.api != "offline":
            raise refused(
                'batch_size is of api = "offline"; with api = "async" set max_num_seqs, which is '
                "how many samples are in flight"
            )
        for name in self.engine_args:
            if name in RESERVED:
                raise refused(
                    f"engine_args.{name} is set by {RESERVED[name]}; leave it out of engine_args"
                )

    def _check_words(self) -> None:
        for name, value, words in (
            ("api", self.api, APIS),
            ("load_format", self.load_format, LOAD_FORMATS),
        ):
            if value not in words:
                raise refused(f"{name} = {value!r} is not one of {', '.join(words)}")
        if not isinstance(self.engine_args, Mapping):
            raise refused(f"engine_args = {self.engine_args!r} is not a table of engine arguments")

    def _check_numbers(self) -> None:
        for name in (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
        ):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise refused(f"{name} = {value!r} is not a whole number, at least 1")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise refused(f"gpu_memory_utilization = {share!r} is not above 0 and at most 1")


def refused(what: str) -> SuiteError:
    """Return the error for an option that cannot be."""
    return SuiteError(f"engine vllm: {what}")
