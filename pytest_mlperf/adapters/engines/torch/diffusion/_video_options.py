"""Define the options of engine torch-video; import no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf.adapters.engines import number_of, one_of
from pytest_mlperf.adapters.engines.torch._base import IMAGE_ATTENTIONS, DeviceOptions
from pytest_mlperf.extension import PLAIN_PRECISIONS, Rule


@dataclass(frozen=True, kw_only=True)
class VideoOptions(DeviceOptions):
    """Options of engine torch-video; the defaults are MLPerf's.

    Attributes:
        batch_size: Maximum videos made together.
        steps: Denoising steps.
        guidance_scale: Weight of the prompt against the negative prompt while noise is high.
        guidance_scale_2: The same weight for the second transformer, while noise is low.
        boundary: Share of noise above which the first transformer runs; None is the model's.
        negative_prompt: Description of videos to avoid; encoded with every prompt.
        frames: Frames of a video, one more than a multiple of the frames of a latent.
        height: Height of a video [pixels].
        width: Width of a video [pixels].
        prompt_tokens: Maximum tokens of a prompt; longer ones are cut.
        seed: Seed of latents, if the data set has none; each sample has its own latents.
        attention: Attention of the text encoder, "sdpa" or "eager".
    """

    engine: ClassVar[str] = "torch-video"

    batch_size: int = 1
    steps: int = 20
    guidance_scale: float = 4.0
    guidance_scale_2: float = 3.0
    boundary: float | None = None
    negative_prompt: str = ""
    frames: int = 81
    height: int = 720
    width: int = 1280
    prompt_tokens: int = 512
    seed: int = 42
    attention: str = "sdpa"

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield one_of("precision", precision, PLAIN_PRECISIONS)
        for name, unit in (("steps", "steps"), ("frames", "frames"), ("prompt_tokens", "tokens")):
            yield number_of(name, getattr(self, name), unit)
        for name in ("guidance_scale", "guidance_scale_2"):
            scale = getattr(self, name)
            yield name, scale, 0 <= scale < math.inf, "a number from 0 on"
        for name in ("height", "width"):
            pixels = getattr(self, name)
            yield name, pixels, pixels >= 1 and pixels % 16 == 0, "a multiple of 16 pixels"
        share = self.boundary
        yield "boundary", share, share is None or 0 <= share <= 1, "a share of noise, 0 to 1"
        yield "seed", self.seed, 0 <= self.seed < 1 << 31, "a number from 0 to 2147483647"
        yield one_of("attention", self.attention, IMAGE_ATTENTIONS)
