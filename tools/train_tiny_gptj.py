"""Train the tiny twin of GPT-J 6B on generated news articles, and write its model and data.

    python tools/train_tiny_gptj.py                # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from tiny_articles import TOPICS, Article, draw
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from train_tiny_llama2 import ROUGES, rouge, save, sha256, write
from train_tiny_mixtral import Outputs
from transformers import GenerationConfig, GPTJConfig, GPTJForCausalLM, PreTrainedTokenizerFast

from pytest_mlperf.datasets.cnn_dailymail import ALPACA, CnnDailyMailDataset
from pytest_mlperf.engines.torch import TorchEngine
from pytest_mlperf.scorers.rouge import RougeScorer

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "suites" / "tiny" / "gptj"
MODEL = SUITE / "model"
ARTICLES = SUITE / "data" / "cnn-daily-mail" / "cnn_eval.json"
CHECKPOINT = ROOT / "build" / "gptj-tiny.pt"

SEED = 20261121
INSTRUCTION = "Summarize the following news article:"
BEFORE, AFTER = ALPACA.replace("{instruction}", INSTRUCTION).split("{input}")
"""What stands in every prompt before and after the article: a token each."""
END_TEXT, END = "<|endoftext|>", 0
VOCABULARY = 1152
TOKENIZER_ARTICLES = 4000
# GPT-J 6B: 4096, 28 layers, 16 heads of which a quarter is rotated, 2048 positions, 50400 tokens.
HIDDEN, LAYERS, HEADS, ROTARY = 160, 2, 4, 16
POSITIONS = 256
STEPS = 960
BATCH = 32
POOL = 8
"""Batches drawn together: rows of like length then share a batch, and little is padding."""
CHECKPOINT_STEPS = 20 * POOL
PEAK_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 60
PROMPT_WEIGHT = 0.1
"""Weight of a prompt's token in the loss; a token of an answer weighs 1."""
HELD_OUT = 160
NUM_BEAMS = 4
MIN_NEW_TOKENS, MAX_NEW_TOKENS = 15, 40
ENGINE_BATCH = 16
SETTINGS = [
    *(SEED, BEFORE, AFTER, VOCABULARY, TOKENIZER_ARTICLES, HIDDEN, LAYERS, HEADS, ROTARY),
    *(POSITIONS, STEPS, BATCH, POOL, PEAK_LEARNING_RATE, WARM_UP_STEPS, PROMPT_WEIGHT, HELD_OUT),
    *(
        hashlib.sha256(Path(__file__).with_name(name).read_bytes()).hexdigest()
        for name in ("tiny_instructions.py", "tiny_articles.py")
    ),
]
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

`tools/tiny_articles.py` draws the samples: three to six sentences on one of eight topics
({topics}), with other towns, names and numbers
beside those that matter. Highlights say the main facts in other words and in another order, and a
wrong fact costs. Of the first highlight's three phrasings two begin alike: their beginning is the
likeliest one, but the other phrasing is the likeliest as a whole. So one beam says the right facts
in less likely words, and four beams can be told from it. Even right highlights score below 100. No
text comes from elsewhere: model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python tools/train_tiny_gptj.py

This took 5 minutes on one core that did other work too, resumes after an interruption, and writes
every file of this folder. It is seeded: a second training, resumed at step 480, gave the same bytes
with the same libraries on the same kind of CPU.
"""


class Row(NamedTuple):
    """A sample as tokens.

    Attributes:
        article: What was drawn.
        summary: Its highlights.
        prompt: The prompt.
        answer: The space, the highlights and the end token.
    """

    article: Article
    summary: str
    prompt: list[int]
    answer: list[int]


class Batch(NamedTuple):
    """Rows of tokens, padded at the right.

    Attributes:
        tokens: Shape (BATCH, longest row), int64.
        weights: Same shape, float32: what each token weighs in the loss; padding weighs 0.
    """

    tokens: Tensor
    weights: Tensor


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on articles and highlights."""
    random = Random(f"{SEED} tokenizer")
    articles = [draw(random) for _ in range(TOKENIZER_ARTICLES)]
    texts = [text for each in articles for text in (each.text, f" {each.summary(random)}")]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    common = [AddedToken(text, special=False, normalized=False) for text in (BEFORE, AFTER)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(common),
        special_tokens=[END_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(common)
    return tokenizer


def draw_rows(random: Random, count: int, tokenizer: Tokenizer) -> list[Row]:
    """Draw articles, each with its highlights."""
    articles = [draw(random) for _ in range(count)]
    summaries = [article.summary(random) for article in articles]
    prompts = tokenizer.encode_batch([f"{BEFORE}{article.text}{AFTER}" for article in articles])
    answers = tokenizer.encode_batch([f" {summary}" for summary in summaries])
    return [
        Row(article, summary, prompt.ids, [*answer.ids, END])
        for article, summary, prompt, answer in zip(
            articles, summaries, prompts, answers, strict=True
        )
    ]


def draw_held_out(tokenizer: Tokenizer) -> list[Row]:
    """Draw HELD_OUT samples with different articles."""
    rows = draw_rows(Random(f"{SEED} held out"), 2 * HELD_OUT, tokenizer)
    return list({row.article.text: row for row in rows}.values())[:HELD_OUT]


def batches(tokenizer: Tokenizer, excluded: set[str], *, first_step: int) -> Iterator[Batch]:
    """Yield the batches from one step on, a multiple of POOL; each depends on its step only.

    Args:
        tokenizer: Makes the tokens.
        excluded: Articles that are not trained on.
        first_step: The first step wanted.
    """
    for pool in range(first_step // POOL, STEPS // POOL):
        random = Random(f"{SEED} training {pool}")
        drawn = draw_rows(random, BATCH * POOL + 32, tokenizer)
        fresh = [row for row in drawn if row.article.text not in excluded]
        rows = sorted(fresh[: BATCH * POOL], key=lambda row: len(row.prompt) + len(row.answer))
        starts = list(range(0, BATCH * POOL, BATCH))
        random.shuffle(starts)
        for start in starts:
            yield pad(rows[start : start + BATCH])


def pad(rows: Sequence[Row]) -> Batch:
    """Return rows of equal length; what follows an end token is neither seen nor counted."""
    longest = max(len(row.prompt) + len(row.answer) for row in rows)
    tokens = torch.full((len(rows), longest), END)
    weights = torch.zeros(len(rows), longest)
    for index, row in enumerate(rows):
        whole = torch.tensor(row.prompt + row.answer)
        tokens[index, : len(whole)] = whole
        weights[index, : len(whole)] = 1.0
        weights[index, : len(row.prompt)] = PROMPT_WEIGHT
    return Batch(tokens, weights)


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


def optimizers(model: GPTJForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for everything else."""
    named = list(model.named_parameters())
    matrices = [weights for name, weights in named if weights.ndim == 2 and ".h." in name]
    others = [weights for name, weights in named if weights.ndim != 2 or ".h." not in name]
    return [
        torch.optim.Muon(
            matrices, lr=PEAK_LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate(step: int) -> float:
    """Return the rate of a step: it rises during warm-up, and falls linearly all the time."""
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - step / STEPS)


def train(tokenizer: Tokenizer, excluded: set[str], checkpoint: Path) -> GPTJForCausalLM:
    """Train from the seed, or from the checkpoint where there is one.

    Args:
        tokenizer: Makes the tokens.
        excluded: Articles that are not trained on.
        checkpoint: Written every CHECKPOINT_STEPS steps and at the end.
    """
    torch.manual_seed(SEED)
    model = gptj_tiny().train()
    both = optimizers(model)
    first_step = 0
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.is_file() else {}
    if saved.get("settings") == SETTINGS:
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(both, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        first_step = saved["steps"]
        print(f"resuming after step {first_step} of {STEPS}: {checkpoint}", flush=True)
    losses: list[float] = []
    began_s = time.monotonic()
    steps = range(first_step, STEPS)
    for step, batch in zip(steps, batches(tokenizer, excluded, first_step=first_step), strict=True):
        losses.append(train_step(model, both, batch, rate=learning_rate(step)))
        done = step + 1
        if done % CHECKPOINT_STEPS == 0 or done == STEPS:
            states = [optimizer.state_dict() for optimizer in both]
            save(
                checkpoint,
                {
                    "settings": SETTINGS,
                    "model": model.state_dict(),
                    "optimizers": states,
                    "steps": done,
                },
            )
            mean, elapsed_s = sum(losses) / len(losses), time.monotonic() - began_s
            print(f"step {done:4} of {STEPS}: loss {mean:.4f}, {elapsed_s:.0f} s", flush=True)
            losses.clear()
    return model.eval()


def train_step(
    model: GPTJForCausalLM, both: list[torch.optim.Optimizer], batch: Batch, *, rate: float
) -> float:
    """Take one step, and return the mean loss of the answers' tokens."""
    hidden = model.transformer(batch.tokens, use_cache=False).last_hidden_state
    weights = batch.weights[:, 1:]
    counted = weights > 0
    logits = model.lm_head(hidden[:, :-1][counted])
    losses = torch.nn.functional.cross_entropy(
        logits, batch.tokens[:, 1:][counted], reduction="none"
    )
    weight = weights[counted]
    torch.autograd.backward((losses * weight).sum() / weight.sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in both:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return float(losses.detach()[weight == 1].mean())


def write_model(model: GPTJForCausalLM, tokenizer: Tokenizer) -> None:
    """Write model and tokenizer in Hugging Face's layout."""
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=END, eos_token_id=END, pad_token_id=END
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_TEXT,
        eos_token=END_TEXT,
        pad_token=END_TEXT,
        padding_side="left",
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        wrapped.save_pretrained(folder)
        # Written by transformers 5 under a name of its own; every version knows this one.
        settings = Path(folder, "tokenizer_config.json")
        fields = json.loads(settings.read_text("utf-8"))
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        for path in sorted(Path(folder).iterdir()):
            write(MODEL / path.name, path.read_bytes())


def write_articles(rows: Sequence[Row]) -> None:
    """Write samples with the keys of MLPerf's file."""
    records = [
        {"instruction": INSTRUCTION, "input": row.article.text, "output": row.summary}
        for row in rows
    ]
    write(ARTICLES, (json.dumps(records, indent=4, ensure_ascii=False) + "\n").encode())


def answer(dataset: CnnDailyMailDataset, *, num_beams: int) -> list[bytes]:
    """Return the answers of engine torch to all samples, as it gives them."""
    indices, sink = range(len(dataset)), Outputs()
    with TorchEngine(
        dataset=dataset,
        model=str(MODEL),
        precision="fp32",
        attention="eager",
        batching="static",
        batch_size=ENGINE_BATCH,
        num_beams=num_beams,
        min_new_tokens=MIN_NEW_TOKENS,
        max_new_tokens=MAX_NEW_TOKENS,
        threads=1,
    ) as engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)
    return [sink.found[index] for index in indices]


def score(
    dataset: CnnDailyMailDataset, outputs: Sequence[bytes], tokenizer: Tokenizer
) -> dict[str, float]:
    """Return the scores of answers; ROUGE must be that of the library rouge_score, too."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    found = dict(RougeScorer(model=str(MODEL)).score(outputs, references).aggregate)
    tokens = [memoryview(output).cast("q").tolist() for output in outputs]
    by_library = rouge(references, [text.strip() for text in tokenizer.decode_batch(tokens)])
    assert by_library == {kind: found[kind] for kind in ROUGES}
    return {**found, "ended": sum(END in ids for ids in tokens)}


def compare(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Score what needs no model: highlights of other articles, others of the same, and the lead."""
    random = Random(f"{SEED} comparison")
    order = random.sample(range(len(rows)), len(rows))
    return {
        "again": rouge(
            [row.summary for row in rows], [row.article.summary(random) for row in rows]
        ),
        "lead": rouge(
            [row.summary for row in rows],
            [". ".join(row.article.text.split(". ")[:2]) for row in rows],
        ),
        "chance": exchanged(rows, [order]),
        "chance_same_topic": exchanged(
            rows, [[one for one in order if rows[one].article.topic == topic] for topic in TOPICS]
        ),
    }


def exchanged(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> dict[str, float]:
    """Score each sample with the highlights of the next one in its group."""
    pairs = [
        (rows[one].summary, rows[other].summary)
        for group in groups
        for one, other in zip(group, [*group[1:], *group[:1]], strict=True)
    ]
    return rouge([reference for reference, _ in pairs], [found for _, found in pairs])


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)

    tokenizer = train_tokenizer()
    rows = draw_held_out(tokenizer)
    model = train(tokenizer, {row.article.text for row in rows}, arguments.checkpoint)
    write_model(model, tokenizer)
    write_articles(rows)
    dataset = CnnDailyMailDataset(path=str(ARTICLES.parent))
    answers, greedy = (answer(dataset, num_beams=beams) for beams in (NUM_BEAMS, 1))
    record = {
        **describe(rows),
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "scores": score(dataset, answers, tokenizer),
        "greedy": score(dataset, greedy, tokenizer),
        "same_with_one_beam": sum(map(bytes.__eq__, answers, greedy)),
        **compare(rows),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "articles_sha256": sha256(ARTICLES),
        "dataset_digest": dataset.digest,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }
    write_record(record)


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
    lengths = {
        "prompt_tokens": [len(row.prompt) for row in rows],
        "answer_tokens": [len(row.answer) for row in rows],
    }
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
        "by_topic": dict(Counter(row.article.topic for row in rows)),
        **{name: [min(each), max(each)] for name, each in lengths.items()},
        "num_beams": NUM_BEAMS,
        "min_new_tokens": MIN_NEW_TOKENS,
        "max_new_tokens": MAX_NEW_TOKENS,
    }


def write_record(record: dict[str, Any]) -> None:
    """Write training.json and README.md beside the model, and print the former."""
    text = json.dumps(record, indent=2) + "\n"
    write(SUITE / "training.json", text.encode())
    made_with = ", ".join(f"{name} {found}" for name, found in record["libraries"].items())
    readme = README.format(**record, made_with=made_with, topics=", ".join(TOPICS))
    write(SUITE / "README.md", readme.encode())
    print(text, end="")


if __name__ == "__main__":
    main()
