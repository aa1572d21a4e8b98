"""Transcribe speech with Whisper through transformers, as MLPerf's reference does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf.adapters.engines.llm.generation import Answers
from pytest_mlperf.adapters.engines.llm.model_folder import load_tokenizer
from pytest_mlperf.adapters.engines.llm.speech import SpeechClips, prompt_tokens, transcript_encoder
from pytest_mlperf.adapters.engines.torch._base import TokenBase, TokenOptions
from pytest_mlperf.extension import Rule


@dataclass(frozen=True, kw_only=True)
class WhisperOptions(TokenOptions):
    """Options of engine torch-whisper.

    Attributes:
        max_new_tokens: Maximum number of tokens of a transcript, including the end token; 200 in
            MLPerf.
    """

    engine: ClassVar[str] = "torch-whisper"

    max_new_tokens: int = 200

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield "temperature", self.temperature, not self.is_drawn, "0: transcripts are greedy"
        value = self.prompt_logprobs
        yield "prompt_logprobs", value, value is False, "false: transcripts are generated"


class WhisperEngine(TokenBase):
    """Answer each audio clip with its transcript: for each character its label, as int64.

    Labels are little-endian. Decoding is greedy and starts with MLPerf's prompt: English, no
    timestamps. Samples that LoadGen issues together run in batches within `submit`; samples issued
    one by one are queued and batched.

    Args:
        dataset: Its inputs are dicts of "audio", float32, and "sampling_rate", 16000.
        model: Folder of a multilingual Whisper model: config.json, preprocessor_config.json,
            safetensors files, tokenizer. Nothing is downloaded and no code of the folder is run.
        precision: One of the precisions of engine torch.
    """

    name = "torch-whisper"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    optional_libraries: ClassVar[tuple[str, ...]] = ("torchao", "compressed_tensors")
    options: ClassVar[type[WhisperOptions]] = WhisperOptions

    _options: WhisperOptions

    def _find(self, model: str | None) -> None:
        self._generation = self._options.generation(self.name)
        super()._find(model)

    def _load(self, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch import _speech
        from pytest_mlperf.adapters.engines.torch._checkpoint import (
            SPEECH,
            open_model,
            quiet_and_offline,
        )

        options = self._options
        with quiet_and_offline():
            loaded = open_model(self._folder, options, self._precision, SPEECH)
            features = _speech.open_features(self._folder, loaded.model.config)
            tokenizer, digest = load_tokenizer(self.name, self._folder)
        positions, max_tokens = loaded.model.config.max_target_positions, options.max_new_tokens
        prompt = prompt_tokens(self.name, tokenizer, self._folder, positions, max_tokens)
        generation = dataclasses.replace(self._generation, eos=loaded.eos)
        self._generation = generation
        self._facts |= {
            **loaded.facts,
            "tokenizer_sha256": digest,
            "attention": options.attention,
            "features": f"{features.feature_size} mels of {features.chunk_length} s",
            "work.batch": str(options.batch_size),
        }
        clips = SpeechClips(dataset=self._dataset, prompt=prompt, seconds=features.chunk_length)
        limits = loaded.vocabulary, positions
        self._samples = generation.prompts(self._dataset, tokenizer, *limits, clips=clips)
        output, watch_ends = transcript_encoder(tokenizer), not self._dummy
        self._answers = Answers(generation, check_ends=watch_ends, output=output)
        text = self._text_model(loaded.model)
        batches = _speech.SpeechBatches(text, clips, features, options.batch_size)
        self._lists = batches.run
        self._start_queue(batches.run, undo)
