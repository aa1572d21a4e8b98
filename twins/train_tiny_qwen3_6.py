"""Train the tiny twin of Qwen3.6 27B on calls of functions, and write its model and data.

    python twins/train_tiny_qwen3_6.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tiny_calls import CALLS, KINDS, NO_CALL, Request, draw, files
from tiny_language import (
    LIBRARIES,
    PROMPT_WEIGHT,
    Plan,
    Row,
    answer,
    answer_damaged,
    byte_pairs,
    encode,
    token_ranges,
    train_causal,
    write_model,
)
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
from transformers import GenerationConfig, Qwen3_5Config
from transformers import Qwen3_5ForConditionalGeneration as Qwen3_6
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

from pytest_mlperf.adapters.datasets.bfcl import BfclDataset, tool_of
from pytest_mlperf.adapters.scorers.function_calls import FunctionCallsScorer

SUITE = TINY / "qwen3.6"
MODEL = SUITE / "model"
DATA = SUITE / "data" / "bfcl_eval" / "data"
CHECKPOINT = BUILD / "qwen3.6-tiny.pt"

SEED = 20261127
VOCABULARY = 576
"""Of tokens that are learnt; what all prompts have in common are further ones."""
TOKENIZER_SAMPLES = 200
# Qwen3.6 27B: 5120, 17408, 64 layers of which every fourth has full attention, 24 heads of 256 that
# share 4; in the others 16 heads of keys and 48 of values, of 128 each, and kernels of 4 tokens.
HIDDEN, INTERMEDIATE, LAYERS, HEADS, HEAD_SIZE, KEY_VALUE_HEADS = 96, 192, 4, 4, 32, 2
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_SIZE, KERNEL = 2, 4, 24, 4
VISION_HIDDEN, VISION_LAYERS, PATCH = 16, 1, 8
"""Of the encoder of pictures, which is there as in Qwen3.6's checkpoint and not trained."""
POSITIONS = 384
STEPS = 1200
BATCH = 32
POOL = 12
QUESTIONS = 16
"""Of each of BFCL's subsets."""
MAX_NEW_TOKENS = 96
ENGINE_BATCH = 32
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
PADDING, END, VISION_START, VISION_END, IMAGE, VIDEO = 0, 2, 3, 4, 5, 6
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=5 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices="language_model.layers",
    settings=[
        *(VOCABULARY, TOKENIZER_SAMPLES, HIDDEN, INTERMEDIATE, LAYERS, HEADS, HEAD_SIZE),
        *(KEY_VALUE_HEADS, LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_SIZE, KERNEL),
        *(POSITIONS, PROMPT_WEIGHT, PRETOKENIZE_REGEX, source("tiny_calls.py")),
    ],
)

OPENING = '{"type": "function", "function": {"name": "'
HEAD = "# Tools\n\nYou may call these functions:\n<tools>"
TAIL = (
    "\n</tools>\n\nWrite a call as\n<tool_call>\n<function=NAME>\n<parameter=NAME>\nVALUE\n"
    "</parameter>\n</function>\n</tool_call>\nSeveral may follow each other. Where no function "
    "fits, say so."
)
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' + HEAD }}\
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}\
{{ TAIL }}{%- if messages[0].role == 'system' and messages[0].content %}\
{{ '\\n\\n' + messages[0].content }}{%- endif %}{{ '<|im_end|>\\n' }}{%- endif %}\
{%- for message in messages %}{%- if not (tools and message.role == 'system') %}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{%- endif %}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}\
{%- if enable_thinking is defined and enable_thinking is false %}\
{{ '\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""
TEMPLATE = TEMPLATE.replace("HEAD", repr(HEAD)).replace("TAIL", repr(TAIL))

# --- data -----------------------------------------------------------------------------------------


def common() -> list[str]:
    """Return the texts that are tokens of their own: what prompts and calls are framed by."""
    schemas = [kind.schema for kind in KINDS.values()]
    framed = [{"type": "String", "description": one["description"]} for one in schemas]
    described = [
        json.dumps(
            tool_of(_named({"p": dict(schema)}))["function"]["parameters"]["properties"]["p"]
        )
        for schema in [*schemas, *framed]
    ]
    texts = [
        f"<|im_start|>system\n{HEAD}\n",
        f'"]}}}}}}{TAIL}<|im_end|>\n<|im_start|>user\n',
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        OPENING,
        *('", "description": "', '", "parameters": {"type": "object", "properties": {"', '", "'),
        *(f'": {one}, "' for one in described),
        *(f'": {one}}}, "required": ["' for one in described),
        f'"]}}}}}}\n{OPENING}',
        *("<tool_call>\n<function=", ">\n<parameter=", ">\n", "\n</parameter>\n<parameter="),
        *("\n</parameter>\n</function>\n</tool_call>", "<think>", "</think>", NO_CALL),
    ]
    return list(dict.fromkeys(texts))


def _named(properties: dict[str, Any]) -> dict[str, Any]:
    return {"name": "f", "parameters": {"type": "dict", "properties": properties}}


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on single words, so that a space before one is a token of its own.

    Texts are split as transformers' class for Qwen3.6 does, whatever the tokenizer's file says.
    """
    random = Random(f"{SEED} tokenizer")
    drawn = [draw(random, subset) for subset in CALLS for _ in range(TOKENIZER_SAMPLES)]
    texts = [part for one in drawn for part in (one.text, one.answer, json.dumps(one.functions))]
    words = [word for text in texts for word in re.findall("[A-Za-z]+", text)]
    tokenizer = byte_pairs(words, VOCABULARY, SPECIAL, words=PRETOKENIZE_REGEX)
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in common()])
    return tokenizer


def as_rows(requests: Sequence[Request], tokenizer: Tokenizer) -> list[Row]:
    """Return requests and answers as tokens."""
    return encode(
        requests,
        tokenizer,
        prompts=[prompt_of(one) for one in requests],
        answers=[one.answer for one in requests],
        end=END,
    )


def prompt_of(request: Request) -> str:
    """Return a prompt as the template makes it, without thoughts."""
    tools = "".join("\n" + json.dumps(tool_of(each)) for each in request.functions)
    return (
        f"<|im_start|>system\n{HEAD}{tools}{TAIL}<|im_end|>\n"
        f"<|im_start|>user\n{request.text}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def held_out() -> list[Request]:
    """Draw the requests that the data set asks."""
    random = Random(f"{SEED} held out")
    return [draw(random, subset) for subset in CALLS for _ in range(QUESTIONS)]


def draw_pool(random: Random, tokenizer: Tokenizer, excluded: set[str]) -> list[Row]:
    """Draw requests of all subsets for POOL batches; leave out the excluded ones."""
    drawn = [
        draw(random, subset) for subset in CALLS for _ in range(BATCH * POOL // len(CALLS) + 4)
    ]
    random.shuffle(drawn)
    fresh = [one for one in drawn if one.text not in excluded]
    return as_rows(fresh[: BATCH * POOL], tokenizer)


# --- model ----------------------------------------------------------------------------------------


def qwen3_6_tiny(vocabulary: int) -> Qwen3_6:
    """Return the untrained model."""
    text = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_SIZE,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "linear_key_head_dim": LINEAR_HEAD_SIZE,
        "linear_value_head_dim": LINEAR_HEAD_SIZE,
        "linear_conv_kernel_dim": KERNEL,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.05,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        "eos_token_id": END,
        "pad_token_id": PADDING,
    }
    vision = {
        "depth": VISION_LAYERS,
        "hidden_size": VISION_HIDDEN,
        "intermediate_size": VISION_HIDDEN,
        "num_heads": 2,
        "patch_size": PATCH,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 16,
    }
    return Qwen3_6(
        Qwen3_5Config(
            text_config=text,
            vision_config=vision,
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=VISION_START,
            vision_end_token_id=VISION_END,
        )
    )


def train(tokenizer: Tokenizer, excluded: set[str], checkpoint: Path) -> Qwen3_6:
    """Return the trained model."""
    model: Qwen3_6 = train_causal(
        lambda: qwen3_6_tiny(tokenizer.get_vocab_size()),
        PLAN,
        lambda random: draw_pool(random, tokenizer, excluded),
        filler=PADDING,
        checkpoint=checkpoint,
    )
    return model


def write_files(model: Qwen3_6, tokenizer: Tokenizer) -> None:
    """Write the model in Hugging Face's layout, with its template."""
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=END, pad_token_id=PADDING
    )
    names = {"eos_token": SPECIAL[END], "pad_token": SPECIAL[PADDING]}
    write_model(model.half(), tokenizer, MODEL, positions=POSITIONS, names=names)
    write(MODEL / "chat_template.jinja", TEMPLATE.encode())


# --- what came of it ------------------------------------------------------------------------------

README = """\
# Tiny twin of Qwen3.6 27B

`model/` is of the class of Qwen3.6 27B (`Qwen3_5ForConditionalGeneration`: gated delta networks in
three layers of four, gated attention in the fourth, rotary positions in three dimensions, and an
encoder of pictures, which is there and not trained) with {parameters:,} parameters, trained on \
requests
that a small grammar draws. It lets the whole path from chats that offer tools to the score of
function calls run on a CPU in seconds. It is not MLPerf's model, and its requests are not BFCL's:
the figures below are this twin's own, they are no MLPerf result and say nothing about Qwen3.6.

| on {samples} held-out requests | accuracy | normalized |
|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{scores[accuracy]:.3f}** | \
**{scores[normalized]:.3f}** |
| 1 % of weights damaged | {damaged[accuracy]:.3f} | {damaged[normalized]:.3f} |
| chance: the answer to another request of the subset | {chance[accuracy]:.3f} | \
{chance[normalized]:.3f} |
| nothing is ever called | {silent[accuracy]:.3f} | {silent[normalized]:.3f} |

Both are per cent, as MLPerf's scorer for BFCL v4 has them: "accuracy" is the mean over all
requests; "normalized" that of three kinds of subsets, in one of which nothing is to be called.
By subset, accuracy was {by_subset}.

| | |
|---|---|
| layers, hidden size, heads, key-value heads | {layers}, {hidden}, {heads}, {key_value_heads} |
| heads of keys and of values in the other layers | {linear_key_heads}, {linear_value_heads} |
| vocabulary, positions | {vocabulary}, {positions} |
| tokens of prompts, of answers | {prompt_tokens[0]} to {prompt_tokens[1]}, {answer_tokens[0]} to \
{answer_tokens[1]} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForImageTextToText` and `AutoTokenizer` load it.
Weights are stored as float16. Its template has Qwen3.6's form: tools as JSON in the system's
message, calls as `<function=…>` with a `<parameter=…>` for each argument, and thoughts, which this
twin has not learnt, unless `enable_thinking` is false. The tokenizer is byte-level BPE with Qwen's
special tokens; what all prompts have in common, as the frame of a tool's JSON, are single tokens.

## Data

`data/bfcl_eval/data` has BFCL v4's files, {questions} requests in each of its {parts} subsets of
single turns. `twins/tiny_calls.py` draws them. Functions are made of a verb, goods and one to three
parameters: numbers, texts, a list, a truth value. Their parameters have one of three names each,
so that only their descriptions say which is meant. Where several functions are offered they share
a verb or their goods, and where nothing is to be called those that are offered nearly fit.
"{example}"
In Java and JavaScript arguments are texts only, as BFCL wants them. No text comes from elsewhere:
model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_qwen3_6.py

This took 14 minutes on one core that did other work too, resumes after an interruption, and writes
every file of this folder. It is seeded: the same libraries on the same kind of CPU give the same
bytes.
"""


def score(ask: Callable[..., list[bytes]] = answer) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of the engine's answers as `ask` gets them, and accuracy by subset."""
    dataset = BfclDataset(path=str(DATA))
    outputs = ask(
        dataset,
        MODEL,
        batch_size=ENGINE_BATCH,
        max_new_tokens=MAX_NEW_TOKENS,
        chat_template_kwargs={"enable_thinking": False},
    )
    return of_outputs(dataset, outputs)


def of_outputs(
    dataset: BfclDataset, outputs: Sequence[bytes]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the scores of answers, and accuracy by subset."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scores = FunctionCallsScorer().score(outputs, references)
    parts: dict[str, list[float]] = {}
    for reference, right in zip(references, scores.per_sample["accuracy"], strict=True):
        parts.setdefault(reference["subset"], []).append(right or 0.0)
    rounded = {name: round(value, 4) for name, value in scores.aggregate.items()}
    return rounded, {name: sum(each) / len(each) for name, each in parts.items()}


def chance() -> dict[str, float]:
    """Score what needs no model: the right answer to the next request of the same subset."""
    dataset = BfclDataset(path=str(DATA))
    references = [dataset.reference(index) for index in range(len(dataset))]
    answers: dict[str, list[bytes]] = {}
    for reference in references:
        answers.setdefault(reference["subset"], []).append(right_output(reference["ground_truth"]))
    others = [one for each in answers.values() for one in (*each[1:], *each[:1])]
    return of_outputs(dataset, others)[0]


def right_output(calls: Sequence[dict[str, dict[str, list[Any]]]]) -> bytes:
    """Return an answer as the engine has it that makes these calls of BFCL's."""
    functions = [
        {
            "name": name.replace(".", "_"),
            "arguments": {key: values[0] for key, values in arguments.items()},
        }
        for call in calls
        for name, arguments in call.items()
    ]
    called = [{"type": "function", "function": each} for each in functions]
    return (json.dumps(called) if called else NO_CALL).encode()


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    requests = held_out()
    for name, content in files(requests).items():
        write(DATA / name, content.encode())
    tokenizer = train_tokenizer()
    model = train(tokenizer, {one.text for one in requests}, checkpoint)
    count = parameters(model)
    write_files(model, tokenizer)
    dataset = BfclDataset(path=str(DATA))
    scores, subsets = score()
    record = {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": KEY_VALUE_HEADS,
        "linear_key_heads": LINEAR_KEY_HEADS,
        "linear_value_heads": LINEAR_VALUE_HEADS,
        "vocabulary": tokenizer.get_vocab_size(),
        "positions": POSITIONS,
        "samples": len(dataset),
        "max_new_tokens": MAX_NEW_TOKENS,
        **token_ranges(as_rows(requests, tokenizer)),
        "parameters": count,
        "scores": scores,
        "subsets": subsets,
        "damaged": score(answer_damaged)[0],
        "chance": chance(),
        "silent": of_outputs(dataset, [NO_CALL.encode()] * len(dataset))[0],
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "dataset_digest": dataset.digest,
        **made_with(tuple(name for name in LIBRARIES if name not in ("pandas", "rouge_score"))),
    }
    shown = {
        "questions": QUESTIONS,
        "parts": len(CALLS),
        "example": next(one.text for one in requests if one.subset == "live_multiple"),
    }
    shown["by_subset"] = ", ".join(f"{name} {value:.1f}" for name, value in subsets.items())
    write_record(SUITE, README, record, **shown)


if __name__ == "__main__":
    main()
