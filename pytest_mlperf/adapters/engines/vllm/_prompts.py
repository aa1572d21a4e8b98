"""Convert samples for vLLM: token ids, with pictures, or after sound."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.adapters.engines.llm.generation import TokenPrompts
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats
from pytest_mlperf.adapters.engines.llm.speech import RATE


class Prompts:
    def __init__(self, prompts: TokenPrompts, as_rendered: Any = None) -> None:
        self._prompts = prompts
        self._as_rendered = as_rendered

    @property
    def has_media(self) -> bool:
        return isinstance(self._prompts.chats, PictureChats) or self._prompts.clips is not None

    def of(self, index: int) -> dict[str, Any]:
        """Return a prompt for LLM.generate; clips go to the encoder, all tokens to the decoder."""
        tokens = list(self._prompts[index])
        chats, clips = self._prompts.chats, self._prompts.clips
        if clips is not None:
            sound = _prompt([], {"audio": (clips[index], RATE)})
            return {"encoder_prompt": sound, "decoder_prompt": _prompt(tokens, {})}
        pictures = chats.pictures(index) if chats is not None else []
        return _prompt(tokens, {"image": pictures} if pictures else {})

    async def rendered(self, llm: Any, index: int) -> Any:
        """Return a prompt for AsyncLLM.generate; threads prepare media, not to block the loop."""
        if not self.has_media:
            return self._as_rendered(self._prompts[index])
        prompt = await asyncio.to_thread(self.of, index)
        (rendered,) = await llm.renderer.render_cmpl_async([prompt])
        return rendered


def _prompt(tokens: list[int], media: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt_token_ids": tokens, **({"multi_modal_data": media} if media else {})}
