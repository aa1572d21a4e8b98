"""Build checkpoints by NVIDIA's ModelOpt, for TensorRT-LLM and vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf.adapters.builders import (
    Recipe,
    RecipeBuilder,
    linear_layers,
    load,
    read_config,
    run_calibration,
)
from pytest_mlperf.extension import Progress, Prompts

KV_CACHES = ("fp8", "nvfp4")


RECIPES: Mapping[str, Recipe] = {
    "fp8": Recipe("fp8", "FP8_DEFAULT_CFG", looks=True),
    "int8-smoothquant": Recipe("int8", "INT8_SMOOTHQUANT_CFG", looks=True),
    "int4-awq": Recipe("int4-awq", "INT4_AWQ_CFG", looks=True),
    "w4a8-awq": Recipe("w4a8-awq", "W4A8_AWQ_BETA_CFG", looks=True),
    "nvfp4": Recipe("nvfp4", "NVFP4_DEFAULT_CFG", looks=True),
}
"""The scheme is a configuration of ModelOpt."""


class ModelOptBuilder(RecipeBuilder):
    """Quantise and export with ModelOpt; the export has a hf_quant_config.json.

    Engine tensorrt_llm loads all recipes except "int8-smoothquant", which is for servers that you
    start yourself. Engine vllm loads "fp8" and "nvfp4".
    """

    format: ClassVar = "modelopt"
    libraries: ClassVar = ("modelopt", "torch", "transformers")
    distributions: ClassVar = ("nvidia-modelopt", "torch", "transformers")

    def __init__(
        self,
        *,
        recipe: str,
        kv_cache: str | None = None,
        max_prompt_tokens: int = 2048,
        device: str = "cpu",
    ) -> None:
        """Check the options.

        Args:
            recipe: "fp8", "int8-smoothquant", "int4-awq" (W4A16), "w4a8-awq" (int4 weights, fp8
                activations) or "nvfp4"; all need calibration samples.
            kv_cache: "fp8" or "nvfp4" adds scales for the key-value cache; None adds none.
            max_prompt_tokens: Maximum tokens of a calibration sample; longer samples are truncated.
            device: "cpu", "cuda" or "cuda:N".
        """
        self._set_options(
            "modelopt",
            recipe,
            RECIPES,
            ("kv_cache", kv_cache, kv_cache in {None, *KV_CACHES}, " or ".join(KV_CACHES)),
            device=device,
            max_prompt_tokens=max_prompt_tokens,
        )
        self._kv_cache = kv_cache

    def build(
        self, source: Path, target: Path, prompts: Prompts, progress: Progress
    ) -> Mapping[str, str]:
        """Write the quantised checkpoint; unquantised weights keep their original type."""
        import modelopt.torch.quantization as mtq
        import torch
        from modelopt.torch.export import export_hf_checkpoint

        config = read_config(source)
        model = load(source, config, self._device)
        layers = len(linear_layers(model))
        quantiser_config = getattr(mtq, self._recipe.scheme)
        if self._kv_cache is not None:
            cache: Any = getattr(mtq, f"{self._kv_cache.upper()}_KV_CFG")
            quantiser_config = mtq.utils.update_quant_cfg_with_kv_cache_quant(
                quantiser_config, cache["quant_cfg"]
            )
        mtq.quantize(
            model,
            quantiser_config,
            forward_loop=lambda wrapped: run_calibration(wrapped, prompts, self._most, progress),
        )
        done = sum(_is_quantised(layer) for layer in linear_layers(model).values())
        with torch.inference_mode():
            export_hf_checkpoint(model, dtype=config.dtype or torch.float32, export_dir=target)
        cache_too = f", {self._kv_cache} keys and values" if self._kv_cache else ""
        return {
            "quantisation": f"{self._recipe.scheme}{cache_too}",
            "quantised": f"{done} of {layers} linear layers",
        }


def _is_quantised(layer: Any) -> bool:
    quantizer: Any = getattr(layer, "weight_quantizer", None)
    # Some recipes have two, one after the other.
    inside: Any = quantizer if hasattr(quantizer, "__iter__") else [quantizer]
    return any(getattr(each, "is_enabled", False) for each in inside)
