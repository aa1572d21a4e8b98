"""Load Wan from a local folder without running code in it; generate videos in batches.

Reference: text_to_video/wan-2.2-t2v-a14b/run_mlperf.py of https://github.com/mlcommons/inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers

from pytest_mlperf import Dataset, SuiteError
from pytest_mlperf.adapters.engines import refused_sample
from pytest_mlperf.adapters.engines.llm.model_folder import load_tokenizer, read_json
from pytest_mlperf.adapters.engines.torch import _devices as devices
from pytest_mlperf.adapters.engines.torch._checkpoint import quiet_and_offline
from pytest_mlperf.adapters.engines.torch.diffusion import _images
from pytest_mlperf.adapters.engines.torch.diffusion._options import VideoOptions

ENGINE = "torch-video"

MODELS = {
    "text_encoder": transformers.UMT5EncoderModel,
    "transformer": diffusers.WanTransformer3DModel,
    "transformer_2": diffusers.WanTransformer3DModel,
    "vae": diffusers.AutoencoderKLWan,
}
"""Class in transformers or diffusers of each part with weights."""


def open_pipeline(
    folder: Path, options: VideoOptions, precision: str
) -> tuple[Any, Mapping[str, str]]:
    device = devices.find_device(options.device, engine=ENGINE)
    _images.check_index(folder, "WanPipeline", MODELS, "Wan 2.2 T2V A14B")
    files = [file for part in sorted(MODELS) for file in _images.weights_of(folder / part)]
    dtype = devices.base_dtype(precision, None, device)
    boundary = options.boundary
    if boundary is None:
        boundary = read_json(folder / "model_index.json").get("boundary_ratio")
    with quiet_and_offline(), _images.quiet():
        parts = {
            name: _images.load_part(
                folder / name,
                kind,
                torch.float32 if name == "vae" else dtype,
                **_images.load_arguments(name, options.attention),
            )
            for name, kind in MODELS.items()
        }
        tokenizer, digest = load_tokenizer(ENGINE, folder / "tokenizer")
        pipe = diffusers.WanPipeline(
            **parts,
            tokenizer=tokenizer,
            scheduler=_images.load_scheduler(
                folder / "scheduler", diffusers.UniPCMultistepScheduler
            ),
            boundary_ratio=boundary,
        )
    pipe.set_progress_bar_config(disable=True)
    for part in parts.values():
        part.eval().to(device)
    return pipe, _images.facts_of(pipe, files, digest, dtype, device, options.attention)


class Videos(_images.MediaBatches):
    """Cache loaded prompts, and generate their videos in batches."""

    field, source, sizes = "prompt", "vbench", "frames, height, width"
    _options: VideoOptions

    def __init__(self, pipe: Any, dataset: Dataset, options: VideoOptions) -> None:
        self._pipe = pipe
        self._device = pipe.transformer.device
        temporal, spatial = pipe.vae_scale_factor_temporal, pipe.vae_scale_factor_spatial
        patch = spatial * pipe.transformer.config.patch_size[1]
        rules = ("frames", temporal, 1), ("height", patch, 0), ("width", patch, 0)
        for name, step, over in rules:
            value = getattr(options, name)
            if value % step != over % step:
                raise SuiteError(
                    f"engine {ENGINE}: {name} = {value} does not fit this model; it must be a "
                    f"multiple of {step}{', plus 1' if over else ''}",
                    option=name,
                )
        frames = (options.frames - 1) // temporal + 1
        sides = options.height // spatial, options.width // spatial
        shape = (1, pipe.transformer.config.in_channels, frames, *sides)
        size = f"videos of {options.frames}x{options.height}x{options.width}"
        super().__init__(dataset, options, shape, size)

    def describe(self) -> Mapping[str, str]:
        options = self._options
        return {
            "generation.steps": str(options.steps),
            "generation.guidance_scale": str(float(options.guidance_scale)),
            "generation.guidance_scale_2": str(float(options.guidance_scale_2)),
            "generation.boundary": str(self._pipe.config.boundary_ratio),
            "generation.negative_prompt": options.negative_prompt,
            "generation.size": f"{options.frames}x{options.height}x{options.width}",
            "generation.seed": str(options.seed),
            "generation.scheduler": type(self._pipe.scheduler).__name__,
            "generation.prompt_tokens": f"{options.prompt_tokens}, longer prompts are cut",
        }

    def _generate(self, indices: Sequence[int], steps: int) -> Any:
        options = self._options
        prompts, latents = zip(*(self._samples[index] for index in indices), strict=True)
        has_two_stages = self._pipe.config.boundary_ratio is not None
        with (
            devices.enough_memory(options.batch_size, "lower batch_size, frames, height or width"),
            torch.inference_mode(),
        ):
            videos = self._pipe(
                prompt=list(prompts),
                negative_prompt=[options.negative_prompt] * len(prompts),
                height=options.height,
                width=options.width,
                num_frames=options.frames,
                num_inference_steps=steps,
                guidance_scale=float(options.guidance_scale),
                guidance_scale_2=float(options.guidance_scale_2) if has_two_stages else None,
                latents=torch.cat(latents).to(self._device),
                max_sequence_length=options.prompt_tokens,
                output_type="np",
            ).frames
        finite = np.isfinite(videos).reshape(len(videos), -1).all(axis=1).tolist()
        if not all(finite):
            raise refused_sample(
                indices[finite.index(False)],
                'has a video that is not finite; it would be black. Set precision = "bf16" or '
                '"fp32"',
            )
        return (videos * 255).round().astype(np.uint8)
