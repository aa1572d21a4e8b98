"""Transcribe audio clips with Whisper through transformers, in static batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_mlperf.adapters.engines import broken
from pytest_mlperf.adapters.engines.llm.speech import RATE, SpeechClips
from pytest_mlperf.adapters.engines.torch._base import TextModel
from pytest_mlperf.adapters.engines.torch._batching import (
    Batch,
    StaticBatches,
    Streamer,
    generation_config,
)
from pytest_mlperf.adapters.engines.torch._stages import Stopwatch
from pytest_mlperf.extension import text_of


def open_features(folder: Path, config: Any) -> Any:
    try:
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(
            folder, local_files_only=True
        )
    # transformers raises many types.
    except Exception as error:
        raise broken(
            folder, f"transformers cannot read preprocessor_config.json: {text_of(error)}"
        ) from error
    sizes = extractor.sampling_rate, extractor.feature_size, extractor.nb_max_frames
    valid = RATE, config.num_mel_bins, 2 * config.max_source_positions
    if sizes != valid:
        raise broken(
            folder / "preprocessor_config.json",
            f"its features have {sizes[0]} Hz, {sizes[1]} mels and {sizes[2]} frames, but the "
            f"model needs {valid[0]} Hz, {valid[1]} mels and {valid[2]} frames; copy this file and "
            "config.json from one model",
        )
    return extractor


class SpeechBatches(StaticBatches):
    """Transcribe clips batch by batch, including the timed feature extraction."""

    def __init__(self, text: TextModel, clips: SpeechClips, features: Any, batch_size: int) -> None:
        super().__init__(text, batch_size=batch_size)
        self._clips, self._features = clips, features
        self._config = generation_config(text.generation)
        self._config.decoder_start_token_id = clips.prompt[0]

    def _generate(self, batch: Batch) -> None:
        text = self._text
        device, dtype = text.model.device, text.model.dtype
        watch = Stopwatch(text.stages, device)
        features = self._features(
            [self._clips[index] for index in batch.indices],
            sampling_rate=RATE,
            return_tensors="pt",
            device=str(device),
        ).input_features
        tokens = torch.tensor([self._clips.prompt] * len(batch.ids), device=device)
        with torch.inference_mode():
            # Whisper's own `generate`, for clips of any length, would choose the decoding itself.
            transformers.GenerationMixin.generate(
                text.model,
                input_features=features.to(device, dtype),
                # Whisper ignores the mask, but transformers warns without one.
                attention_mask=torch.ones(features.shape[::2], dtype=torch.long, device=device),
                decoder_input_ids=tokens,
                generation_config=self._config,
                streamer=Streamer(batch, text.generation, text.answers, watch),
            )
