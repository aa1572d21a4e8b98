"""Samples of nested arrays as tensors, joined into batches; results cut into samples again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tree = Any
"""A tensor, or a dict, list or tuple of trees."""

Signature = tuple[object, ...]


class Mismatch(Exception):
    """A sample or a result is not what the way of batching takes; the text ends a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """A way to make one call of a module of several samples.

    Attributes:
        name: As a suite says it.
        join: Makes one tensor of those of the samples.
        grows: Samples may differ in the first dimension, and results then have it too.
    """

    name: str
    join: Callable[[list[Any]], Any]
    grows: bool

    def cut(self, result: Any, lengths: Sequence[int]) -> list[Any]:
        """Return each sample's own part of a result.

        Args:
            result: What the module returned for the whole batch.
            lengths: First dimension of each sample; read where it may differ.

        Raises:
            Mismatch: The result's shape does not have these parts.
        """
        shape = tuple(result.shape)
        if self.name == "concat":
            if shape[:1] != (sum(lengths),):
                raise Mismatch(f"has shape {shape} and should start with {sum(lengths)}")
            return list(result.split(list(lengths)))
        if shape[:1] != (len(lengths),):
            raise Mismatch(
                f"has shape {shape} and should start with {len(lengths)}, one per sample"
            )
        if self.name == "stack":
            return list(result)
        if shape[1:2] != (max(lengths),):
            raise Mismatch(
                f"has shape {shape} and should start with {(len(lengths), max(lengths))}"
            )
        return [row[:length] for row, length in zip(result, lengths, strict=True)]


def _pad(parts: list[Any]) -> Any:
    """Fill with zeros up to the longest, which costs nothing where all are as long."""
    if len({len(part) for part in parts}) == 1:
        return torch.stack(parts)
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


BATCHINGS = {
    each.name: each
    for each in (
        Batching(name="stack", join=torch.stack, grows=False),
        Batching(name="concat", join=torch.cat, grows=True),
        Batching(name="pad", join=_pad, grows=True),
    )
}


def tensors(sample: Any) -> Tree:
    """Return a sample as tensors on the CPU; memory is shared where that is possible.

    Raises:
        Mismatch: Something in it is no array of numbers.
    """
    if isinstance(sample, torch.Tensor):
        return sample
    if isinstance(sample, Mapping):
        return {name: tensors(each) for name, each in sample.items()}
    if isinstance(sample, list | tuple) and not all(
        isinstance(each, bool | int | float) for each in sample
    ):
        return [tensors(each) for each in sample]
    return _tensor(sample)


def _tensor(given: Any) -> Any:
    import numpy as np

    if isinstance(given, str | bytes) or given is None:
        raise Mismatch(
            f"has {type(given).__name__}; this engine takes arrays, or dicts and lists of arrays"
        )
    array = np.asarray(given)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # torch warns of memory that must not be written to, and takes no negative strides.
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise Mismatch(
            f"has {array.dtype}; this engine takes arrays of numbers, or dicts and lists of arrays"
        ) from None


def leaves(tree: Tree) -> list[Any]:
    """Return the tensors of a sample, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [leaf for part in parts for leaf in leaves(part)]


def length(sample: Tree, batching: Batching) -> int:
    """Return the first dimension that a sample's tensors share; 1 where it does not matter.

    Raises:
        Mismatch: They do not share one.
    """
    if not batching.grows:
        return 1
    found = {tuple(leaf.shape[:1]) for leaf in leaves(sample)}
    if len(found) != 1 or () in found:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves(sample)[:4])
        raise Mismatch(
            f"has arrays of shapes {shapes}; batching = {batching.name!r} needs one first "
            "dimension of all"
        )
    (only,) = found.pop()
    if not only:
        raise Mismatch("is empty; leave it out of the data set")
    return int(only)


def signature(sample: Tree, batching: Batching) -> Signature:
    """Return what samples of one batch must share."""
    if isinstance(sample, torch.Tensor):
        kept = sample.shape[1:] if batching.grows else sample.shape
        shape = ", ".join((["any"] if batching.grows else []) + [str(n) for n in kept])
        return (f"{str(sample.dtype).removeprefix('torch.')} ({shape})",)
    if isinstance(sample, dict):
        return tuple((name, signature(each, batching)) for name, each in sample.items())
    return ("list", *(signature(each, batching) for each in sample))


def join(samples: Sequence[Tree], batching: Batching) -> Tree:
    """Return samples as one batch; they have the same signature."""
    first = samples[0]
    if isinstance(first, torch.Tensor):
        return batching.join(list(samples))
    if isinstance(first, dict):
        return {name: join([each[name] for each in samples], batching) for name in first}
    return [join(parts, batching) for parts in zip(*samples, strict=True)]


def move(tree: Tree, device: Any, dtype: Any) -> Tree:
    """Return a batch on a device, floats in the module's type."""
    if isinstance(tree, torch.Tensor):
        wanted = dtype if tree.is_floating_point() else tree.dtype
        return tree.to(device, wanted, non_blocking=True)
    if isinstance(tree, dict):
        return {name: move(each, device, dtype) for name, each in tree.items()}
    return [move(each, device, dtype) for each in tree]


def pick(result: Any, output: str | int | None) -> Any:
    """Return the tensor of a module's result that is asked for.

    Args:
        result: What the module returned.
        output: Its key, attribute or position; None takes the only one.

    Raises:
        Mismatch: There is none, or more than one to choose from.
    """
    if isinstance(result, torch.Tensor) and output is None:
        return result
    named: dict[str | int, Any] = {}
    if isinstance(result, Mapping):
        named = dict(result)
    elif isinstance(result, list | tuple):
        fields = getattr(result, "_fields", ())
        named = {**dict(enumerate(result)), **dict(zip(fields, result, strict=False))}
    if output is None and not getattr(result, "_fields", ()) and len(named) == 1:
        output = next(iter(named))
    found = named.get(output) if output is not None else None
    if isinstance(found, torch.Tensor):
        return found
    has = ", ".join(repr(name) for name in named) or type(result).__name__
    asked = "set output to one of them" if output is None else f"output = {output!r} is no tensor"
    raise Mismatch(f"has {has}; {asked}")
