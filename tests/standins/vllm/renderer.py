"""Prompts checked against a model's inputs, as vLLM's renderer and processors refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from PIL import Image

from vllm.api import names

NUMBERS = count()


class VLLMValidationError(ValueError):
    """As vLLM's."""


class Renderer:
    """Make engine inputs of prompts, with pictures and sound under names of their own."""

    def __init__(self, args: Any, *, modalities: Sequence[str], has_encoder: bool) -> None:
        self._modalities = modalities
        self._has_encoder = has_encoder
        self._most = dict(args.limit_mm_per_prompt or {})
        if has_encoder:
            self._most = {"audio": 1, "image": 0, "video": 0}
        cache = 4 if args.mm_processor_cache_gb is None else args.mm_processor_cache_gb
        self._by_content = bool(cache) or args.enable_prefix_caching is not False

    async def render_cmpl_async(self, prompts: Sequence[Any]) -> list[dict[str, Any]]:
        assert isinstance(prompts, list)
        return [self.render(prompt) for prompt in prompts]

    def render(self, prompt: Any) -> dict[str, Any]:
        if not isinstance(prompt, dict):
            raise TypeError("Prompt should be a string, list of tokens, or dictionary")
        if "encoder_prompt" not in prompt:
            if self._has_encoder:
                raise NotImplementedError("this stand-in wants both prompts of such a model")
            tokens, media = self._singleton(prompt)
            return {"type": "multimodal" if media else "token", **_rendered(tokens, media)}
        if not self._has_encoder:
            raise TypeError("Cannot pass encoder-decoder prompt to decoder-only models")
        _known(prompt, "ExplicitEncoderDecoderPrompt")
        if "multi_modal_data" in prompt["decoder_prompt"]:
            raise TypeError("Cannot pass multi-modal inputs to decoder prompt")
        _, media = self._singleton(prompt["encoder_prompt"])
        tokens, _ = self._singleton(prompt["decoder_prompt"])
        if not media:
            raise NotImplementedError("this stand-in's encoder has nothing to read but sound")
        return {"type": "enc_dec", **_rendered(tokens, media)}

    def _singleton(self, prompt: Mapping[str, Any]) -> tuple[list[int], list[tuple[str, Any]]]:
        """Return a prompt's tokens, and its pictures or clips with their names."""
        _known(prompt, "TokensPrompt")
        if "prompt_token_ids" not in prompt:
            raise TypeError("Prompt dictionary must contain text, tokens, or embeddings")
        tokens = prompt["prompt_token_ids"]
        if not (isinstance(tokens, list) and all(type(token) is int for token in tokens)):
            raise TypeError("Token prompt should be a list of integers")
        media = []
        for modality, items_or_item in prompt.get("multi_modal_data", {}).items():
            if modality == "audio" and modality not in self._modalities:
                raise RuntimeError(
                    "Audio resampling is not supported when `target_sr` is not provided"
                )
            items = items_or_item if isinstance(items_or_item, list) else [items_or_item]
            most = self._most.get(modality, 999)
            if len(items) > most:
                raise VLLMValidationError(
                    f"At most {most} {modality}(s) may be provided in one prompt. "
                    f"(parameter={modality})"
                )
            check = {"image": _picture, "audio": _clip, "video": _film}[modality]
            media += [(self._name(item), check(item)) for item in items]
        return tokens, media

    def _name(self, item: Any) -> str:
        """Return the name of an encoder's output, which changes each time if caching is off."""
        if not self._by_content:
            return f"request-{next(NUMBERS)}"
        return str(hash((item if isinstance(item, Image.Image) else item[0]).tobytes()))


def _known(prompt: Mapping[str, Any], thing: str) -> None:
    if unknown := set(prompt) - set(names(thing)):
        raise TypeError(f"{thing} has no {', '.join(sorted(unknown))}")


def _rendered(tokens: list[int], media: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"prompt_token_ids": tokens, "media": media}


def _picture(item: Any) -> Any:
    if not isinstance(item, Image.Image) or item.mode != "RGB":
        raise TypeError(f"Unsupported image: {item!r}")
    return item


def _clip(item: Any) -> Any:
    """Return a clip; the original makes other rates 16 kHz, by a library that may be missing."""
    if not (isinstance(item, tuple) and len(item) == 2):
        raise TypeError("this stand-in wants a clip with its rate")
    audio, rate = item
    if rate != 16000 or not isinstance(audio, np.ndarray) or audio.ndim != 1:
        raise ValueError(f"Unsupported audio of {rate} Hz")
    return audio


def _film(item: Any) -> Any:
    raise NotImplementedError("this stand-in sees no films")
