"""Train the tiny twin of GPT-J 6B on generated news articles, and write its model and data.

    python twins/train_tiny_gptj.py                # train, or resume, then write everything

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
    byte_pairs,
    token_ranges,
    train_causal,
    write_model,
)
from tiny_summaries import Summaries, score
from tokenizers import AddedToken, Tokenizer
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
from transformers import GenerationConfig, GPTJConfig, GPTJForCausalLM

from pytest_mlperf.adapters.datasets.cnn_dailymail import ALPACA, CnnDailyMailDataset

SUITE = TINY / "gptj"
MODEL = SUITE / "model"
ARTICLES = SUITE / "data" / "cnn-daily-mail" / "cnn_eval.json"
CHECKPOINT = BUILD / "gptj-tiny.pt"

SEED = 20261121
INSTRUCTION = "Summarize the following news article:"
BEFORE, AFTER = ALPACA.replace("{instruction}", INSTRUCTION).split("{input}")
"""What stands in every prompt before and after the article: a token each."""
END_TEXT, END = "<|endoftext|>", 0
SUMMARIES = Summaries(seed=SEED, prompt=lambda text: f"{BEFORE}{text}{AFTER}", end=END)
VOCABULARY = 1152
TOKENIZER_ARTICLES = 4000
# GPT-J 6B: 4096, 28 layers, 16 heads of which a quarter is rotated, 2048 positions, 50400 tokens.
HIDDEN, LAYERS, HEADS, ROTARY = 160, 2, 4, 16
POSITIONS = 256
STEPS = 960
BATCH = 32
POOL = 8
HELD_OUT = 160
NUM_BEAMS = 4
MIN_NEW_TOKENS, MAX_NEW_TOKENS = 15, 40
ENGINE_BATCH = 16
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=20 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices=".h.",
    settings=[
        *(BEFORE, AFTER, VOCABULARY, TOKENIZER_ARTICLES, HIDDEN, LAYERS, HEADS, ROTARY),
        *(POSITIONS, PROMPT_WEIGHT, HELD_OUT),
        *(source("tiny_instructions.py"), source("tiny_articles.py")),
    ],
)
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "rouge_score")

README = """\
# Tiny twin of GPT-J 6B

`model/` is a language model of the class of GPT-J 6B (`GPTJForCausalLM`: rotary positions on a part
of each head, attention and feed-forward side by side, an output layer of its own) with \
{parameters:,}
parameters, trained to sum up articles that a small grammar generates. It lets the whole path from
articles through a beam search to a ROUGE score run on a CPU in seconds. It is not MLPerf's model,
and its data are not CNN/DailyMail: the figures below are this twin's own, they are no MLPerf result
and say nothing about GPT-J.

| on the {held_out_samples} held-out articles | ROUGE-1 | ROUGE-2 | ROUGE-L |
|---|---|---|---|
| **{num_beams} beams**, fp32, {min_new_tokens} to {max_new_tokens} new tokens | \
**{scores[rouge1]:.4f}** | **{scores[rouge2]:.4f}** | **{scores[rougeL]:.4f}** |
| the same, greedy | {greedy[rouge1]:.4f} | {greedy[rouge2]:.4f} | {greedy[rougeL]:.4f} |
| other right highlights from the grammar | {again[rouge1]:.4f} | {again[rouge2]:.4f} | \
{again[rougeL]:.4f} |
| the article's first two sentences | {lead[rouge1]:.4f} | {lead[rouge2]:.4f} | \
{lead[rougeL]:.4f} |
| chance: highlights of another article, same topic | {chance_same_topic[rouge1]:.4f} | \
{chance_same_topic[rouge2]:.4f} | {chance_same_topic[rougeL]:.4f} |
| chance: highlights of another article, any topic | {chance[rouge1]:.4f} | {chance[rouge2]:.4f} | \
{chance[rougeL]:.4f} |

Scores are means of the F-measures of `rouge_score` with stemming, on the scale 0 to 100, as in
MLPerf's reference script.

| | |
|---|---|
| characters of all answers, `gen_len` | {scores[gen_len]:.0f} |
| tokens per answer, with the end token | {scores[tokens_per_sample]} |
| answers that ended by themselves | {scores[ended]} of {held_out_samples} |
| answers that one beam gives, too | {same_with_one_beam} of {held_out_samples} |
| layers, hidden size, heads, rotated of each head | {layers}, {hidden}, {heads}, {rotary} |
| vocabulary, positions | {vocabulary}, {positions} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| SHA-256 of the articles | `{articles_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForCausalLM` and `AutoTokenizer` load it. In
transformers GPT-J has no SDPA attention, so its engine needs `attention = "eager"`. The tokenizer
is byte-level BPE without a begin token; `<|endoftext|>` = 0 ends an answer, as in GPT-J. What every
prompt has in common, before and after the article, is one token each. An answer follows after a
space.

MLPerf asks GPT-J for 30 to 128 new tokens. Here an answer of the grammar has {answer_tokens[0]} to
{answer_tokens[1]}, so {min_new_tokens} to {max_new_tokens} it is; four beams and early stopping \
are MLPerf's.

## Data

`data/cnn-daily-mail/cnn_eval.json` has the layout of MLPerf's file of that name: a JSON list of
objects with `instruction`, `input` (the article) and `output` (its highlights). None of the
{held_out_samples} articles was trained on. Prompts have {prompt_tokens[0]} to {prompt_tokens[1]} \
tokens.

`twins/tiny_articles.py` draws the samples: three to six sentences on one of eight topics
({topics}), with other towns, names and numbers
beside those that matter. Highlights say the main facts in other words and in another order, and a
wrong fact costs. Of the first highlight's three phrasings two begin alike: their beginning is the
likeliest one, but the other phrasing is the likeliest as a whole. So one beam says the right facts
in less likely words, and four beams can be told from it. Even right highlights score below 100. No
text comes from elsewhere: model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_gptj.py

This took 5 minutes on one core that did other work too, resumes after an interruption, and writes
every file of this folder. It is seeded: a second training, resumed at step 480, gave the same bytes
with the same libraries on the same kind of CPU.
"""


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on articles and highlights."""
    common = [AddedToken(text, special=False, normalized=False) for text in (BEFORE, AFTER)]
    texts = SUMMARIES.texts(TOKENIZER_ARTICLES)
    tokenizer = byte_pairs(texts, VOCABULARY - len(common), [END_TEXT])
    tokenizer.add_tokens(common)
    return tokenizer


def gptj_tiny() -> GPTJForCausalLM:
    """Return the untrained model."""
    return GPTJForCausalLM(
        GPTJConfig(
            vocab_size=VOCABULARY,
            n_positions=POSITIONS,
            n_embd=HIDDEN,
            n_layer=LAYERS,
            n_head=HEADS,
            rotary_dim=ROTARY,
            bos_token_id=END,
            eos_token_id=END,
        )
    )


def write_articles(rows: Sequence[Row]) -> None:
    """Write samples with the keys of MLPerf's file."""
    records = [
        {"instruction": INSTRUCTION, "input": row.sample.text, "output": row.text} for row in rows
    ]
    write(ARTICLES, (json.dumps(records, indent=4, ensure_ascii=False) + "\n").encode())


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    tokenizer = train_tokenizer()
    rows = SUMMARIES.held_out(HELD_OUT, tokenizer)
    model = train_causal(
        gptj_tiny,
        PLAN,
        SUMMARIES.pool(PLAN, tokenizer, rows),
        filler=END,
        checkpoint=checkpoint,
    )
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=END, eos_token_id=END, pad_token_id=END
    )
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_TEXT)
    write_model(model, tokenizer, MODEL, positions=POSITIONS, names=names)
    write_articles(rows)
    dataset = CnnDailyMailDataset(path=str(ARTICLES.parent))
    options = {"attention": "eager", "batching": "static", "batch_size": ENGINE_BATCH}
    options |= {"min_new_tokens": MIN_NEW_TOKENS, "max_new_tokens": MAX_NEW_TOKENS}
    answers, greedy = (
        answer(dataset, MODEL, num_beams=beams, **options) for beams in (NUM_BEAMS, 1)
    )
    record = {
        **describe(rows),
        "parameters": parameters(model),
        "scores": score(dataset, answers, MODEL, (END,)),
        "greedy": score(dataset, greedy, MODEL, (END,)),
        "same_with_one_beam": sum(map(bytes.__eq__, answers, greedy)),
        **SUMMARIES.compare(rows),
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
        "rotary": ROTARY,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "held_out_samples": len(rows),
        "by_topic": dict(Counter(row.sample.topic for row in rows)),
        **token_ranges(rows),
        "num_beams": NUM_BEAMS,
        "min_new_tokens": MIN_NEW_TOKENS,
        "max_new_tokens": MAX_NEW_TOKENS,
    }


if __name__ == "__main__":
    main()
