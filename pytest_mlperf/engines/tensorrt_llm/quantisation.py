"""Whether a checkpoint holds weights of the precision that the suite names; reads JSON only.

On TensorRT-LLM's PyTorch backend weights are quantised beforehand: hf_quant_config.json, which
NVIDIA's ModelOpt writes, or quantization_config in config.json says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.files import broken
from pytest_mlperf.engines.model_folder import Config, read_json

PLAIN = ("fp32", "bf16", "fp16")
QUANTISED = ("fp8", "nvfp4", "mxfp4", "int8", "int4-awq", "w4a8-awq", "gptq", "mixed")
PRECISIONS = (*PLAIN, *QUANTISED)

ALGORITHMS: Mapping[str, str] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_BLOCK_SCALES": "fp8",
    "FP8_PB_WO": "fp8",
    "NVFP4": "nvfp4",
    "W4A4_NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A8_MXFP4_MXFP8": "mxfp4",
    "MXFP4": "mxfp4",
    "W8A16": "int8",
    "INT8": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W8A8_SQ_PER_TENSOR_PLUGIN": "int8",
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "int8",
    "W4A16_AWQ": "int4-awq",
    "INT4_AWQ": "int4-awq",
    "W4A8_AWQ": "w4a8-awq",
    "W4A16_GPTQ": "gptq",
    "W8A16_GPTQ": "gptq",
    "MIXED_PRECISION": "mixed",
}
"""Precision of each algorithm that a checkpoint may name."""

METHODS: Mapping[str, str] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "awq": "int4-awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
}
"""Precision of each quant_method in config.json that needs no further word."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a checkpoint's weights are quantised.

    Attributes:
        precision: In the suite's words; None for plain weights.
        algorithm: In the checkpoint's words; "none" for plain weights.
        kv_cache: Algorithm of the key-value cache the checkpoint was calibrated for, or "none".
        file: Where it says so.
    """

    precision: str | None
    algorithm: str
    kv_cache: str
    file: str

    def describe(self) -> Mapping[str, str]:
        """Return what the fingerprint says of it."""
        return {"quantisation": self.algorithm, "kv_cache_calibrated": self.kv_cache}


def check_precision(precision: str) -> None:
    """Refuse a word that names no precision here.

    Raises:
        SuiteError: It names none.
    """
    if precision not in PRECISIONS:
        raise SuiteError(
            f"engine tensorrt_llm: precision = {precision!r} is not one of {', '.join(PRECISIONS)}"
        )


def read_quantisation(folder: Path, config: Config) -> Quantisation:
    """Return how the weights in a folder are quantised.

    Raises:
        RunError: It cannot be read, or names an algorithm that is unknown here.
    """
    own = folder / "hf_quant_config.json"
    if own.is_file():
        said = read_json(own).get("quantization")
        return _modelopt(own, said if isinstance(said, Mapping) else {})
    return _transformers(folder / "config.json", config.quantization)


def check_agrees(folder: Path, precision: str, found: Quantisation) -> None:
    """Refuse a precision that the weights do not have.

    Raises:
        SuiteError: They have another.
    """
    if found.precision == precision or (found.precision is None and precision in PLAIN):
        return
    if found.precision is None:
        raise SuiteError(
            f'engine tensorrt_llm: precision = "{precision}", but {folder} holds plain weights: '
            "neither hf_quant_config.json nor config.json names a quantisation; set model to the "
            "quantised checkpoint, or precision to bf16 or fp16"
        )
    raise SuiteError(
        f'engine tensorrt_llm: precision = "{precision}", but {folder / found.file} says '
        f'{found.algorithm}; set precision = "{found.precision}", or model to another checkpoint'
    )


def _modelopt(file: Path, said: Mapping[str, Any]) -> Quantisation:
    """Read what ModelOpt wrote: quant_algo and kv_cache_quant_algo."""
    algorithm = said.get("quant_algo")
    cache = str(said.get("kv_cache_quant_algo") or "none")
    if algorithm is None:
        return Quantisation(None, "none", cache, file.name)
    precision = ALGORITHMS.get(str(algorithm).upper())
    if precision is None:
        raise _unknown(file, f"quant_algo {algorithm!r}")
    return Quantisation(precision, str(algorithm), cache, file.name)


def _transformers(file: Path, said: Mapping[str, Any]) -> Quantisation:
    """Read quantization_config of config.json, as transformers and other tools write it."""
    if not said:
        return Quantisation(None, "none", "none", file.name)
    method = str(said.get("quant_method", "")).lower()
    if method == "modelopt" or "quant_algo" in said:
        return _modelopt(file, said)
    precision = METHODS.get(method)
    if precision is None:
        raise _unknown(file, f"quant_method {method!r}")
    return Quantisation(precision, method, "none", file.name)


def _unknown(file: Path, what: str) -> Exception:
    return broken(
        file,
        f"names {what}, which engine tensorrt_llm does not know; use a checkpoint in one of "
        f"{', '.join(QUANTISED)}",
    )
