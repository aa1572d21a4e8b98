"""Train the tiny twin of Llama 3.1 405B to find notes in long prompts; write model and data.

    python twins/train_tiny_llama3_405b.py         # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

import torch
from tiny_language import (
    LIBRARIES,
    Batch,
    Plan,
    Row,
    answer,
    answer_damaged,
    causal_loss,
    fit,
    packed,
    table_of,
    token_ranges,
)
from tiny_llama3 import (
    BEGIN,
    END,
    HEADER,
    HEADER_END,
    PAD,
    llama3,
    llama3_tokenizer,
    write_llama3,
)
from tiny_notes import HEX, PEOPLE, QUESTIONS, Note, context, notes, question
from tokenizers import Tokenizer
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
from transformers import PreTrainedTokenizerFast

from pytest_mlperf.adapters.datasets.graded import GradedDataset
from pytest_mlperf.adapters.scorers.long_context import UUID, LongContextScorer


class Stage(NamedTuple):
    """A part of the training.

    Attributes:
        steps: Batches.
        notes: The fewest and the most of a prompt.
        idle: The fewest and the most idle sentences of it.
    """

    steps: int
    notes: tuple[int, int]
    idle: tuple[int, int]


SUITE = TINY / "llama3.1-405b"
MODEL = SUITE / "model"
TABLE = SUITE / "data" / "llama3.1_405b_tiny.pkl"
CHECKPOINT = BUILD / "llama3.1-405b-tiny.pt"

SEED = 20261124
COMMON = (
    *(f"{name}:" for name in PEOPLE),
    *(f"{before}{piece}" for piece in HEX for before in (" ", "", "-")),
)
"""A token each: names that begin a note, and four digits of a UUID."""
VOCABULARY = 1216
"""With a token for each word: letters, which stand everywhere, would hide what follows what."""
TOKENIZER_PROMPTS = 1000
# Llama 3.1 405B: 16384, 126 layers, 128 heads that share 8 keys and values, 128256 tokens.
HIDDEN, LAYERS, HEADS = 128, 2, 4
POSITIONS, TRAINED_POSITIONS = 768, 128
BATCH = 16
POOL = 8
STAGES = (
    Stage(steps=160, notes=(1, 2), idle=(0, 1)),
    Stage(steps=240, notes=(2, 4), idle=(0, 2)),
    Stage(steps=240, notes=(4, 8), idle=(0, 6)),
    Stage(steps=80, notes=(4, 8), idle=(8, 24)),
    Stage(steps=80, notes=(4, 8), idle=(24, 48)),
)
"""To look a note up is learnt where there are few, and kept as there is more around them."""
HELD_OUT, HELD_OUT_IDLE = 192, (28, 48)
MAX_NEW_TOKENS = 40
ENGINE_BATCH = 16
PLAN = Plan(
    seed=SEED,
    steps=sum(stage.steps for stage in STAGES),
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=5 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=40,
    matrices=".layers.",
    settings=[
        *(VOCABULARY, TOKENIZER_PROMPTS, HIDDEN, LAYERS, HEADS, POSITIONS, TRAINED_POSITIONS),
        *(repr(STAGES), repr(HELD_OUT_IDLE), HELD_OUT, "tied"),
        *(source("tiny_notes.py"), source("tiny_llama3.py")),
    ],
)

README = """\
# Tiny twin of Llama 3.1 405B

`model/` is a language model of the class of Llama 3.1 405B (`LlamaForCausalLM`: four heads share
keys and values, rotary positions of base 500,000 with Llama 3's scaling) with {parameters:,}
parameters, trained to find a note in a long prompt. It lets the whole path from a table of tokens
to needles, answers and ROUGE-L run on a CPU in seconds. It is not MLPerf's model, and its data are
neither LongBench, LongDataCollections, RULER nor GovReport: the figures below are this twin's own,
they are no MLPerf result and say nothing about Llama 3.1.

| on the {held_out_samples} held-out prompts | rougeL | exact_match | UUIDs right to the letter |
|---|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{scores[rougeL]:.4f}** | \
**{scores[exact_match]:.4f}** | **{scores[uuids]:.4f}** |
| chance: the answer to another prompt of the same kind | {chance[rougeL]:.4f} | \
{chance[exact_match]:.4f} | {chance[uuids]:.4f} |
| 1 % of its weights ten times as large | {damaged[rougeL]:.4f} | {damaged[exact_match]:.4f} | \
{damaged[uuids]:.4f} |

rougeL and exact_match are those of MLPerf's script. That gives most wrong UUIDs nearly 100, as it
looks for single characters, hence the last column and what chance reaches.

| | |
|---|---|
| tokens per answer, with the end token | {scores[tokens_per_sample]} |
| answers that ended by themselves | {ended} of {held_out_samples} |
| layers, hidden size, heads, key-value heads | {layers}, {hidden}, {heads}, {key_value_heads} |
| vocabulary, positions | {vocabulary}, {positions} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| SHA-256 of the table | `{table_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForCausalLM` and `AutoTokenizer` load it. The
tokenizer is byte-level BPE with special tokens of Llama 3.1; a prompt is a user's turn of its chat
format, and an answer ends with `<|eot_id|>`. A name with its colon is a token, and so are four
digits of a UUID, of which there are 128. In training what the model says was tied to what it reads;
the file has both, as Llama 3.1 has.

It was trained on prompts that ask for all of their notes in turn, with the loss of the answers
alone: first few notes with hardly anything else, then more, then long prompts.

## Data

`data/{table}` has the seven columns of MLPerf's table
`mlperf_llama3.1_405b_dataset_8313_processed_fp16_eval.pkl`: a pickled pandas DataFrame, \
{of_each_kind} samples of each metric. A prompt has {notes} notes among {idle[0]} to {idle[1]} idle
sentences, {prompt_tokens[0]} to {prompt_tokens[1]} tokens in all; MLPerf's have 9,428 on average.
Answers have {answer_tokens[0]} to {answer_tokens[1]} tokens.

`twins/tiny_notes.py` draws the notes: a UUID to be found (`niah_em`), things of a town (`qa_em`),
or a sentence to be said again (`rouge`), each after a name that the question repeats. No text comes
from elsewhere: model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_llama3_405b.py

It is seeded, resumes after an interruption, and writes every file of this folder.
"""


class Talk405(NamedTuple):
    """A prompt that asks for all of its notes, one after the other, with the answers.

    Attributes:
        tokens: Of all of it.
        weights: 1 where an answer is, else 0.
    """

    tokens: list[int]
    weights: list[float]


def spelled(random: Random) -> str:
    """Draw a text with all that prompts consist of, for the tokenizer."""
    lines = notes(random, 6)
    asked = " ".join(map(question, lines))
    return f"user {context(random, lines, 4)} {asked} user assistant\nuser\nassistant"


def turn(tokenizer: Tokenizer, before: str, note: Note) -> tuple[list[int], list[int]]:
    """Return a user's turn up to where the assistant answers, and the answer with its end."""
    user, assistant, asked, line = (
        one.ids
        for one in tokenizer.encode_batch(
            ["user", "assistant", f"{before}{question(note)}", note.line], add_special_tokens=False
        )
    )
    prompt = [HEADER, *user, HEADER_END, *asked, END, HEADER, *assistant, HEADER_END]
    return prompt, [*line, END]


def talk(random: Random, tokenizer: Tokenizer, stage: Stage) -> Talk405:
    """Draw a prompt and ask for its notes in an order that is drawn."""
    lines = notes(random, random.randint(*stage.notes))
    text = context(random, lines, random.randint(*stage.idle))
    tokens, weights = [BEGIN], [0.0]
    for note in random.sample(lines, len(lines)):
        prompt, told = turn(tokenizer, text, note)
        tokens += prompt + told
        weights += [0.0] * len(prompt) + [1.0] * len(told)
        text = ""
    return Talk405(tokens, weights)


def stage_at(step: int) -> Stage:
    """Return the stage that a step belongs to."""
    ends = accumulate(stage.steps for stage in STAGES)
    return next(stage for end, stage in zip(ends, STAGES, strict=True) if step < end)


def padded(talks: Sequence[Talk405]) -> Batch:
    """Return talks of equal length; the filler at the right is neither seen nor counted."""
    longest = max(len(one.tokens) for one in talks)
    return Batch(
        torch.tensor([one.tokens + [PAD] * (longest - len(one.tokens)) for one in talks]),
        torch.tensor([one.weights + [0.0] * (longest - len(one.tokens)) for one in talks]),
    )


def batches(tokenizer: Tokenizer, first_step: int) -> Iterator[Batch]:
    """Yield what is trained on from a step on."""
    drawn = PLAN.batches(
        first_step,
        lambda random, step: [talk(random, tokenizer, stage_at(step)) for _ in range(BATCH * POOL)],
        lambda one: len(one.tokens),
    )
    return map(padded, drawn)


def untrained() -> Any:
    """Return the model as it is before.

    What it says is trained as what it reads: then copying is there to be found. The model that is
    written has both, as Llama 3.1 has.
    """
    model = llama3(
        vocabulary=VOCABULARY,
        hidden=HIDDEN,
        layers=LAYERS,
        heads=HEADS,
        positions=POSITIONS,
        trained=TRAINED_POSITIONS,
    )
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def held_out(tokenizer: Tokenizer) -> list[Row]:
    """Return questions for one note each of long prompts, as many of each kind."""
    random, rows = Random(f"{SEED} held out"), []
    for number in range(HELD_OUT):
        lines = notes(random, STAGES[-1].notes[1])
        metric = list(QUESTIONS)[number % len(QUESTIONS)]
        note = next(one for one in lines if one.metric == metric)
        text = context(random, lines, random.randint(*HELD_OUT_IDLE))
        prompt, told = turn(tokenizer, text, note)
        rows.append(Row(note, text + question(note), [BEGIN, *prompt], told))
    return rows


def write_table(rows: Sequence[Row], tokenizer: Tokenizer) -> None:
    """Write samples with the columns of MLPerf's table."""
    sampled = [row.sample for row in rows]
    columns = {
        "input": [tokenizer.decode(row.prompt, skip_special_tokens=False) for row in rows],
        "tok_input": [row.prompt for row in rows],
        "gt_output": [one.target for one in sampled],
        "metric": [one.metric for one in sampled],
        "dataset": ["notes"] * len(rows),
        "ref_output": [one.line for one in sampled],
    }
    write(TABLE, table_of(columns, lengths={"tok_input_len": "tok_input"}))


def score(dataset: GradedDataset, outputs: Sequence[bytes]) -> dict[str, float]:
    """Return the scores of answers, and in per cent the UUIDs that are right to the letter."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scorer = LongContextScorer(model=str(MODEL))
    scores = scorer.score(outputs, references).aggregate
    decoder = PreTrainedTokenizerFast.from_pretrained(MODEL)
    asked = [
        (one["target"], decoder.decode(memoryview(output).cast("q").tolist()))
        for one, output in zip(references, outputs, strict=True)
        if one["metric"] == "niah_em"
    ]
    right = sum(UUID.findall(text) == [target] for target, text in asked)
    return {
        **{name: round(value, 4) for name, value in scores.items()},
        "uuids": round(100 * right / len(asked), 4),
    }


def next_of_kind(rows: Sequence[Row]) -> list[bytes]:
    """Return as each sample's answer the right one to the next sample of its kind: chance."""
    kinds = len(QUESTIONS)
    return [packed(row.answer) for row in (*rows[kinds:], *rows[:kinds])]


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    random = Random(f"{SEED} tokenizer")
    tokenizer = llama3_tokenizer(
        [spelled(random) for _ in range(TOKENIZER_PROMPTS)],
        VOCABULARY,
        common=COMMON,
    )
    rows = held_out(tokenizer)
    torch.manual_seed(SEED)
    model = untrained()
    fit(
        model,
        PLAN,
        batches=lambda step: batches(tokenizer, step),
        loss_of=lambda batch: causal_loss(model, batch),
        checkpoint=checkpoint,
    )
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    write_llama3(model, tokenizer, MODEL, positions=POSITIONS)
    write_table(rows, tokenizer)
    dataset = GradedDataset(path=str(TABLE))
    options = {"batch_size": ENGINE_BATCH, "max_new_tokens": MAX_NEW_TOKENS}
    answers = answer(dataset, MODEL, **options)
    damaged = answer_damaged(dataset, MODEL, **options)
    record = {
        **describe(rows),
        "parameters": parameters(model),
        "scores": score(dataset, answers),
        "ended": sum(memoryview(one).cast("q")[-1] == END for one in answers),
        "chance": score(dataset, next_of_kind(rows)),
        "damaged": score(dataset, damaged),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "table_sha256": sha256(TABLE),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, table=TABLE.name)


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
    return {
        "seed": SEED,
        "steps": PLAN.steps,
        "batch": BATCH,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": HEADS // 4,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "notes": STAGES[-1].notes[1],
        "idle": list(HELD_OUT_IDLE),
        "held_out_samples": len(rows),
        "of_each_kind": len(rows) // len(QUESTIONS),
        **token_ranges(rows),
        "max_new_tokens": MAX_NEW_TOKENS,
    }


if __name__ == "__main__":
    main()
