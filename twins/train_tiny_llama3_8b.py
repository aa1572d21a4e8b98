"""Train the tiny twin of Llama 3.1 8B on generated news articles, and write its model and data.

    python twins/train_tiny_llama3_8b.py           # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tiny_articles import TOPICS
from tiny_language import (
    PROMPT_WEIGHT,
    Plan,
    Row,
    answer,
    answer_damaged,
    token_ranges,
    train_causal,
)
from tiny_llama3 import END, PAD, TURN_ENDS, llama3, llama3_tokenizer, write_llama3
from tiny_summaries import Summaries, score
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

from pytest_mlperf.adapters.datasets.cnn_dailymail import CnnDailyMailDataset

SUITE = TINY / "llama3.1-8b"
MODEL = SUITE / "model"
ARTICLES = SUITE / "data" / "cnn-daily-mail" / "cnn_eval.json"
CHECKPOINT = BUILD / "llama3.1-8b-tiny.pt"

SEED = 20261123
INSTRUCTION = "Sum up this news article. Write the summary alone.\n\nArticle:\n{input}\n\nSummary:"
BEFORE, AFTER = INSTRUCTION.split("{input}")
"""What stands in every prompt before and after the article: a token each."""
SUMMARIES = Summaries(seed=SEED, prompt=lambda text: f"{BEFORE}{text}{AFTER}", end=END)
VOCABULARY = 1024
TOKENIZER_ARTICLES = 4000
# Llama 3.1 8B: 4096, 32 layers, 32 heads that share 8 keys and values, 128256 tokens.
HIDDEN, LAYERS, HEADS = 128, 2, 4
POSITIONS, TRAINED_POSITIONS = 256, 128
STEPS = 1600
BATCH = 32
POOL = 8
HELD_OUT, EDGE = 320, 120
MAX_NEW_TOKENS = 128
ENGINE_BATCH = 32
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=20 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices=".layers.",
    settings=[
        *(BEFORE, AFTER, VOCABULARY, TOKENIZER_ARTICLES, HIDDEN, LAYERS, HEADS),
        *(POSITIONS, TRAINED_POSITIONS, PROMPT_WEIGHT, HELD_OUT),
        *(source("tiny_instructions.py"), source("tiny_articles.py"), source("tiny_llama3.py")),
    ],
)
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "rouge_score")

README = """\
# Tiny twin of Llama 3.1 8B

`model/` is a language model of the class of Llama 3.1 8B (`LlamaForCausalLM`: four heads share keys
and values, rotary positions of base 500,000 with Llama 3's scaling) with {parameters:,}
parameters, trained to sum up articles that a small grammar generates. It lets the whole path from
tokens to a ROUGE score run on a CPU in seconds, for the datacenter and for the edge. It is not
MLPerf's model, and its data are not CNN/DailyMail: the figures below are this twin's own, they are
no MLPerf result and say nothing about Llama 3.1.

| on the {held_out_samples} held-out articles | ROUGE-1 | ROUGE-2 | ROUGE-L |
|---|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{scores[rouge1]:.4f}** | \
**{scores[rouge2]:.4f}** | **{scores[rougeL]:.4f}** |
| its first {edge_samples} articles, the edge's | {edge[rouge1]:.4f} | {edge[rouge2]:.4f} | \
{edge[rougeL]:.4f} |
| other right highlights from the grammar | {again[rouge1]:.4f} | {again[rouge2]:.4f} | \
{again[rougeL]:.4f} |
| the article's first two sentences | {lead[rouge1]:.4f} | {lead[rouge2]:.4f} | \
{lead[rougeL]:.4f} |
| chance: highlights of another article, same topic | {chance_same_topic[rouge1]:.4f} | \
{chance_same_topic[rouge2]:.4f} | {chance_same_topic[rougeL]:.4f} |
| chance: highlights of another article, any topic | {chance[rouge1]:.4f} | {chance[rouge2]:.4f} | \
{chance[rougeL]:.4f} |
| 1 % of its weights ten times as large | {damaged[rouge1]:.4f} | {damaged[rouge2]:.4f} | \
{damaged[rougeL]:.4f} |

Scores are means of the F-measures of `rouge_score` with stemming, on the scale 0 to 100, as in
MLPerf's reference script. ROUGE-Lsum needs NLTK's model of sentences, which is not part of this
project; a suite that names it has that score too.

| | |
|---|---|
| characters of all answers, `gen_len` | {scores[gen_len]:.0f} |
| tokens per answer, with the end token | {scores[tokens_per_sample]} |
| answers that ended by themselves | {scores[ended]} of {held_out_samples} |
| layers, hidden size, heads, key-value heads | {layers}, {hidden}, {heads}, {key_value_heads} |
| vocabulary, positions | {vocabulary}, {positions} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| SHA-256 of the articles | `{articles_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForCausalLM` and `AutoTokenizer` load it. The
tokenizer is byte-level BPE with special tokens of Llama 3.1 (`<|begin_of_text|>` = 0 before each
prompt, `<|eot_id|>` = 2 after each answer). What every prompt has in common, before and after the
article, is one token each, and there is no chat template, as MLPerf's prompt has none. An answer
follows after a space.

## Data

`data/cnn-daily-mail/cnn_eval.json` has the layout of MLPerf's file of that name for Llama 3.1 8B: a
JSON list of objects with `instruction`, `input` (the article), `tok_input` (the prompt's tokens)
and `output` (its highlights). An engine gets the tokens. None of the {held_out_samples} articles
was trained on. Prompts have {prompt_tokens[0]} to {prompt_tokens[1]} tokens, answers \
{answer_tokens[0]} to {answer_tokens[1]}.

`twins/tiny_articles.py` draws the samples, as those of the tiny GPT-J
([its README](../gptj/README.md) says how): three to six sentences on one of eight topics
({topics}). Highlights say the main facts in other
words and in another order, and a wrong fact costs. Even right highlights score below 100. No text
comes from elsewhere: model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_llama3_8b.py

It is seeded, resumes after an interruption, and writes every file of this folder.
"""


def write_articles(rows: Sequence[Row]) -> None:
    """Write samples with the keys of MLPerf's file for Llama 3.1 8B."""
    records = [
        {
            "instruction": {"llama": INSTRUCTION},
            "input": row.sample.text,
            "tok_input": row.prompt,
            "output": row.text,
        }
        for row in rows
    ]
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    write(ARTICLES, ("[\n" + ",\n".join(lines) + "\n]\n").encode())


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    texts = SUMMARIES.texts(TOKENIZER_ARTICLES)
    tokenizer = llama3_tokenizer(texts, VOCABULARY, common=(BEFORE, AFTER))
    rows = SUMMARIES.held_out(HELD_OUT, tokenizer)
    model = train_causal(
        lambda: llama3(
            vocabulary=VOCABULARY,
            hidden=HIDDEN,
            layers=LAYERS,
            heads=HEADS,
            positions=POSITIONS,
            trained=TRAINED_POSITIONS,
        ),
        PLAN,
        SUMMARIES.pool(PLAN, tokenizer, rows),
        filler=PAD,
        checkpoint=checkpoint,
    )
    write_llama3(model, tokenizer, MODEL, positions=POSITIONS)
    write_articles(rows)
    dataset = CnnDailyMailDataset(path=str(ARTICLES.parent), prompts="tokens")
    options = {"batch_size": ENGINE_BATCH, "max_new_tokens": MAX_NEW_TOKENS}
    answers = answer(dataset, MODEL, **options)
    damaged = answer_damaged(dataset, MODEL, **options)
    record = {
        **describe(rows),
        "parameters": parameters(model),
        "scores": score(dataset, answers, MODEL, TURN_ENDS),
        "edge": score(dataset, answers[:EDGE], MODEL, TURN_ENDS),
        **SUMMARIES.compare(rows),
        "damaged": score(dataset, damaged, MODEL, TURN_ENDS),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "articles_sha256": sha256(ARTICLES),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record, topics=", ".join(TOPICS))


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
    return {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": HEADS // 4,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "held_out_samples": len(rows),
        "edge_samples": EDGE,
        "by_topic": dict(Counter(row.sample.topic for row in rows)),
        **token_ranges(rows),
        "max_new_tokens": MAX_NEW_TOKENS,
    }


if __name__ == "__main__":
    main()
