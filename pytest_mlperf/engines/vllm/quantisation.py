"""What precision a checkpoint's weights have, and whether it is the one that the suite names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.engines.model_folder import read_json
from pytest_mlperf.engines.vllm.options import refused

DTYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""vLLM's types of plain weights, by precision."""

QUANTISED = ("fp8", "nvfp4", "mxfp4", "int8", "int4", "int4-awq", "gptq")
"""Precisions of quantised weights; what is not quantised keeps the checkpoint's type."""

AT_LOADING: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp8",),
    "mxfp8": ("fp8",),
    "experts_int8": ("int8",),
    "bitsandbytes": ("int4", "int8"),
    "fp8_per_tensor": ("fp8",),
    "fp8_per_block": ("fp8",),
}
"""What vLLM makes of plain weights while it loads them, by the option quantization."""

METHODS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp8",),
    "fbgemm_fp8": ("fp8",),
    "awq": ("int4-awq", "int4"),
    "mxfp4": ("mxfp4",),
    "nvfp4": ("nvfp4",),
}
"""Precisions that a quant_method of config.json may be called; absent: it does not decide it."""

MODELOPT: Mapping[str, tuple[str, ...]] = {
    "FP8": ("fp8",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8",),
    "FP8_PB_WO": ("fp8",),
    "NVFP4": ("nvfp4",),
    "NVFP4_AWQ": ("nvfp4",),
    "W4A16_AWQ": ("int4-awq", "int4"),
    "MXFP4": ("mxfp4",),
}
"""The same for quant_algo of ModelOpt."""

NUMBERS: Mapping[tuple[Any, Any], tuple[str, ...]] = {
    ("float", 8): ("fp8",),
    ("int", 8): ("int8",),
    ("int", 4): ("int4",),
    ("float", 4): ("nvfp4", "mxfp4"),
}
"""The same for type and num_bits of compressed-tensors."""


def check_words(precision: str, quantization: str | None) -> None:
    """Refuse a precision that means nothing here, or that the option quantization cannot make.

    Raises:
        SuiteError: It does not.
    """
    if precision not in DTYPES and precision not in QUANTISED:
        raise refused(f"precision = {precision!r} is not one of {', '.join((*DTYPES, *QUANTISED))}")
    if quantization is None:
        return
    if precision in DTYPES:
        raise refused(
            f'quantization = "{quantization}" quantises weights, but precision = "{precision}" '
            f"says that they are not; set precision to one of {', '.join(QUANTISED)}"
        )
    made = AT_LOADING.get(quantization, QUANTISED)
    if precision not in made:
        raise refused(
            f'quantization = "{quantization}" makes {" or ".join(made)}, but precision = '
            f'"{precision}"'
        )


def check_agrees(
    folder: Path, precision: str, quantization: str | None, said: Mapping[str, Any]
) -> None:
    """Refuse a precision that the weights in a folder do not have.

    Args:
        folder: The model's.
        precision: The suite's word.
        quantization: The option.
        said: quantization_config of config.json; empty for plain weights.

    Raises:
        SuiteError: They have another.
        RunError: hf_quant_config.json cannot be read.
    """
    found = precisions(folder, said)
    if found is None:  # quantised in a way that does not say how far
        if precision not in DTYPES:
            return
        found = QUANTISED
    if precision in (found or DTYPES):
        return
    if found:
        raise refused(
            f'precision = "{precision}", but the weights in {folder} are quantised; set precision '
            f"to {' or '.join(found)}, or model to another checkpoint"
        )
    if quantization is None:
        raise refused(
            f'precision = "{precision}", but {folder} holds plain weights: neither '
            "hf_quant_config.json nor config.json names a quantisation; set model to the quantised "
            'checkpoint, or let vLLM quantise while it loads, as with quantization = "fp8"'
        )


def precisions(folder: Path, said: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what the weights of a folder may be called; () for plain ones, None: it is not said.

    Raises:
        RunError: hf_quant_config.json cannot be read.
    """
    own = folder / "hf_quant_config.json"
    if own.is_file():
        said = {"quant_method": "modelopt", **read_json(own).get("quantization", {})}
    if not said:
        return ()
    method = str(said.get("quant_method", "")).lower()
    if method.startswith("modelopt") or "quant_algo" in said:
        return MODELOPT.get(str(said.get("quant_algo")).upper())
    if method.startswith("gptq"):
        return ("gptq", f"int{said.get('bits')}")
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed(said)
    return METHODS.get(method)


def _compressed(said: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the precision of the one kind of weights in compressed-tensors, None for several."""
    weights = [group.get("weights") or {} for group in said.get("config_groups", {}).values()]
    kinds = {(each.get("type"), each.get("num_bits")) for each in weights}
    return NUMBERS.get(kinds.pop()) if len(kinds) == 1 else None
