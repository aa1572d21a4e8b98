"""A model that sees pictures, through transformers: vLLM's own processor places them in prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText


class Pictured:
    """Reads a folder; computes in one type."""

    modalities = ("image", "video")
    has_encoder = False

    def __init__(self, folder: Path, dtype: Any, *, dummy: bool) -> None:
        if dummy:
            raise NotImplementedError("this stand-in sees pictures with real weights alone")
        self._token: int = AutoConfig.from_pretrained(folder).image_token_id
        self._patches = AutoImageProcessor.from_pretrained(folder, backend="pil")
        self._model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
        self.longest: int = self._model.config.text_config.max_position_embeddings

    def placed(self, tokens: list[int], pictures: list[Any]) -> list[int]:
        """Return the tokens with as many of a picture as it has parts."""
        if tokens.count(self._token) != len(pictures):
            raise AssertionError("Failed to apply prompt replacement for mm_items['image'][0]")
        counts = [
            self._patches.get_number_of_image_patches(each.height, each.width)
            // self._patches.merge_size**2
            for each in pictures
        ]
        parts = iter(counts)
        return [
            each
            for token in tokens
            for each in ([token] * next(parts) if token == self._token else [token])
        ]

    def encoded(self, picture: Any) -> Any:
        return picture

    def scores(self, tokens: list[int], pictures: list[Any]) -> Any:
        """Return the scores of what follows these tokens, float32 (vocabulary,)."""
        ids = torch.tensor([tokens])
        seen = dict(self._patches(images=pictures, return_tensors="pt")) if pictures else {}
        kinds = (ids == self._token).int()
        output = self._model(input_ids=ids, mm_token_type_ids=kinds, **seen, use_cache=False)
        return output.logits[0, -1].float()


class Written(Pictured):
    """A model that sees pictures and is asked about text alone."""

    def __init__(self, folder: Path, dtype: Any, *, dummy: bool) -> None:
        if dummy:
            raise NotImplementedError("this stand-in writes with real weights alone")
        self._model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
        self.longest: int = self._model.config.text_config.max_position_embeddings

    def placed(self, tokens: list[int], pictures: list[Any]) -> list[int]:
        assert not pictures
        return tokens

    def scores(self, tokens: list[int], _: list[Any]) -> Any:
        return self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].float()
