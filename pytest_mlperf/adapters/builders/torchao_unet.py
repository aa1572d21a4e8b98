"""Quantise Stable Diffusion XL's UNet with torchao: 8-bit weights and activations.

As in NVIDIA's submissions, convolutions and linear layers are quantised, and the ranges of their
activations are measured over the first denoising steps. For int8, SmoothQuant moves part of the
activations' range into the weights, here in linear layers only. torchao has no kernels for 8-bit
convolutions, so their weights are saved as matrices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import RunError
from pytest_mlperf.adapters.builders import (
    BUILD_SEED,
    SMOOTHING,
    Recipe,
    RecipeBuilder,
    require_gpu,
)
from pytest_mlperf.adapters.conventions import MATRIX_CONVOLUTIONS, NEGATIVE_PROMPT
from pytest_mlperf.extension import Progress, Prompts

RECIPES: Mapping[str, Recipe] = {
    "int8-smoothquant": Recipe(
        "int8",
        "int8 weights and inputs, a scale per output and one for all inputs, smoothed but for "
        "convolutions",
        looks=True,
    ),
    "fp8-static": Recipe(
        "fp8", "fp8 (e4m3) weights and inputs, a scale for all of each", looks=True
    ),
}

LINEAR = re.compile(r"\.(ff\.net\.\d+(\.proj)?|attn\d\.to_[qkv])")
"""Feed-forward, query, key and value layers; others stay, as in NVIDIA's submissions."""

CONVOLUTIONS = re.compile(r"\.conv[12]?$")
"""Convolutions that are not the first, the last or shortcuts, as in NVIDIA's submissions."""

SIDE_MULTIPLE = 16
"""GPU kernels need sides of a matrix to be multiples of this; other convolutions stay."""

MIN_RANGE = 1e-5
"""Lower bound of an input's range, so that its scale is never 0."""

INT8_MAX, FP8_MAX = 127, 448


class TorchAoUnetBuilder(RecipeBuilder):
    """Quantise a pipeline's UNet with torchao; calibrate it on the first denoising steps.

    Engine torch-diffusion loads the result. All other parts of the pipeline stay unchanged.
    """

    format: ClassVar = "torchao-pipeline"
    libraries: ClassVar = ("torchao", "torch", "transformers", "diffusers")
    distributions: ClassVar = ("torchao", "torch", "transformers", "diffusers", "safetensors")

    def __init__(
        self,
        *,
        recipe: str,
        steps: int = 20,
        calibrated_steps: int = 8,
        guidance_scale: float = 8.0,
        negative_prompt: str = NEGATIVE_PROMPT,
        smoothing: float = SMOOTHING,
        device: str = "cpu",
    ) -> None:
        """Check the options.

        Args:
            recipe: "int8-smoothquant" or "fp8-static"; both need captions.
            steps: Denoising steps of an image; use the engine's value.
            calibrated_steps: Number of first steps to run; the activation ranges are measured in
                them.
            guidance_scale: Use the engine's value.
            negative_prompt: Use the engine's value.
            smoothing: Strength of SmoothQuant for int8, 0 to 1.
            device: "cpu", "cuda" or "cuda:N".
        """
        begins = 1 <= calibrated_steps <= steps
        rules = (
            ("steps", steps, steps >= 1, "at least 1"),
            ("calibrated_steps", calibrated_steps, begins, f"1 to steps, {steps}"),
            ("smoothing", smoothing, 0 <= smoothing <= 1, "a number from 0 to 1"),
        )
        self._set_options("torchao-unet", recipe, RECIPES, *rules, device=device)
        self._steps = steps
        self._calibrated = calibrated_steps
        self._generation = {"guidance_scale": guidance_scale, "negative_prompt": negative_prompt}
        self._smoothing = smoothing

    def build(
        self, source: Path, target: Path, prompts: Prompts, progress: Progress
    ) -> Mapping[str, str]:
        """Write the pipeline with a quantised UNet."""
        pipe = open_pipeline(source, self._device)
        layers, kinds = quantised_layers(pipe.unet), Counter(map(_kind, pipe.unet.modules()))
        if not layers:
            raise RunError("build", f"{source}: the UNet has no layers that this recipe quantises")
        with ranges_of(layers) as ranges:
            self.calibrate(pipe, prompts, progress)
        quantised = Counter(map(_kind, layers.values()))
        convolutions = [name for name, layer in layers.items() if _kind(layer) == CONVOLUTION]
        for name in convolutions:
            layers[name] = as_matrix(layers[name])
            pipe.unet.set_submodule(name, layers[name])
        for name, layer in layers.items():
            # Convolutions have even inputs: smoothing would cost weights more than inputs gain.
            self._quantise(layer, ranges[name], smooth=name not in convolutions)
        pipe.unet.register_to_config(**{MATRIX_CONVOLUTIONS: convolutions})
        self._save(pipe, layers, target)
        return {
            "quantisation": self._recipe.scheme,
            "quantised": f"{quantised[LINEAR_LAYER]} of {kinds[LINEAR_LAYER]} linear layers and "
            f"{quantised[CONVOLUTION]} of {kinds[CONVOLUTION]} convolutions of the UNet",
            "ranges": f"of the first {self._calibrated} of {self._steps} steps",
        }

    def calibrate(self, pipe: Any, prompts: Prompts, progress: Progress) -> None:
        """Run the first denoising steps for each caption, each with its own noise, to calibrate."""
        import torch

        def stop(pipe: Any, step: int, _: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            pipe._interrupt = step + 1 >= self._calibrated  # as diffusers documents
            return tensors

        with torch.inference_mode():
            for done, prompt in enumerate(prompts, start=1):
                pipe(
                    prompt,
                    num_inference_steps=self._steps,
                    generator=torch.Generator().manual_seed(BUILD_SEED + done),
                    output_type="latent",
                    callback_on_step_end=stop,
                    **self._generation,
                )
                progress(done, len(prompts), "samples")

    def _quantise(self, layer: Any, input_maxima: Any, *, smooth: bool = True) -> None:
        """Quantise a layer's weights by its inputs' maxima; `smooth` applies SmoothQuant first."""
        import torch
        from torchao.float8.inference import Float8MMConfig
        from torchao.quantization import Float8Tensor, Int8Tensor, PerRow, PerTensor
        from torchao.quantization.quantize_.workflows import (
            QuantizeTensorToFloat8Kwargs,
            QuantizeTensorToInt8Kwargs,
        )

        weight = layer.weight.detach()
        if self.precision == "int8":
            factors = self._factors(weight, input_maxima) if smooth else None
            small = Int8Tensor.from_hp(
                weight if factors is None else (weight * factors).to(weight.dtype),
                PerRow(),
                act_quant_kwargs=QuantizeTensorToInt8Kwargs(granularity=PerTensor()),
                # Three dimensions, like the inputs of linear layers.
                act_quant_scale=(
                    (input_maxima if factors is None else input_maxima / factors).amax() / INT8_MAX
                ).reshape(1, 1, 1),
                act_pre_scale=None if factors is None else 1 / factors,
            )
        else:
            bound = input_maxima.amax().item()  # equal bounds make the scale constant
            small = Float8Tensor.from_hp(
                weight,
                granularity=PerTensor(),
                mm_config=Float8MMConfig(use_fast_accum=True),
                act_quant_kwargs=QuantizeTensorToFloat8Kwargs(
                    granularity=PerTensor(), hp_value_lb=bound, hp_value_ub=bound
                ),
            )
        layer.weight = torch.nn.Parameter(small, requires_grad=False)

    def _factors(self, weight: Any, most: Any) -> Any:
        weights = weight.abs().amax(dim=0).float().clamp(min=MIN_RANGE)
        return most**self._smoothing / weights ** (1 - self._smoothing)

    def _save(self, pipe: Any, layers: Mapping[str, Any], target: Path) -> None:
        """Write the pipeline, with the types of its weights in the UNet's configuration."""
        import diffusers
        from diffusers.quantizers.auto import DiffusersAutoQuantizer
        from torchao import quantization as ao

        per = [ao.PerTensor(), ao.PerTensor() if self.precision == "fp8" else ao.PerRow()]
        kind = {
            "int8": ao.Int8StaticActivationInt8WeightConfig,
            "fp8": ao.Float8DynamicActivationFloat8WeightConfig,
        }[str(self.precision)]
        plain = [
            name
            for name, layer in pipe.unet.named_modules()
            if type(layer).__name__ == "Linear" and name not in layers
        ]
        config = diffusers.TorchAoConfig(
            kind(granularity=per, set_inductor_config=False), modules_to_not_convert=plain
        )
        quantizer = DiffusersAutoQuantizer.from_config(config)
        quantizer.validate_environment(device_map=None)
        pipe.unet.hf_quantizer = quantizer
        pipe.unet.register_to_config(quantization_config=config)
        pipe.save_pretrained(target)


def open_pipeline(source: Path, device: str) -> Any:
    """Load a pipeline on a device in its UNet's type, without running code of its folder.

    In MLPerf's folder the pipeline is in checkpoint_pipe, next to the scheduler.
    """
    import diffusers
    import safetensors
    import transformers

    require_gpu(device)
    official = source / "checkpoint_pipe"
    folder = official if official.is_dir() else source
    scheduler = source / "checkpoint_scheduler" / "scheduler"
    files = sorted((folder / "unet").glob("*.safetensors"))
    if not files:
        raise RunError("build", f"{folder / 'unet'}: has no safetensors files to quantise")
    half = all(".fp16." in file.name for file in files)
    if "quantization_config" in (folder / "unet" / "config.json").read_text("utf-8"):
        raise RunError(
            "build",
            f"{source}: the weights are already quantised; set model to a checkpoint with "
            "unquantised weights",
        )
    with safetensors.safe_open(files[0], "pt") as opened:
        dtype = opened.get_tensor(next(iter(opened.keys()))).dtype
    if not scheduler.is_dir():
        scheduler = folder / "scheduler"
    euler = diffusers.EulerDiscreteScheduler  # as in the engine, whatever the folder names
    diffusers.logging.set_verbosity_error()  # hides advice against fp16 on CPUs
    diffusers.logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    pipe = diffusers.StableDiffusionXLPipeline.from_pretrained(
        folder,
        dtype=dtype,
        local_files_only=True,
        use_safetensors=True,
        variant="fp16" if half else None,
        scheduler=euler.from_pretrained(scheduler, local_files_only=True),
        add_watermarker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


LINEAR_LAYER, CONVOLUTION = "Linear", "Conv2d"


def _kind(layer: Any) -> str:
    return type(layer).__name__


def quantised_layers(unet: Any) -> dict[str, Any]:
    """Return the layers of a UNet to quantise, by name."""
    return {
        name: layer
        for name, layer in unet.named_modules()
        if (_kind(layer) == LINEAR_LAYER and LINEAR.search(name))
        or (_kind(layer) == CONVOLUTION and CONVOLUTIONS.search(name) and _is_matrix_product(layer))
    }


def _is_matrix_product(layer: Any) -> bool:
    """Return whether a convolution can be written as a matrix product."""
    outputs, inputs, *kernel = layer.weight.shape
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    columns = inputs * prod(kernel)
    return (
        plain
        and layer.padding != "same"
        and not (outputs % SIDE_MULTIPLE or columns % SIDE_MULTIPLE)
    )


def as_matrix(layer: Any) -> Any:
    """Return a linear layer with a convolution's weights, see `MATRIX_CONVOLUTIONS`."""
    import torch

    weight = layer.weight.detach().permute(0, 2, 3, 1).flatten(1)
    with torch.device("meta"):
        matrix = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias is not None)
    matrix.weight = torch.nn.Parameter(weight, requires_grad=False)
    matrix.bias = layer.bias
    return matrix


@contextmanager
def ranges_of(layers: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Record the largest magnitude of each layer's input features or channels, by layer name."""
    import torch

    ranges: dict[str, Any] = {}

    def watch(name: str) -> Any:
        def keep(layer: Any, arguments: tuple[Any, ...]) -> None:
            others = (0, 2, 3) if _kind(layer) == CONVOLUTION else (*range(arguments[0].ndim - 1),)
            most = arguments[0].abs().amax(dim=others).float().clamp(min=MIN_RANGE)
            ranges[name] = torch.maximum(ranges.get(name, most), most)

        return keep

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        yield ranges
    finally:
        for hook in hooks:
            hook.remove()
