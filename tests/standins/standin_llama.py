"""The Llama of both stand-ins, in a few lines of torch: fast to import, and independent code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu


class Llama:
    """Reads a folder; computes in one type."""

    modalities = ()
    has_encoder = False

    def __init__(self, folder: Path, dtype: Any, *, dummy: bool) -> None:
        """Load a model; without a type in that of its weights, with `dummy` random weights."""
        config = json.loads((folder / "config.json").read_text("utf-8"))
        self.longest: int = config["max_position_embeddings"]
        self._heads: int = config["num_attention_heads"]
        self._groups: int = config["num_key_value_heads"]
        self._layers: int = config["num_hidden_layers"]
        self._epsilon: float = config["rms_norm_eps"]
        self._weights = _random(config) if dummy else load_file(folder / "model.safetensors")
        dtype = dtype or self._weights["model.norm.weight"].dtype
        self._weights = {name: each.to(dtype) for name, each in self._weights.items()}
        size = config.get("head_dim") or config["hidden_size"] // self._heads
        base = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
        turns = base ** -(torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(self.longest).float(), torch.cat([turns, turns]))
        self._cos, self._sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def placed(self, tokens: list[int], pictures: list[Any]) -> list[int]:
        assert not pictures
        return tokens

    def scores(self, tokens: list[int], _: list[Any]) -> Any:
        """Return the scores of what follows these tokens, float32 (vocabulary,)."""
        weights = self._weights
        state = embedding(torch.tensor(tokens), weights["model.embed_tokens.weight"])
        for layer in range(self._layers):
            name = f"model.layers.{layer}"
            state = state + self._attend(name, self._norm(f"{name}.input_layernorm", state))
            inner = self._norm(f"{name}.post_attention_layernorm", state)
            gate = silu(linear(inner, weights[f"{name}.mlp.gate_proj.weight"]))
            inner = gate * linear(inner, weights[f"{name}.mlp.up_proj.weight"])
            state = state + linear(inner, weights[f"{name}.mlp.down_proj.weight"])
        last = self._norm("model.norm", state[-1])
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        return linear(last, head).float()

    def _attend(self, name: str, state: Any) -> Any:
        """Return what attention adds, (tokens, hidden)."""

        def heads(which: str, count: int) -> Any:
            projected = linear(state, self._weights[f"{name}.self_attn.{which}_proj.weight"])
            return projected.view(len(state), count, -1).transpose(0, 1)

        attention = scaled_dot_product_attention(
            self._turn(heads("q", self._heads)),
            self._turn(heads("k", self._groups)).repeat_interleave(self._heads // self._groups, 0),
            heads("v", self._groups).repeat_interleave(self._heads // self._groups, 0),
            is_causal=True,
        )
        joined = attention.transpose(0, 1).reshape(len(state), -1)
        return linear(joined, self._weights[f"{name}.self_attn.o_proj.weight"])

    def _turn(self, heads: Any) -> Any:
        """Return rotary embeddings of (heads, tokens, size)."""
        tokens, half = heads.shape[1], heads.shape[2] // 2
        crossed = torch.cat([-heads[..., half:], heads[..., :half]], -1)
        return heads * self._cos[:tokens] + crossed * self._sin[:tokens]

    def _norm(self, name: str, state: Any) -> Any:
        weight = self._weights[f"{name}.weight"]
        return rms_norm(state, (state.shape[-1],), weight, self._epsilon)


def _random(config: Mapping[str, Any]) -> dict[str, Any]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "model.embed_tokens": (config["vocab_size"], hidden),
        "lm_head": (config["vocab_size"], hidden),
        "model.norm": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{each}_proj": (hidden, hidden) for each in "qo"}
        shapes |= {f"{name}.self_attn.{each}_proj": (keys, hidden) for each in "kv"}
        shapes |= {f"{name}.mlp.{each}_proj": (inner, hidden) for each in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj": (hidden, inner)}
        shapes |= {f"{name}.{each}_layernorm": (hidden,) for each in ("input", "post_attention")}
    return {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
