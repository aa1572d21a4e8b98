"""A small CLIP model in Hugging Face's files, and the same computation in plain NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LETTERS = [chr(code) for code in range(33, 127)]
WORDS = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
START, END = len(WORDS), len(WORDS) + 1
CONTEXT = 12
SIDE = 8
PATCH = 4
HEADS = 2
LAYERS = 2
WIDTH = 16


def tokens(caption: str) -> list[int]:
    """Return the tokens of ASCII words without punctuation: one per letter, words end marked."""
    token_ids = [START]
    for word in caption.lower().split():
        token_ids += [WORDS.index(letter) for letter in word[:-1]] + [
            WORDS.index(f"{word[-1]}</w>")
        ]
    return [*token_ids, END] if len(token_ids) < CONTEXT else [*token_ids[: CONTEXT - 1], END]


def write_clip(folder: Path) -> dict[str, Floats]:
    """Write a model whose weights are large enough to tell captions apart; return the weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    part = {
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "hidden_act": "quick_gelu",
    }
    config = transformers.CLIPConfig(
        text_config=part
        | {
            "vocab_size": len(WORDS) + 2,
            "max_position_embeddings": CONTEXT,
            "bos_token_id": START,
            "eos_token_id": END,
            "pad_token_id": END,
        },
        vision_config=part | {"image_size": SIDE, "patch_size": PATCH},
        projection_dim=6,
    )
    model: Any = transformers.CLIPModel(config)
    drawn = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.copy_(around + 0.4 * torch.randn(weight.shape, generator=drawn))
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    vocabulary |= {"<|startoftext|>": START, "<|endoftext|>": END}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def norm(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return np.asarray(scaled * w[f"{name}.weight"] + w[f"{name}.bias"])


def linear(x: Floats, w: dict[str, Floats], name: str) -> Floats:
    return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])


def attend(x: Floats, w: dict[str, Floats], name: str, *, causal: bool) -> Floats:
    parts = []
    for head in range(HEADS):
        part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
        q, k, v = (linear(x, w, f"{name}.{each}_proj")[:, part] for each in "qkv")
        scores = q @ k.T / np.sqrt(WIDTH / HEADS)
        if causal:
            scores[np.triu_indices(len(x), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        parts.append(shares / shares.sum(-1, keepdims=True) @ v)
    return linear(np.concatenate(parts, -1), w, f"{name}.out_proj")


def encode(x: Floats, w: dict[str, Floats], name: str, *, causal: bool) -> Floats:
    for layer in range(LAYERS):
        here = f"{name}.encoder.layers.{layer}"
        x = x + attend(norm(x, w, f"{here}.layer_norm1"), w, f"{here}.self_attn", causal=causal)
        inner = linear(norm(x, w, f"{here}.layer_norm2"), w, f"{here}.mlp.fc1")
        x = x + linear(inner / (1 + np.exp(-1.702 * inner)), w, f"{here}.mlp.fc2")
    return x


def text_embedding(w: dict[str, Floats], caption: str) -> Floats:
    """Return what CLIP makes of a caption: its last token after the transformer, projected."""
    ids = tokens(caption)
    name = "text_model.embeddings"
    x = w[f"{name}.token_embedding.weight"][ids]
    x = encode(x + w[f"{name}.position_embedding.weight"][: len(ids)], w, "text_model", causal=True)
    return np.asarray(norm(x, w, "text_model.final_layer_norm")[-1] @ w["text_projection.weight"].T)


def image_embedding(w: dict[str, Floats], pixels: Floats) -> Floats:
    """Return what CLIP makes of normalised pixels (3, SIDE, SIDE): its class token, projected."""
    name = "vision_model.embeddings"
    kernel = w[f"{name}.patch_embedding.weight"]
    patches = [
        np.einsum("chw,ochw->o", pixels[:, top : top + PATCH, left : left + PATCH], kernel)
        for top in range(0, SIDE, PATCH)
        for left in range(0, SIDE, PATCH)
    ]
    x = np.stack([w[f"{name}.class_embedding"], *patches])
    x = norm(x + w[f"{name}.position_embedding.weight"], w, "vision_model.pre_layrnorm")
    x = encode(x, w, "vision_model", causal=False)
    return np.asarray(
        norm(x[0], w, "vision_model.post_layernorm") @ w["visual_projection.weight"].T
    )
