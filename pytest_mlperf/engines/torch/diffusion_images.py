"""Prompts in batches through Stable Diffusion XL, as MLPerf's reference does it.

Reference: text_to_image/backend_pytorch.py of https://github.com/mlcommons/inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Sink
from pytest_mlperf.engines.torch.deepcache import DeepCache
from pytest_mlperf.engines.torch.devices import dtype_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What decides an image, besides model and prompt.

    Attributes:
        steps: Denoising steps.
        guidance_scale: Weight of the prompt against the negative prompt; up to 1 leaves the
            latter out.
        negative_prompt: What images should not be like.
        height: Pixels.
        width: Pixels.
        seed: Of latents, where the data set gives none.
    """

    steps: int
    guidance_scale: float
    negative_prompt: str
    height: int
    width: int
    seed: int

    def describe(self) -> Mapping[str, str]:
        """Return the settings that two runs must share to be compared."""
        return {
            "generation.steps": str(self.steps),
            "generation.guidance_scale": str(self.guidance_scale),
            "generation.negative_prompt": self.negative_prompt,
            "generation.size": f"{self.height}x{self.width}",
            "generation.seed": str(self.seed),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    """A loaded sample: its tokens for each text encoder (1, tokens), and its latents."""

    tokens: tuple[Any, ...]
    latents: Any


class Images:
    """Keeps loaded prompts as tokens, and makes their images; `run` is for one thread."""

    def __init__(
        self,
        pipe: Any,
        dataset: Dataset,
        settings: Settings,
        *,
        dtype: Any,
        batch_size: int,
        cache: DeepCache | None,
    ) -> None:
        """Encode the negative prompt.

        Args:
            pipe: diffusers' StableDiffusionXLPipeline.
            dataset: Its samples are a "caption" and "latents", an array or None; or text.
            settings: What decides an image.
            dtype: Of the UNet.
            batch_size: Images made together at most.
            cache: Installed in the UNet; None where all blocks always run.
        """
        self._pipe = pipe
        self._dataset = dataset
        self._settings = settings
        self._dtype = dtype
        self._batch_size = batch_size
        self._cache = cache
        self._device = pipe.unet.device
        self._texts = tuple(
            zip(
                (pipe.tokenizer, pipe.tokenizer_2),
                (pipe.text_encoder, pipe.text_encoder_2),
                strict=True,
            )
        )
        self._shape = (
            1,
            pipe.unet.config.in_channels,
            settings.height // pipe.vae_scale_factor,
            settings.width // pipe.vae_scale_factor,
        )
        self._samples: dict[int, _Sample] = {}
        # Data sets give one array to all samples; it is kept once.
        self._shared: tuple[Any, Any] = (None, None)
        with torch.inference_mode():
            self._negative = self._encode([self._tokenise(settings.negative_prompt)])

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt; longer ones are cut, as in the reference."""
        return min(
            int(min(tokenizer.model_max_length, encoder.config.max_position_embeddings))
            for tokenizer, encoder in self._texts
        )

    def load(self, indices: Sequence[int]) -> None:
        """Tokenise prompts and check latents.

        Raises:
            RunError: A sample is no prompt, or its latents do not fit.
        """
        for index in indices:
            if index not in self._samples:
                given = self._dataset.input(index)
                prompt, latents = given, None
                if isinstance(given, dict):
                    prompt, latents = given.get("caption"), given.get("latents")
                if not isinstance(prompt, str):
                    raise _refused(index, 'has no "caption"; use the data set coco_captions')
                self._samples[index] = _Sample(
                    tokens=self._tokenise(prompt), latents=self._latents(index, latents)
                )

    def unload(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        for index in indices:
            self._samples.pop(index, None)

    def warm_up(self, sizes: Sequence[int], steps: int) -> None:
        """Make images that nobody sees, in batches of these sizes, for torch.compile."""
        indices = list(self._samples)
        for size in sizes:
            self._generate([indices[place % len(indices)] for place in range(size)], steps)

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Make images and report them.

        Raises:
            RunError: An image is not finite, or the accelerator's memory is too small.
        """
        for start in range(0, len(ids), self._batch_size):
            batch = slice(start, start + self._batch_size)
            images = self._generate(indices[batch], self._settings.steps).cpu()
            outputs = None
            if sink.wants_output:
                outputs = [image.tobytes() for image in images.numpy()]
            sink.done(ids[batch], outputs)

    def _generate(self, indices: Sequence[int], steps: int) -> Any:
        """Return images of shape (samples, height, width, 3), uint8."""
        samples = [self._samples[index] for index in indices]
        if self._cache is not None:
            self._cache.start()
        try:
            with torch.inference_mode():
                embeds, pooled = self._encode([sample.tokens for sample in samples])
                negative, negative_pooled = self._negative
                latents = self._pipe(
                    prompt_embeds=embeds,
                    pooled_prompt_embeds=pooled,
                    negative_prompt_embeds=negative.expand(len(samples), -1, -1),
                    negative_pooled_prompt_embeds=negative_pooled.expand(len(samples), -1),
                    guidance_scale=self._settings.guidance_scale,
                    num_inference_steps=steps,
                    height=self._settings.height,
                    width=self._settings.width,
                    latents=torch.cat([sample.latents for sample in samples]).to(
                        self._device, self._dtype
                    ),
                    output_type="latent",
                ).images
                return self._decode(latents, indices)
        except torch.OutOfMemoryError as error:
            raise RunError(
                "engine",
                f"the accelerator ran out of memory with batch_size = {self._batch_size}; lower "
                f"batch_size, or set vae_slicing = true ({error})",
            ) from error

    def _encode(self, tokens: Sequence[tuple[Any, ...]]) -> tuple[Any, Any]:
        """Return what the text encoders make of prompts.

        Args:
            tokens: For each prompt, those of each encoder, shape (1, tokens).

        Returns:
            The last hidden state but one of each encoder, side by side, shape (prompts, tokens,
            features); and the pooled, projected output of the second, shape (prompts, features).
        """
        hidden, pooled = [], None
        for (_, encoder), ids in zip(self._texts, zip(*tokens, strict=True), strict=True):
            found = encoder(torch.cat(ids).to(self._device), output_hidden_states=True)
            hidden.append(found.hidden_states[-2])
            pooled = found[0]
        return torch.cat(hidden, dim=-1), pooled

    def _tokenise(self, prompt: str) -> tuple[Any, ...]:
        """Return the tokens for each encoder, shape (1, tokens): padded or cut."""
        return tuple(
            tokenizer(
                self._convert(prompt, tokenizer),
                padding="max_length",
                max_length=self.prompt_tokens,
                truncation=True,
                return_tensors="pt",
            ).input_ids
            for tokenizer, _ in self._texts
        )

    def _convert(self, prompt: str, tokenizer: Any) -> str:
        """Write out tokens of textual inversion that have several vectors, as the pipeline does."""
        added = tokenizer.added_tokens_encoder
        if not any(f"{token}_1" in added for token in added):
            return prompt
        return str(self._pipe.maybe_convert_prompt(prompt, tokenizer))

    def _latents(self, index: int, given: Any) -> Any:
        """Return latents of shape (1, channels, height, width), float32."""
        if given is None:
            # Of the sample alone, so that batches do not change where an image starts.
            drawing = np.random.default_rng((self._settings.seed, index))
            return torch.from_numpy(drawing.standard_normal(self._shape, np.float32))
        if given is self._shared[0]:
            return self._shared[1]
        found = torch.tensor(given, dtype=torch.float32)
        if tuple(found.shape) not in {self._shape, self._shape[1:]}:
            raise _refused(
                index,
                f"has latents of shape {tuple(found.shape)}, but images of {self._settings.height} "
                f"x {self._settings.width} pixels start from {self._shape}; set the data set's "
                "size, or the engine's height and width",
            )
        self._shared = (given, found.reshape(self._shape))
        return self._shared[1]

    def _decode(self, latents: Any, indices: Sequence[int]) -> Any:
        """Return images of latents, uint8, channels last.

        Raises:
            RunError: One is not finite: it would be black.
        """
        vae = self._pipe.vae
        latents = latents.to(vae.dtype)
        mean, std = (getattr(vae.config, f"latents_{name}", None) for name in ("mean", "std"))
        scaled = latents / vae.config.scaling_factor
        if mean is not None and std is not None:
            mean, std = (latents.new_tensor(each).view(1, -1, 1, 1) for each in (mean, std))
            scaled = latents * std / vae.config.scaling_factor + mean
        decoded = vae.decode(scaled, return_dict=False)[0]
        finite = decoded.flatten(1).isfinite().all(dim=1).tolist()
        if not all(finite):
            raise _refused(
                indices[finite.index(False)],
                f"has an image that is not finite, computed in {dtype_name(self._dtype)} and "
                f'decoded in {dtype_name(vae.dtype)}; it would be black. Set precision = "bf16" '
                'or "fp32", or vae_dtype = "fp32"',
            )
        pixels = (decoded * 0.5 + 0.5).clamp(0, 1).float() * 255
        return pixels.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _refused(index: int, what: str) -> RunError:
    return RunError("engine", f"sample {index} of the data set {what}")
