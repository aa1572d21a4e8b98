"""What makes a step on a static cache fast on a GPU: compiled layers, and attention in one kernel.

Attention of one new token of each sequence is an operator of its own. It writes the token's key and
value into the cache, and reads no more than the sequence has there: neither padding on the left nor
columns that are still empty. No mask is read, and heads that share keys read them once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

NAME = "pytest_mlperf_static"
"""By which transformers' configurations ask for it."""

_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, Tensor column, "
    "Tensor position, float scale) -> Tensor"
)


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    "pytest_mlperf::attend", mutates_args=("keys", "values"), schema=_SCHEMA
)
def attend(
    query: Any,
    key: Any,
    value: Any,
    keys: Any,
    values: Any,
    column: Any,
    position: Any,
    scale: float,
) -> Any:
    """Return what the queries see of the cache and of themselves: (rows, heads, 1, size).

    Args:
        query: Of the new token of each row: (rows, heads, 1, size).
        key: Of it: (rows, heads of keys, 1, size).
        value: Likewise.
        keys: Of at least so many rows: (rows, heads of keys, columns, size); gets the new ones.
        values: Likewise.
        column: Where the new token stands in the cache: (1,).
        position: Of it in its row, without padding: (at least so many rows, 1).
        scale: Of the scores.
    """
    rows = len(query)
    keys, values = keys[:rows], values[:rows]
    keys.index_copy_(2, column, key)
    values.index_copy_(2, column, value)
    columns = torch.arange(keys.shape[2], device=keys.device)
    seen = (columns <= column) & (columns >= column - position[:rows])
    answer = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, seen[:, None, None], scale=scale, enable_gqa=True
    )
    return answer.contiguous()


@attend.register_kernel("cuda")  # type: ignore[untyped-decorator]
def _attend_on_a_gpu(*tensors: Any) -> Any:
    # Triton comes with torch's builds for CUDA, and with no other.
    from pytest_mlperf.engines.torch import _attention_gpu

    return _attention_gpu.attend(*tensors)  # type: ignore[no-untyped-call]


@attend.register_fake  # type: ignore[untyped-decorator]
def _like_the_query(query: Any, *_: Any) -> Any:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


OTHERS = ("softcap", "position_bias", "s_aux", "sliding_window", "cache")
"""How transformers asks for attention that this is not."""


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,  # noqa: ARG001 - transformers'; what is seen follows from the position
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Any, None]:
    if dropout or any(more.get(name) is not None for name in OTHERS):
        raise ValueError("its attention is of another kind")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    answer = torch.ops.pytest_mlperf.attend(query, key, value, *module.static_cache, scale)
    return answer.transpose(1, 2), None


AttentionInterface.register(NAME, _attention)


class StepCache(Cache):
    """For attention that keeps keys and values itself."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return what was given."""
        return key_states, value_states


class FusedLayers:
    """A model's layers, compiled: all of them are one graph, as each reads its cache of itself."""

    def __init__(self, model: Any) -> None:
        """Compile nothing yet."""
        self._model = model
        repeated = set(model._no_split_modules or ())
        self._layers = [each for each in model.modules() if type(each).__name__ in repeated]
        self._run = torch.compile(
            _run_layer,
            # Rows and columns stay open, or each number of them would be compiled.
            dynamic=True,
            # Rounds as the kernels do that are fused here.
            options={"emulate_precision_casts": True},
        )

    @contextlib.contextmanager
    def over(self, caches: Sequence[Any]) -> Iterator[None]:
        """Let the layers attend over `caches`: keys, values, column and position of each."""
        config = self._model.config.get_text_config()
        asked = config._attn_implementation
        numbered = [m for m in self._model.modules() if isinstance(_number(m), int)]
        for module in numbered:
            module.static_cache = caches[_number(module)]
        config._attn_implementation = NAME
        for layer in self._layers:
            layer.forward = functools.partial(self._run, layer)
        try:
            yield
        finally:
            config._attn_implementation = asked
            for layer in self._layers:
                del layer.forward
            for module in numbered:  # or a cache that has grown too small stays beside the next
                del module.static_cache


def _number(module: Any) -> Any:
    return getattr(module, "layer_idx", None)


def _run_layer(layer: Any, *states: Any, **more: Any) -> Any:
    return type(layer).forward(layer, *states, **more)
