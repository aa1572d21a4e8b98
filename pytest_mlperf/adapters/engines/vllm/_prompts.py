"""Samples as vLLM takes them: token ids, with pictures beside them, or after sound."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.adapters.engines.llm.generation import TokenPrompts
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats
from pytest_mlperf.adapters.engines.llm.speech import RATE


class Prompts:
    """Makes of each loaded sample what vLLM is handed for it."""

    def __init__(self, prompts: TokenPrompts, as_rendered: Any = None) -> None:
        self._prompts = prompts
        self._as_rendered = as_rendered

    @property
    def has_media(self) -> bool:
        """Whether vLLM has more to prepare than token ids."""
        return isinstance(self._prompts.chats, PictureChats) or self._prompts.clips is not None

    def of(self, index: int) -> dict[str, Any]:
        """Return a prompt as LLM.generate takes it; pictures are decoded here.

        vLLM expands a picture's one token. An encoder gets no tokens; its decoder begins with all.
        """
        tokens = list(self._prompts[index])
        chats, clips = self._prompts.chats, self._prompts.clips
        if clips is not None:
            heard = _beside([], {"audio": (clips[index], RATE)})
            return {"encoder_prompt": heard, "decoder_prompt": _beside(tokens, {})}
        pictures = chats.pictures(index) if chats is not None else []
        return _beside(tokens, {"image": pictures} if pictures else {})

    async def rendered(self, llm: Any, index: int) -> Any:
        """Return a prompt as AsyncLLM.generate takes it.

        Threads decode and prepare media: on the event loop this would delay the tokens of other
        samples.
        """
        if not self.has_media:
            return self._as_rendered(self._prompts[index])
        prompt = await asyncio.to_thread(self.of, index)
        (rendered,) = await llm.renderer.render_cmpl_async([prompt])
        return rendered


def _beside(tokens: list[int], media: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt_token_ids": tokens, **({"multi_modal_data": media} if media else {})}
