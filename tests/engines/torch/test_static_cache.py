"""transformers' static cache, which the engine uses on GPUs, gives the growing cache's tokens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from pytest_mlperf.engines.llm.generation import Generation
from pytest_mlperf.engines.torch import _batching
from pytest_mlperf.engines.torch._batching import generation_config, has_static_cache
from tests.engines.torch.models import MIXED, answers

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def test_the_static_cache_is_used_on_gpus() -> None:
    for device, config, expected in (
        ("cuda:1", {}, True), ("cuda", {"alibi": True}, False), ("cpu", {}, False),
    ):  # fmt: skip
        model = SimpleNamespace(device=torch.device(device), config=SimpleNamespace(**config))
        assert has_static_cache(model) is expected


@pytest.mark.parametrize(
    "options",
    [
        {"batching": "static", "batch_size": 5},
        {"num_beams": 4, "batch_size": 5},
        {"temperature": 1.5, "seed": 11},
    ],
    ids=["greedy", "beams", "drawn"],
)
def test_the_engine_answers_alike_with_either_cache(
    random: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    growing = answers(random, MIXED, max_new_tokens=16, **options)
    monkeypatch.setattr(_batching, "has_static_cache", lambda _model: True)

    assert answers(random, MIXED, max_new_tokens=16, **options) == growing


KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mixtral": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gpt_neox": {},
    "falcon": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mistral": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
    "mamba": {},
}


@pytest.mark.slow
def test_models_of_many_kinds_answer_alike_with_either_cache() -> None:
    """Prompts are padded on the left; some models have sliding windows, biases or states."""
    lengths = torch.tensor([[3], [17], [9], [1]])
    mask = (torch.arange(17) >= 17 - lengths).long()
    prompts = torch.randint(26, 60, mask.shape, generator=torch.Generator().manual_seed(1)) * mask

    different = []
    for kind, changes in KINDS.items():
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(3)
            config = transformers.AutoConfig.for_model(kind, **{**SMALL, **changes})
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            model.generation_config = transformers.GenerationConfig()
            for beams in (1, 4):
                generation = Generation(max_new_tokens=12, ignore_eos=True, num_beams=beams)
                static, growing = (
                    model.generate(
                        input_ids=prompts,
                        attention_mask=mask,
                        generation_config=generation_config(generation, static_cache=static_cache),
                    ).tolist()
                    for static_cache in (True, False)
                )
                if static != growing:
                    different.append((kind, beams))

    assert different == []
