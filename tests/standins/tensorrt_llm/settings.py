"""Arguments with their types and defaults, checked by pydantic as the original's are.

Names are those of the contract's table, types and checks those of llmapi/llm_args.py of 1.2;
configurations that no test needs may be anything here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

SERIES = "1.2"
TABLE = Path(__file__).resolve().parents[2] / "contracts" / "tensorrt_llm.json"


def _names() -> Mapping[str, list[str]]:
    versions = json.loads(TABLE.read_text("utf-8"))["versions"]
    (fields,) = [each["names"] for each in versions if each["version"].startswith(SERIES)]
    return dict(fields)


NAMES = _names()


class CapacitySchedulerPolicy(Enum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


class LoadFormat(Enum):
    AUTO = 0
    DUMMY = 1
    VISION_ONLY = 2


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = Field(0.9, ge=0, le=1)
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = Field(0, ge=0)
    dtype: Literal["auto", "fp8", "nvfp4"] = "auto"
    mamba_ssm_cache_dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    tokens_per_block: int = 32


class CudaGraphConfig(StrictBaseModel):
    batch_sizes: list[int] | None = None
    max_batch_size: int = Field(0, ge=0)
    enable_padding: bool = False

    def sizes(self) -> list[int]:
        """Return the sizes that its largest one stands for."""
        most = self.max_batch_size or 128
        few = [1, 2, 4, *range(8, 129, 8)] if self.enable_padding else [*range(1, 32), 32, 64, 128]
        powers = [2**power for power in range(8, math.ceil(math.log2(most)))]
        return sorted({size for size in (*few, *powers) if size <= most} | {most})


class TorchCompileConfig(StrictBaseModel):
    enable_fullgraph: bool = True
    enable_inductor: bool = False
    enable_piecewise_cuda_graph: bool = False
    capture_num_tokens: list[int] | None = None
    enable_userbuffers: bool = True
    max_num_streams: int = Field(1, ge=1)


class SchedulerConfig(StrictBaseModel):
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: (
        Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS", "FORCE_CHUNK"] | None
    ) = None
    dynamic_batch_config: dict[str, Any] | None = None


class MoeConfig(StrictBaseModel):
    backend: Literal["CUTLASS", "CUTEDSL", "WIDEEP", "TRTLLM", "DEEPGEMM", "VANILLA", "TRITON"] = (
        "CUTLASS"
    )
    max_num_tokens: int | None = None
    load_balancer: Any = None
    disable_finalize_fusion: bool = False
    use_low_precision_moe_combine: bool = False


class DecodingBaseConfig(StrictBaseModel):
    """What all kinds of drafts have; which kind it is, the class says and no argument."""

    decoding_type: ClassVar[str]
    max_draft_len: int | None = None
    max_total_draft_tokens: int | None = None
    speculative_model_dir: str | Path | None = None
    max_concurrency: int | None = None
    load_format: str | None = None
    acceptance_window: int | None = Field(None, ge=0)
    acceptance_length_threshold: float | None = Field(None, ge=0)


class NGramDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "NGram"
    max_matching_ngram_size: int = 0
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


class MTPDecodingConfig(DecodingBaseConfig):
    decoding_type: ClassVar[str] = "MTP"
    num_nextn_predict_layers: int = 1
    use_relaxed_acceptance_for_thinking: bool = False
    relaxed_topk: int = 1
    relaxed_delta: float = 0.0
    use_mtp_vanilla: bool = False
    mtp_eagle_one_model: bool = True


class ParallelConfig(StrictBaseModel):
    """How many ranks there are; data parallel attention has those of tensor parallelism."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    gpus_per_node: int = 8
    moe_cluster_size: int = -1
    moe_tp_size: int = -1
    moe_ep_size: int = -1
    enable_attention_dp: bool = False

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size * self.cp_size

    def check_experts(self) -> None:
        """Refuse ranks of experts that are not those of tensor parallelism."""
        cluster = max(1, self.moe_cluster_size)
        experts, tensors = self.moe_ep_size, self.moe_tp_size
        if experts == -1:
            experts = 1 if tensors == -1 else self.tp_size // (tensors * cluster)
        if tensors == -1:
            tensors = self.tp_size // (experts * cluster)
        if tensors * experts * cluster != self.tp_size:
            raise ValueError(
                "moe_tp_size * moe_ep_size * moe_cluster_size must equal to moe_world_size, but "
                f"got {tensors * experts * cluster} != {self.tp_size}"
            )


OTHERS: dict[str, Any] = {name: (Any, None) for name in NAMES["LLM()"] if name != "model"}
"""Arguments whose values no test needs may be anything."""


class TorchLlmArgs(create_model("Arguments", __base__=StrictBaseModel, **OTHERS)):  # type: ignore[misc]
    """All arguments of LLM: names of the table, with types if tests need them."""

    model: str | Path
    skip_tokenizer_init: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    moe_cluster_parallel_size: int | None = None
    moe_tensor_parallel_size: int | None = None
    moe_expert_parallel_size: int | None = None
    enable_attention_dp: bool = False
    load_format: LoadFormat = LoadFormat.AUTO
    kv_cache_config: KvCacheConfig = KvCacheConfig.model_validate({})
    enable_chunked_prefill: bool = False
    scheduler_config: SchedulerConfig = Field(default_factory=SchedulerConfig)
    speculative_config: NGramDecodingConfig | MTPDecodingConfig | None = None
    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_beam_width: int | None = None
    max_num_tokens: int | None = 8192
    backend: str | None = "pytorch"
    return_perf_metrics: bool = False
    cuda_graph_config: CudaGraphConfig | None = CudaGraphConfig.model_validate({})
    disable_overlap_scheduler: bool = False
    moe_config: MoeConfig = Field(default_factory=MoeConfig)
    attn_backend: str = "TRTLLM"
    batch_wait_timeout_iters: int = Field(0, ge=0)
    batch_wait_max_tokens_ratio: float = Field(0, ge=0, le=1)
    stream_interval: int = 1
    allreduce_strategy: Literal["AUTO", "NCCL", "UB", "MINLATENCY", "ONESHOT"] | None = "AUTO"

    @field_validator("load_format", mode="before")
    @classmethod
    def _format(cls, value: Any) -> Any:
        if isinstance(value, LoadFormat):
            return value
        if value.upper() not in LoadFormat.__members__:
            raise ValueError(f"Invalid LoadFormat: {value}")
        return LoadFormat[value.upper()]

    @model_validator(mode="after")
    def _settle(self) -> Self:
        if self.stream_interval <= 0:
            raise ValueError(f"stream_interval must be positive, got {self.stream_interval}")
        graphs = self.cuda_graph_config
        both = graphs and graphs.batch_sizes and graphs.max_batch_size
        if graphs and both and sorted(graphs.batch_sizes or ()) != graphs.sizes():
            raise ValueError(
                "Please don't set both cuda_graph_config.batch_sizes and "
                "cuda_graph_config.max_batch_size."
            )
        # What a build's own defaults are; the longest sequence its workers find out.
        self.max_batch_size = self.max_batch_size or 2048
        self.max_input_len = self.max_input_len or 1024
        self.max_beam_width = self.max_beam_width or 1
        return self

    @property
    def parallel_config(self) -> ParallelConfig:
        return ParallelConfig(
            tp_size=self.tensor_parallel_size,
            pp_size=self.pipeline_parallel_size,
            cp_size=self.context_parallel_size,
            moe_cluster_size=self.moe_cluster_parallel_size or -1,
            moe_tp_size=self.moe_tensor_parallel_size or -1,
            moe_ep_size=self.moe_expert_parallel_size or -1,
            enable_attention_dp=self.enable_attention_dp,
        )


ValidationError = pydantic.ValidationError


class SamplingParams:
    """How one request is answered; only greedy search is done here."""

    defaults: Mapping[str, Any] = {
        "n": 1,
        "max_tokens": 32,
        "detokenize": True,
        "ignore_eos": False,
        "include_stop_str_in_output": False,
        "return_perf_metrics": False,
    }

    def __init__(self, **fields: Any) -> None:
        for name in fields:
            if name not in NAMES["SamplingParams"]:
                raise TypeError(
                    f"SamplingParams.__init__() got an unexpected keyword argument {name!r}"
                )
        for name in NAMES["SamplingParams"]:
            setattr(self, name, fields.get(name, self.defaults.get(name)))
        stops = fields.get("stop_token_ids")
        if stops is not None and not all(isinstance(stop, int) for stop in stops):
            raise ValueError(f"stop_token_ids must be a list of int, got {stops!r}")
        top_k, temperature = fields.get("top_k"), fields.get("temperature")
        if top_k is not None and top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={top_k}")
        if not (top_k == 1 or temperature == 0 or (top_k is None and temperature is None)):
            raise NotImplementedError("this stand-in samples nothing")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'SamplingParams' object has no attribute {name!r}")
