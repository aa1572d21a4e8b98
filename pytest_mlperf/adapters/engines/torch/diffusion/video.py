"""Make videos from text with Wan 2.2 through diffusers, as MLPerf's reference does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

from pytest_mlperf.adapters.engines.llm.model_folder import find_model
from pytest_mlperf.adapters.engines.torch._base import TorchBase
from pytest_mlperf.adapters.engines.torch.diffusion._options import VideoOptions

if TYPE_CHECKING:
    from pytest_mlperf.adapters.engines.torch.diffusion._videos import Videos

INDEX = "model_index.json"


class VideoEngine(TorchBase):
    """Answer each prompt with the frames of its video: uint8, shape (frames, height, width, 3).

    One thread generates videos for the queued samples, at most `batch_size` in a batch.

    Args:
        dataset: Its inputs are prompts, or dicts with "prompt", a text, and "latents", an array or
            None.
        model: Folder of a WanPipeline as diffusers writes it: model_index.json, transformer,
            transformer_2, vae, text_encoder, tokenizer, scheduler. Nothing is downloaded and no
            code of the folder is run.
        precision: "fp32", "bf16" or "fp16", for transformers and text encoder; the autoencoder
            computes in float32, as in the reference.
    """

    name = "torch-video"
    extra = "diffusion"
    libraries: ClassVar[tuple[str, ...]] = ("diffusers", "torch", "transformers")
    options: ClassVar[type[VideoOptions]] = VideoOptions
    precisions: ClassVar[tuple[str, ...]] = VideoOptions.precisions

    _options: VideoOptions
    _samples: Videos

    def _find(self, model: str | None) -> None:
        parts = f"{INDEX} and the safetensors files"
        self._folder = find_model(self.name, model, file=INDEX, parts=parts)

    def _load(self, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch.diffusion._videos import Videos, open_pipeline

        pipe, facts = open_pipeline(self._folder, self._options, self._precision)
        self._samples = Videos(pipe, self._dataset, self._options)
        self._facts |= {**facts, **self._samples.describe()}
        self._start_queue(self._samples.run, undo)
