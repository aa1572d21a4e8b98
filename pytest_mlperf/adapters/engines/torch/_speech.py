"""Transcribe clips with Whisper through transformers, in static batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_mlperf import Dataset, Sink
from pytest_mlperf.adapters.engines import broken
from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.llm.speech import RATE, clip_of
from pytest_mlperf.adapters.engines.llm.transcripts import Transcripts
from pytest_mlperf.adapters.engines.torch._batching import Batch, Streamer, generation_config
from pytest_mlperf.adapters.engines.torch._devices import enough_memory
from pytest_mlperf.adapters.engines.torch._sampling import DrawnOnly, numbers
from pytest_mlperf.adapters.engines.torch._stages import StageTimes, Stopwatch
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
            f"features are of {sizes[0]} Hz, {sizes[1]} mels and {sizes[2]} frames, and the model "
            f"takes {valid[0]}, {valid[1]} and {valid[2]}; copy the file that belongs to it",
        )
    return extractor


@dataclass(frozen=True, kw_only=True, slots=True)
class HearingModel:
    """Hold a loaded Whisper model, and the objects that prepare clips and check transcripts."""

    model: Any
    features: Any
    prompt: Sequence[int]
    generation: Generation
    answers: Transcripts
    stages: StageTimes


class Speech:
    """Keep loaded clips, and transcribe them in batches, including the timed feature extraction."""

    def __init__(self, dataset: Dataset, hearing: HearingModel, *, batch_size: int) -> None:
        self._dataset = dataset
        self._hearing = hearing
        self._batch_size = batch_size
        self._clips: dict[int, Any] = {}
        self._config = generation_config(hearing.generation)
        self._config.decoder_start_token_id = hearing.prompt[0]

    def load(self, indices: Sequence[int]) -> None:
        seconds = self._hearing.features.chunk_length
        for index in indices:
            if index not in self._clips:
                self._clips[index] = clip_of(self._dataset, index, seconds)
        self._hearing.answers.expect(len(self._clips))

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._clips.pop(index, None)

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        samples = Batch(ids=ids, indices=indices, sink=sink)
        for start in range(0, len(ids), self._batch_size):
            rows = range(start, min(start + self._batch_size, len(ids)))
            with enough_memory(self._batch_size, "lower batch_size"), torch.inference_mode():
                self._transcribe(samples.take(rows))

    def _transcribe(self, batch: Batch) -> None:
        hearing = self._hearing
        device, dtype = hearing.model.device, hearing.model.dtype
        watch = Stopwatch(hearing.stages, device)
        features = hearing.features(
            [self._clips[index] for index in batch.indices],
            sampling_rate=RATE,
            return_tensors="pt",
            device=str(device),
        ).input_features
        tokens = torch.tensor([hearing.prompt] * len(batch.ids), device=device)
        generation, processors = hearing.generation, []
        if generation.is_drawn:
            draws = numbers(generation, batch.indices, device)
            processors.append(DrawnOnly(generation, draws, tokens.shape[1]))
        # Whisper's own `generate`, for clips of any length, would choose the decoding itself.
        transformers.GenerationMixin.generate(
            hearing.model,
            input_features=features.to(device, dtype),
            # Whisper ignores the mask, but transformers warns without one.
            attention_mask=torch.ones(features.shape[::2], dtype=torch.long, device=device),
            decoder_input_ids=tokens,
            logits_processor=processors,
            generation_config=self._config,
            streamer=Streamer(batch, generation, hearing.answers, watch),
        )
