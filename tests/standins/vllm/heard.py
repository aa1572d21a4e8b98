"""A Whisper through transformers: its encoder hears a clip once, its decoder writes it down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput


class Heard:
    """Reads a folder; computes in one type."""

    modalities = ("audio",)
    has_encoder = True

    def __init__(self, folder: Path, dtype: Any, *, dummy: bool) -> None:
        if dummy:
            raise NotImplementedError("this stand-in hears with real weights alone")
        self._features = WhisperFeatureExtractor.from_pretrained(folder)
        self._model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
        self.longest: int = self._model.config.max_target_positions

    def placed(self, tokens: list[int], media: list[Any]) -> list[int]:
        """Return the decoder's tokens, which begin with the start token whatever is given."""
        start = self._model.config.decoder_start_token_id
        return tokens if tokens[:1] == [start] else [start, *tokens]

    def encoded(self, audio: Any) -> Any:
        """Return the encoder's states of a clip, padded or cut to the encoder's length."""
        features = self._features(audio, sampling_rate=16000, return_tensors="pt").input_features
        return self._model.model.encoder(features.to(self._model.dtype)).last_hidden_state

    def scores(self, tokens: list[int], encoded: list[Any]) -> Any:
        """Return the scores of what follows these tokens, float32 (vocabulary,)."""
        output = self._model(
            encoder_outputs=BaseModelOutput(encoded[0]),
            decoder_input_ids=torch.tensor([tokens]),
            use_cache=False,
        )
        return output.logits[0, -1].float()
