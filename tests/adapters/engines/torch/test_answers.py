"""Every way of batching gives the tokens that the model gives for each prompt alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaForCausalLM

from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.torch import _batching
from pytest_mlperf.adapters.engines.torch._batching import generation_config, has_static_cache
from tests.adapters.engines.recording import Recorder, Samples
from tests.adapters.engines.torch.models import (
    EOS,
    MIXED,
    answers,
    countdown,
    generate_alone,
    open_engine,
)

ENDS = list(range(2, 26))
LONGEST = 16


def counted(start: int, most: int = 1000) -> list[int]:
    """Return the tokens that the counting model answers to `start`."""
    tokens: list[int] = []
    while len(tokens) < most and (not tokens or tokens[-1] != EOS):
        tokens.append(countdown(tokens[-1] if tokens else start))
    return tokens


def beam_search(folder: Path, prompt: list[int], width: int) -> list[int]:
    """Return the likeliest of the first `width` answers that end, by the definition.

    Scores are means of the tokens' log probabilities, as MLPerf's references have them.
    """
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(LONGEST):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens for _, tokens in beams])).logits[:, -1]
        longer = [
            (score + value, [*tokens, token])
            for (score, tokens), row in zip(beams, logits.log_softmax(-1).tolist(), strict=True)
            for token, value in enumerate(row)
            if length or token not in ENDS  # an answer has one token at least
        ]
        longer.sort(reverse=True)
        ended += [(score / len(b), b) for score, b in longer[:width] if b[-1] in ENDS]
        beams = [beam for beam in longer if beam[1][-1] not in ENDS][:width]
        if len(ended) >= width:
            return max(ended)[1]
    return max([*ended, *((score / len(b), b) for score, b in beams)])[1]


def test_every_way_of_batching_gives_the_answers_of_prompts_alone(random: Path) -> None:
    """Neither padding nor neighbours nor the order of work change a token.

    Some answers end by themselves, some at the limit, and they differ.
    """
    alone = generate_alone(
        random, MIXED, eos_token_id=ENDS, max_new_tokens=LONGEST, min_new_tokens=1
    )
    ended = [len(row) for row in alone if row[-1] in ENDS]
    assert 3 <= len(ended) < len(alone) == len(set(map(tuple, alone)))
    assert len(set(ended)) > 2
    ways: list[tuple[bool, dict[str, Any]]] = [
        (False, {"batching": "auto"}),
        (True, {"batching": "auto"}),
        (False, {"batching": "static"}),
        (False, {"batching": "static", "batch_size": 5}),
        (True, {"batching": "static"}),
        (False, {"batching": "dynamic", "batch_size": 5}),
        (True, {"batching": "dynamic"}),
        (False, {"batching": "continuous"}),
        (False, {"batching": "continuous", "batch_size": 2}),
        (True, {"batching": "continuous", "batch_size": 3}),
        (True, {"batching": "continuous", "max_batch_tokens": 40}),
        (False, {"batching": "continuous", "attention": "eager"}),
        (False, {"batching": "static", "attention": "eager"}),
    ]
    for one_by_one, options in ways:
        outputs = answers(random, MIXED, one_by_one=one_by_one, max_new_tokens=LONGEST, **options)
        assert outputs == alone, options


def test_beams_give_the_answers_of_beam_search_alone(random: Path) -> None:
    """On a model without ties, whose order depends on the CPU."""
    prompts = MIXED[:6]
    searched = [beam_search(random, prompt, 4) for prompt in prompts]
    ways: list[tuple[bool, dict[str, Any]]] = [
        (False, {"batch_size": 5}),
        (True, {}),
        (True, {"batching": "static"}),
    ]
    for one_by_one, options in ways:
        outputs = answers(
            random, prompts, one_by_one=one_by_one, num_beams=4, max_new_tokens=LONGEST, **options
        )
        assert outputs == searched, options


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_answers_end_by_token_or_limit(mute: Path, counting: Path, batching: str) -> None:
    """One model wants to end at once, the other counts down from the prompt's last token."""
    for least in (0, 1, 4, 8):
        options: dict[str, Any] = {"batching": batching, "min_new_tokens": least}
        for row in answers(mute, [[5], [6, 7, 8]], max_new_tokens=9, **options):
            assert EOS not in row[:-1]
            assert (len(row), row[-1]) == (least + 1, EOS)
    starts = [[4], *([40, 30, start] for start in (4, 9, 13))]
    outputs = answers(counting, starts, batching=batching, max_new_tokens=9)
    assert outputs == [[3, 2], counted(4, 9), counted(9, 9), counted(13, 9)]
    outputs = answers(counting, [[6], [30]], batching=batching, ignore_eos=True, max_new_tokens=7)
    assert outputs == [[5, 4, 3, 2, 2, 2, 2], [29, 28, 27, 26, 25, 24, 23]]


@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_clear_answers_are_the_same_in_every_precision(counting: Path, batching: str) -> None:
    """Its scores are far apart, so that no rounding changes a token."""
    for precision in ("fp32", "bf16", "fp16", "int8", "int4"):
        outputs = answers(counting, [[12], [5, 9]], precision=precision, batching=batching)
        assert outputs == [counted(12), counted(9)], precision


def test_text_is_tokenised_by_the_models_own_tokenizer(counting: Path) -> None:
    """Its special tokens are added: the same answer as to <s> and the ids of the letters."""
    texts = ["count from a", "é"]
    with open_engine(counting, texts) as engine:
        engine.load_samples(range(2))
        ids = [engine._samples[index] for index in range(2)]

    assert [(row[0], len(row)) for row in ids] == [(1, 1 + 12), (1, 1 + 2)]
    expected = [counted(row[-1], 128) for row in ids]
    for batching, prompts in (("static", texts), ("continuous", texts), ("static", ids)):
        assert answers(counting, prompts, batching=batching) == expected


def test_samples_may_be_asked_for_more_than_once_in_one_list(counting: Path) -> None:
    """LoadGen draws with replacement; every id gets its own answer."""
    sink = Recorder(expected=4)
    with open_engine(counting, [[5], [9]], batch_size=3) as engine:
        assert engine.describe()["work.batch"] == "3"
        engine.load_samples([0, 1])
        engine.submit([7, 8, 9, 10], [1, 0, 1, 1], sink)
        sink.wait()

    assert sink.answers == {7: counted(9), 8: counted(5), 9: counted(9), 10: counted(9)}


def test_unloaded_samples_are_forgotten_and_may_be_loaded_again(counting: Path) -> None:
    read_indices: list[int] = []

    class Watched(Samples):
        def input(self, index: int) -> Any:
            read_indices.append(index)
            return super().input(index)

    with open_engine(counting, [], dataset=Watched([[5], [6], [7]])) as engine:
        del read_indices[:]
        engine.load_samples([0, 1, 1])
        engine.load_samples([1])
        engine.unload_samples([1, 2])
        engine.load_samples([1])
        with pytest.raises(KeyError):
            engine.submit([1], [2], Recorder())

    assert read_indices == [0, 1, 1]


def test_continuous_batching_grows_its_cache_for_longer_prompts(counting: Path) -> None:
    """Samples loaded later need more blocks than those before; both are answered."""
    long = [9] * 400
    with open_engine(counting, [[5], long], batching="continuous", max_new_tokens=9) as engine:
        first, second = Recorder(expected=1), Recorder(expected=2)
        engine.load_samples([0])
        engine.submit([1], [0], first)
        first.wait()
        engine.load_samples([1])
        engine.submit([1, 2], [0, 1], second)
        second.wait()

    assert second.answers == {1: counted(5), 2: counted(9)}
    assert len(first.threads | second.threads) == 1


def test_a_list_larger_than_the_batch_is_fed_in_as_places_become_free(counting: Path) -> None:
    starts = [4 + number % 10 for number in range(40)]
    prompts = [[start] for start in starts]

    assert answers(counting, prompts[:1], batching="continuous", batch_size=8) == [counted(4)]
    outputs = answers(counting, prompts, batching="continuous", batch_size=8)
    assert outputs == list(map(counted, starts))


def test_the_static_cache_is_used_on_gpus() -> None:
    for device, config, expected in (
        ("cuda:1", {}, True), ("cuda", {"alibi": True}, False), ("cpu", {}, False),
    ):  # fmt: skip
        model = SimpleNamespace(device=torch.device(device), config=SimpleNamespace(**config))
        assert has_static_cache(model) is expected


@pytest.mark.parametrize(
    "options", [{"batching": "static"}, {"num_beams": 4}, {"temperature": 1.5, "seed": 11}], ids=str
)
def test_the_engine_answers_alike_with_either_cache(
    random: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The static cache, which the engine uses on GPUs, and the growing one."""
    sizes: dict[str, Any] = {"batch_size": 5, "max_new_tokens": LONGEST}
    growing = answers(random, MIXED, **sizes, **options)
    monkeypatch.setattr(_batching, "has_static_cache", lambda _model: True)

    assert answers(random, MIXED, **sizes, **options) == growing


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
