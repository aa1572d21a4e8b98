"""Build checkpoints with torchao: 8-bit or 4-bit linear layers, saved as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import RunError
from pytest_mlperf.adapters import builders
from pytest_mlperf.adapters.builders import Recipe, RecipeBuilder
from pytest_mlperf.extension import Progress, Prompts

GROUP_SIZES = (16, 32, 64, 128, 256)

TILE = 16
"""Kernels for fp8 need both sides of a matrix to be multiples of this."""


RECIPES: Mapping[str, Recipe] = {
    "int8": Recipe("int8", "int8 weights, a scale per output"),
    "int8-dynamic": Recipe("int8", "int8 weights and inputs, a scale per output and per token"),
    "int4": Recipe("int4", "int4 weights, a scale and a zero per group"),
    "fp8": Recipe("fp8", "fp8 (e4m3) weights, a scale per output"),
    "fp8-dynamic": Recipe("fp8", "fp8 (e4m3) weights and inputs, a scale per output and per token"),
}


class TorchAoBuilder(RecipeBuilder):
    """Quantise with transformers' TorchAoConfig, without calibration samples.

    Engines torch and vllm load the result. Only linear layers are quantised, except the output
    layer.
    """

    format: ClassVar = "torchao"
    libraries: ClassVar = ("torchao", "torch", "transformers")
    distributions: ClassVar = ("torchao", "torch", "transformers", "safetensors")

    def __init__(self, *, recipe: str, group_size: int = 32, device: str = "cpu") -> None:
        """Check the options.

        Args:
            recipe: "int8": weights only; "int8-dynamic": weights, and activations with dynamic
                scales; "int4": weights only; "fp8": weights only; "fp8-dynamic": weights and
                activations, built and run on GPUs of compute capability 8.9 and later.
            group_size: Number of int4 weights that share a scale: 16, 32, 64, 128 or 256.
            device: "cpu", "cuda" or "cuda:N". int4 weights packed on a GPU only run on GPUs.
        """
        sizes = f"one of {', '.join(map(str, GROUP_SIZES))}"
        rule = ("group_size", group_size, group_size in GROUP_SIZES, sizes)
        self._set_options("torchao", recipe, RECIPES, rule, device=device)
        self._group_size = group_size

    def build(
        self,
        source: Path,
        target: Path,
        prompts: Prompts,  # noqa: ARG002 - no recipe needs samples
        progress: Progress,
    ) -> Mapping[str, str]:
        """Write the quantised checkpoint to `target`; return facts for the fingerprint."""
        import transformers

        config = builders.read_config(source)
        plain = builders.outline(config)
        layers = builders.linear_layers(plain)
        left = [name for name, layer in layers.items() if not self._fits(layer)]
        if len(left) == len(layers):
            needs = {
                "int4": f" whose inputs are a multiple of group_size = {self._group_size}",
                "fp8-dynamic": f" whose inputs and outputs are multiples of {TILE}",
            }.get(self._name, "")
            raise RunError(
                "build",
                f'{source}: recipe = "{self._name}" quantises linear layers{needs}, but the model '
                f"has none; {'set another recipe' if layers else 'use another model'}",
            )
        quantization = transformers.TorchAoConfig(
            self._config(), modules_to_not_convert=[*builders.name_of_output(plain), *left]
        )
        more = {"quantization_config": quantization}
        if self._packed:
            import torch

            more["dtype"] = torch.bfloat16  # the only type that its kernels take
        progress(0, len(layers) - len(left), "layers")
        builders.load(source, config, self._device, **more).save_pretrained(target)
        return {
            "quantisation": f"{self._recipe.scheme}{self._group}",
            "quantised": f"{len(layers) - len(left)} of {len(layers)} linear layers",
        }

    @property
    def _packed(self) -> bool:
        return self._name == "int4" and self._device != "cpu"

    @property
    def _group(self) -> str:
        if self._name != "int4":
            return ""
        return f" of {self._group_size}, {'packed for GPUs' if self._packed else 'one a byte'}"

    def _fits(self, layer: Any) -> bool:
        if self._name == "int4":
            return bool(layer.in_features % self._group_size == 0)
        tiled = self._name == "fp8-dynamic"
        return not tiled or not (layer.in_features % TILE or layer.out_features % TILE)

    def _config(self) -> Any:
        import torch
        from torchao import quantization as ao

        match self._name:
            case "int8":
                return ao.Int8WeightOnlyConfig()
            case "int8-dynamic":
                return ao.Int8DynamicActivationInt8WeightConfig()
            case "fp8":
                return ao.Float8WeightOnlyConfig()
            case "fp8-dynamic":
                return ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow())
        if self._packed:
            return ao.Int4WeightOnlyConfig(
                group_size=self._group_size, int4_packing_format="tile_packed_to_4d"
            )
        # Packed weights have no kernels on most CPUs.
        return ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=ao.PerGroup(self._group_size),
            mapping_type=ao.MappingType.ASYMMETRIC,
        )
