"""Samples through a module, batch by batch, and the bytes that scorers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Dataset, Sink
from pytest_mlperf.engines.torch.module_batches import (
    Batching,
    Mismatch,
    Signature,
    Tree,
    join,
    length,
    move,
    pick,
    signature,
    tensors,
)


class Runner:
    """Keeps loaded samples on the CPU and answers them; `run` is safe from several threads."""

    def __init__(
        self,
        module: Any,
        dataset: Dataset,
        *,
        batching: Batching,
        device: Any,
        dtype: Any,
        batch_size: int,
        output: str | int | None,
        warm_up: bool,
    ) -> None:
        """Answer with this module.

        Args:
            module: Takes a batch as its only argument, by name where samples are dicts, by
                position where they are lists. It may have `prepare(sample)`, which turns a sample
                into what the module takes, and `host_inputs`, names of inputs that stay on the
                CPU.
            dataset: Its samples.
            batching: How samples become one batch.
            device: Where the module is.
            dtype: What floating inputs are turned into.
            batch_size: Samples per call at most.
            output: Which tensor of the result; None is the only one.
            warm_up: Run batches of several sizes before the first run, for torch.compile.
        """
        self._module = module
        self._dataset = dataset
        self._batching = batching
        self._device = device
        self._dtype = dtype
        self._batch_size = batch_size
        self._output = output
        self._warm_up = warm_up
        self._prepare = getattr(module, "prepare", None)
        self._host_inputs = frozenset(getattr(module, "host_inputs", ()))
        self._samples: dict[int, Tree] = {}
        self._lengths: dict[int, int] = {}
        self._signature: Signature | None = None

    def load(self, indices: Sequence[int]) -> None:
        """Decode and check samples, and answer some for the first time.

        Raises:
            RunError: A sample is not what the module takes.
        """
        first = not self._samples
        for index in indices:
            if index not in self._samples:
                try:
                    self._keep(index)
                except Mismatch as error:
                    raise RunError("engine", f"sample {index} of the data set {error}") from error
        if first and indices:
            sizes = [1]
            if self._warm_up:
                # The second size that torch.compile sees makes it compile for any size.
                sizes = sorted({self._batch_size, max(1, self._batch_size - 1), 1}, reverse=True)
            for size in sizes:
                self._answer([indices[place % len(indices)] for place in range(size)])

    def unload(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        for index in indices:
            self._samples.pop(index, None)
            self._lengths.pop(index, None)

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer samples and report them.

        Raises:
            RunError: The module breaks, or its result has another shape.
        """
        order: Sequence[int] = range(len(ids))
        if self._batching.name == "pad" and len(ids) > self._batch_size:
            # Samples of similar length share a batch, so that little of it is padding.
            order = sorted(order, key=lambda row: self._lengths[indices[row]], reverse=True)
        for start in range(0, len(ids), self._batch_size):
            rows = order[start : start + self._batch_size]
            answers = self._answer([indices[row] for row in rows])
            outputs = [_bytes(answer) for answer in answers] if sink.wants_output else None
            sink.done([ids[row] for row in rows], outputs)

    def _keep(self, index: int) -> None:
        given = self._dataset.input(index)
        sample = tensors(given if self._prepare is None else self._prepare(given))
        found = signature(sample, self._batching)
        self._signature = self._signature or found
        if found != self._signature:
            raise Mismatch(
                f"is {_words(found)}, but the first one is {_words(self._signature)}; batching = "
                f"{self._batching.name!r} cannot put them into one batch"
            )
        self._lengths[index] = length(sample, self._batching)
        self._samples[index] = sample

    def _answer(self, indices: Sequence[int]) -> list[Any]:
        """Return each sample's own part of the result, on the CPU."""
        lengths = [self._lengths[index] for index in indices]
        batch = join([self._samples[index] for index in indices], self._batching)
        try:
            with torch.inference_mode():
                result = pick(self._call(batch), self._output)
                return self._batching.cut(_plain(result).cpu(), lengths)
        except Mismatch as error:
            raise RunError("engine", f"the module's result {error}") from error
        except torch.OutOfMemoryError as error:
            raise RunError(
                "engine",
                f"the accelerator ran out of memory with batch_size = {self._batch_size}; lower "
                f"batch_size ({error})",
            ) from error
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise RunError(
                "engine",
                f"the module broke on a batch of {len(indices)} samples, the first being sample "
                f"{indices[0]} of the data set: {type(error).__name__}: {error}",
            ) from error

    def _call(self, batch: Tree) -> Any:
        if isinstance(batch, dict):
            return self._module(
                **{
                    name: move(
                        each,
                        torch.device("cpu") if name in self._host_inputs else self._device,
                        self._dtype,
                    )
                    for name, each in batch.items()
                }
            )
        moved = move(batch, self._device, self._dtype)
        return self._module(*moved) if isinstance(moved, list) else self._module(moved)


def _plain(result: Any) -> Any:
    """Return floats as float32, bytes and truths as uint8, other whole numbers as int64."""
    if result.is_floating_point():
        return result.float()
    return result.to(torch.uint8 if result.dtype in {torch.uint8, torch.bool} else torch.int64)


def _bytes(part: Any) -> bytes:
    array = part.contiguous().numpy()
    return bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _words(found: Signature) -> str:
    """Return a signature as a suite's author reads it."""
    match found:
        case (str(only),):
            return only
        case ("list", *parts):
            return f"[{', '.join(_words(part) for part in parts)}]"  # type: ignore[arg-type]
    return ", ".join(f"{name!r}: {_words(part)}" for name, part in found)  # type: ignore[misc,has-type]
