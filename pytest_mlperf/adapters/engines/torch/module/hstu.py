"""Run the HSTU model of MLPerf's DLRM v3, which ranks candidates by a user's history.

The layer is that of https://arxiv.org/abs/2402.17152: attention with SiLU instead of softmax, and a
gate. A candidate attends to the user, the history and itself, but to no other candidate. Positions
and times are not used, since all actions of MLPerf's data have the same time.

A model is a folder with config.json and safetensors files. The keys of config.json are the
attributes of `HstuSizes`; missing ones have MLPerf's values. Tensors are named like the parameters
of `Hstu`. MLPerf's own checkpoint, 1 TB in TorchRec shards, is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import layer_norm, silu

from pytest_mlperf.adapters.engines import broken
from pytest_mlperf.adapters.engines.torch.module._folder import module_with_weights, sizes_in
from pytest_mlperf.adapters.engines.torch.module._runner import Mismatch
from pytest_mlperf.adapters.lazy import np

USER, ACTION, CANDIDATE = 1, 2, 3
"""Kinds of a sequence's parts; 0 is padding."""

PART_COLUMNS = ("kind", "item", "rating", "label", "step", "query")
"""Columns of a part: its item, or the user; further values if it has them."""

RATINGS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class HstuSizes:
    """Define the dimensions of the model; the defaults are MLPerf's.

    Attributes:
        num_items, num_users, num_categories: Number of rows of the embedding tables.
        embedding_dim: Length of an embedding vector, and width of the layers.
        num_layers, num_heads: Number of layers, and of attention heads.
        attention_dim: Length of a head's queries and keys.
        linear_dim: Length of a head's values.
        hidden_dim: Width of the hidden layer that computes a candidate's prediction.
    """

    num_items: int = 1_000_000_000
    num_users: int = 10_000_000
    num_categories: int = 128
    embedding_dim: int = 512
    num_layers: int = 5
    num_heads: int = 4
    attention_dim: int = 128
    linear_dim: int = 128
    hidden_dim: int = 512


class HstuLayer(torch.nn.Module):
    """Compute one HSTU layer: normalisation, attention, gate and residual."""

    def __init__(self, sizes: HstuSizes) -> None:
        super().__init__()
        width, self._heads = sizes.embedding_dim, sizes.num_heads
        inner, outer = sizes.attention_dim * sizes.num_heads, sizes.linear_dim * sizes.num_heads
        self._parts = [outer, outer, inner, inner]
        self._scale = sizes.attention_dim**-0.5
        self.inward = torch.nn.Linear(width, sum(self._parts))
        self.outward = torch.nn.Linear(outer, width)

    def forward(self, hidden: Any, mask: Any) -> Any:
        """Return the next hidden states, shape (batch, length, width).

        The attention weights are multiplied by `mask`, shape (batch, 1, length, length).
        """
        parts = silu(self.inward(layer_norm(hidden, hidden.shape[-1:]))).split(self._parts, dim=-1)
        values, queries, keys = (
            part.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in parts[1:]
        )
        weights = silu(queries @ keys.transpose(2, 3) * self._scale) * mask
        attended = (weights @ values).transpose(1, 2).flatten(2)
        return hidden + self.outward(layer_norm(attended, attended.shape[-1:]) * parts[0])


class Hstu(torch.nn.Module):
    """Compute the probability that a user likes each candidate of a request."""

    batching = "pad"

    def __init__(self, sizes: HstuSizes) -> None:
        super().__init__()
        self.facts: dict[str, str] = {}
        self._sizes, width = sizes, sizes.embedding_dim
        self.items = torch.nn.Embedding(sizes.num_items, width)
        self.users = torch.nn.Embedding(sizes.num_users, width)
        self.categories = torch.nn.Embedding(sizes.num_categories, width)
        self.ratings = torch.nn.Embedding(RATINGS, width)
        self.kinds = torch.nn.Embedding(CANDIDATE + 1, width)
        self.layers = torch.nn.ModuleList(HstuLayer(sizes) for _ in range(sizes.num_layers))
        self.hidden = torch.nn.Linear(width, sizes.hidden_dim)
        self.head = torch.nn.Linear(sizes.hidden_dim, 1)

    def prepare(self, sample: Any) -> Any:
        """Convert a request to a sequence of user, history and candidates.

        Returns int64, shape (sequence length, columns), with `PART_COLUMNS` as columns.
        """
        needed = {"step", "query", "user", "history", "ratings", "candidates", "labels"}
        if not isinstance(sample, Mapping) or not needed <= sample.keys():
            raise Mismatch("is not a request; use the data set streaming")
        actions, candidates = len(sample["history"]), len(sample["candidates"])
        parts = np.zeros((1 + actions + candidates, len(PART_COLUMNS)), np.int64)
        parts[:, 0] = np.repeat([USER, ACTION, CANDIDATE], [1, actions, candidates])
        parts[:, 1] = np.concatenate([[sample["user"]], sample["history"], sample["candidates"]])
        # The reference truncates ratings to whole numbers too.
        parts[1 : 1 + actions, 2] = (sample["ratings"].astype(np.int64) - 1) % RATINGS
        parts[1 + actions :, 3] = sample["labels"]
        parts[:, 4:] = sample["step"], sample["query"]
        for count, first, last, things in (
            (self._sizes.num_users, 0, 1, "users"),
            (self._sizes.num_items, 1, None, "items"),
        ):
            if (most := parts[first:last, 1].max(initial=0)) >= count:
                raise Mismatch(
                    f"has {things} up to number {most:,}, but the model's table has {count:,} "
                    f"{things}; use the data set that the model is made for"
                )
        return parts

    def forward(self, parts: Any) -> Any:
        """Predict a probability for each element of the sequences, shape (batch, length, 5).

        The last dimension is: kind of the element, prediction, label, time step, query number.
        """
        kind, number, rating = parts[..., 0], parts[..., 1], parts[..., 2]
        is_user, is_action, is_candidate = kind == USER, kind == ACTION, kind == CANDIDATE
        sizes, hidden = self._sizes, self.kinds(kind)
        item = number.where(~is_user, torch.zeros_like(number))
        category = (item // (sizes.num_items // sizes.num_categories)).clamp(
            max=sizes.num_categories - 1
        )
        about_item = self.items(item) + self.categories(category)
        user = self.users(number.where(is_user, torch.zeros_like(number)))
        hidden = hidden + about_item * (is_action | is_candidate).unsqueeze(-1)
        hidden = hidden + user * is_user.unsqueeze(-1)
        hidden = hidden + self.ratings(rating) * is_action.unsqueeze(-1)
        sees = self._sees(is_user | is_action, is_candidate).to(hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, sees)
        logits = self.head(silu(self.hidden(layer_norm(hidden, hidden.shape[-1:])))).squeeze(-1)
        # In float32, since close probabilities would become ties in a narrower type.
        rows = (kind, logits.float().sigmoid(), parts[..., 3], parts[..., 4], parts[..., 5])
        return torch.stack([row.float() for row in rows], dim=-1)

    def _sees(self, past: Any, is_candidate: Any) -> Any:
        """Return the attention mask, divided by the number of user and history elements.

        Each element attends to user and history up to itself; a candidate also to itself.
        """
        length = past.shape[1]
        order = torch.ones(length, length, dtype=torch.bool, device=past.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=past.device)
        sees = past.unsqueeze(1) & order | itself & is_candidate.unsqueeze(1)
        return (sees / past.sum(1).clamp(min=1)[:, None, None]).unsqueeze(1)

    def encode(self, part: Any) -> bytes:
        """Return the answer to a request in MLPerf's log format, which scorer `ranking` reads."""
        rows = part.numpy()
        _, predictions, labels, steps, queries = rows[rows[:, 0] == CANDIDATE].T
        ends = [*predictions, *labels, *np.ones(len(labels)), len(labels)]
        return np.array([steps[0], queries[0], *ends], "<f4").tobytes()


def dlrm_v3(*, model: str, weights: str = "checkpoint") -> Hstu:
    """Load a ranking model from a folder.

    Args:
        model: Folder with config.json and, unless `weights` is "dummy", safetensors files.
        weights: "checkpoint"; or "dummy" for reproducible random weights with the dimensions in
            config.json.
    """
    folder = Path(model)
    sizes = sizes_in(folder, HstuSizes, "dlrm-v3")
    if sizes.num_categories > sizes.num_items:
        raise broken(
            folder / "config.json",
            f"num_categories = {sizes.num_categories} is above num_items = {sizes.num_items}; "
            "correct one of them",
        )
    return module_with_weights(folder, weights, lambda: Hstu(sizes))
