"""Generate images with Stable Diffusion XL through diffusers, as MLPerf's reference does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf.adapters.engines import require_module
from pytest_mlperf.adapters.engines.llm.model_folder import find_model, read_json
from pytest_mlperf.adapters.engines.torch import _base
from pytest_mlperf.adapters.engines.torch.diffusion._options import DiffusionOptions

if TYPE_CHECKING:
    from pytest_mlperf.adapters.engines.torch.diffusion._images import Images

ENGINE = "torch-diffusion"

CHECKPOINT_FOLDERS = ("checkpoint_pipe", "checkpoint_scheduler")
"""Folders of MLPerf's checkpoint: the pipeline, and its Euler scheduler."""

INDEX = "model_index.json"


class DiffusionEngine(_base.TorchBase):
    """Answer each prompt with its image: uint8, shape (height, width, 3).

    Defaults are those of MLPerf's reference: 20 steps of the Euler scheduler, guidance scale 8, its
    negative prompt, and prompts truncated to CLIP's 77 tokens. One thread generates the images of
    queued samples, at most `batch_size` together.

    Args:
        dataset: Its inputs are dicts with "caption" (text) and "latents" (an array or None), or
            only text.
        model: Folder of the pipeline: model_index.json, unet, vae, text_encoder, text_encoder_2,
            tokenizer, tokenizer_2, scheduler; or MLPerf's, with checkpoint_pipe and
            checkpoint_scheduler. Nothing is downloaded and no code of the folder is run.
        precision: "fp32", "bf16" or "fp16"; "int8" or "int4" quantises the weights of the UNet's
            linear layers (torchao); all else has the checkpoint's own type, or bfloat16 with int4
            on GPUs. "fp8" quantises these weights and their inputs, all else is bfloat16; it needs
            GPUs of compute capability 8.9 or later. A UNet that builder torchao-unet quantised runs
            unchanged, also on CPUs.
    """

    name = ENGINE
    extra = "diffusion"
    libraries: ClassVar[tuple[str, ...]] = ("diffusers", "torch", "transformers")
    optional_libraries: ClassVar[tuple[str, ...]] = ("torchao",)
    options: ClassVar[type[DiffusionOptions]] = DiffusionOptions
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {"torchao-pipeline": ("int8", "fp8")}

    _options: DiffusionOptions
    _samples: Images

    def _find(self, model: str | None) -> None:
        self._folder, self._scheduler = _find_pipeline(model)
        self._cold = bool(self._options.compile)

    def require(self) -> None:
        """Raise an error if device or kernels are missing; calibrated fp8 also runs on CPUs."""
        quantization = unet_quantization(self._folder)
        _base.check_quantised(self._folder / "unet", quantization, self._precision)
        if quantization:
            who = f"engine {self.name}: {self._folder} has a quantised UNet, which"
            require_module(who, "accelerate", self.extra)
        device = self._options.device
        is_quantised = bool(quantization) and device == "cpu"
        _base.require_device(
            self.name, device=device, precision=self._precision, is_quantised=is_quantised
        )
        if is_quantised and self._precision == "int8":
            from pytest_mlperf.adapters.engines.torch._devices import require_exact_int8

            require_exact_int8(self.name)

    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        if self._cold and indices:
            self._cold = False
            sizes = sorted({self._options.batch_size, 1}, reverse=True)
            self._samples.warm_up(sizes, self._options.deepcache + 1)

    def _load(self, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch.diffusion._images import Images, open_pipeline

        options = self._options
        pipe, facts = open_pipeline(self._folder, self._scheduler, options, self._precision)
        self._samples = Images(pipe, self._dataset, options, self._stages)
        self._facts |= {**facts, **self._samples.describe()}
        self._start_queue(self._samples.run, undo)


def unet_quantization(folder: Path) -> Mapping[str, Any]:
    """Return `quantization_config` of the UNet's configuration; {} if it is not quantised."""
    file = folder / "unet" / "config.json"
    table = read_json(file).get("quantization_config") if file.is_file() else None
    return table if isinstance(table, dict) else {}


def _find_pipeline(model: str | None) -> tuple[Path, Path]:
    pipe, scheduler = CHECKPOINT_FOLDERS
    if model is not None and (Path(model) / pipe / INDEX).is_file():
        official_scheduler = Path(model) / scheduler / "scheduler"
        if not official_scheduler.is_dir():
            official_scheduler = Path(model) / pipe / "scheduler"
        return Path(model) / pipe, official_scheduler
    folder = find_model(ENGINE, model, file=INDEX, parts=f"{INDEX} and the safetensors files")
    return folder, folder / "scheduler"
