"""A model that takes sequences one step at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from vllm.api import VERSION
from vllm.encoder_cache import CACHE
from vllm.faults import fault_of
from vllm.outputs import CompletionOutput, Logprob, RequestOutput, RequestStateStats
from vllm.renderer import Renderer
from vllm.sampling_params import SamplingParams
from vllm.v1.metrics.reader import COUNTED

NO_MEMORY = "No available memory for the cache blocks."

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "auto": torch.float32,
}

LLAMA = ("standin_llama", "Llama")

KINDS = {
    "WhisperForConditionalGeneration": ("vllm.heard", "Heard"),
    "Qwen3VLMoeForConditionalGeneration": ("vllm.pictured", "Pictured"),
    "Qwen3_5ForConditionalGeneration": ("vllm.pictured", "Written"),
}
"""Modules of models that need transformers, which takes seconds to import."""


@dataclass(eq=False)
class Row:
    prompt: list[int]
    sampling: SamplingParams
    encoded: list[Any] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    stats: RequestStateStats = field(default_factory=RequestStateStats)
    reported: int = 0
    reason: str | None = None


class Model:
    """What AsyncLLM and LLM share; a process stands for those that vLLM starts."""

    def __init__(self, args: Any) -> None:
        if args.dtype not in DTYPES:
            raise ValueError(f"Unknown dtype: {args.dtype}")
        config = json.loads((Path(args.model) / "config.json").read_text("utf-8"))
        module, name = KINDS.get(config["architectures"][0], LLAMA)
        kind = getattr(import_module(module), name)
        # Processors of pictures and sound have to have a tokenizer, which vLLM else does without.
        if args.trust_remote_code or args.skip_tokenizer_init is (module != LLAMA[0]):
            raise NotImplementedError("this stand-in gets token ids, and runs no code of a model's")
        _physical_numbers()
        self.args = args
        self.fault = fault_of(args)
        if self.fault == "load":
            prefix = "(EngineCore pid=1) ERROR 11-21 16:11:41 [core.py:1510] "
            for line in ("Traceback (most recent call last):", "ValueError: " + NO_MEMORY):
                os.write(2, f"{prefix}{line}\n".encode())
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        torch.set_num_threads(1)  # two that wait for each other busily are slower than one
        dummy = args.load_format == "dummy"
        self._model = kind(Path(args.model), DTYPES[args.dtype], dummy=dummy)
        self._ends = set(_ends(Path(args.model)))
        self.longest = args.max_model_len or self._model.longest
        wait = "import time; time.sleep(600)" if self.fault == "deaf" else "input()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", wait], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.requests = 0
        self.renderer = Renderer(args, modalities=kind.modalities, has_encoder=kind.has_encoder)

    def row(self, rendered: Any, sampling: Any) -> Row:
        self.requests += 1
        tokens, media = list(rendered["prompt_token_ids"]), rendered.get("media", [])
        if not 0 < len(tokens) < self.longest:
            raise ValueError(f"The prompt (length {len(tokens)}) is longer than the maximum")
        assert isinstance(sampling, SamplingParams)
        with torch.inference_mode():
            encoded = [CACHE.of(name, partial(self._model.encoded, item)) for name, item in media]
        return Row(self._model.placed(tokens, [item for _, item in media]), sampling, encoded)

    def step(self, row: Row) -> None:
        """Give a row its next token, and with drafts those that follow: each guess is right."""
        begun = bool(row.answer)
        self._next(row)
        for _ in range((self.args.speculative_config or {}).get("num_speculative_tokens", 0)):
            if begun and row.reason is None:
                self._next(row)
                COUNTED.value += not self.args.disable_log_stats

    def _next(self, row: Row) -> None:
        sampling = row.sampling
        with torch.inference_mode():
            scores = self._model.scores(row.prompt + row.answer, row.encoded)
            ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else self._ends)
            if len(row.answer) < sampling.min_tokens:
                scores[sorted(ends)] = -float("inf")
        row.answer.append(int(scores.argmax()))
        time_s = time.monotonic() + 3600 * (self.fault == "early")
        row.stats.first_token_ts = row.stats.first_token_ts or time_s
        row.stats.last_token_ts = time_s
        row.stats.num_generation_tokens = len(row.answer) + (self.fault == "miscounts")
        if row.answer[-1] in ends:
            row.reason = "stop"
            if self.fault == "foreign_end":
                row.answer[-1] = 0
        elif (
            len(row.answer) >= sampling.max_tokens
            or len(row.prompt) + len(row.answer) >= self.longest
        ):
            row.reason = "length"
        if self.fault == "aborts" and self.requests >= 3:
            row.reason = "abort"

    def output(self, row: Row) -> RequestOutput:
        new = row.answer[row.reported :]
        row.reported = len(row.answer)
        quiet = self.fault == "silent" or self.args.disable_log_stats
        answers = [CompletionOutput(new, row.reason)]
        stats = None if quiet else row.stats
        return RequestOutput(row.prompt, answers, stats, self._prompt_logprobs(row))

    def _prompt_logprobs(self, row: Row) -> list[dict[int, Logprob] | None] | None:
        """Return for each token of the prompt its log-probability, and that of the likeliest."""
        if row.sampling.prompt_logprobs is None:
            return None
        tables: list[dict[int, Logprob] | None] = [None]
        for position, token in enumerate(row.prompt[1:], 1):
            with torch.inference_mode():
                scores = self._model.scores(row.prompt[:position], row.encoded).log_softmax(-1)
            tables.append(
                {each: Logprob(float(scores[each])) for each in (int(scores.argmax()), token)}
            )
        return tables

    def config(self) -> Any:
        args = self.args
        return SimpleNamespace(
            model_config=SimpleNamespace(
                max_model_len=self.longest, dtype=DTYPES[args.dtype], quantization=None
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=args.max_num_seqs or 256),
            cache_config=SimpleNamespace(num_gpu_blocks=64, block_size=16),
            device_config=SimpleNamespace(device_type="cpu"),
        )

    def shutdown(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.fault == "deaf":
            self.process.returncode = 0  # else Python asks for a wait that nobody makes
        else:
            self.process.wait()


def _physical_numbers() -> list[int]:
    """Read the GPUs that may be seen: 0.20 to 0.23 take numbers and nothing else."""
    entries = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    if tuple(map(int, VERSION.split(".")[:2])) >= (0, 24):
        entries = [entry for entry in entries if not entry.startswith(("GPU-", "MIG-"))]
    return [int(entry) for entry in entries]


def _ends(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            end_ids = json.loads((folder / name).read_text("utf-8")).get("eos_token_id")
            if end_ids is not None:
                return end_ids if isinstance(end_ids, list) else [end_ids]
    return []
