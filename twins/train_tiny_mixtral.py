"""Train the tiny twin of Mixtral 8x7B on three kinds of samples, and write its model and data.

    python twins/train_tiny_mixtral.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over. At the end it runs the
programs that the model writes in the sandbox of scorer mbxp, which takes Linux.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from tiny_language import (
    BEGIN,
    END,
    LIBRARIES,
    PAD,
    PROMPT_WEIGHT,
    ROUGES,
    SPECIAL,
    Batch,
    Plan,
    Row,
    answer,
    encode,
    llama_tokenizer,
    pad,
    predict,
    rouge,
    rouge_of_next,
    table_of,
    token_ranges,
    train_causal,
    write_llama,
)
from tiny_mix import KINDS, Sample
from tokenizers import Tokenizer
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
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from pytest_mlperf.adapters.datasets.mixtral import MixtralDataset
from pytest_mlperf.adapters.scorers.code.programs import Problem, passed
from pytest_mlperf.adapters.scorers.mixtral import MixtralScorer

SUITE = TINY / "mixtral-8x7b"
MODEL = SUITE / "model"
TABLE = SUITE / "data" / "mixtral" / "mixtral_tiny.pkl"
CHECKPOINT = BUILD / "mixtral-8x7b-tiny.pt"

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
BALANCE_WEIGHT = 0.01
"""Weight of the loss that lets all experts be used alike."""
HELD_OUT = 64
"""Of each kind."""
MAX_NEW_TOKENS = 48
ENGINE_BATCH = 32
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=25 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices="_proj.weight",  # of attention
    settings=[
        *(VOCABULARY, TOKENIZER_SAMPLES, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS),
        *(EXPERTS, EXPERTS_PER_TOKEN, POSITIONS, PROMPT_WEIGHT, BALANCE_WEIGHT, HELD_OUT),
        *(source("tiny_instructions.py"), source("tiny_mix.py")),
    ],
)

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

`twins/tiny_mix.py` draws the samples. Instructions are three of the tasks of
`twins/tiny_instructions.py`: facts to turn into a text, an order to confirm, the steps of a recipe
to explain; how an answer says what it says is drawn from a few phrasings, so even a right one
scores well below 100. Sums are stories of one or two steps over numbers up to 29. Programs are
Python functions of one line. After a program the stop sequence of the table is the tokens of
"\\n```\\n", as in MLPerf's; the model writes the end token behind it, and needs no stop sequence.
No text comes from elsewhere: model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_mixtral.py

This took 12 minutes on one core that did other work too, resumes after an interruption, and writes
every file of this folder. It is seeded: a training that was interrupted after 900 steps and
resumed, and one without a break, gave the same bytes with the same libraries on the same kind of
CPU.
"""


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on prompts and answers; a begin token comes before each text."""
    random = Random(f"{SEED} tokenizer")
    samples = [draw(random) for draw in KINDS.values() for _ in range(TOKENIZER_SAMPLES)]
    texts = [text for sample in samples for text in (sample.prompt, sample.answer)]
    return llama_tokenizer(texts, VOCABULARY)


def as_rows(samples: Sequence[Sample], tokenizer: Tokenizer) -> list[Row]:
    """Return samples as tokens."""
    return encode(
        samples,
        tokenizer,
        prompts=[sample.prompt for sample in samples],
        answers=[sample.answer for sample in samples],
        end=END,
    )


def draw_held_out() -> list[Sample]:
    """Draw HELD_OUT samples of each kind with different questions, the kinds in turn."""
    random = Random(f"{SEED} held out")
    kinds: list[list[Sample]] = []
    for draw in KINDS.values():
        different = {sample.question: sample for sample in (draw(random) for _ in range(200))}
        kinds.append(list(different.values())[:HELD_OUT])
    return [sample for samples in zip(*kinds, strict=True) for sample in samples]


def draw_pool(random: Random, tokenizer: Tokenizer, excluded: set[str]) -> list[Row]:
    """Draw samples of all kinds for POOL batches; leave out those with an excluded question."""
    samples: list[Sample] = []
    for draw in KINDS.values():
        drawn = [draw(random) for _ in range(BATCH * POOL // len(KINDS) + 32)]
        fresh = [sample for sample in drawn if sample.question not in excluded]
        samples += fresh[: BATCH * POOL // len(KINDS)]
    return as_rows(samples, tokenizer)


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


def loss_of(model: MixtralForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the mean one of the answers' tokens."""
    states = model.model(batch.tokens, use_cache=False, output_router_logits=True)
    predicted = predict(model, batch, states.last_hidden_state)
    losses = predicted.losses()
    loss, of_answers = predicted.means(losses, losses)
    balance = load_balancing_loss_func(
        states.router_logits, EXPERTS, EXPERTS_PER_TOKEN, (batch.weights > 0).long()
    )
    return loss + BALANCE_WEIGHT * balance, of_answers


def write_table(rows: Sequence[Row], tokenizer: Tokenizer) -> None:
    """Write samples with the columns and types of MLPerf's table."""
    samples = [row.sample for row in rows]
    columns = {
        "dataset": [sample.part for sample in samples],
        "id": [sample.identity for sample in samples],
        "question": [sample.question for sample in samples],
        "input": [f"{SPECIAL[BEGIN]}{sample.prompt}" for sample in samples],
        "ref_output": [row.text for row in rows],
        "gt_output": [sample.target for sample in samples],
        "tok_input": [row.prompt for row in rows],
        "tok_ref_output": [row.answer[:-1] for row in rows],
        "stop_sequence": [sample.stop for sample in samples],
        "tok_stop_sequence": [stop_tokens(row, tokenizer) for row in rows],
    }
    lengths = {"tok_input_len": "tok_input", "tok_ref_output_len": "tok_ref_output"}
    write(TABLE, table_of(columns, lengths))


def stop_tokens(row: Row, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens after which an answer ends: the end token, or those of a fence."""
    if row.sample.stop == SPECIAL[END]:
        return [END]
    tokens: list[int] = tokenizer.encode(row.sample.stop, add_special_tokens=False).ids
    return tokens


def score(
    dataset: MixtralDataset, outputs: Sequence[bytes], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the scores of answers, those of instructions also by the library rouge_score."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scorer = MixtralScorer(model=str(MODEL), run_generated_code=True)
    aggregate = dict(scorer.score(outputs, references).aggregate)
    tokens = [memoryview(output).cast("q").tolist() for output in outputs]
    pairs = [
        (reference["target"], tokenizer.decode(ids).strip())
        for reference, ids in zip(references, tokens, strict=True)
        if reference["dataset"] == "OpenOrca"
    ]
    by_library = rouge([target for target, _ in pairs], [text for _, text in pairs])
    assert by_library == {kind: aggregate[kind] for kind in ROUGES}
    return {**aggregate, "ended": sum(END in ids for ids in tokens)}


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
        )
        for one, other in zip(programs, programs[1:] + programs[:1], strict=True)
    ]
    return {
        **rouge_of_next([[one.target for one in texts]]),
        "gsm8k": 100 * same / (len(sums) * (len(sums) - 1)),
        "mbxp": 100 * sum(passed(problems)) / len(problems),
    }


def again(samples: Sequence[Sample]) -> dict[str, float]:
    """Score other right answers to the instructions."""
    texts = [sample for sample in samples if sample.part == "OpenOrca"]
    return rouge([sample.target for sample in texts], [sample.again for sample in texts])


def expert_use(model: MixtralForCausalLM, rows: Sequence[Row]) -> list[list[float]]:
    """Return for each layer how often its experts are chosen: least and most, in percent."""
    batch = pad(rows, PAD)
    with torch.inference_mode():
        routed = model.float().model(batch.tokens, use_cache=False, output_router_logits=True)
    real = (batch.weights > 0).flatten()
    shares = []
    for logits in routed.router_logits:
        chosen = logits[real].topk(EXPERTS_PER_TOKEN).indices.flatten()
        counts = torch.bincount(chosen, minlength=EXPERTS) / len(chosen)
        shares.append([round(100 * float(end), 1) for end in (counts.min(), counts.max())])
    return shares


def entry(sample: Sample) -> str:
    """Return the name of the function that is to be written."""
    return sample.identity.partition("_")[2]


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    tokenizer = train_tokenizer()
    samples = draw_held_out()
    rows = as_rows(samples, tokenizer)
    held_out = {sample.question for sample in samples}
    model = train_causal(
        mixtral_tiny,
        PLAN,
        lambda random: draw_pool(random, tokenizer, held_out),
        filler=PAD,
        checkpoint=checkpoint,
        loss_of=loss_of,
    )
    write_llama(model.half(), tokenizer, MODEL)
    write_table(rows, tokenizer)
    dataset = MixtralDataset(path=str(TABLE))
    answers = answer(dataset, MODEL, batch_size=ENGINE_BATCH, max_new_tokens=MAX_NEW_TOKENS)
    record = {
        **describe(rows),
        "parameters": parameters(model),
        "scores": score(dataset, answers, tokenizer),
        "again": again(samples),
        "chance": chance(samples),
        "expert_use": expert_use(model, rows),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "table_sha256": sha256(TABLE),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    ends = ", ".join(f"{least} to {most}" for least, most in record["expert_use"])
    write_record(SUITE, README, record, table=TABLE.name, expert_ends=ends)


def describe(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the model's shape, how it was trained, and the sizes of held-out samples."""
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
        **token_ranges(rows),
        "max_new_tokens": MAX_NEW_TOKENS,
    }


if __name__ == "__main__":
    main()
