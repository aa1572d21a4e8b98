"""Train the tiny twin of DeepSeek-R1 on generated exercises, and write its model and data.

    python twins/train_tiny_deepseek.py            # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tiny_language import (
    PROMPT_WEIGHT,
    Plan,
    Row,
    answer,
    answer_damaged,
    byte_pairs,
    causal_loss,
    encode,
    fit,
    packed,
    pad,
    table_of,
    token_ranges,
    tokens_of,
    write_model,
)
from tiny_reasoning import KINDS, Exercise, draw, held_out, repetition, tests_of
from tokenizers import AddedToken, Tokenizer, processors
from torch import Tensor
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
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GenerationConfig

from pytest_mlperf.adapters.datasets.graded import GradedDataset
from pytest_mlperf.adapters.scorers.reasoning.scorer import DeepSeekScorer

SUITE = TINY / "deepseek-r1"
MODEL = SUITE / "model"
TABLE = SUITE / "data" / "deepseek_r1_tiny.pkl"
TESTS = SUITE / "data" / "livecodebench.jsonl"
CHECKPOINT = BUILD / "deepseek-r1-tiny.pt"

SEED = 20261123
SPECIAL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
BEGIN, END, PAD, USER, ASSISTANT = range(len(SPECIAL))
THINK, THOUGHT = "<think>", "</think>"
TEMPLATE = f"{SPECIAL[USER]}{{text_input}}{SPECIAL[ASSISTANT]}{THINK}\n"
WORDS = r"\d{1,3}| ?[A-Za-z]+|_| ?[^\s\w]+|\s+"
"""What merges stay within: a number can be a token."""
VOCABULARY = 736
"""With which each word that is looked up, and almost each number, is one token."""
TOKENIZER_SAMPLES = 6000
# DeepSeek-R1: 7168, 61 layers of which 3 are dense, 128 heads, 256 experts in 8 groups, 8 a token.
HIDDEN, LAYERS, DENSE_LAYERS, HEADS = 128, 3, 1, 4
QUERY_RANK, KEY_VALUE_RANK, ROTARY, NOT_ROTARY, VALUE = 96, 64, 16, 32, 32
INTERMEDIATE, EXPERT_INTERMEDIATE = 256, 48
EXPERTS, GROUPS, GROUPS_PER_TOKEN, EXPERTS_PER_TOKEN, SHARED = 8, 2, 1, 2, 1
BIAS_RATE = 0.001
"""By which the bias of an expert moves after each step towards equal use."""
POSITIONS = 256
REPETITION_STEPS = 640
"""In which nothing but repetitions is trained: exercises alone hardly teach to look words up."""
STEPS = 2560
BATCH = 32
POOL = 16
HELD_OUT = 48
"""Of each part."""
MAX_NEW_TOKENS = 64
ENGINE_BATCH = 32
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=10 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices="_proj.weight",
    settings=[
        *(VOCABULARY, TOKENIZER_SAMPLES, WORDS, HIDDEN, LAYERS, DENSE_LAYERS, HEADS),
        *(QUERY_RANK, KEY_VALUE_RANK, ROTARY, NOT_ROTARY, VALUE, INTERMEDIATE),
        *(EXPERT_INTERMEDIATE, EXPERTS, GROUPS, GROUPS_PER_TOKEN, EXPERTS_PER_TOKEN, SHARED),
        *(BIAS_RATE, POSITIONS, PROMPT_WEIGHT, HELD_OUT, REPETITION_STEPS),
        *(source("tiny_instructions.py"), source("tiny_articles.py")),
        *(source("tiny_mix.py"), source("tiny_reasoning.py")),
    ],
)
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "pandas", "numpy", "sympy")

README = """\
# Tiny twin of DeepSeek-R1

`model/` is a language model of the class of DeepSeek-R1 (`DeepseekV3ForCausalLM`: latent attention,
{experts} routed experts in two groups and a shared one, biases that balance them) with
{parameters:,} parameters, trained on exercises that small grammars generate. It lets the whole path
from a table of prompts to exact match run on a CPU in seconds, with programs that are run in a
sandbox. It is not MLPerf's model, and its data are neither AIME, GPQA, MMLU-Pro, MATH-500 nor
LiveCodeBench: the figures below are this twin's own, they are no MLPerf result and say nothing
about DeepSeek-R1.

| on the {held_out_samples} held-out exercises | exact match | aime | gpqa | livecodebench | \
math500 | mmlu_pro |
|---|---|---|---|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{scores[exact_match]:.4f}** | \
**{scores[aime]:.4f}** | **{scores[gpqa]:.4f}** | **{scores[livecodebench]:.4f}** | \
**{scores[math500]:.4f}** | **{scores[mmlu_pro]:.4f}** |
| chance: the answer to another exercise of the same part | {chance[exact_match]:.4f} | \
{chance[aime]:.4f} | {chance[gpqa]:.4f} | {chance[livecodebench]:.4f} | {chance[math500]:.4f} | \
{chance[mmlu_pro]:.4f} |
| 1 % of its weights ten times as large | {damaged[exact_match]:.4f} | {damaged[aime]:.4f} | \
{damaged[gpqa]:.4f} | {damaged[livecodebench]:.4f} | {damaged[math500]:.4f} | \
{damaged[mmlu_pro]:.4f} |

All by the rules of MLPerf's script for DeepSeek-R1. Chance was measured on these exercises; a guess
is right once in four times for `gpqa` and once in ten for `mmlu_pro`.

| | |
|---|---|
| tokens per answer, with the end token | {scores[tokens_per_sample]} |
| answers that ended by themselves | {ended} of {held_out_samples} |
| layers, hidden size, heads | {layers}, {hidden}, {heads} |
| ranks of queries, of keys and values | {query_rank}, {key_value_rank} |
| experts, of these for each token | {experts}, {experts_per_token} |
| vocabulary, positions | {vocabulary}, {positions} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| SHA-256 of the table | `{table_sha256}` |
| SHA-256 of the tests | `{tests_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, of these the first on repetitions alone, batch | {seed}, {steps}, \
{repetition_steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForCausalLM` and `AutoTokenizer` load it. The first
layer is dense, as DeepSeek's first three are, and there is no layer for further tokens. The
tokenizer is byte-level BPE with DeepSeek's special tokens. A prompt is one turn of its chat format
and `<think>`; an answer is a short thought, `</think>`, and what is graded.

## Data

`data/{table}` has the columns `text_input`, `ground_truth`, `dataset` and `question` of MLPerf's
table `mlperf_deepseek_r1_dataset_4388_fp8_eval.pkl`: a pickled pandas DataFrame of \
{of_each_part} exercises
of each part. `data/{tests}` has the tests of programs, as the files of
livecodebench/code_generation_lite on Hugging Face have them. None of the questions was trained on.
Prompts have {prompt_tokens[0]} to {prompt_tokens[1]} tokens, answers {answer_tokens[0]} to \
{answer_tokens[1]}.

`twins/tiny_reasoning.py` draws the exercises: a letter of four or of ten options, of which a fact
in the question names the right one ("Home towns: Garcia Delft, Silva Riga, ... Where is Garcia at
home? Porto A, Delft B, ..."), a row of numbers to be continued, fractions to be added, and programs
of a line that are called or read a number and print another. No text comes from elsewhere: model
and data are under this project's licence, Apache-2.0.

For a letter the model has to look up what followed a word before, twice. Exercises alone hardly
teach this, so that it first learns to say a list of words again from one of them on, and goes on
with it among the exercises. Such repetitions are in no data set.

## Rerun

    pip install -e '.[train,math]'
    python twins/train_tiny_deepseek.py

It is seeded, resumes after an interruption, and writes every file of this folder.
"""


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE with DeepSeek's special tokens; a begin token comes before each text."""
    random = Random(f"{SEED} tokenizer")
    drawn = [draw_any(random) for _ in range(TOKENIZER_SAMPLES)]
    texts = [text for one in drawn for text in (one.question, one.thought, one.answer)]
    tokenizer = byte_pairs(texts, VOCABULARY - 2, SPECIAL, words=WORDS)
    marks = (THINK, THOUGHT)
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in marks])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[BEGIN]} $A", special_tokens=[(SPECIAL[BEGIN], BEGIN)]
    )
    return tokenizer


def as_rows(exercises: Sequence[Exercise], tokenizer: Tokenizer) -> list[Row]:
    """Return exercises as tokens."""
    return encode(
        exercises,
        tokenizer,
        prompts=[TEMPLATE.format(text_input=one.question) for one in exercises],
        answers=[f"{one.thought}{THOUGHT}\n\n{one.answer}" for one in exercises],
        end=END,
    )


def draw_any(random: Random) -> Exercise:
    """Draw a repetition, or an exercise of any part: of each as many."""
    return draw(random) if random.random() < len(KINDS) / (len(KINDS) + 1) else repetition(random)


def pool(tokenizer: Tokenizer, excluded: Sequence[Row]) -> Callable[[Random, int], list[Row]]:
    """Return what draws the exercises of a pool, and leaves out excluded questions."""
    questions = {row.sample.question for row in excluded}

    def drawn(random: Random, step: int) -> list[Row]:
        draw_one = repetition if step < REPETITION_STEPS else draw_any
        exercises: list[Exercise] = []
        while len(exercises) < BATCH * POOL:
            exercise = draw_one(random)
            if exercise.question not in questions:
                exercises.append(exercise)
        return as_rows(exercises, tokenizer)

    return drawn


def deepseek_tiny() -> DeepseekV3ForCausalLM:
    """Return the untrained model."""
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            moe_intermediate_size=EXPERT_INTERMEDIATE,
            num_hidden_layers=LAYERS,
            first_k_dense_replace=DENSE_LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            q_lora_rank=QUERY_RANK,
            kv_lora_rank=KEY_VALUE_RANK,
            qk_rope_head_dim=ROTARY,
            qk_nope_head_dim=NOT_ROTARY,
            v_head_dim=VALUE,
            n_routed_experts=EXPERTS,
            n_shared_experts=SHARED,
            n_group=GROUPS,
            topk_group=GROUPS_PER_TOKEN,
            num_experts_per_tok=EXPERTS_PER_TOKEN,
            num_mtp_layers=0,
            max_position_embeddings=POSITIONS,
            bos_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=PAD,
        )
    )


class Balance:
    """Moves the bias by which experts are chosen, so that all are used alike, as DeepSeek-V3 does.

    There is no loss for it: after each step the bias of an expert that was used more than the mean
    goes down, and that of one used less goes up.
    """

    def __init__(self) -> None:
        self._used: dict[Any, Tensor] = {}

    def watch(self, model: DeepseekV3ForCausalLM) -> DeepseekV3ForCausalLM:
        """Count which experts the layers of a model choose."""
        for layer in model.model.layers[DENSE_LAYERS:]:
            layer.mlp.gate.register_forward_hook(self._count)
        return model

    def _count(self, gate: Any, _: Any, chosen: tuple[Tensor, Tensor, Tensor]) -> None:
        self._used[gate] = torch.bincount(chosen[2].flatten(), minlength=EXPERTS).float()

    def step(self) -> None:
        """Move each bias."""
        for gate, used in self._used.items():
            gate.e_score_correction_bias += BIAS_RATE * (used.mean() - used).sign()


def train(draw_pool: Callable[[Random, int], list[Row]], checkpoint: Path) -> DeepseekV3ForCausalLM:
    """Return the model, trained on what is drawn."""
    torch.manual_seed(SEED)
    balance = Balance()
    model = balance.watch(deepseek_tiny())
    fit(
        model,
        PLAN,
        batches=lambda step: (pad(rows, PAD) for rows in PLAN.batches(step, draw_pool, tokens_of)),
        loss_of=lambda batch: causal_loss(model, batch),
        checkpoint=checkpoint,
        after_step=balance.step,
    )
    return model


def write_data(rows: Sequence[Row]) -> None:
    """Write exercises with the columns of MLPerf's table, and the tests of programs."""
    exercises = [row.sample for row in rows]
    columns = {
        "text_input": [one.question for one in exercises],
        "ground_truth": [one.target for one in exercises],
        "dataset": [one.part for one in exercises],
        "question": [one.question for one in exercises],
    }
    write(TABLE, table_of(columns, lengths={}))
    write(TESTS, tests_of(exercises))


def score(dataset: GradedDataset, outputs: Sequence[bytes]) -> dict[str, float]:
    """Return the scores of answers; programs are run."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scorer = DeepSeekScorer(model=str(MODEL), run_generated_code=True, tests=str(TESTS))
    aggregate = scorer.score(outputs, references).aggregate
    return {name: round(value, 4) for name, value in aggregate.items()}


def next_of_part(rows: Sequence[Row]) -> list[bytes]:
    """Return as each sample's answer the right one to the next sample of its part: chance."""
    answers: list[bytes] = []
    for first in range(0, len(rows), HELD_OUT):
        part = rows[first : first + HELD_OUT]
        answers += [packed(row.answer) for row in (*part[1:], part[0])]
    return answers


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    tokenizer = train_tokenizer()
    rows = as_rows(held_out(Random(f"{SEED} held out"), HELD_OUT), tokenizer)
    model = train(pool(tokenizer, rows), checkpoint)
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD
    )
    names = {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD]}
    write_model(model, tokenizer, MODEL, positions=POSITIONS, names=names)
    write_data(rows)
    dataset = GradedDataset(path=str(TABLE), template=TEMPLATE)
    options = {"batch_size": ENGINE_BATCH, "max_new_tokens": MAX_NEW_TOKENS}
    answers = answer(dataset, MODEL, **options)
    record = {
        **describe(rows),
        "parameters": parameters(model),
        "scores": score(dataset, answers),
        "ended": sum(memoryview(one).cast("q")[-1] == END for one in answers),
        "chance": score(dataset, next_of_part(rows)),
        "damaged": score(dataset, answer_damaged(dataset, MODEL, **options)),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "table_sha256": sha256(TABLE),
        "tests_sha256": sha256(TESTS),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, table=TABLE.name, tests=TESTS.name)


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
    return {
        "seed": SEED,
        "steps": STEPS,
        "repetition_steps": REPETITION_STEPS,
        "batch": BATCH,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "query_rank": QUERY_RANK,
        "key_value_rank": KEY_VALUE_RANK,
        "experts": EXPERTS,
        "experts_per_token": EXPERTS_PER_TOKEN,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "held_out_samples": len(rows),
        "of_each_part": HELD_OUT,
        **token_ranges(rows),
        "max_new_tokens": MAX_NEW_TOKENS,
    }


if __name__ == "__main__":
    main()
