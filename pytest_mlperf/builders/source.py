"""What builders share: the model they read, the prompts it looks at, and what they count."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError, SuiteError

SEED = 20_240_828
"""Of whatever a library draws at random: the same build gives the same weights."""

DEVICE = r"cpu|cuda(:\d+)?"


def choose(builder: str, recipe: str, recipes: Mapping[str, Any]) -> Any:
    """Return what a builder knows under the name of a recipe.

    Raises:
        SuiteError: There is no such recipe.
    """
    if recipe not in recipes:
        raise SuiteError(
            f"builder {builder}: recipe = {recipe!r} is not one of {', '.join(recipes)}"
        )
    return recipes[recipe]


def check_device(builder: str, device: str) -> None:
    """Refuse a device that means nothing.

    Raises:
        SuiteError: It is none.
    """
    if not re.fullmatch(DEVICE, device):
        raise SuiteError(f"builder {builder}: device = {device!r} is not cpu, cuda or cuda:N")


def check_prompt(builder: str, max_prompt_tokens: int) -> None:
    """Refuse to cut prompts to nothing.

    Raises:
        SuiteError: They would be.
    """
    if max_prompt_tokens < 1:
        raise SuiteError(
            f"builder {builder}: max_prompt_tokens = {max_prompt_tokens!r} is not at least 1"
        )


def read_config(source: Path) -> Any:
    """Return a model's configuration.

    Raises:
        RunError: Its weights are quantised already.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(
        source, local_files_only=True, trust_remote_code=False
    )
    if getattr(config, "quantization_config", None) is not None:
        raise RunError("build", f"{source}: the weights are quantised already; name plain ones")
    return config


def load(source: Path, config: Any, device: str, **more: Any) -> Any:
    """Return a causal language model on a device, and no code of its folder run.

    Args:
        source: Folder with config.json and safetensors files.
        config: What `read_config` gave.
        device: "cpu", "cuda" or "cuda:N".
        more: Whatever else transformers takes; the type is the checkpoint's own by default.

    Raises:
        RunError: The folder lacks weights, or there is no such device.
    """
    import torch
    import transformers

    if device != "cpu" and not torch.cuda.is_available():
        raise RunError("build", f"device = {device!r}, and torch finds no GPU here")
    torch.manual_seed(SEED)
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


def outline(config: Any) -> Any:
    """Return the model without weights: its layers and their shapes alone."""
    import torch
    import transformers

    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear layers of a model by name, but for the one that gives its output."""
    import torch

    last = model.get_output_embeddings()
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not last
    }


def name_of_output(model: Any) -> list[str]:
    """Return the name of the layer that gives a model's output, in a list; [] for none."""
    last = model.get_output_embeddings()
    return [name for name, layer in model.named_modules() if layer is last]


def look(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_prompt_tokens: int,
    progress: Callable[[int, int, str], None],
) -> None:
    """Run each prompt through a model, alone and without padding."""
    import torch

    with torch.inference_mode():
        for done, prompt in enumerate(prompts, start=1):
            model(input_ids=torch.tensor([prompt[:max_prompt_tokens]], device=model.device))
            progress(done, len(prompts), "samples")
