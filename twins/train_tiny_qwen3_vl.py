"""Train the tiny twin of Qwen3-VL on drawn products, and write its model and data.

    python twins/train_tiny_qwen3_vl.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import functools
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from damage_weights import damage
from PIL import Image
from pyarrow import parquet
from tiny_catalogue import SIZE, Product, draw, leaves
from tiny_language import (
    LIBRARIES,
    PROMPT_WEIGHT,
    Batch,
    Plan,
    Row,
    answer,
    byte_pairs,
    encode,
    fit,
    pad,
    predict,
    token_ranges,
    tokens_of,
    write_model,
)
from tokenizers import AddedToken, Tokenizer
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
from transformers import GenerationConfig, Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import load_balancing_loss_func

from pytest_mlperf.adapters.datasets.shopify import USER, ShopifyDataset, system_text, user_text
from pytest_mlperf.adapters.scorers.category_f1 import CategoryF1Scorer

SUITE = TINY / "qwen3-vl"
MODEL = SUITE / "model"
DATA = SUITE / "data"
INTERACTIVE = SUITE / "data-interactive"
CHECKPOINT = BUILD / "qwen3-vl-tiny.pt"

VERSION = "v6.1"
"""The round whose prompts are trained."""
SEED = 20261123
VOCABULARY = 512
TOKENIZER_SAMPLES = 2000
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
PADDING, END, VISION_START, VISION_END, IMAGE, VIDEO = 0, 2, 3, 4, 5, 6
# Qwen3-VL 235B A22B: 4096, 94 layers, 64 heads that share 4 keys and values, 128 experts, 8 a
# token; its encoder has 1152, 27 layers, patches of 16 pixels, and feeds 3 of its layers deeper in.
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS = 128, 96, 3, 4, 2
EXPERTS, EXPERTS_PER_TOKEN = 4, 2
VISION_HIDDEN, VISION_LAYERS, VISION_HEADS, PATCH, MERGE = 64, 2, 4, 8, 2
POSITIONS = 256
PICTURE_TOKENS = (SIZE // (PATCH * MERGE)) ** 2
STEPS = 480
BATCH = 24
POOL = 12
BALANCE_WEIGHT = 0.01
HELD_OUT, HELD_OUT_INTERACTIVE = 192, 96
TRAIN_SHARE = 0.8
"""Of the held-out products in the table called train, as in Shopify's."""
MAX_NEW_TOKENS = 64
ENGINE_BATCH = 32
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=4 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=60,
    matrices="_proj.weight",  # of attention
    settings=[
        *(VOCABULARY, TOKENIZER_SAMPLES, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KEY_VALUE_HEADS),
        *(EXPERTS, EXPERTS_PER_TOKEN, VISION_HIDDEN, VISION_LAYERS, VISION_HEADS, PATCH, MERGE),
        *(POSITIONS, PROMPT_WEIGHT, BALANCE_WEIGHT, source("tiny_catalogue.py")),
    ],
)

README = """\
# Tiny twin of Qwen3-VL

`model/` is a mixture of experts that sees pictures, of the class of Qwen3-VL 235B A22B
(`Qwen3VLMoeForConditionalGeneration`: {experts} experts in each layer, {experts_per_token} for \
each token,
rotary positions in three dimensions, and a vision encoder of which a layer is fed deeper into the
decoder) with {parameters:,} parameters, trained on drawn products. It lets the whole path from \
pictures to the
score of MLPerf's Qwen3-VL run on a CPU in seconds. It is not MLPerf's model, and its data are not
Shopify's: the figures below are this twin's own, they are no MLPerf result and say nothing about
Qwen3-VL.

| hierarchical F1 | {held_out_samples} held-out products | {interactive_samples} others, for \
Interactive |
|---|---|---|
| **greedy decoding**, fp32, at most {max_new_tokens} new tokens | **{scores[f1]:.4f}** | \
**{interactive[f1]:.4f}** |
| with a hundredth of the weights ten times as large | {damaged:.4f} | |
| chance: the answer to another product | {chance[f1]:.4f} | |
| any of the five categories that the prompt lists | {chance[listed]:.4f} | |

F1 is that of categories, level by level, on the scale 0 to 1, as in MLPerf's reference script.

| | |
|---|---|
| answers that are right to the letter: category, brand, second hand | {scores[right]} of \
{held_out_samples}, {interactive[right]} of {interactive_samples} |
| answers that ended by themselves | {scores[ended]} of {held_out_samples}, {interactive[ended]} \
of {interactive_samples} |
| layers, hidden size, heads, key-value heads | {layers}, {hidden}, {heads}, {key_value_heads} |
| vision layers, hidden size, pixels of a patch, tokens of a picture | {vision_layers}, \
{vision_hidden}, {patch}, {picture_tokens} |
| vocabulary, positions | {vocabulary}, {positions} |
| tokens of prompts, of answers | {prompt_tokens[0]} to {prompt_tokens[1]}, {answer_tokens[0]} to \
{answer_tokens[1]} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digests of the data sets | `{scores[digest]}`, `{interactive[digest]}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout: `AutoModelForImageTextToText`, `AutoTokenizer` and
`AutoImageProcessor` load it. Weights are stored as float16. The tokenizer is byte-level BPE with
Qwen's special tokens; what all prompts have in common, as the system's message, are single tokens,
so that the prompts are MLPerf's of v6.1 to the letter and yet short.

## Data

`data` has two tables, as train and test of Shopify/product-catalogue, `data-interactive` one, as
nvidia/Shopify-product-catalogue-8k: Parquet with their columns and types, a PNG of 48 x 48 pixels
in each row. `twins/tiny_catalogue.py` draws the products. Their {categories} categories are the
leaves of a tree of three levels; the shape in the picture is of a group, how it is painted of a
leaf. Titles name one of 16 brands and nothing else of use, descriptions whether a product was used;
some are in HTML, some are missing. A prompt lists five categories, two of them of one group and a
third of its department; any of the five is as likely to be right, and only the picture says which.
No picture or text comes from elsewhere: model and data are
under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_qwen3_vl.py

This took 12 minutes on one core that did other work too, resumes after an interruption, and writes
every file of this folder. It is seeded: the same libraries on the same kind of CPU give the same
bytes.
"""

TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}\
{%- if message.content is string %}{{ message.content }}{%- else %}\
{%- for part in message.content %}{%- if part.type == 'image' or 'image_url' in part %}\
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{ part.text }}{%- endif %}\
{%- endfor %}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


def picture_processor() -> Qwen2VLImageProcessorPil:
    """Return what makes patches of pictures; none is resized."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        size={"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": SIZE**2},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def prompt_of(product: Product) -> str:
    """Return a prompt as the template makes it, with a token for each part of the picture."""
    text = user_text(VERSION, product.title, product.description, list(product.choices))
    picture = f"<|vision_start|>{'<|image_pad|>' * PICTURE_TOKENS}<|vision_end|>"
    return (
        f"<|im_start|>system\n{system_text(VERSION)}<|im_end|>\n"
        f"<|im_start|>user\n{text}{picture}<|im_end|>\n<|im_start|>assistant\n"
    )


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on what varies; what all prompts have in common are tokens."""
    random = Random(f"{SEED} tokenizer")
    products = [draw(random) for _ in range(TOKENIZER_SAMPLES)]
    texts = [
        text
        for product in products
        for text in (product.title, str(product.description), json.dumps(product.choices))
    ]
    answers = [product.answer for product in products]
    tokenizer = byte_pairs([*texts, *answers], VOCABULARY, SPECIAL)
    split = USER.replace("{description}", "{title}").replace("{choices}", "{title}")
    common = [system_text(VERSION), *dict.fromkeys(split.split("{title}"))]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in common])
    return tokenizer


def as_rows(products: Sequence[Product], tokenizer: Tokenizer) -> list[Row]:
    """Return products as tokens."""
    return encode(
        products,
        tokenizer,
        prompts=[prompt_of(product) for product in products],
        answers=[product.answer for product in products],
        end=END,
    )


class Pictured(NamedTuple):
    """A batch with its pictures' patches: shape (patches, values of a patch), and their grids."""

    batch: Batch
    pixels: Tensor
    grids: Tensor


def batches(tokenizer: Tokenizer, first_step: int) -> Iterator[Pictured]:
    """Yield batches of products that are drawn for them."""
    processor = picture_processor()

    def draw_pool(random: Random, _: int) -> list[Row]:
        return as_rows([draw(random) for _ in range(BATCH * POOL)], tokenizer)

    for rows in PLAN.batches(first_step, draw_pool, tokens_of):
        pictures = [Image.open(io.BytesIO(row.sample.picture)) for row in rows]
        patches = processor(images=pictures, return_tensors="pt")
        yield Pictured(pad(rows, PADDING), patches["pixel_values"], patches["image_grid_thw"])


def qwen3_vl_tiny(vocabulary: int) -> Qwen3VLMoeForConditionalGeneration:
    """Return the untrained model."""
    text = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "moe_intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HIDDEN // HEADS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "max_position_embeddings": POSITIONS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "eos_token_id": END,
        "pad_token_id": PADDING,
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": VISION_LAYERS,
        "hidden_size": VISION_HIDDEN,
        "intermediate_size": 2 * VISION_HIDDEN,
        "num_heads": VISION_HEADS,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": (SIZE // PATCH) ** 2,
        "deepstack_visual_indexes": [0],
    }
    return Qwen3VLMoeForConditionalGeneration(
        Qwen3VLMoeConfig(
            text_config=text,
            vision_config=vision,
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=VISION_START,
            vision_end_token_id=VISION_END,
        )
    )


def loss_of(model: Qwen3VLMoeForConditionalGeneration, pictured: Pictured) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the mean one of the answers' tokens."""
    batch = pictured.batch
    states = model.model(
        batch.tokens,
        attention_mask=(batch.weights > 0).long(),
        pixel_values=pictured.pixels,
        image_grid_thw=pictured.grids,
        mm_token_type_ids=(batch.tokens == IMAGE).int(),
        use_cache=False,
        output_router_logits=True,
    )
    predicted = predict(model, batch, states.last_hidden_state)
    losses = predicted.losses()
    loss, of_answers = predicted.means(losses, losses)
    balance = load_balancing_loss_func(
        states.router_logits, EXPERTS, EXPERTS_PER_TOKEN, (batch.weights > 0).long()
    )
    return loss + BALANCE_WEIGHT * balance, of_answers


def train(tokenizer: Tokenizer, checkpoint: Path) -> Qwen3VLMoeForConditionalGeneration:
    """Return the trained model."""
    torch.manual_seed(PLAN.seed)
    model = qwen3_vl_tiny(tokenizer.get_vocab_size())
    model.set_experts_implementation("eager")  # the quickest on a CPU
    fit(
        model,
        PLAN,
        batches=functools.partial(batches, tokenizer),
        loss_of=functools.partial(loss_of, model),
        checkpoint=checkpoint,
    )
    return model


def write_files(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model in Hugging Face's layout, with its template and how pictures are cut."""
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=END, pad_token_id=PADDING
    )
    names = {"eos_token": SPECIAL[END], "pad_token": SPECIAL[PADDING]}
    write_model(model.half(), tokenizer, folder, positions=POSITIONS, names=names)
    write(folder / "chat_template.jinja", TEMPLATE.encode())
    settings = {**picture_processor().to_dict(), "processor_class": "Qwen3VLProcessor"}
    # The name that every version of transformers knows.
    settings["image_processor_type"] = "Qwen2VLImageProcessorFast"
    write(folder / "preprocessor_config.json", (json.dumps(settings, indent=2) + "\n").encode())


def write_table(products: Sequence[Product], file: Path) -> None:
    """Write products with the columns and types of Shopify's tables."""
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "product_title": pa.array([each.title for each in products]),
        "product_description": pa.array([each.description for each in products], pa.string()),
        "product_image": pa.array(
            [{"bytes": each.picture, "path": None} for each in products], picture
        ),
        "potential_product_categories": pa.array([list(each.choices) for each in products]),
        "ground_truth_category": pa.array([each.category for each in products]),
        "ground_truth_brand": pa.array([each.brand for each in products]),
        "ground_truth_is_secondhand": pa.array([each.is_secondhand for each in products]),
    }
    content = io.BytesIO()
    parquet.write_table(pa.table(columns), content, compression="snappy")
    write(file, content.getvalue())


def write_tables() -> tuple[list[Product], list[Product]]:
    """Write the held-out products, in two tables, and others for Interactive; return both."""
    sets = []
    for name, folder, count in (
        ("held out", DATA, HELD_OUT),
        ("interactive", INTERACTIVE, HELD_OUT_INTERACTIVE),
    ):
        random = Random(f"{SEED} {name}")
        sets.append([draw(random) for _ in range(count)])
        parts = {"train": sets[-1]}
        if folder == DATA:
            first = round(TRAIN_SHARE * count)
            parts = {"train": sets[-1][:first], "test": sets[-1][first:]}
        for split, products in parts.items():
            write_table(products, folder / f"{split}-00000-of-00001.parquet")
    return sets[0], sets[1]


def f1(answers: Sequence[str], products: Sequence[Product]) -> float:
    """Return the F1 of answers, as JSON."""
    outputs = [each.encode() for each in answers]
    scores = CategoryF1Scorer(dtype="text").score(outputs, [each.category for each in products])
    return round(scores.aggregate["f1"], 4)


def chance(products: Sequence[Product]) -> dict[str, float]:
    """Score what needs no model: answers to other products, and any of the listed categories."""
    random = Random(f"{SEED} chance")
    others = random.sample(products, len(products))
    moved = dict(zip(range(len(others)), others[1:] + others[:1], strict=True))
    listed = [
        json.dumps({"category": random.choice(each.choices), "brand": "", "is_secondhand": False})
        for each in products
    ]
    return {
        "f1": f1([moved[place].answer for place in range(len(others))], others),
        "listed": f1(listed, products),
    }


def score(folder: Path, products: Sequence[Product], model: Path = MODEL) -> dict[str, Any]:
    """Return the scores of a written model, and how many fields are right of how many."""
    dataset = ShopifyDataset(path=str(folder), prompts=VERSION)
    outputs = answer(dataset, model, batch_size=ENGINE_BATCH, max_new_tokens=MAX_NEW_TOKENS)
    scores = CategoryF1Scorer(model=str(MODEL)).score(
        outputs, [dataset.reference(index) for index in range(len(dataset))]
    )
    tokens = [memoryview(output).cast("q").tolist() for output in outputs]
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    right = [
        tokenizer.decode(ids) == product.answer
        for ids, product in zip(tokens, products, strict=True)
    ]
    return {
        "f1": round(scores.aggregate["f1"], 4),
        "right": sum(right),
        "ended": sum(END in ids for ids in tokens),
        "tokens": [min(map(len, tokens)), max(map(len, tokens))],
        "digest": dataset.digest,
    }


def damaged(products: Sequence[Product]) -> float:
    """Return the F1 of the written model with some weights ten times as large."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "model")
        damage(MODEL, copy)
        return float(score(DATA, products, copy)["f1"])


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    tokenizer = train_tokenizer()
    products, interactive = write_tables()
    model = train(tokenizer, checkpoint)
    size = parameters(model)
    write_files(model, tokenizer, MODEL)
    record = {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "key_value_heads": KEY_VALUE_HEADS,
        "experts": EXPERTS,
        "experts_per_token": EXPERTS_PER_TOKEN,
        "vision_layers": VISION_LAYERS,
        "vision_hidden": VISION_HIDDEN,
        "patch": PATCH,
        "picture_tokens": PICTURE_TOKENS,
        "vocabulary": tokenizer.get_vocab_size(),
        "positions": POSITIONS,
        "categories": len(leaves()),
        "held_out_samples": len(products),
        "interactive_samples": len(interactive),
        **token_ranges(as_rows([*products, *interactive], tokenizer)),
        "max_new_tokens": MAX_NEW_TOKENS,
        "parameters": size,
        "scores": score(DATA, products),
        "interactive": score(INTERACTIVE, interactive),
        "chance": chance(products),
        "damaged": damaged(products),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        **made_with((*LIBRARIES[:4], "pillow", "pyarrow", "numpy")),
    }
    write_record(SUITE, README, record)


if __name__ == "__main__":
    main()
