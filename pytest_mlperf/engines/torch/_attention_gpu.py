"""The kernel of `_attention`, in Triton: a program for each sequence and head of keys."""

# Triton takes no annotations but its own:
# ruff: noqa: ANN001, ANN202

from __future__ import annotations

import torch
import triton
import triton.language as tl

LEAST = 16
"""Rows of a product of matrices at least: where fewer heads share keys, some are made up."""

WIDE_BYTES = 256
"""Of wider keys fewer are read together, so that three blocks fit a multiprocessor's memory."""


def attend(query, key, value, keys, values, column, position, scale):  # type: ignore[no-untyped-def]
    """As `_attention.attend`."""
    rows, heads, _, size = query.shape
    kv_heads = key.shape[1]
    if size < LEAST or size & (size - 1):
        raise ValueError(
            f"its heads have {size} elements, which is no power of two from {LEAST} on"
        )
    if value.shape != key.shape:
        raise ValueError("its values have another size than its keys")
    query, key, value = (each.contiguous() for each in (query, key, value))
    out = torch.empty_like(query)
    wide = size * query.element_size() > WIDE_BYTES
    _attend[rows, kv_heads](
        *(query, key, value, keys, values, column, position, out, scale),
        heads // kv_heads,
        *keys.stride()[:2],
        size=size,
        queries=max(LEAST, triton.next_power_of_2(heads // kv_heads)),
        block=32 if wide else 64,
        num_warps=4,
        num_stages=3,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    keys,
    values,
    column,
    position,
    out,
    scale,
    group,
    row_stride,
    head_stride,
    size: tl.constexpr,
    queries: tl.constexpr,
    block: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = row * tl.num_programs(1) + head
    along, each = tl.arange(0, size), tl.arange(0, queries)
    # Of contiguous tensors (rows, heads, 1, size): a head of keys has a group of queries.
    inside = (pair * group + each)[:, None] * size + along[None, :]
    real = (each < group)[:, None]
    q = tl.load(query + inside, mask=real, other=0.0)
    new_key = tl.load(key + pair * size + along)
    new_value = tl.load(value + pair * size + along)
    end = tl.load(column)
    first = end - tl.load(position + row)
    place = row * row_stride + head * head_stride
    tl.store(keys + place + end * size + along, new_key)
    tl.store(values + place + end * size + along, new_value)
    # The new token is never read back: the sums begin with it.
    best = tl.sum(q.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale
    total = tl.full([queries], 1.0, tl.float32)
    answer = tl.zeros([queries, size], tl.float32) + new_value.to(tl.float32)[None, :]
    for begin in range(first // block * block, end, block):
        at = begin + tl.arange(0, block)
        there = (at >= first) & (at < end)
        places = place + at * size
        k = tl.load(keys + places[None, :] + along[:, None], mask=there[None, :], other=0.0)
        v = tl.load(values + places[:, None] + along[None, :], mask=there[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        shares = tl.exp(scores - higher[:, None])
        less = tl.exp(best - higher)
        total = total * less + tl.sum(shares, 1)
        answer = answer * less[:, None]
        answer += tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        best = higher
    tl.store(out + inside, answer / total[:, None], mask=real)
