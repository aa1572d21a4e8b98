"""Train the tiny twin of Mixtral 8x7B on three kinds of samples, and write its model and data.

    python tools/train_tiny_mixtral.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over. At the end it runs the
programs that the model writes in the sandbox of scorer mbxp, which takes Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import pickle
import platform
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pandas as pd
import torch
from tiny_mix import KINDS, Sample
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from train_tiny_llama2 import BEGIN, END, PAD, ROUGES, SPECIAL, UNKNOWN, rouge, save, sha256, write
from transformers import (
    GenerationConfig,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from pytest_mlperf.datasets.mixtral import MixtralDataset
from pytest_mlperf.engines.torch import TorchEngine
from pytest_mlperf.scorers.mbxp import Problem, passed
from pytest_mlperf.scorers.mixtral import MixtralScorer

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "suites" / "tiny" / "mixtral-8x7b"
MODEL = SUITE / "model"
TABLE = SUITE / "data" / "mixtral" / "mixtral_tiny.pkl"
CHECKPOINT = ROOT / "build" / "mixtral-8x7b-tiny.pt"

SEED = 20261121
VOCABULARY = 1024
TOKENIZER_SAMPLES = 2000
"""Of each kind."""
# Mixtral 8x7B: 4096, 14336, 32 layers, 32 heads that share 8 keys and values, 8 experts, 2 a token.
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS = 128, 96, 3, 4, 2
EXPERTS, EXPERTS_PER_TOKEN = 8, 2
POSITIONS = 256
STEPS = 3000
BATCH = 32
POOL = 12
"""Batches drawn together: rows of like length then share a batch, and little is padding."""
CHECKPOINT_STEPS = 25 * POOL
PEAK_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 60
PROMPT_WEIGHT = 0.1
"""Weight of a prompt's token in the loss; a token of an answer weighs 1."""
BALANCE_WEIGHT = 0.01
"""Weight of the loss that lets all experts be used alike."""
HELD_OUT = 64
"""Of each kind."""
MAX_NEW_TOKENS = 48
ENGINE_BATCH = 32
SETTINGS = [
    *(SEED, VOCABULARY, TOKENIZER_SAMPLES, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS),
    *(EXPERTS, EXPERTS_PER_TOKEN, POSITIONS, STEPS, BATCH, POOL, PEAK_LEARNING_RATE),
    *(WARM_UP_STEPS, PROMPT_WEIGHT, BALANCE_WEIGHT, HELD_OUT),
    *(
        hashlib.sha256(Path(__file__).with_name(name).read_bytes()).hexdigest()
        for name in ("tiny_instructions.py", "tiny_mix.py")
    ),
]
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "pandas", "numpy", "rouge_score")

README = """\
# Tiny twin of Mixtral 8x7B

`model/` is a mixture of experts of the class of Mixtral 8x7B (`MixtralForCausalLM` with {experts}
experts in each layer, {experts_per_token} for each token, and grouped-query attention) with
{parameters:,} parameters, trained on instructions, sums and programs that small grammars generate.
It lets the whole path from prompts to the scores of MLPerf's mix run on a CPU in seconds. It is not
MLPerf's model, and its data are neither OpenOrca, GSM8K nor MBXP: the figures below are this twin's
own, they are no MLPerf result and say nothing about Mixtral.

| on the {held_out_samples} held-out samples | ROUGE-1 | ROUGE-2 | ROUGE-L | gsm8k | mbxp |
|---|---|---|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{scores[rouge1]:.4f}** | \
**{scores[rouge2]:.4f}** | **{scores[rougeL]:.4f}** | **{scores[gsm8k]:.4f}** | \
**{scores[mbxp]:.4f}** |
| another right answer from the grammar | {again[rouge1]:.4f} | {again[rouge2]:.4f} | \
{again[rougeL]:.4f} | 100 | 100 |
| chance: another sample's answer, same kind | {chance[rouge1]:.4f} | {chance[rouge2]:.4f} | \
{chance[rougeL]:.4f} | {chance[gsm8k]:.4f} | {chance[mbxp]:.4f} |

ROUGE is of the instructions: means of the F-measures of `rouge_score` with stemming, on the scale 0
to 100. gsm8k is the percentage of sums with the right number, mbxp that of programs that pass their
tests, each in a sandbox; for chance, a program got the name of the function that was asked for. All
as in MLPerf's reference script.

| | |
|---|---|
| tokens per sample, with the end token | {scores[tokens_per_sample]} |
| answers that ended by themselves | {scores[ended]} of {held_out_samples} |
| layers, hidden size, heads, key-value heads | {layers}, {hidden}, {heads}, {key_value_heads} |
| experts, of these for each token | {experts}, {experts_per_token} |
| percent of choices on the least to the most used expert, by layer | {expert_ends} |
| vocabulary, positions | {vocabulary}, {positions} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| SHA-256 of the table | `{table_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForCausalLM` and `AutoTokenizer` load it. Weights are
stored as float16, each expert's on their own as in Mixtral's checkpoint. The tokenizer is
byte-level BPE with `<s>` = 1 and `</s>` = 2 as in Mixtral, and `<pad>` = 3; it puts `<s>` before a
prompt.

## Data

`data/mixtral/{table}` has the columns and types of MLPerf's `2024.06.06_mixtral_15k_v4.pkl`: a
pandas DataFrame, pickled. Its {held_out_samples} samples are {parts[OpenOrca]} of each kind, and
none of their questions was trained on. Prompts have {prompt_tokens[0]} to {prompt_tokens[1]} \
tokens, answers {answer_tokens[0]} to {answer_tokens[1]}.

| part | prompt | answer | scored |
|---|---|---|---|
| OpenOrca | `[INST] {{system}}\\n{{question}} [/INST]` | one or two sentences | against \
another answer |
| GSM8K | `[INST] Solve this step by step.\\nQ: {{question}} [/INST]` | the steps, and \
`The answer is 7.` | by the number |
| MBXP | ``[INST] {{question}} [/INST]\\n```python\\n`` | the function, \
and a fence | by four calls |

`tools/tiny_mix.py` draws the samples. Instructions are three of the tasks of
`tools/tiny_instructions.py`: facts to turn into a text, an order to confirm, the steps of a recipe
to explain; how an answer says what it says is drawn from a few phrasings, so even a right one
scores well below 100. Sums are stories of one or two steps over numbers up to 29. Programs are
Python functions of one line. After a program the stop sequence of the table is the tokens of
"\\n```\\n", as in MLPerf's; the model writes the end token behind it, and needs no stop sequence.
No text comes from elsewhere: model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python tools/train_tiny_mixtral.py

This took 12 minutes on one core that did other work too, resumes after an interruption, and writes
every file of this folder. It is seeded: a training that was interrupted after 900 steps and
resumed, and one without a break, gave the same bytes with the same libraries on the same kind of
CPU.
"""


class Row(NamedTuple):
    """A sample as tokens.

    Attributes:
        sample: The sample.
        prompt: The begin token and the prompt.
        answer: The answer and the end token.
    """

    sample: Sample
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
    """Train byte-level BPE on prompts and answers; a begin token comes before each text."""
    random = Random(f"{SEED} tokenizer")
    samples = [draw(random) for draw in KINDS.values() for _ in range(TOKENIZER_SAMPLES)]
    texts = [text for sample in samples for text in (sample.prompt, sample.answer)]
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


def encode(samples: Sequence[Sample], tokenizer: Tokenizer) -> list[Row]:
    """Return samples as tokens."""
    prompts = tokenizer.encode_batch([sample.prompt for sample in samples])
    answers = tokenizer.encode_batch(
        [sample.answer for sample in samples], add_special_tokens=False
    )
    return [
        Row(sample, prompt.ids, [*answer.ids, END])
        for sample, prompt, answer in zip(samples, prompts, answers, strict=True)
    ]


def draw_held_out() -> list[Sample]:
    """Draw HELD_OUT samples of each kind with different questions, the kinds in turn."""
    random = Random(f"{SEED} held out")
    kinds: list[list[Sample]] = []
    for draw in KINDS.values():
        different = {sample.question: sample for sample in (draw(random) for _ in range(200))}
        kinds.append(list(different.values())[:HELD_OUT])
    return [sample for samples in zip(*kinds, strict=True) for sample in samples]


def batches(tokenizer: Tokenizer, excluded: set[str], *, first_step: int) -> Iterator[Batch]:
    """Yield the batches from one step on, a multiple of POOL; each depends on its step only.

    Args:
        tokenizer: Makes the tokens.
        excluded: Questions that are not trained on.
        first_step: The first step wanted.
    """
    for pool in range(first_step // POOL, STEPS // POOL):
        random = Random(f"{SEED} training {pool}")
        samples: list[Sample] = []
        for draw in KINDS.values():
            drawn = [draw(random) for _ in range(BATCH * POOL // len(KINDS) + 32)]
            fresh = [sample for sample in drawn if sample.question not in excluded]
            samples += fresh[: BATCH * POOL // len(KINDS)]
        rows = sorted(encode(samples, tokenizer), key=lambda row: len(row.prompt) + len(row.answer))
        starts = list(range(0, BATCH * POOL, BATCH))
        random.shuffle(starts)
        for start in starts:
            yield pad(rows[start : start + BATCH])


def pad(rows: Sequence[Row]) -> Batch:
    """Return rows of equal length."""
    longest = max(len(row.prompt) + len(row.answer) for row in rows)
    tokens = torch.full((len(rows), longest), PAD)
    weights = torch.zeros(len(rows), longest)
    for index, row in enumerate(rows):
        whole = torch.tensor(row.prompt + row.answer)
        tokens[index, : len(whole)] = whole
        weights[index, : len(whole)] = 1.0
        weights[index, : len(row.prompt)] = PROMPT_WEIGHT
    return Batch(tokens, weights)


def mixtral_tiny() -> MixtralForCausalLM:
    """Return the untrained model."""
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_VALUE_HEADS,
            num_local_experts=EXPERTS,
            num_experts_per_tok=EXPERTS_PER_TOKEN,
            max_position_embeddings=POSITIONS,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            bos_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=PAD,
        )
    )


def optimizers(model: MixtralForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of attention, and AdamW for everything else."""
    named = list(model.named_parameters())
    matrices = [weights for name, weights in named if "_proj.weight" in name]
    others = [weights for name, weights in named if "_proj.weight" not in name]
    return [
        torch.optim.Muon(
            matrices, lr=PEAK_LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate(step: int) -> float:
    """Return the rate of a step: it rises during warm-up, and falls linearly all the time."""
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * (1 - step / STEPS)


def train(tokenizer: Tokenizer, excluded: set[str], checkpoint: Path) -> MixtralForCausalLM:
    """Train from the seed, or from the checkpoint where there is one.

    Args:
        tokenizer: Makes the tokens.
        excluded: Questions that are not trained on.
        checkpoint: Written every CHECKPOINT_STEPS steps and at the end.
    """
    torch.manual_seed(SEED)
    model = mixtral_tiny().train()
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
    model: MixtralForCausalLM, both: list[torch.optim.Optimizer], batch: Batch, *, rate: float
) -> float:
    """Take one step, and return the mean loss of the answers' tokens."""
    found = model.model(batch.tokens, use_cache=False, output_router_logits=True)
    weights = batch.weights[:, 1:]
    counted = weights > 0
    logits = model.lm_head(found.last_hidden_state[:, :-1][counted])
    losses = torch.nn.functional.cross_entropy(
        logits, batch.tokens[:, 1:][counted], reduction="none"
    )
    weight = weights[counted]
    balance = load_balancing_loss_func(
        found.router_logits, EXPERTS, EXPERTS_PER_TOKEN, (batch.weights > 0).long()
    )
    torch.autograd.backward((losses * weight).sum() / weight.sum() + BALANCE_WEIGHT * balance)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in both:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return float(losses.detach()[weight == 1].mean())


def write_model(model: MixtralForCausalLM, tokenizer: Tokenizer) -> None:
    """Write model, in half precision, and tokenizer in Hugging Face's layout."""
    model.half()
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
        for path in sorted(Path(folder).iterdir()):
            write(MODEL / path.name, path.read_bytes())


def write_table(rows: Sequence[Row], tokenizer: Tokenizer) -> None:
    """Write samples with the columns and types of MLPerf's table, for pandas from 2.0 on."""
    samples = [row.sample for row in rows]
    outputs = [sample.answer.removeprefix(" ") for sample in samples]
    columns = {
        "dataset": [sample.part for sample in samples],
        "id": [sample.identity for sample in samples],
        "question": [sample.question for sample in samples],
        "input": [f"{SPECIAL[BEGIN]}{sample.prompt}" for sample in samples],
        "ref_output": outputs,
        "gt_output": [sample.target for sample in samples],
        "tok_input": [row.prompt for row in rows],
        "tok_ref_output": [row.answer[:-1] for row in rows],
        "stop_sequence": [sample.stop for sample in samples],
        "tok_stop_sequence": [stop_tokens(row, tokenizer) for row in rows],
    }
    table = pd.DataFrame({name: pd.Series(v, dtype=object) for name, v in columns.items()})
    for name in ("tok_input", "tok_ref_output"):
        table[f"{name}_len"] = table[name].map(len).astype("int64")
    # As text of Arrow, which pandas 3 would make of them, older versions cannot read the names.
    table.columns = pd.Index(list(table.columns), dtype=object)
    packed = io.BytesIO()
    pickle.dump(table, packed, protocol=4)
    write(TABLE, packed.getvalue())


def stop_tokens(row: Row, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens after which an answer ends: the end token, or those of a fence."""
    if row.sample.stop == SPECIAL[END]:
        return [END]
    found: list[int] = tokenizer.encode(row.sample.stop, add_special_tokens=False).ids
    return found


class Outputs:
    """A sink that keeps the answers of an engine that completes inside `submit`."""

    wants_output = True
    times_tokens = False

    def __init__(self) -> None:
        self.found: dict[int, bytes] = {}

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Refuse: no tokens are timed here."""
        raise AssertionError(f"{len(ids)} samples have tokens: {tokens!r}")

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Refuse: no tokens are timed here."""
        raise AssertionError(f"{len(ids)} samples have tokens")

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,
    ) -> None:
        """Keep answers."""
        assert outputs is not None
        assert n_tokens is not None
        self.found.update(zip(ids, outputs, strict=True))

    def failed(self, error: BaseException) -> None:
        """Raise what went wrong."""
        raise error


def answer(dataset: MixtralDataset) -> list[bytes]:
    """Return the answers of engine torch to all samples, as it gives them."""
    indices, sink = range(len(dataset)), Outputs()
    with TorchEngine(
        dataset=dataset,
        model=str(MODEL),
        precision="fp32",
        batch_size=ENGINE_BATCH,
        max_new_tokens=MAX_NEW_TOKENS,
        threads=1,
    ) as engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)
    return [sink.found[index] for index in indices]


def score(
    dataset: MixtralDataset, outputs: Sequence[bytes], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the scores of answers, those of instructions also by the library rouge_score."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scorer = MixtralScorer(model=str(MODEL), run_generated_code=True)
    found = dict(scorer.score(outputs, references).aggregate)
    tokens = [memoryview(output).cast("q").tolist() for output in outputs]
    pairs = [
        (reference["target"], tokenizer.decode(ids).strip())
        for reference, ids in zip(references, tokens, strict=True)
        if reference["dataset"] == "OpenOrca"
    ]
    by_library = rouge([target for target, _ in pairs], [text for _, text in pairs])
    assert by_library == {kind: found[kind] for kind in ROUGES}
    return {**found, "ended": sum(END in ids for ids in tokens)}


def chance(samples: Sequence[Sample]) -> dict[str, float]:
    """Score what needs no model: the answer to another sample of the same kind.

    A program gets the name that is asked for.
    """
    random = Random(f"{SEED} chance")
    texts, sums, programs = (
        random.sample(each, len(each))
        for each in ([one for one in samples if one.part == part] for part in KINDS)
    )
    numbers = Counter(one.target for one in sums)
    same = sum(count * (count - 1) for count in numbers.values())
    problems = [
        Problem(
            language="python",
            code=re.sub(r"^def \w+", f"def {entry(one)}", other.answer).partition("```")[0],
            entry_point=entry(one),
            test=one.target,
            name=one.identity,
        )
        for one, other in zip(programs, programs[1:] + programs[:1], strict=True)
    ]
    return {
        **rouge([one.target for one in texts], [one.target for one in texts[1:] + texts[:1]]),
        "gsm8k": 100 * same / (len(sums) * (len(sums) - 1)),
        "mbxp": 100 * sum(passed(problems)) / len(problems),
    }


def again(samples: Sequence[Sample]) -> dict[str, float]:
    """Score other right answers to the instructions."""
    texts = [sample for sample in samples if sample.part == "OpenOrca"]
    return rouge([sample.target for sample in texts], [sample.again for sample in texts])


def expert_use(model: MixtralForCausalLM, rows: Sequence[Row]) -> list[list[float]]:
    """Return for each layer how often its experts are chosen: least and most, in percent."""
    batch = pad(rows)
    with torch.inference_mode():
        found = model.float().model(batch.tokens, use_cache=False, output_router_logits=True)
    real = (batch.weights > 0).flatten()
    shares = []
    for logits in found.router_logits:
        chosen = logits[real].topk(EXPERTS_PER_TOKEN).indices.flatten()
        counts = torch.bincount(chosen, minlength=EXPERTS) / len(chosen)
        shares.append([round(100 * float(end), 1) for end in (counts.min(), counts.max())])
    return shares


def entry(sample: Sample) -> str:
    """Return the name of the function that is to be written."""
    return sample.identity.partition("_")[2]


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)

    tokenizer = train_tokenizer()
    samples = draw_held_out()
    rows = encode(samples, tokenizer)
    model = train(tokenizer, {sample.question for sample in samples}, arguments.checkpoint)
    parameters = sum(weights.numel() for weights in model.parameters())
    write_model(model, tokenizer)
    write_table(rows, tokenizer)
    dataset = MixtralDataset(path=str(TABLE))
    record = {
        **describe(rows),
        "parameters": parameters,
        "scores": score(dataset, answer(dataset), tokenizer),
        "again": again(samples),
        "chance": chance(samples),
        "expert_use": expert_use(model, rows),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "table_sha256": sha256(TABLE),
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
        "key_value_heads": KEY_VALUE_HEADS,
        "experts": EXPERTS,
        "experts_per_token": EXPERTS_PER_TOKEN,
        "vocabulary": VOCABULARY,
        "positions": POSITIONS,
        "held_out_samples": len(rows),
        "parts": dict(Counter(row.sample.part for row in rows)),
        **{name: [min(each), max(each)] for name, each in lengths.items()},
        "max_new_tokens": MAX_NEW_TOKENS,
    }


def write_record(record: dict[str, Any]) -> None:
    """Write training.json and README.md beside the model, and print the former."""
    text = json.dumps(record, indent=2) + "\n"
    write(SUITE / "training.json", text.encode())
    made_with = ", ".join(f"{name} {found}" for name, found in record["libraries"].items())
    ends = ", ".join(f"{least} to {most}" for least, most in record["expert_use"])
    readme = README.format(**record, table=TABLE.name, made_with=made_with, expert_ends=ends)
    write(SUITE / "README.md", readme.encode())
    print(text, end="")


if __name__ == "__main__":
    main()
