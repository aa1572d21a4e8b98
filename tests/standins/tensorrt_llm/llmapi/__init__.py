"""The configurations of LLM."""

from ..api import LLM  # noqa: TID252 - it is found by its own name in tests only
from ..settings import (  # noqa: TID252
    CapacitySchedulerPolicy,
    CudaGraphConfig,
    KvCacheConfig,
    MTPDecodingConfig,
    NGramDecodingConfig,
    SamplingParams,
    SchedulerConfig,
    TorchCompileConfig,
    TorchLlmArgs,
)

__all__ = [
    "LLM",
    "CapacitySchedulerPolicy",
    "CudaGraphConfig",
    "KvCacheConfig",
    "MTPDecodingConfig",
    "NGramDecodingConfig",
    "SamplingParams",
    "SchedulerConfig",
    "TorchCompileConfig",
    "TorchLlmArgs",
]
