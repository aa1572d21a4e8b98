"""Define the options of engines torch-diffusion and torch-video; import no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf.adapters.conventions import NEGATIVE_PROMPT
from pytest_mlperf.adapters.engines import count_rule, is_count, one_of
from pytest_mlperf.adapters.engines.torch._base import DeviceOptions
from pytest_mlperf.extension import PLAIN_PRECISIONS, PrecisionName, Rule

ATTENTIONS = ("sdpa", "eager")
VAE_DTYPES = ("auto", "fp32", "bf16", "fp16")

BLOCK_MODES = ("default", "max-autotune-no-cudagraphs")
"""Modes of torch.compile without CUDA graphs, which would overwrite a block's saved outputs."""


@dataclass(frozen=True, kw_only=True)
class MediaOptions(DeviceOptions):
    """Options of the engines that make images or videos of text.

    Attributes:
        batch_size: Maximum images or videos made together.
        steps: Denoising steps.
        guidance_scale: Weight of the prompt against the negative prompt.
        seed: Seed of latents, if the data set has none; each sample has its own latents.
        attention: "sdpa" or "eager"; in torch-video, of the text encoder.
    """

    batch_size: int = 1
    steps: int = 20
    guidance_scale: float = 8.0
    seed: int = 0
    attention: str = "sdpa"

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield count_rule("steps", self.steps, "steps")
        scale = self.guidance_scale
        yield "guidance_scale", scale, 0 <= scale < math.inf, "a number from 0 on"
        yield "seed", self.seed, 0 <= self.seed < 1 << 31, "a number from 0 to 2147483647"
        yield one_of("attention", self.attention, ATTENTIONS)


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions(MediaOptions):
    """Options of engine torch-diffusion.

    Attributes:
        negative_prompt: Description of images to avoid; encoded once.
        height: Height of an image [pixels]; None is the UNet's default.
        width: Width of an image [pixels]; None is the UNet's default.
        deepcache: Run the UNet's deep blocks only every this many steps, and reuse their features
            in between; 1 runs all blocks at every step. Changes the images.
        vae_dtype: Type in which images are decoded: "fp32", "bf16", "fp16"; "auto" is that of
            `precision`, but fp32 instead of fp16 if the model requires it, as SDXL does.
        vae_slicing: Decode images one by one, which needs less memory.
        compile: False, or a mode of torch.compile without CUDA graphs, for each block of the UNet;
            compiled for batches of 1 and of `batch_size` before time is measured.
    """

    engine: ClassVar[str] = "torch-diffusion"

    negative_prompt: str = NEGATIVE_PROMPT
    height: int | None = None
    width: int | None = None
    deepcache: int = 1
    vae_dtype: str = "auto"
    vae_slicing: bool = False
    compile: bool | str = False

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield count_rule("height", self.height, "pixels")
        yield count_rule("width", self.width, "pixels")
        yield "deepcache", self.deepcache, is_count(self.deepcache), "a number of steps (1: off)"
        yield one_of("vae_dtype", self.vae_dtype, VAE_DTYPES)
        is_valid = self.compile is False or self.compile in BLOCK_MODES
        yield "compile", self.compile, is_valid, f"false or one of {', '.join(BLOCK_MODES)}"


@dataclass(frozen=True, kw_only=True)
class VideoOptions(MediaOptions):
    """Options of engine torch-video; the defaults are MLPerf's.

    Attributes:
        guidance_scale: Weight of the prompt against the negative prompt while noise is high.
        guidance_scale_2: The same weight for the second transformer, while noise is low.
        boundary: Share of noise above which the first transformer runs; None is the model's.
        negative_prompt: Description of videos to avoid; encoded with every prompt.
        frames: Frames of a video, one more than a multiple of the frames of a latent.
        height: Height of a video [pixels].
        width: Width of a video [pixels].
        prompt_tokens: Maximum tokens of a prompt; longer ones are cut.
        seed: Seed of latents, if the data set has none; each sample has its own latents.
    """

    engine: ClassVar[str] = "torch-video"
    precisions: ClassVar[tuple[PrecisionName, ...]] = PLAIN_PRECISIONS

    guidance_scale: float = 4.0
    guidance_scale_2: float = 3.0
    boundary: float | None = None
    negative_prompt: str = ""
    frames: int = 81
    height: int = 720
    width: int = 1280
    prompt_tokens: int = 512
    seed: int = 42

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        scale, share = self.guidance_scale_2, self.boundary
        yield "guidance_scale_2", scale, 0 <= scale < math.inf, "a number from 0 on"
        for name, unit in (("frames", "frames"), ("prompt_tokens", "tokens")):
            yield count_rule(name, getattr(self, name), unit)
        for name in ("height", "width"):
            pixels = getattr(self, name)
            yield name, pixels, pixels >= 1 and pixels % 16 == 0, "a multiple of 16 pixels"
        yield "boundary", share, share is None or 0 <= share <= 1, "a noise level from 0 to 1"
