"""Checkpoints by LLM Compressor: compressed tensors, for which vLLM has kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf.builders.source import (
    check_device,
    check_prompt,
    choose,
    linear_layers,
    load,
    name_of_output,
    read_config,
)
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Builder


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What LLM Compressor does.

    Attributes:
        precision: Of the weights.
        scheme: One of compressed-tensors' presets.
        how: "round": to the nearest; "gptq": error by error; "awq", "smoothquant": after scales
            were moved.
        looks: It looks at samples.
    """

    precision: str
    scheme: str
    how: str = "round"
    looks: bool = False


RECIPES: Mapping[str, Recipe] = {
    "int8": Recipe(precision="int8", scheme="W8A8"),
    "int8-gptq": Recipe(precision="int8", scheme="W8A8", how="gptq", looks=True),
    "int8-smoothquant": Recipe(precision="int8", scheme="W8A8", how="smoothquant", looks=True),
    "int4": Recipe(precision="int4", scheme="W4A16"),
    "int4-gptq": Recipe(precision="int4", scheme="W4A16", how="gptq", looks=True),
    "int4-awq": Recipe(precision="int4", scheme="W4A16_ASYM", how="awq", looks=True),
    "fp8": Recipe(precision="fp8", scheme="FP8_DYNAMIC"),
    "fp8-static": Recipe(precision="fp8", scheme="FP8", looks=True),
    "nvfp4": Recipe(precision="nvfp4", scheme="NVFP4", looks=True),
}

SMOOTHING = 0.8
"""How much of the inputs' range goes into the weights; SmoothQuant's authors take it for Llama."""


class LlmCompressorBuilder(Builder):
    """LLM Compressor's `oneshot`; checkpoints in the format of compressed-tensors.

    Engines vllm and torch load the result. It pins a narrow range of versions of transformers, so
    it mostly has an environment of its own: `python` in the build.
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
            recipe: "int8" (W8A8: inputs too, as they come), "int8-gptq", "int8-smoothquant",
                "int4" (W4A16: weights alone), "int4-gptq", "int4-awq" (made on GPUs alone), "fp8"
                (inputs too, as they come), "fp8-static" (inputs by scales of the samples) or
                "nvfp4". All but "int8", "int4" and "fp8" look at samples.
            ignore: Further layers to leave alone, by name or as "re:.*gate.*"; the last one always
                is.
            max_prompt_tokens: Longer samples are cut.
            device: "cpu", "cuda" or "cuda:N".
        """
        self._recipe: Recipe = choose("llmcompressor", recipe, RECIPES)
        check_device("llmcompressor", device)
        check_prompt("llmcompressor", max_prompt_tokens)
        self._ignore = tuple(ignore)
        self._most = max_prompt_tokens
        self._device = device
        self.precision = self._recipe.precision
        self.calibrates = self._recipe.looks

    def build(
        self,
        source: Path,
        target: Path,
        prompts: Sequence[Sequence[int]],
        progress: Callable[[int, int, str], None],
    ) -> Mapping[str, str]:
        """Write the quantised checkpoint; progress is what the library prints.

        Raises:
            RunError: The recipe needs a GPU.
        """
        import torch
        from llmcompressor import oneshot

        if self._recipe.how == "awq" and not torch.accelerator.is_available():
            raise RunError("build", "AWQ in LLM Compressor searches its scales on a GPU alone")
        model = load(source, read_config(source), self._device)
        layers = len(linear_layers(model))
        ignored = [*name_of_output(model), *self._ignore]
        progress(0, layers, "layers")
        samples = [_sample(prompt[: self._most]) for prompt in prompts]
        oneshot(
            model=model,
            recipe=list(self._modifiers(ignored)),
            dataset=_loader(samples) if samples else None,
            # Samples are token ids already; without this it looks for a tokenizer, and needs one.
            processor=object(),
            num_calibration_samples=max(1, len(samples)),
            shuffle_calibration_samples=False,
        )
        model.save_pretrained(target, save_compressed=True)
        done = sum(hasattr(layer, "weight_scale") for layer in linear_layers(model).values())
        return {
            "quantisation": f"{self._recipe.scheme}, {self._recipe.how}",
            "quantised": f"{done} of {layers} linear layers",
        }

    def _modifiers(self, ignored: Sequence[str]) -> Iterator[Any]:
        """Yield the steps of the recipe, in order."""
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.quantization import QuantizationModifier
        from llmcompressor.modifiers.transform.awq import AWQModifier
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        how = self._recipe.how
        if how == "smoothquant":
            yield SmoothQuantModifier(smoothing_strength=SMOOTHING)
        if how == "awq":
            yield AWQModifier()
        last = GPTQModifier if how == "gptq" else QuantizationModifier
        yield last(targets=["Linear"], scheme=self._recipe.scheme, ignore=list(ignored))


def _sample(prompt: Sequence[int]) -> dict[str, Any]:
    """Return a batch of one prompt without padding."""
    import torch

    ids = torch.tensor([list(prompt)])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _loader(samples: Sequence[Mapping[str, Any]]) -> Any:
    """Return the samples as `oneshot` takes them: in their order, each a batch."""
    from torch.utils.data import DataLoader

    return DataLoader(samples, batch_size=None, shuffle=False)
