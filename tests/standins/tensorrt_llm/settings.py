"""Arguments: which there are comes from the contract's table, what they mean is here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

SERIES = "1.2"
TABLE = Path(__file__).resolve().parents[2] / "contracts" / "tensorrt_llm.json"


def _names() -> Mapping[str, list[str]]:
    versions = json.loads(TABLE.read_text("utf-8"))["versions"]
    (found,) = [each["names"] for each in versions if each["version"].startswith(SERIES)]
    return dict(found)


NAMES = _names()


class ValidationError(ValueError):
    """As pydantic's: a configuration is given what it does not have, or a wrong value."""


class Config:
    """A configuration: keyword arguments only, unknown ones are refused."""

    cls = ""
    defaults: Mapping[str, Any] = {}

    def __init__(self, **given: Any) -> None:
        accepted = NAMES[self.cls]
        for name in given:
            if name not in accepted:
                raise ValidationError(
                    f"1 validation error for {self.cls}\n{name}\n  Extra inputs are not permitted "
                    "[type=extra_forbidden]"
                )
        for name in accepted:
            setattr(self, name, given.get(name, self.defaults.get(name)))

    @classmethod
    def of(cls, value: Any) -> Any:
        """Take a configuration, or a table of its arguments."""
        if isinstance(value, Mapping):
            return cls(**value)
        if value is None or isinstance(value, cls):
            return value
        raise ValidationError(
            f"1 validation error for {cls.cls}\n  Input should be a valid dictionary or instance"
        )


def _enumeration(cls: str) -> Any:
    made: Any = Enum
    return made(cls, {name: name for name in NAMES[cls]})


CapacitySchedulerPolicy = _enumeration("CapacitySchedulerPolicy")
LoadFormat = _enumeration("LoadFormat")


class KvCacheConfig(Config):
    cls = "KvCacheConfig"
    defaults: Mapping[str, Any] = {
        "enable_block_reuse": True,
        "free_gpu_memory_fraction": 0.9,
        "dtype": "auto",
        "tokens_per_block": 32,
        "enable_partial_reuse": True,
    }

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if given.get("dtype") not in (None, "auto", "fp8", "nvfp4"):
            raise ValidationError(
                "1 validation error for KvCacheConfig\ndtype\n  Input should be 'auto', 'fp8' or "
                "'nvfp4'"
            )


class CudaGraphConfig(Config):
    cls = "CudaGraphConfig"
    defaults: Mapping[str, Any] = {
        "batch_sizes": None,
        "max_batch_size": 0,
        "enable_padding": False,
    }

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if given.get("batch_sizes") and given.get("max_batch_size"):
            raise ValidationError(
                "Please don't set both cuda_graph_config.batch_sizes and "
                "cuda_graph_config.max_batch_size."
            )


class TorchCompileConfig(Config):
    cls = "TorchCompileConfig"
    defaults: Mapping[str, Any] = {"enable_fullgraph": True}


class SchedulerConfig(Config):
    cls = "SchedulerConfig"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        policy = given.get("capacity_scheduler_policy")
        if policy is not None and not isinstance(policy, CapacitySchedulerPolicy):
            raise ValidationError("1 validation error for SchedulerConfig\n  Input should be enum")


CONFIGS: Mapping[str, type[Config]] = {
    "kv_cache_config": KvCacheConfig,
    "cuda_graph_config": CudaGraphConfig,
    "torch_compile_config": TorchCompileConfig,
    "scheduler_config": SchedulerConfig,
}


class LlmArgs:
    """All arguments of LLM with their values."""

    defaults: Mapping[str, Any] = {
        "skip_tokenizer_init": False,
        "trust_remote_code": False,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "dtype": "auto",
        "load_format": "auto",
        "max_num_tokens": 8192,
        "stream_interval": 1,
        "return_perf_metrics": False,
        "enable_chunked_prefill": False,
        "kv_cache_config": {},
        "cuda_graph_config": {},
    }

    def __init__(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in NAMES["LLM()"]:
                raise ValueError(f"LLM got invalid argument: {name}")
        for name in NAMES["LLM()"]:
            value = given.get(name, self.defaults.get(name))
            kind = CONFIGS.get(name)
            setattr(self, name, kind.of(value) if kind is not None else value)
        self.load_format: Any
        self.stream_interval: int
        if isinstance(self.load_format, str):
            if self.load_format.upper() not in LoadFormat.__members__:
                raise ValidationError(f"Invalid LoadFormat: {self.load_format}")
            self.load_format = LoadFormat[self.load_format.upper()]
        if self.stream_interval <= 0:
            raise ValidationError(f"stream_interval must be positive, got {self.stream_interval}")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'TorchLlmArgs' object has no attribute {name!r}")


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

    def __init__(self, **given: Any) -> None:
        for name in given:
            if name not in NAMES["SamplingParams"]:
                raise TypeError(
                    f"SamplingParams.__init__() got an unexpected keyword argument {name!r}"
                )
        for name in NAMES["SamplingParams"]:
            setattr(self, name, given.get(name, self.defaults.get(name)))
        stops = given.get("stop_token_ids")
        if stops is not None and not all(isinstance(stop, int) for stop in stops):
            raise ValueError(f"stop_token_ids must be a list of int, got {stops!r}")
        top_k, temperature = given.get("top_k"), given.get("temperature")
        if top_k is not None and top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={top_k}")
        if not (top_k == 1 or temperature == 0 or (top_k is None and temperature is None)):
            raise NotImplementedError("this stand-in samples nothing")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'SamplingParams' object has no attribute {name!r}")
