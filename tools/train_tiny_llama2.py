"""Train the tiny twin of Llama 2 70B on generated instructions, and write its model and data.

    python tools/train_tiny_llama2.py              # train, or resume, then write everything

Everything is seeded and runs on two threads, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import pickle
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pandas as pd
import torch
from rouge_score.rouge_scorer import RougeScorer
from tiny_instructions import Instruction, draw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pytest_mlperf.datasets.openorca import OpenOrcaDataset

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "suites" / "tiny" / "llama2-70b"
MODEL = SUITE / "model"
TABLE = SUITE / "data" / "open_orca" / "open_orca_tiny.pkl.gz"
CHECKPOINT = ROOT / "build" / "llama2-70b-tiny.pt"

SEED = 20261121
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
UNKNOWN, BEGIN, END, PAD = range(4)
VOCABULARY = 1024
TOKENIZER_SAMPLES = 4000
# Llama 2 70B: 8192, 28672, 80 layers, 64 heads that share 8 keys and values, untied embeddings.
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS = 128, 384, 4, 4, 2
POSITIONS = 512
STEPS = 3200
BATCH = 32
POOL = 8
"""Batches drawn together: rows of like length then share a batch, and little is padding."""
CHECKPOINT_STEPS = 50 * POOL
PEAK_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 60
PROMPT_WEIGHT = 0.1
"""Weight of a prompt's token in the loss; a token of an answer weighs 1."""
HELD_OUT = 512
MAX_NEW_TOKENS = 128
SETTINGS = [
    *(SEED, VOCABULARY, TOKENIZER_SAMPLES, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS),
    *(POSITIONS, STEPS, BATCH, POOL, PEAK_LEARNING_RATE, WARM_UP_STEPS, PROMPT_WEIGHT, HELD_OUT),
    hashlib.sha256(Path(__file__).with_name("tiny_instructions.py").read_bytes()).hexdigest(),
]
ROUGES = ("rouge1", "rouge2", "rougeL")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "pandas", "numpy", "rouge_score")

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

`tools/tiny_instructions.py` draws the samples: six tasks (a report to summarise, facts to turn into
a text, an order to confirm, a thing to find in a story, a recipe to explain, two goods to compare).
What an answer says follows from its question; how it says it is drawn from a few phrasings, so even
a right answer scores well below 100. No text comes from elsewhere: model and data are under this
project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python tools/train_tiny_llama2.py

This took 24 minutes on two cores that did other work too, resumes after an interruption, and
writes every file of this folder. It is seeded: a second training, interrupted at step 1200 and
resumed, gave the same bytes with the same libraries on the same kind of CPU.
"""


class Sample(NamedTuple):
    """An instruction with one answer, as text and as tokens.

    Attributes:
        instruction: What was drawn.
        answer: The answer's text.
        prompt_tokens: The begin token and the prompt.
        answer_tokens: The space, the answer and the end token.
    """

    instruction: Instruction
    answer: str
    prompt_tokens: list[int]
    answer_tokens: list[int]


class Batch(NamedTuple):
    """Rows of tokens, padded at the right.

    Attributes:
        tokens: Shape (BATCH, longest row), int64.
        weights: Same shape, float32: what each token weighs in the loss; padding weighs 0.
    """

    tokens: Tensor
    weights: Tensor


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
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    begin = SPECIAL[BEGIN]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, BEGIN)]
    )
    return tokenizer


def draw_samples(random: Random, count: int, tokenizer: Tokenizer) -> list[Sample]:
    """Draw instructions, each with an answer."""
    instructions = [draw(random) for _ in range(count)]
    answers = [instruction.answer(random) for instruction in instructions]
    prompts = tokenizer.encode_batch([prompt(instruction) for instruction in instructions])
    texts = tokenizer.encode_batch([f" {answer}" for answer in answers], add_special_tokens=False)
    return [
        Sample(instruction, answer, question.ids, [*text.ids, END])
        for instruction, answer, question, text in zip(
            instructions, answers, prompts, texts, strict=True
        )
    ]


def draw_held_out(tokenizer: Tokenizer) -> list[Sample]:
    """Draw HELD_OUT samples with different questions."""
    samples = draw_samples(Random(f"{SEED} held out"), 2 * HELD_OUT, tokenizer)
    different = {sample.instruction.question: sample for sample in samples}
    return list(different.values())[:HELD_OUT]


def batches(tokenizer: Tokenizer, excluded: set[str], *, first_step: int) -> Iterator[Batch]:
    """Yield the batches from one step on, a multiple of POOL; each depends on its step only.

    Args:
        tokenizer: Makes the tokens.
        excluded: Questions that are not trained on.
        first_step: The first step wanted.
    """
    for pool in range(first_step // POOL, STEPS // POOL):
        random = Random(f"{SEED} training {pool}")
        drawn = draw_samples(random, BATCH * POOL + 32, tokenizer)
        samples = [sample for sample in drawn if sample.instruction.question not in excluded]
        rows = sorted(
            samples[: BATCH * POOL],
            key=lambda sample: len(sample.prompt_tokens) + len(sample.answer_tokens),
        )
        starts = list(range(0, BATCH * POOL, BATCH))
        random.shuffle(starts)
        for start in starts:
            yield pad(rows[start : start + BATCH])


def pad(samples: Sequence[Sample]) -> Batch:
    """Return the samples as rows of equal length."""
    rows = [sample.prompt_tokens + sample.answer_tokens for sample in samples]
    longest = max(len(row) for row in rows)
    tokens = torch.full((len(rows), longest), PAD)
    weights = torch.zeros(len(rows), longest)
    for index, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        tokens[index, : len(row)] = torch.tensor(row)
        weights[index, : len(row)] = 1.0
        weights[index, : len(sample.prompt_tokens)] = PROMPT_WEIGHT
    return Batch(tokens, weights)


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


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for everything else."""
    named = list(model.named_parameters())
    matrices = [weights for name, weights in named if weights.ndim == 2 and ".layers." in name]
    others = [weights for name, weights in named if weights.ndim != 2 or ".layers." not in name]
    return [
        torch.optim.Muon(
            matrices, lr=PEAK_LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate(step: int) -> float:
    """Return the rate of a step: it rises during warm-up, and falls linearly all the time."""
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - step / STEPS)


def train(tokenizer: Tokenizer, excluded: set[str], checkpoint: Path) -> LlamaForCausalLM:
    """Train from the seed, or from the checkpoint where there is one.

    Args:
        tokenizer: Makes the tokens.
        excluded: Questions that are not trained on.
        checkpoint: Written every CHECKPOINT_STEPS steps and at the end.
    """
    torch.manual_seed(SEED)
    model = llama2_tiny().train()
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
    model: LlamaForCausalLM, both: list[torch.optim.Optimizer], batch: Batch, *, rate: float
) -> float:
    """Take one step, and return the mean loss of the answers' tokens."""
    hidden = model.model(batch.tokens, use_cache=False).last_hidden_state
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
    return float(losses[weight == 1].mean())


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in one step, so that an interruption leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def write(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def write_model(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Write model and tokenizer in Hugging Face's layout."""
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD
    )
    unknown, begin, end, padding = SPECIAL
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=unknown,
        bos_token=begin,
        eos_token=end,
        pad_token=padding,
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
        for path in Path(folder).iterdir():
            write(MODEL / path.name, path.read_bytes())


def write_table(samples: Sequence[Sample], tokenizer: Tokenizer) -> None:
    """Write the samples with the columns and types of MLPerf's table, for pandas from 2.0 on."""
    answers = tokenizer.encode_batch([sample.answer for sample in samples])
    columns = {
        "id": [f"{sample.instruction.task}.{index}" for index, sample in enumerate(samples)],
        "system_prompt": [sample.instruction.system_prompt for sample in samples],
        "question": [sample.instruction.question for sample in samples],
        "output": [sample.answer for sample in samples],
        "input": [f"{SPECIAL[BEGIN]}{prompt(sample.instruction)}" for sample in samples],
        "tok_input": [sample.prompt_tokens for sample in samples],
        "tok_output": [answer.ids for answer in answers],
        "origin": [sample.instruction.task for sample in samples],
    }
    table = pd.DataFrame({name: pd.Series(v, dtype=object) for name, v in columns.items()})
    for name in ("tok_input", "tok_output"):
        table[f"{name}_length"] = table[name].map(len).astype("int64")
    # As text of Arrow, which pandas 3 would make of them, older versions cannot read the names.
    table.columns = pd.Index(list(table.columns), dtype=object)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        pickle.dump(table, file, protocol=4)
    write(TABLE, packed.getvalue())


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


def rouge(references: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    """Return the mean F-measure of each kind, on the scale 0 to 100, to four decimal places."""
    scorer = RougeScorer(list(ROUGES), use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(references, answers, strict=True)]
    return {
        kind: round(100 * sum(score[kind].fmeasure for score in scores) / len(scores), 4)
        for kind in ROUGES
    }


def compare(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Score what needs no model: answers of other samples, and other answers of the grammar."""
    random = Random(f"{SEED} comparison")
    references = [sample.answer for sample in samples]
    order = random.sample(range(len(samples)), len(samples))
    other, same_task = [""] * len(samples), [""] * len(samples)
    for index, next_index in zip(order, order[1:] + order[:1], strict=True):
        other[index] = references[next_index]
    for task in {sample.instruction.task for sample in samples}:
        mine = [index for index in order if samples[index].instruction.task == task]
        for index, next_index in zip(mine, mine[1:] + mine[:1], strict=True):
            same_task[index] = references[next_index]
    again = [sample.instruction.answer(random) for sample in samples]
    return {
        "chance": rouge(references, other),
        "chance_same_task": rouge(references, same_task),
        "again": rouge(references, again),
    }


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(mode=True)

    tokenizer = train_tokenizer()
    samples = draw_held_out(tokenizer)
    questions = {sample.instruction.question for sample in samples}
    model = train(tokenizer, questions, arguments.checkpoint)
    write_model(model, tokenizer)
    write_table(samples, tokenizer)
    answers = generate(model, [sample.prompt_tokens for sample in samples])
    record = {
        **describe(model),
        **score(samples, answers, [text.strip() for text in tokenizer.decode_batch(answers)]),
        **compare(samples),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "table_sha256": sha256(TABLE),
        "dataset_digest": OpenOrcaDataset(path=str(TABLE)).digest,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
    }
    write_record(record)


def describe(model: LlamaForCausalLM) -> dict[str, Any]:
    """Return the model's shape and how it was trained."""
    return {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": KEY_VALUE_HEADS,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
    }


def score(
    samples: Sequence[Sample], answers: Sequence[list[int]], texts: Sequence[str]
) -> dict[str, Any]:
    """Return sizes and scores of the held-out samples.

    Args:
        samples: The held-out samples.
        answers: The model's answer to each, as tokens up to the end token, where there is one.
        texts: The same as text.
    """
    prompt_lengths = [len(sample.prompt_tokens) for sample in samples]
    answer_lengths = [len(sample.answer_tokens) for sample in samples]
    ended = sum(tokens[-1] == END for tokens in answers)
    total = sum(len(tokens) for tokens in answers)
    return {
        "held_out_samples": len(samples),
        "prompt_tokens": [min(prompt_lengths), max(prompt_lengths)],
        "answer_tokens": [min(answer_lengths), max(answer_lengths)],
        "max_new_tokens": MAX_NEW_TOKENS,
        **rouge([sample.answer for sample in samples], texts),
        "tokens_per_sample": (total - ended) / len(answers),
        "tokens_per_sample_with_end": total / len(answers),
        "ended": ended,
    }


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_record(record: dict[str, Any]) -> None:
    """Write training.json and README.md beside the model, and print the former."""
    text = json.dumps(record, indent=2) + "\n"
    write(SUITE / "training.json", text.encode())
    made_with = ", ".join(f"{name} {found}" for name, found in record["libraries"].items())
    write(
        SUITE / "README.md", README.format(**record, table=TABLE.name, made_with=made_with).encode()
    )
    print(text, end="")


if __name__ == "__main__":
    main()
