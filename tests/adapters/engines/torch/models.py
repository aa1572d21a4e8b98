"""Tiny models with known answers, and helpers that run an engine on them."""

from __future__ import annotations

import json
import random as random_numbers
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.adapters.engines.torch._devices import require_exact_int8
from pytest_mlperf.core.errors import EnvironmentFault, RunError
from tests.adapters.engines.recording import Samples, answers_of
from tests.refusals import unrefused

BOS, EOS = 1, 2
CONTEXT = 512

NUMBERS = random_numbers.Random(3)
MIXED = [
    [NUMBERS.randrange(26, 320) for _ in range(length)]
    for length in (5, 40, 17, 3, 90, 33, 33, 61, 8, 1, 120, 70)
]
"""Prompts of many lengths for the model with random weights."""


def multiplies_int8_exactly() -> bool:
    """Check whether torch's int8 products are right, which ONEDNN_MAX_CPU_ISA can change."""
    try:
        require_exact_int8("torch")
    except EnvironmentFault:
        return False
    return True


exact_int8 = pytest.mark.skipif(
    not multiplies_int8_exactly(), reason="torch multiplies int8 wrongly on this CPU"
)

Chain = Callable[[int], int]


def config(*, vocabulary: int, hidden: int, layers: int, **changes: Any) -> LlamaConfig:
    fields = {
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
    return LlamaConfig(**fields)


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

    Embeddings are unit vectors and the block adds nothing, so that the last token alone decides
    the logits. No two of the highest logits are equal, since the order of ties in `topk` depends
    on the CPU's instruction set. Of the other tokens the highest one is the likeliest, and the
    end token the least likely, so that no other beam ends early.
    """
    model = LlamaForCausalLM(config(vocabulary=vocabulary, hidden=vocabulary, layers=1))
    others = 0.01 * torch.arange(-vocabulary, 0.0)
    others[EOS] -= 0.01 * vocabulary
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(vocabulary))
        model.lm_head.weight.copy_(others[:, None].expand(-1, vocabulary))
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


def open_engine(folder: Path, prompts: Sequence[Any], **options: Any) -> TorchEngine:
    """Return an engine on these prompts."""
    arguments = {
        "dataset": Samples(prompts),
        "model": str(folder),
        "precision": "fp32",
        "threads": 1,
    }
    return TorchEngine(**{**arguments, **options})


def describe(folder: Path, **options: Any) -> dict[str, str]:
    """Return the description of an engine that has loaded."""
    with open_engine(folder, [[5], [9]], **options) as engine:
        return dict(engine.describe())


def answers(
    folder: Path, prompts: Sequence[Any], *, one_by_one: bool = False, **options: Any
) -> list[list[int]]:
    """Return the tokens that an engine of its own generates for each prompt."""
    return answers_of(open_engine(folder, prompts, **options), len(prompts), one_by_one=one_by_one)


Change = Callable[[Path], object]


def change_json(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps(content), "utf-8")


def json_with(name: str, **changes: Any) -> Change:
    """Return what changes keys of a JSON file in a folder."""
    return lambda folder: change_json(folder / name, **changes)


def config_with(**changes: Any) -> Change:
    """Return what changes keys of a folder's config.json."""
    return json_with("config.json", **changes)


def change_weights(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def weights_with(
    change: Callable[[dict[str, Any]], object], name: str = "model.safetensors"
) -> Change:
    """Return what changes the tensors of a file in a folder."""
    return lambda folder: change_weights(folder / name, change)


def without(name: str) -> Change:
    """Return what removes a file or folder from a folder."""
    return lambda folder: (
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    )


def text_of(name: str, text: str) -> Change:
    """Return what overwrites a file in a folder."""
    return lambda folder: (folder / name).write_text(text, "utf-8")


def broken_but_accepted(
    folder: Path, scratch: Path, load: Change, rows: Iterable[tuple[Change, str]]
) -> list[str]:
    """Return a line for each change of a copy of the folder that is not refused as its row says."""

    def attempt(change: Change) -> None:
        copy = Path(shutil.copytree(folder, Path(tempfile.mkdtemp(dir=scratch)) / "model"))
        change(copy)
        with pytest.raises(RunError) as caught:
            load(copy)
        assert caught.value.layer == "engine"
        assert str(copy) in str(caught.value)
        raise caught.value

    return unrefused(attempt, RunError, rows)
