"""A Llama in plain torch: transformers would take longer to import than most tests take to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

Layer = tuple[torch.Tensor, torch.Tensor]
"""Keys and values: (rows, heads, length, size)."""


class Llama:
    """Weights and what is done with them."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self._layers = range(config["num_hidden_layers"])
        self._heads = config["num_attention_heads"]
        self._epsilon = config["rms_norm_eps"]
        size = config.get("head_dim") or config["hidden_size"] // self._heads
        theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
        self._frequencies = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor, past: Sequence[Layer]
    ) -> tuple[torch.Tensor, list[Layer]]:
        """Read tokens.

        Args:
            ids: New tokens (rows, new), padded at their left.
            mask: 1 for each token that is none of padding (rows, old and new).
            past: Keys and values of the old ones, by layer.

        Returns:
            Scores after the last token (rows, vocabulary), and keys and values of all.
        """
        new, length = ids.shape[1], mask.shape[1]
        places = (mask.cumsum(-1) - 1).clamp(min=0)[:, -new:]
        angles = places[..., None].float() * self._frequencies
        turn = torch.cat([angles, angles], -1)[:, None]
        columns, rows = torch.arange(length), torch.arange(length - new, length)[:, None]
        seen = (columns <= rows) & mask[:, None].bool()
        # Padding sees itself: nothing at all would be no number.
        seen = (seen | (columns == rows))[:, None]
        state = self._weights["model.embed_tokens.weight"][ids]
        layers = []
        for number in self._layers:
            at = f"model.layers.{number}."
            before = past[number] if past else None
            added, layer = self._attend(at, self._norm(f"{at}input_", state), turn, seen, before)
            layers.append(layer)
            state = state + added
            state = state + self._mlp(at, self._norm(f"{at}post_attention_", state))
        state = self._norm("model.", state[:, -1])
        head = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        return linear(state, head).float(), layers

    def _attend(
        self,
        at: str,
        state: torch.Tensor,
        turn: torch.Tensor,
        seen: torch.Tensor,
        before: Layer | None,
    ) -> tuple[torch.Tensor, Layer]:
        query, key, value = (
            self._project(f"{at}self_attn.{name}", state) for name in ("q_proj", "k_proj", "v_proj")
        )
        query, key = (_turned(each, turn) for each in (query, key))
        if before is not None:
            key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        found = scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
        flat = found.transpose(1, 2).flatten(2)
        return linear(flat, self._weights[f"{at}self_attn.o_proj.weight"]), (key, value)

    def _project(self, name: str, state: torch.Tensor) -> torch.Tensor:
        size = 2 * len(self._frequencies)
        found = linear(state, self._weights[f"{name}.weight"])
        return found.unflatten(-1, (-1, size)).transpose(1, 2)

    def _mlp(self, at: str, state: torch.Tensor) -> torch.Tensor:
        gate, up, down = (
            self._weights[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
        )
        return linear(silu(linear(state, gate)) * linear(state, up), down)

    def _norm(self, at: str, state: torch.Tensor) -> torch.Tensor:
        name = "model.norm.weight" if at == "model." else f"{at}layernorm.weight"
        wide = state.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self._weights[name] * scaled.to(state.dtype)


def _turned(state: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    half = state.shape[-1] // 2
    rotated = torch.cat([-state[..., half:], state[..., :half]], -1)
    return (state * turn.cos() + rotated * turn.sin()).to(state.dtype)


def load_llama(folder: Path, dtype: torch.dtype | None, *, dummy: bool) -> Llama:
    """Return the model in a folder; `dummy` takes random weights."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config["architectures"] != ["LlamaForCausalLM"]:
        raise ValueError(f"this stand-in knows no {config['architectures']}")
    weights = _random(config) if dummy else load_file(folder / "model.safetensors")
    if dtype is not None:
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    return Llama(config, weights)


def _random(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    size, wide = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or size // config["num_attention_heads"]
    queries, keys = (config[f"num_{kind}_heads"] * head for kind in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], size)}
    shapes["lm_head.weight"] = (config["vocab_size"], size)
    norms = ["model.norm.weight"]
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        norms += [f"{at}input_layernorm.weight", f"{at}post_attention_layernorm.weight"]
        shapes[f"{at}self_attn.q_proj.weight"] = (queries, size)
        shapes[f"{at}self_attn.k_proj.weight"] = (keys, size)
        shapes[f"{at}self_attn.v_proj.weight"] = (keys, size)
        shapes[f"{at}self_attn.o_proj.weight"] = (size, queries)
        shapes[f"{at}mlp.gate_proj.weight"] = (wide, size)
        shapes[f"{at}mlp.up_proj.weight"] = (wide, size)
        shapes[f"{at}mlp.down_proj.weight"] = (size, wide)
    source = torch.Generator().manual_seed(0)
    drawn = {name: 0.02 * torch.randn(shape, generator=source) for name, shape in shapes.items()}
    return drawn | {name: torch.ones(size) for name in norms}
