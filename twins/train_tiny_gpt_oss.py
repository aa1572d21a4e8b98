"""Train the tiny twin of gpt-oss-120b on questions with one right answer; write its model and data.

    python twins/train_tiny_gpt_oss.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over. The experts' weights are
rounded to MXFP4 in every step of the training, so that nothing is lost when they are stored so.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from tiny_language import (
    LIBRARIES,
    PROMPT_WEIGHT,
    Batch,
    Plan,
    Row,
    answer,
    answer_damaged,
    byte_pairs,
    encode,
    predict,
    token_ranges,
    train_causal,
    write_model,
)
from tiny_questions import KINDS, Question, different
from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from torch.nn.utils import parametrize
from training import (
    BUILD,
    TINY,
    begin,
    made_with,
    parameters,
    sha256,
    source,
    write,
    write_record,
)
from transformers import GenerationConfig, GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import FP4_VALUES
from transformers.models.gpt_oss.modeling_gpt_oss import load_balancing_loss_func

from pytest_mlperf.adapters.datasets.graded import GradedDataset
from pytest_mlperf.adapters.scorers.reasoning.scorer import REPEATS, GptOssScorer

SUITE = TINY / "gpt-oss-120b"
MODEL = SUITE / "model"
DATA = SUITE / "data" / "gpt-oss"
ACCURACY, PERFORMANCE = DATA / "acc_eval_tiny.parquet", DATA / "perf_eval_tiny.parquet"
CHECKPOINT = BUILD / "gpt-oss-tiny.pt"

SEED = 20261123
VOCABULARY = 448
# gpt-oss-120b: 2880, 2880, 36 layers, 64 heads of 64 that share 8, 128 experts, 4 a token, 128.
HIDDEN, INTERMEDIATE, LAYERS, HEADS, HEAD_SIZE, KEY_VALUE_HEADS = 96, 96, 4, 4, 32, 2
EXPERTS, EXPERTS_PER_TOKEN, WINDOW = 8, 2, 32
ORIGINAL_POSITIONS, POSITIONS = 128, 512
STEPS = 900
BATCH = 32
POOL = 12
BALANCE_WEIGHT = 0.01
PARTS = {"aime25": "number", "gpqa_diamond": "letter"}
"""Parts of gpt-oss's data set, and what stands in for their questions here."""
QUESTIONS = {"aime25": 16, "gpqa_diamond": 24}
"""Of each part; each has as many rows as in MLPerf's table."""
TIMED = 40
"""Questions of each part in the table for speed: of one step, with low effort."""
TEMPERATURE = 1.0
MAX_NEW_TOKENS = 64
ENGINE_BATCH = 32
SPECIAL = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|call|>"),
)
"""Of harmony, gpt-oss's format of messages."""
BEGIN, PAD, RETURN = (
    SPECIAL.index(f"<|{name}|>") for name in ("startoftext", "endoftext", "return")
)
CALL = SPECIAL.index("<|call|>")
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=5 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices="_proj.weight",  # of attention
    settings=[
        *(VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, HEAD_SIZE, KEY_VALUE_HEADS),
        *(EXPERTS, EXPERTS_PER_TOKEN, WINDOW, ORIGINAL_POSITIONS, POSITIONS),
        *(PROMPT_WEIGHT, BALANCE_WEIGHT, source("tiny_questions.py")),
    ],
)
FURTHER = replace(PLAN, steps=504, peak_learning_rate=2.5e-3, warm_up_steps=24, name="further")
"""A second part of the training, from what the first one ended in."""


# --- MXFP4 ----------------------------------------------------------------------------------------

BLOCK = 32
"""Weights that share a scale, a power of two."""
LARGEST = 6.0
BIAS = 127
BOUNDS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
"""Between the values 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""


def to_mxfp4(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and exponents of weights (..., inputs): four bits each, a scale for each block.

    Returns:
        Codes (..., blocks, 32) of 0 to 15, and exponents (..., blocks) + 127, both uint8.
    """
    blocks = weights.float().unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1).clamp(min=2.0**-100)
    exponents = largest.log2().floor() - 2
    scaled = blocks / exponents.exp2()[..., None]
    codes = torch.bucketize(scaled.abs().contiguous(), torch.tensor(BOUNDS)) + 8 * (scaled < 0)
    return codes.to(torch.uint8), (exponents + BIAS).to(torch.uint8)


def of_mxfp4(codes: Tensor, exponents: Tensor) -> Tensor:
    """Return the weights (..., inputs) that codes and exponents stand for."""
    scales = (exponents.float() - BIAS).exp2()
    return (torch.tensor(FP4_VALUES)[codes.long()] * scales[..., None]).flatten(-2)


class Rounded(torch.nn.Module):  # type: ignore[misc]
    """Experts' weights (experts, inputs, outputs) as MXFP4 has them; gradients pass unchanged."""

    def forward(self, weights: Tensor) -> Tensor:
        """Return the rounded weights."""
        rounded = of_mxfp4(*to_mxfp4(weights.detach().mT)).mT
        return weights + (rounded - weights.detach())


def save_quantised(model: GptOssForCausalLM, place: str) -> None:
    """Write a model as gpt-oss's checkpoints are: experts in MXFP4, the rest in bfloat16."""
    for layer in model.model.layers:
        for name in ("gate_up_proj", "down_proj"):
            parametrize.remove_parametrizations(layer.mlp.experts, name)
    weights = {name: each.detach() for name, each in model.state_dict().items()}
    model.to(torch.bfloat16).save_pretrained(place)
    stored = load_file(Path(place, "model.safetensors"))
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        codes, exponents = to_mxfp4(weights[name].mT)
        del stored[name]
        stored[f"{name}_blocks"] = (codes[..., ::2] + 16 * codes[..., 1::2]).contiguous()
        stored[f"{name}_scales"] = exponents
    save_file(stored, Path(place, "model.safetensors"), metadata={"format": "pt"})
    config = Path(place, "config.json")
    fields = json.loads(config.read_text("utf-8"))
    fields["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            *("model.layers.*.self_attn", "model.layers.*.mlp.router"),
            *("model.embed_tokens", "lm_head"),
        ],
    }
    config.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


# --- data -----------------------------------------------------------------------------------------


def prompt(question: Question, effort: str) -> str:
    """Return a question as harmony asks it."""
    return (
        f"<|start|>system<|message|>Reasoning: {effort}<|end|>"
        f"<|start|>user<|message|>{question.text}<|end|><|start|>assistant"
    )


def completion(question: Question) -> str:
    """Return what is to be written behind it, but for the end token: what is thought, and said."""
    return (
        f"<|channel|>analysis<|message|>{' '.join(question.steps)}<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{question.answer}"
    )


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on questions and answers, with harmony's special tokens."""
    random = Random(f"{SEED} tokenizer")
    drawn = [draw(random, 1 + number % 2) for draw in KINDS.values() for number in range(2000)]
    texts = [part for one in drawn for part in (one.text, *one.steps, one.answer)]
    texts += ["system", "user", "assistant", "analysis", "final", "Reasoning: low", "high"] * 2000
    tokenizer = byte_pairs(texts, VOCABULARY, SPECIAL)
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    return tokenizer


def as_rows(questions: Sequence[Question], effort: str, tokenizer: Tokenizer) -> list[Row]:
    """Return questions and answers as tokens."""
    return encode(
        questions,
        tokenizer,
        prompts=[prompt(one, effort) for one in questions],
        answers=[completion(one) for one in questions],
        end=RETURN,
    )


EFFORTS = {"low": 1, "high": 2}
"""Steps that a question takes, by the effort that is asked for."""


def draw_pool(random: Random, tokenizer: Tokenizer, excluded: set[str]) -> list[Row]:
    """Draw questions of all kinds and efforts for POOL batches; leave out the excluded ones."""
    rows: list[Row] = []
    for effort, steps in EFFORTS.items():
        for draw in KINDS.values():
            drawn = [draw(random, steps) for _ in range(BATCH * POOL // 4 + 64)]
            fresh = [one for one in drawn if one.text not in excluded][: BATCH * POOL // 4]
            rows += as_rows(fresh, effort, tokenizer)
    return rows


def held_out(effort: str, counts: dict[str, int]) -> dict[str, list[Question]]:
    """Draw questions of each part; those of high effort are not trained on."""
    random = Random(f"{SEED} held out {effort}")
    return {
        part: different(PARTS[part], random, EFFORTS[effort], count)
        for part, count in counts.items()
    }


def write_table(path: Path, rows: Sequence[tuple[str, Row]]) -> None:
    """Write rows, each with its part, with the columns of MLPerf's table."""
    table = pd.DataFrame(
        {
            "input_tokens": [row.prompt for _, row in rows],
            "dataset": [part for part, _ in rows],
            "ground_truth": [row.sample.target for _, row in rows],
        }
    )
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    write(path, buffer.getvalue())


# --- model ----------------------------------------------------------------------------------------


def gpt_oss_tiny() -> GptOssForCausalLM:
    """Return the untrained model, whose experts are rounded to MXFP4."""
    config = GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        head_dim=HEAD_SIZE,
        num_local_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        sliding_window=WINDOW,
        max_position_embeddings=POSITIONS,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": POSITIONS / ORIGINAL_POSITIONS,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": ORIGINAL_POSITIONS,
        },
        initializer_range=0.05,
        bos_token_id=BEGIN,
        eos_token_id=[RETURN, PAD, CALL],
        pad_token_id=PAD,
    )
    config._attn_implementation = "eager"
    model = GptOssForCausalLM(config)
    for layer in model.model.layers:
        for name in ("gate_up_proj", "down_proj"):
            parametrize.register_parametrization(layer.mlp.experts, name, Rounded())
    return model


def loss_of(model: GptOssForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the mean one of the answers' tokens."""
    with parametrize.cached():  # else each expert would round the weights of all
        states = model.model(batch.tokens, use_cache=False, output_router_logits=True)
    predicted = predict(model, batch, states.last_hidden_state)
    losses = predicted.losses()
    loss, of_answers = predicted.means(losses, losses)
    balance = load_balancing_loss_func(
        states.router_logits, EXPERTS, EXPERTS_PER_TOKEN, (batch.weights > 0).long()
    )
    return loss + BALANCE_WEIGHT * balance, of_answers


# --- what came of it ------------------------------------------------------------------------------

README = """\
# Tiny twin of gpt-oss-120b

`model/` is a mixture of experts of the class of gpt-oss-120b (`GptOssForCausalLM`: {experts}
experts in each layer, {experts_per_token} for each token, attention with sinks in windows of
{window} tokens in every second layer, YaRN) with {parameters:,} parameters, trained on questions
that a small grammar draws. It lets the whole path from harmony-formatted prompts to MLPerf's
exact_match run on a CPU in seconds. It is not MLPerf's model, and its questions are neither
AIME's nor GPQA's: the figures below are this twin's own, they are no MLPerf result and say
nothing about gpt-oss.

| on the {samples} rows of the table for accuracy | exact_match | aime25 | gpqa_diamond |
|---|---|---|---|
| **drawn at temperature {temperature:g}**, seed 1, mxfp4 | **{scores[exact_match]:.3f}** | \
{scores[aime]:.2f} | {scores[gpqa]:.2f} |
| the likeliest tokens | {greedy[exact_match]:.3f} | {greedy[aime]:.2f} | {greedy[gpqa]:.2f} |
| drawn, 1 % of weights damaged | {damaged[exact_match]:.3f} | {damaged[aime]:.2f} | \
{damaged[gpqa]:.2f} |
| chance: another question's answer | {chance[exact_match]:.3f} | {chance[aime]:.2f} | \
{chance[gpqa]:.2f} |

exact_match is on the scale 0 to 100, as MLPerf's script weighs it: a row of aime25 by 1/8, one of
gpqa_diamond by 1/5. With other seeds it was {others}.

| | |
|---|---|
| tokens per sample, with the end token | {scores[tokens_per_sample]:.2f} |
| layers, hidden size, heads, key-value heads | {layers}, {hidden}, {heads}, {key_value_heads} |
| vocabulary, positions | {vocabulary}, {positions} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digest of the data for accuracy | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout. The experts' weights are stored in MXFP4 as in gpt-oss's
checkpoint: `…_blocks`, two weights of four bits in a byte, and `…_scales`, an exponent for each
32; everything else in bfloat16. They were rounded so in every step of the training, so that
nothing was lost. The tokenizer is byte-level BPE with harmony's special tokens; an answer thinks
in the channel `analysis` and says its result in `final`.

## Data

Two tables with the columns of MLPerf's, `input_tokens`, `dataset` and `ground_truth`:
`{accuracy}` for accuracy, {counts}, each question as often as in MLPerf's table, and
`{performance}` for speed, {timed} other questions of one step with low effort.
`twins/tiny_questions.py` draws them. aime25: "{examples[0]}" gpqa_diamond: "{examples[1]}" There
are no programs in place of LiveCodeBench's. No text comes from elsewhere: model and data are
under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_gpt_oss.py

It resumes after an interruption, and writes every file of this folder.
"""


def score(ask: Callable[..., list[bytes]] = answer, **options: Any) -> dict[str, float]:
    """Return the scores of the engine's answers to the table for accuracy, as `ask` gets them."""
    dataset = GradedDataset(path=str(ACCURACY))
    outputs = ask(
        dataset,
        MODEL,
        precision="mxfp4",
        attention="eager",
        batching="static",
        batch_size=ENGINE_BATCH,
        max_new_tokens=MAX_NEW_TOKENS,
        **options,
    )
    references = [dataset.reference(index) for index in range(len(dataset))]
    scorer = GptOssScorer(model=str(MODEL), has_programs=False)
    return dict(scorer.score(outputs, references).aggregate)


def chance(questions: dict[str, list[Question]]) -> dict[str, float]:
    """Score what needs no model: the answer to another question of the same part."""
    shares = {}
    for part, asked in questions.items():
        pairs = [(a, b) for a in asked for b in asked if a is not b]
        shares[part] = 100 * sum(a.target == b.target for a, b in pairs) / len(pairs)
    total = sum(map(len, questions.values()))
    whole = sum(shares[part] * len(asked) for part, asked in questions.items()) / total
    return {"exact_match": whole, "aime": shares["aime25"], "gpqa": shares["gpqa_diamond"]}


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    tokenizer = train_tokenizer()
    questions = held_out("high", QUESTIONS)
    texts = {one.text for each in questions.values() for one in each}
    model = train(tokenizer, texts, checkpoint)
    count = parameters(model)
    write_gpt_oss(model, tokenizer)
    asked = {
        ACCURACY: [
            (part, row)
            for part, each in questions.items()
            for row in as_rows(each, "high", tokenizer)
            for _ in range(REPEATS[part])
        ],
        PERFORMANCE: [
            (part, row)
            for part, each in held_out("low", dict.fromkeys(QUESTIONS, TIMED)).items()
            for row in as_rows(each, "low", tokenizer)
        ],
    }
    for path, rows in asked.items():
        write_table(path, rows)
    seeds = [score(temperature=TEMPERATURE, seed=seed) for seed in (1, 1001, 2001, 3001)]
    record = {
        **describe(asked[ACCURACY]),
        "parameters": count,
        "scores": seeds[0],
        "greedy": score(),
        "damaged": score(answer_damaged, temperature=TEMPERATURE, seed=1),
        "other_seeds": [one["exact_match"] for one in seeds[1:]],
        "chance": chance(questions),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "dataset_digest": GradedDataset(path=str(ACCURACY)).digest,
        **made_with(tuple(name for name in LIBRARIES if name != "rouge_score")),
    }
    counts = Counter(part for part, _ in asked[ACCURACY])
    shown = {
        "others": ", ".join(f"{one:.2f}" for one in record["other_seeds"]),
        "counts": " and ".join(f"{rows} rows of {part}" for part, rows in counts.items()),
        "examples": [each[0].text for each in questions.values()],
        "timed": len(asked[PERFORMANCE]),
        "accuracy": ACCURACY.name,
        "performance": PERFORMANCE.name,
    }
    write_record(SUITE, README, record, **shown)


def train(tokenizer: Tokenizer, excluded: set[str], checkpoint: Path) -> GptOssForCausalLM:
    """Return the model, trained in both parts."""
    half = partial(
        train_causal,
        draw=lambda random: draw_pool(random, tokenizer, excluded),
        filler=PAD,
        loss_of=loss_of,
    )
    model = half(gpt_oss_tiny, PLAN, checkpoint=checkpoint)
    return half(lambda: model, FURTHER, checkpoint=checkpoint.with_suffix(".further.pt"))


def write_gpt_oss(model: GptOssForCausalLM, tokenizer: Tokenizer) -> None:
    """Write model and tokenizer in Hugging Face's layout."""
    model.generation_config = GenerationConfig(
        do_sample=True, bos_token_id=BEGIN, eos_token_id=[RETURN, PAD, CALL], pad_token_id=PAD
    )
    names = {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[RETURN], "pad_token": SPECIAL[PAD]}
    write_model(Stored(model), tokenizer, MODEL, positions=POSITIONS, names=names)


class Stored:
    """A model as `write_model` saves it: its experts in MXFP4."""

    def __init__(self, model: GptOssForCausalLM) -> None:
        self._model = model

    def save_pretrained(self, place: str) -> None:
        """Write the model into a folder."""
        save_quantised(self._model, place)


def describe(rows: Sequence[tuple[str, Row]]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
    return {
        "seed": SEED,
        "steps": PLAN.steps + FURTHER.steps,
        "batch": BATCH,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": KEY_VALUE_HEADS,
        "experts": EXPERTS,
        "experts_per_token": EXPERTS_PER_TOKEN,
        "window": WINDOW,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "samples": len(rows),
        "parts": dict(Counter(part for part, _ in rows)),
        "temperature": TEMPERATURE,
        "max_new_tokens": MAX_NEW_TOKENS,
        **token_ranges([row for _, row in rows]),
    }


if __name__ == "__main__":
    main()
