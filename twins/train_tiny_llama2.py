"""Train the tiny twin of Llama 2 70B on generated instructions, and write its model and data.

    python twins/train_tiny_llama2.py              # train, or resume, then write everything

Everything is seeded and runs on two threads, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from tiny_instructions import Instruction, draw
from tiny_language import (
    BEGIN,
    END,
    LIBRARIES,
    PAD,
    PROMPT_WEIGHT,
    SPECIAL,
    Plan,
    Row,
    encode,
    llama_tokenizer,
    rouge,
    rouge_of_next,
    table_of,
    token_ranges,
    train_causal,
    write_llama,
)
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
from transformers import LlamaConfig, LlamaForCausalLM

from pytest_mlperf.adapters.datasets.openorca import OpenOrcaDataset
from pytest_mlperf.adapters.datasets.windows import WindowsDataset

SUITE = TINY / "llama2-70b"
MODEL = SUITE / "model"
TABLE = SUITE / "data" / "open_orca" / "open_orca_tiny.pkl.gz"
DOCUMENTS = SUITE / "data" / "documents.jsonl"
CHECKPOINT = BUILD / "llama2-70b-tiny.pt"

SEED = 20261121
VOCABULARY = 1024
TOKENIZER_SAMPLES = 4000
# Llama 2 70B: 8192, 28672, 80 layers, 64 heads that share 8 keys and values, untied embeddings.
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS = 128, 384, 4, 4, 2
POSITIONS = 512
STEPS = 3200
BATCH = 32
POOL = 8
HELD_OUT = 512
HELD_OUT_DOCUMENTS = 160
WINDOW, STRIDE = 96, 64
MAX_NEW_TOKENS = 128
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=50 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices=".layers.",
    settings=[
        *(VOCABULARY, TOKENIZER_SAMPLES, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS),
        *(POSITIONS, PROMPT_WEIGHT, HELD_OUT, source("tiny_instructions.py")),
    ],
)

README = """\
# Tiny twin of Llama 2 70B

`model/` is a language model of the class of Llama 2 70B (`LlamaForCausalLM` with grouped-query
attention) with {parameters:,} parameters, trained on instructions that a small grammar generates.
It lets the whole path from prompts to a ROUGE score run on a CPU in seconds. It is not MLPerf's
model, and its data are not OpenOrca: the figures below are this twin's own, they are no MLPerf
result and say nothing about Llama 2.

| on the {held_out_samples} held-out samples | ROUGE-1 | ROUGE-2 | ROUGE-L |
|---|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{rouge1:.4f}** | \
**{rouge2:.4f}** | **{rougeL:.4f}** |
| another right answer from the grammar | {again[rouge1]:.4f} | {again[rouge2]:.4f} | \
{again[rougeL]:.4f} |
| chance: another sample's answer, same task | {chance_same_task[rouge1]:.4f} | \
{chance_same_task[rouge2]:.4f} | {chance_same_task[rougeL]:.4f} |
| chance: another sample's answer, any task | {chance[rouge1]:.4f} | {chance[rouge2]:.4f} | \
{chance[rougeL]:.4f} |

Scores are means of the F-measures of `rouge_score` with stemming, on the scale 0 to 100, as in
MLPerf's reference script.

Perplexity on the {documents} documents, cut into {windows} windows of at most {window} tokens, \
{stride} apart: **{perplexity[perplexity]:.6f}** over {scored_tokens:,} tokens, fp32, natural \
logarithm.

| | |
|---|---|
| tokens per sample, without the end token | {tokens_per_sample:.4f} |
| tokens per sample, with it | {tokens_per_sample_with_end:.4f} |
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
tokenizer is byte-level BPE with `<s>` = 1 and `</s>` = 2 as in Llama 2, and `<pad>` = 3. It puts
`<s>` before a prompt, which reads
`[INST] <<SYS>>\\n{{system_prompt}}\\n<</SYS>>\\n\\n{{question}} [/INST]`; the answer follows after
a space and ends with `</s>`.

## Data

`data/open_orca/{table}` has the columns and types of MLPerf's
`open_orca_gpt4_tokenized_llama.sampled_24576.pkl.gz`: a pandas DataFrame, pickled and compressed.
Its {held_out_samples} samples were not trained on. Prompts have {prompt_tokens[0]} to \
{prompt_tokens[1]} tokens, answers {answer_tokens[0]} to {answer_tokens[1]}.

`data/documents.jsonl` has a dialogue a line, the tokens of a prompt and its answer, for
`suites/tiny/perplexity.mlperf.toml`. Their questions were not trained on either.

`twins/tiny_instructions.py` draws the samples: six tasks (a report to summarise, facts to turn into
a text, an order to confirm, a thing to find in a story, a recipe to explain, two goods to compare).
What an answer says follows from its question; how it says it is drawn from a few phrasings, so even
a right answer scores well below 100. No text comes from elsewhere: model and data are under this
project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_llama2.py

This took 24 minutes on two cores that did other work too, resumes after an interruption, and
writes every file of this folder. It is seeded: a second training, interrupted at step 1200 and
resumed, gave the same bytes with the same libraries on the same kind of CPU.
"""


def prompt(instruction: Instruction) -> str:
    """Return the prompt in the shape that Llama 2's chat models take, without the begin token."""
    return (
        f"[INST] <<SYS>>\n{instruction.system_prompt}\n<</SYS>>\n\n{instruction.question} [/INST]"
    )


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on prompts and answers; a begin token comes before each text."""
    random = Random(f"{SEED} tokenizer")
    texts = []
    for _ in range(TOKENIZER_SAMPLES):
        instruction = draw(random)
        texts += [prompt(instruction), f" {instruction.answer(random)}"]
    return llama_tokenizer(texts, VOCABULARY)


def draw_rows(random: Random, count: int, tokenizer: Tokenizer) -> list[Row]:
    """Draw instructions, each with an answer."""
    instructions = [draw(random) for _ in range(count)]
    return encode(
        instructions,
        tokenizer,
        answers=[f" {instruction.answer(random)}" for instruction in instructions],
        prompts=[prompt(instruction) for instruction in instructions],
        end=END,
    )


def draw_held_out(tokenizer: Tokenizer) -> list[Row]:
    """Draw HELD_OUT samples with different questions."""
    rows = draw_rows(Random(f"{SEED} held out"), 2 * HELD_OUT, tokenizer)
    return list({row.sample.question: row for row in rows}.values())[:HELD_OUT]


def draw_pool(random: Random, tokenizer: Tokenizer, excluded: set[str]) -> list[Row]:
    """Draw samples for POOL batches; leave out those with an excluded question."""
    drawn = draw_rows(random, BATCH * POOL + 32, tokenizer)
    return [row for row in drawn if row.sample.question not in excluded][: BATCH * POOL]


def llama2_tiny() -> LlamaForCausalLM:
    """Return the untrained model."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_VALUE_HEADS,
            max_position_embeddings=POSITIONS,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=PAD,
        )
    )


def write_table(rows: Sequence[Row], tokenizer: Tokenizer) -> None:
    """Write the samples with the columns and types of MLPerf's table."""
    samples = [row.sample for row in rows]
    columns = {
        "id": [f"{sample.task}.{index}" for index, sample in enumerate(samples)],
        "system_prompt": [sample.system_prompt for sample in samples],
        "question": [sample.question for sample in samples],
        "output": [row.text for row in rows],
        "input": [f"{SPECIAL[BEGIN]}{prompt(sample)}" for sample in samples],
        "tok_input": [row.prompt for row in rows],
        "tok_output": [each.ids for each in tokenizer.encode_batch([row.text for row in rows])],
        "origin": [sample.task for sample in samples],
    }
    lengths = {"tok_input_length": "tok_input", "tok_output_length": "tok_output"}
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write(table_of(columns, lengths))
    write(TABLE, packed.getvalue())


def write_documents(tokenizer: Tokenizer, excluded: set[str]) -> None:
    """Write dialogues as tokens, of questions that are not excluded."""
    random = Random(f"{SEED} documents")
    lines: list[str] = []
    while len(lines) < HELD_OUT_DOCUMENTS:
        drawn = draw(random)
        text = f"{prompt(drawn)} {drawn.answer(random)}"
        if drawn.question not in excluded:
            lines.append(json.dumps({"tokens": tokenizer.encode(text).ids}) + "\n")
    write(DOCUMENTS, "".join(lines).encode())


def measure_perplexity(model: LlamaForCausalLM) -> dict[str, Any]:
    """Return the perplexity of the documents, a window at a time and without an engine."""
    dataset = WindowsDataset(path=str(DOCUMENTS), length=WINDOW, stride=STRIDE)
    total, scored = 0.0, 0
    for index in range(len(dataset)):
        reference = dataset.reference(index)
        tokens = torch.tensor([reference["tokens"]])
        with torch.inference_mode():
            logprobs = model(tokens).logits[0, :-1].double().log_softmax(-1)
        own = logprobs.gather(1, tokens[0, 1:, None])[-reference["scored"] :]
        total, scored = total - float(own.sum()), scored + len(own)
    return {
        "documents": HELD_OUT_DOCUMENTS,
        "windows": len(dataset),
        "window": WINDOW,
        "stride": STRIDE,
        "scored_tokens": scored,
        "perplexity": {"perplexity": round(math.exp(total / scored), 6)},
    }


def generate(model: LlamaForCausalLM, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Decode greedily, BATCH prompts at a time; return the new tokens up to the end token."""
    answers = []
    for start in range(0, len(prompts), BATCH):
        rows = prompts[start : start + BATCH]
        longest = max(len(row) for row in rows)
        tokens = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
        with torch.inference_mode():
            longer = model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD).long(),
                max_new_tokens=MAX_NEW_TOKENS,
            )
        for row in longer[:, longest:].tolist():
            answers.append(row[: row.index(END) + 1] if END in row else row)
    return answers


def compare(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Score what needs no model: answers of other samples, and other answers of the grammar."""
    random = Random(f"{SEED} comparison")
    order = random.sample(rows, len(rows))
    tasks = {row.sample.task for row in rows}
    return {
        "chance": rouge_of_next([[row.text for row in order]]),
        "chance_same_task": rouge_of_next(
            [[row.text for row in order if row.sample.task == task] for task in tasks]
        ),
        "again": rouge([row.text for row in rows], [row.sample.answer(random) for row in rows]),
    }


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT, threads=2)
    tokenizer = train_tokenizer()
    rows = draw_held_out(tokenizer)
    held_out = {row.sample.question for row in rows}
    model = train_causal(
        llama2_tiny,
        PLAN,
        lambda random: draw_pool(random, tokenizer, held_out),
        filler=PAD,
        checkpoint=checkpoint,
    )
    write_llama(model, tokenizer, MODEL)
    write_table(rows, tokenizer)
    write_documents(tokenizer, held_out)
    answers = generate(model, [row.prompt for row in rows])
    record = {
        **describe(model, rows),
        **score(rows, answers, tokenizer),
        **compare(rows),
        **measure_perplexity(model),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "table_sha256": sha256(TABLE),
        "dataset_digest": OpenOrcaDataset(path=str(TABLE)).digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, table=TABLE.name)


def score(
    rows: Sequence[Row], answers: Sequence[list[int]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the scores of the model's answers, which are tokens up to an end token, if any."""
    texts = [text.strip() for text in tokenizer.decode_batch(answers)]
    ended = sum(tokens[-1] == END for tokens in answers)
    total = sum(len(tokens) for tokens in answers)
    return {
        **rouge([row.text for row in rows], texts),
        "tokens_per_sample": (total - ended) / len(answers),
        "tokens_per_sample_with_end": total / len(answers),
        "ended": ended,
    }


def describe(model: LlamaForCausalLM, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
    return {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "parameters": parameters(model),
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": KEY_VALUE_HEADS,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "held_out_samples": len(rows),
        **token_ranges(rows),
        "max_new_tokens": MAX_NEW_TOKENS,
    }


if __name__ == "__main__":
    main()
