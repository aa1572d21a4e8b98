"""Build checkpoints with LLM Compressor, in the compressed-tensors format that vLLM can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import RunError
from pytest_mlperf.adapters import builders
from pytest_mlperf.adapters.builders import Recipe, RecipeBuilder
from pytest_mlperf.extension import Progress, Prompts

RECIPES: Mapping[str, Recipe] = {
    "int8": Recipe("int8", "W8A8"),
    "int8-gptq": Recipe("int8", "W8A8", how="gptq", looks=True),
    "int8-smoothquant": Recipe("int8", "W8A8", how="smoothquant", looks=True),
    "int4": Recipe("int4", "W4A16"),
    "int4-gptq": Recipe("int4", "W4A16", how="gptq", looks=True),
    "int4-awq": Recipe("int4", "W4A16_ASYM", how="awq", looks=True),
    "fp8": Recipe("fp8", "FP8_DYNAMIC"),
    "fp8-static": Recipe("fp8", "FP8", looks=True),
    "nvfp4": Recipe("nvfp4", "NVFP4", looks=True),
}
"""The scheme is a preset of compressed-tensors."""


class LlmCompressorBuilder(RecipeBuilder):
    """Quantise with LLM Compressor's `oneshot`, and save in the compressed-tensors format.

    Engines vllm and torch load the result. LLM Compressor needs one of a few transformers versions,
    so it usually needs its own environment: set `python` in the build.
    """

    format: ClassVar = "compressed-tensors"
    libraries: ClassVar = ("llmcompressor", "torch", "transformers")
    distributions: ClassVar = ("llmcompressor", "compressed-tensors", "torch", "transformers")

    def __init__(
        self,
        *,
        recipe: str,
        ignore: Sequence[str] = (),
        max_prompt_tokens: int = 2048,
        device: str = "cpu",
    ) -> None:
        """Check the options.

        Args:
            recipe: "int8" (W8A8, dynamic activation scales), "int8-gptq", "int8-smoothquant",
                "int4" (W4A16, weights only), "int4-gptq", "int4-awq" (needs a GPU), "fp8" (dynamic
                activation scales), "fp8-static" (activation scales from calibration) or "nvfp4".
                All recipes except "int8", "int4" and "fp8" need calibration samples.
            ignore: Further layers to leave unquantised, by name or as "re:.*gate.*"; the output
                layer is never quantised.
            max_prompt_tokens: Maximum tokens of a calibration sample; longer samples are truncated.
            device: "cpu", "cuda" or "cuda:N".
        """
        self._set_options(
            "llmcompressor", recipe, RECIPES, device=device, max_prompt_tokens=max_prompt_tokens
        )
        self._ignore = tuple(ignore)

    def build(
        self, source: Path, target: Path, prompts: Prompts, progress: Progress
    ) -> Mapping[str, str]:
        """Write the quantised checkpoint, and return facts on how it was quantised."""
        import torch
        from llmcompressor import oneshot
        from torch.utils.data import DataLoader

        if self._recipe.how == "awq" and not torch.accelerator.is_available():
            raise RunError(
                "build",
                "the AWQ recipes of LLM Compressor need a GPU, and torch finds none; build on a "
                "machine with a GPU, or set another recipe",
            )
        model = builders.load(source, builders.read_config(source), self._device)
        layers = len(builders.linear_layers(model))
        ignored = [*builders.name_of_output(model), *self._ignore]
        progress(0, layers, "layers")
        # Each prompt is a batch of its own, without padding.
        ids = [torch.tensor([list(prompt[: self._most])]) for prompt in prompts]
        samples = [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids]
        loader: Any = DataLoader(samples, batch_size=None, shuffle=False)
        oneshot(
            model=model,
            recipe=list(self._modifiers(ignored)),
            dataset=loader if samples else None,
            # Samples are token ids; without a processor oneshot requires a tokenizer.
            processor=object(),
            num_calibration_samples=max(1, len(samples)),
            shuffle_calibration_samples=False,
        )
        model.save_pretrained(target, save_compressed=True)
        done = sum(
            hasattr(layer, "weight_scale") for layer in builders.linear_layers(model).values()
        )
        return {
            "quantisation": f"{self._recipe.scheme}, {self._recipe.how}",
            "quantised": f"{done} of {layers} linear layers",
        }

    def _modifiers(self, ignored: Sequence[str]) -> Iterator[Any]:
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.quantization import QuantizationModifier
        from llmcompressor.modifiers.transform.awq import AWQModifier
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        how = self._recipe.how
        if how == "smoothquant":
            yield SmoothQuantModifier(smoothing_strength=builders.SMOOTHING)
        if how == "awq":
            yield AWQModifier()
        last = GPTQModifier if how == "gptq" else QuantizationModifier
        yield last(targets=["Linear"], scheme=self._recipe.scheme, ignore=list(ignored))
