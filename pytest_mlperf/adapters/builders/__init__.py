"""Load and inspect models for the builders of quantised checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import Builder, RunError
from pytest_mlperf.extension import PrecisionName, Progress, Prompts, Rule, require_options

BUILD_SEED = 20_240_828
"""Seed of the libraries' random numbers: the same build gives the same weights."""

SMOOTHING = 0.8
"""Strength of SmoothQuant: its authors' for Llama, NVIDIA's for Stable Diffusion XL."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Describe how a builder quantises a model to `precision`.

    Attributes:
        scheme: The library's name of the quantisation scheme, such as "W8A8".
        how: Algorithm, such as "gptq"; "round" rounds to nearest.
        looks: Whether it needs calibration samples.
    """

    precision: PrecisionName
    scheme: str
    how: str = "round"
    looks: bool = False


class RecipeBuilder(Builder):
    """Provide the options that all builders share."""

    def _set_options(
        self,
        builder: str,
        recipe: str,
        recipes: Mapping[str, Recipe],
        *rules: Rule,
        device: str,
        max_prompt_tokens: int = 1,
    ) -> None:
        """Check a builder's options, also by `rules`; store recipe, device and prompt length."""
        is_device = re.fullmatch(r"cpu|cuda(:\d+)?", device) is not None
        common = (
            ("recipe", recipe, recipe in recipes, f"one of {', '.join(recipes)}"),
            ("device", device, is_device, "cpu, cuda or cuda:N"),
            ("max_prompt_tokens", max_prompt_tokens, max_prompt_tokens >= 1, "at least 1"),
        )
        require_options(f"builder {builder}", (*common, *rules))
        self._recipe, self._name = recipes[recipe], recipe
        self._device, self._most = device, max_prompt_tokens
        self.precision = self._recipe.precision
        self.calibrates = self._recipe.looks


def read_config(source: Path) -> Any:
    """Return a model's configuration; raise RunError if its weights are quantised already."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(
        source, local_files_only=True, trust_remote_code=False
    )
    if getattr(config, "quantization_config", None) is not None:
        raise RunError(
            "build",
            f"{source}: the weights are already quantised; set model to a checkpoint with "
            "unquantised weights",
        )
    return config


def load(source: Path, config: Any, device: str, **more: Any) -> Any:
    """Load a causal language model on a device, without running code from its folder."""
    import torch
    import transformers

    require_gpu(device)
    torch.manual_seed(BUILD_SEED)
    with torch.device(device):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **{"dtype": config.dtype or torch.float32, **more},
        )
    if missing := sorted(info["missing_keys"]):
        raise RunError("build", f"{source}: the checkpoint lacks {missing[0]}")
    return model.to(device).eval()


def require_gpu(device: str) -> None:
    """Raise RunError if the device is a GPU and torch finds none."""
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        raise RunError(
            "build",
            f'device = {device!r}, but torch finds no GPU on this machine; set device = "cpu", or '
            "build on a machine with a GPU",
        )


def outline(config: Any) -> Any:
    """Return a model with its layers and shapes but without weights, on torch's "meta" device."""
    import torch
    import transformers

    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear layers of a model by name, without the output layer."""
    import torch

    last = model.get_output_embeddings()
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not last
    }


def name_of_output(model: Any) -> list[str]:
    """Return the name of a model's output layer in a list; [] without one."""
    last = model.get_output_embeddings()
    return [name for name, layer in model.named_modules() if layer is last]


def run_calibration(
    model: Any, prompts: Prompts, max_prompt_tokens: int, progress: Progress
) -> None:
    """Run the model on each calibration prompt, as a batch of one without padding."""
    import torch

    with torch.inference_mode():
        for done, prompt in enumerate(prompts, start=1):
            model(input_ids=torch.tensor([prompt[:max_prompt_tokens]], device=model.device))
            progress(done, len(prompts), "samples")
