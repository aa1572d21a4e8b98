"""Tiny models whose answers are known, a data set, and a sink that keeps everything in order."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from pytest_mlperf.engines.torch import TorchEngine

BOS, EOS = 1, 2
CONTEXT = 512
LIMIT_S = 60.0
"""A sample that takes longer is lost."""

Chain = Callable[[int], int]


def config(*, vocabulary: int, hidden: int, layers: int, **changes: Any) -> LlamaConfig:
    given = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        **changes,
    }
    return LlamaConfig(**given)


def save(model: Any, folder: Path, *, ends: Sequence[int] | None = (EOS,)) -> Path:
    """Write a checkpoint whose folder asks for sampling, as many published ones do."""
    model.save_pretrained(folder)
    settings: dict[str, Any] = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    if ends is not None:
        settings["eos_token_id"] = list(ends) if len(ends) > 1 else ends[0]
    (folder / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def chain_model(folder: Path, following: Chain, *, vocabulary: int = 64) -> Path:
    """Write a model that answers token t with `following(t)`, whatever came before.

    Embeddings are unit vectors and the blocks between add nothing, so that the scores are those
    of the last token alone, and far apart in any precision.
    """
    model = LlamaForCausalLM(config(vocabulary=vocabulary, hidden=vocabulary, layers=1))
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(vocabulary))
        model.lm_head.weight.zero_()
        for token in range(vocabulary):
            model.lm_head.weight[following(token), token] = 1.0
    return save(model, folder)


def countdown(token: int) -> int:
    """5 is followed by 4, 3 and the end token 2: a prompt's last token t has t - 2 new tokens."""
    return token - 1 if token > EOS else EOS


def random_model(folder: Path) -> Path:
    """Write a model with random weights, all of them at work, which ends at one of 24 tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = LlamaForCausalLM(
            config(vocabulary=320, hidden=64, layers=2, initializer_range=0.25)
        )
    return save(model, folder, ends=range(2, 26))


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer that puts <s> before a text; "a" is a token of its own."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate(["<unk>", "<s>", "</s>", *symbols])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def generate_alone(folder: Path, prompts: Sequence[Sequence[int]], **settings: Any) -> Any:
    """Return what transformers generates for each prompt alone: no batch, no padding."""
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    settings = {"do_sample": False, "pad_token_id": 0, **settings}
    model.generation_config = GenerationConfig()
    rows = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            row = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=GenerationConfig(**settings),
            )[0, len(prompt) :].tolist()
        ends = settings.get("eos_token_id") or []
        last = next((place for place, token in enumerate(row) if token in ends), len(row))
        rows.append(row[: last + 1])
    return rows


class Prompts:
    """A data set of prompts; what is given out is counted."""

    digest = "0" * 64

    def __init__(self, prompts: Sequence[Any]) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def input(self, index: int) -> Any:
        return self._prompts[index]

    def reference(self, index: int) -> Any:
        return None


def open_engine(folder: Path, prompts: Sequence[Any], **options: Any) -> TorchEngine:
    """Return an engine on these prompts."""
    given = {"dataset": Prompts(prompts), "model": str(folder), "precision": "fp32", "threads": 1}
    return TorchEngine(**{**given, **options})


def ask(engine: TorchEngine, sink: Recorder, samples: int, *, one_by_one: bool = False) -> None:
    """Submit samples 0, 1, … as ids 100, 101, … and wait for them; the engine is entered."""
    engine.load_samples(range(samples))
    ids = range(100, 100 + samples)
    if one_by_one:
        for sample, index in zip(ids, range(samples), strict=True):
            engine.submit([sample], [index], sink)
    else:
        engine.submit(ids, range(samples), sink)
    sink.wait()


def answers(
    folder: Path, prompts: Sequence[Any], *, one_by_one: bool = False, **options: Any
) -> list[list[int]]:
    """Return the tokens that an engine of its own generates for each prompt."""
    sink = Recorder(expected=len(prompts), times_tokens=False)
    with open_engine(folder, prompts, **options) as engine:
        ask(engine, sink, len(prompts), one_by_one=one_by_one)
    return [sink.answers[100 + index] for index in range(len(prompts))]


class Recorder:
    """Keeps every report in order: ("first", 3), ("next", 3), ("done", 3)."""

    def __init__(
        self, *, expected: int = 0, wants_output: bool = True, times_tokens: bool = True
    ) -> None:
        self.wants_output = wants_output
        self.times_tokens = times_tokens
        self.events: list[tuple[str, int]] = []
        self.answers: dict[int, list[int]] = {}
        self.n_tokens: dict[int, int] = {}
        self.threads: set[int] = set()
        self.error: BaseException | None = None
        self._finished = threading.Event()
        self._expected = expected
        self._lock = threading.Lock()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        assert self.times_tokens
        self._keep("first", ids)

    def next_tokens(self, ids: Sequence[int]) -> None:
        assert self.times_tokens
        self._keep("next", ids)

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        assert (outputs is not None) is self.wants_output
        assert n_tokens is not None
        self._keep("done", ids)
        with self._lock:
            outputs = outputs or [b""] * len(ids)
            for sample, output, tokens in zip(ids, outputs, n_tokens, strict=True):
                assert sample not in self.n_tokens
                self.answers[sample] = list(struct.unpack(f"<{len(output) // 8}q", output))
                self.n_tokens[sample] = tokens
            if len(self.n_tokens) == self._expected:
                self._finished.set()

    def failed(self, error: BaseException) -> None:
        self.error = error
        self._finished.set()

    def wait(self) -> None:
        """Return when all samples are done; raise what the engine failed with."""
        assert self._finished.wait(LIMIT_S)
        if self.error is not None:
            raise self.error

    def reports(self, sample: int) -> list[str]:
        return [kind for kind, each in self.events if each == sample]

    def _keep(self, kind: str, ids: Sequence[int]) -> None:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.events += [(kind, sample) for sample in ids]
