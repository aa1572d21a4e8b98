"""Run samples through a module in batches, and encode the results for scorers."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_mlperf import Dataset, MlperfError, Sink, SuiteError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.engines import engine_error, refused_sample
from pytest_mlperf.adapters.engines.torch import _devices as devices
from pytest_mlperf.adapters.engines.torch._base import QUANTISED_PRECISIONS, TorchModuleOptions
from pytest_mlperf.adapters.lazy import np
from pytest_mlperf.extension import not_imported, text_of

Tree = Any


class Mismatch(Exception):
    """Report that a sample or output does not fit the batching; the text completes a message."""


def split(batching: str, result: Any, lengths: Sequence[int]) -> list[Any]:
    """Split a batch's output by sample; raise Mismatch if its shape does not fit `batching`."""
    shape = tuple(result.shape)
    if batching == "concat":
        if shape[:1] != (sum(lengths),):
            total = f"{sum(lengths)}, the total length of the batch's samples"
            raise Mismatch(f"has shape {shape}, but its first dimension must be {total}")
        return list(result.split(list(lengths)))
    if shape[:1] != (len(lengths),):
        total = f"{len(lengths)}, one per sample"
        raise Mismatch(f"has shape {shape}, but its first dimension must be {total}")
    if batching == "stack":
        return list(result)
    if shape[1:2] != (max(lengths),):
        total = f"{max(lengths)}, the length of the batch's longest sample"
        raise Mismatch(f"has shape {shape}, but its second dimension must be {total}")
    return [row[:length] for row, length in zip(result, lengths, strict=True)]


def _pad(parts: list[Any]) -> Any:
    if len({len(part) for part in parts}) == 1:
        return torch.stack(parts)
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


JOINS: Mapping[str, Callable[[list[Any]], Any]] = {
    "stack": torch.stack,
    "concat": torch.cat,
    "pad": _pad,
}
"""Ways to join the tensors of a batch; with all but "stack", first dimensions may differ."""


def tensors(sample: Any) -> Tree:
    """Return a sample as tensors on the CPU, sharing its memory if possible."""
    if isinstance(sample, torch.Tensor):
        return sample
    if isinstance(sample, Mapping):
        return {name: tensors(part) for name, part in sample.items()}
    if isinstance(sample, list | tuple) and not all(
        isinstance(part, bool | int | float) for part in sample
    ):
        return [tensors(part) for part in sample]
    return _tensor(sample)


def _tensor(values: Any) -> Any:
    if isinstance(values, str | bytes) or values is None:
        raise Mismatch(
            f"has a value of type {type(values).__name__}; this engine takes arrays, or dicts and "
            "lists of arrays"
        )
    array = np.asarray(values)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # torch warns of read-only memory, and supports no negative strides.
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise Mismatch(
            f"has an array of type {array.dtype}; this engine takes arrays of numbers, or dicts "
            "and lists of arrays"
        ) from None


def length(sample: Tree, batching: str) -> int:
    """Return the first dimension of a sample's tensors; 1 if `batching` is "stack"."""
    if batching == "stack":
        return 1
    lengths = {tuple(leaf.shape[:1]) for leaf in tree_leaves(sample)}
    if len(lengths) != 1 or () in lengths:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in tree_leaves(sample)[:4])
        raise Mismatch(
            f"has arrays of shapes {shapes}; batching = {batching!r} needs the same "
            "first dimension in all arrays of a sample"
        )
    (only,) = lengths.pop()
    if not only:
        raise Mismatch("is empty; leave it out of the data set")
    return int(only)


def signature(sample: Tree, batching: str) -> str:
    """Describe, as text, the types and shapes that all samples of a batch must have in common."""
    if isinstance(sample, torch.Tensor):
        grows = batching != "stack"
        kept = sample.shape[1:] if grows else sample.shape
        shape = ", ".join(["any"] * grows + [str(n) for n in kept])
        return f"{str(sample.dtype).removeprefix('torch.')} ({shape})"
    if isinstance(sample, dict):
        return ", ".join(f"{name!r}: {_inner(part, batching)}" for name, part in sample.items())
    return f"[{', '.join(_inner(part, batching) for part in sample)}]"


def _inner(part: Tree, batching: str) -> str:
    shapes = signature(part, batching)
    return f"{{{shapes}}}" if isinstance(part, dict) else shapes


def join(samples: Sequence[Tree], batching: str) -> Tree:
    return tree_map(lambda *parts: JOINS[batching](list(parts)), *samples)


def move(tree: Tree, device: Any, dtype: Any) -> Tree:
    def moved(tensor: Any) -> Any:
        kind = dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(device, kind, non_blocking=True)

    return tree_map(moved, tree)


def pick(result: Any, output: str | int | None) -> Any:
    """Return a module's output tensor by key, attribute or index (None: its only one)."""
    if isinstance(result, torch.Tensor) and output is None:
        return result
    parts: dict[str | int, Any] = {}
    if isinstance(result, Mapping):
        parts = dict(result)
    elif isinstance(result, list | tuple):
        fields = getattr(result, "_fields", ())
        parts = {**dict(enumerate(result)), **dict(zip(fields, result, strict=False))}
    if output is None and not getattr(result, "_fields", ()) and len(parts) == 1:
        output = next(iter(parts))
    tensor = parts.get(output) if output is not None else None
    if isinstance(tensor, torch.Tensor):
        return tensor
    if isinstance(result, torch.Tensor):
        raise Mismatch(f"is a single tensor, but output = {output!r}; leave output out")
    if not parts:
        raise Mismatch(f"is of type {type(result).__name__} and has no tensor; correct the module")
    has = ", ".join(repr(name) for name in parts)
    if output is None:
        raise Mismatch(f"has {has}; set output to one of them")
    raise Mismatch(f"has {has}; output = {output!r} is not a tensor among them")


ENGINE = "torch-module"


def open_module(
    path: str, options: TorchModuleOptions, *, model: str | None, precision: str
) -> tuple[Any, Mapping[str, str]]:
    """Load a module in eval mode, on its device; return it and its facts for the fingerprint."""
    factory, dummy = options.factory, options.weights == "dummy"
    device = devices.find_device(options.device, engine=ENGINE)
    devices.require_kernels(precision, device, engine=ENGINE)
    keywords = dict(options.arguments or {}) | ({"weights": "dummy"} if dummy else {})
    with torch.no_grad():
        module = _call(find_factory(factory, path), factory, {"model": model, **keywords})
    module_facts = dict(getattr(module, "facts", {}))
    if not {"weights", "weights_sha256"} & module_facts.keys():
        digest = {"weights": "dummy"} if dummy else {"weights_sha256": state_sha256(module)[:16]}
        module_facts |= digest
    dtype = devices.base_dtype(precision, torch.float32, device)
    module = module.eval().to(device, dtype)
    facts = {
        "torch": str(torch.__version__),
        "factory": factory,
        "architecture": type(module).__name__,
        "dtype": devices.dtype_name(dtype),
        "device": devices.device_name(device),
        **module_facts,
    }
    if precision in QUANTISED_PRECISIONS:
        facts |= devices.quantise(module, precision, device=device, engine=ENGINE)
    if options.compile:
        module.compile(mode=options.compile)
    return module, facts


def state_sha256(module: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        kept = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {kept.dtype} {tuple(kept.shape)}\n".encode())
        digest.update(kept.reshape(-1).view(torch.uint8).numpy().data if kept.numel() else b"")
    return digest.hexdigest()


def find_factory(factory: str, path: str) -> Callable[..., Any]:
    """Import the factory at `path`, "package.module:name"; messages name the option `factory`."""
    name, _, attribute = path.partition(":")
    try:
        target = importlib.import_module(name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        is_module = isinstance(error, ImportError)
        if is_module and path != factory:
            who = f"engine {ENGINE}: factory = {factory!r}"
            raise not_installed(who, str(error.name), "lm", option="factory") from error
        problem = "cannot be imported" if is_module else "is not there"
        raise SuiteError(
            f"engine {ENGINE}: factory = {factory!r} {problem}: {not_imported(path, error)}",
            option="factory",
        ) from error
    if not callable(target):
        raise SuiteError(
            f"engine {ENGINE}: factory = {factory!r} cannot be called", option="factory"
        )
    return target


def _call(function: Callable[..., Any], factory: str, keywords: Mapping[str, object]) -> Any:
    try:
        module = function(**keywords)
    except MlperfError:
        raise
    # A factory is the suite's own code, which may raise any error.
    except Exception as error:
        raise engine_error(
            f"factory {factory} failed, called with {', '.join(keywords)}: "
            f"{type(error).__name__}: {text_of(error)}",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise engine_error(
            f"factory {factory} returned {type(module).__name__}, not a torch.nn.Module"
        )
    return module


class ModuleRunner:
    """Keep loaded samples on the CPU and run the module on them; `run` is thread-safe."""

    def __init__(
        self, module: Any, dataset: Dataset, options: TorchModuleOptions, precision: str
    ) -> None:
        name = options.batching or getattr(module, "batching", None) or "stack"
        if name not in JOINS:
            raise engine_error(
                f"factory {options.factory}: the module's batching is {name!r}, which is not one "
                f"of {', '.join(JOINS)}",
            )
        self._module = module
        self._dataset = dataset
        self._options = options
        self._batching = name
        self._batch_size = options.batch_size
        self._device = devices.find_device(options.device, engine=ENGINE)
        self._dtype = devices.base_dtype(precision, torch.float32, self._device)
        self._prepare = getattr(module, "prepare", None)
        self._encode = getattr(module, "encode", _bytes)
        self._sorts = name == "pad" and not getattr(dataset, "in_order", False)
        if bind := getattr(module, "bind", None):
            bind(dataset)
        self._host_inputs = frozenset(getattr(module, "host_inputs", ()))
        self._samples: dict[int, Tree] = {}
        self._lengths: dict[int, int] = {}
        self._signature: str | None = None

    def describe(self) -> Mapping[str, str]:
        output = self._options.output
        return {
            "batching": self._batching,
            "workers": str(self._options.workers),
            "compile": str(self._options.compile or "false"),
            "output": "only" if output is None else str(output),
        }

    def load(self, indices: Sequence[int]) -> None:
        first = not self._samples
        for index in indices:
            if index not in self._samples:
                try:
                    self._keep(index)
                except Mismatch as error:
                    raise refused_sample(index, error) from error
        if first and indices:
            sizes = [1]
            if self._options.compile:
                # torch.compile compiles for any size at the second size that it sees.
                sizes = sorted({self._batch_size, max(1, self._batch_size - 1), 1}, reverse=True)
            for size in sizes:
                self._answer([indices[n % len(indices)] for n in range(size)])

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._samples.pop(index, None)
            self._lengths.pop(index, None)

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        order: Sequence[int] = range(len(ids))
        if self._sorts and len(ids) > self._batch_size:
            # Samples of similar length share a batch, to reduce padding.
            order = sorted(order, key=lambda row: self._lengths[indices[row]], reverse=True)
        for start in range(0, len(ids), self._batch_size):
            rows = order[start : start + self._batch_size]
            answers = self._answer([indices[row] for row in rows])
            outputs = [self._encode(answer) for answer in answers] if sink.wants_output else None
            sink.done([ids[row] for row in rows], outputs)

    def _keep(self, index: int) -> None:
        sample_input = self._dataset.input(index)
        sample = tensors(sample_input if self._prepare is None else self._prepare(sample_input))
        shapes = signature(sample, self._batching)
        self._signature = self._signature or shapes
        if shapes != self._signature:
            raise Mismatch(
                f"is {shapes}, but the first one is {self._signature}; batching = "
                f"{self._batching!r} cannot put them into one batch"
            )
        self._lengths[index] = length(sample, self._batching)
        self._samples[index] = sample

    def _answer(self, indices: Sequence[int]) -> list[Any]:
        lengths = [self._lengths[index] for index in indices]
        batch = join([self._samples[index] for index in indices], self._batching)
        try:
            with (
                devices.enough_memory(self._batch_size, "lower batch_size"),
                torch.inference_mode(),
            ):
                result = pick(self._call(batch), self._options.output)
                return split(self._batching, _plain(result).cpu(), lengths)
        except Mismatch as error:
            raise engine_error(f"the module's result {error}") from error
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise engine_error(
                f"the module failed on a batch of {len(indices)} samples, the first being "
                f"sample {indices[0]} of the data set: {type(error).__name__}: {error}",
            ) from error

    def _call(self, batch: Tree) -> Any:
        if isinstance(batch, dict):
            return self._module(
                **{
                    name: move(
                        part,
                        torch.device("cpu") if name in self._host_inputs else self._device,
                        self._dtype,
                    )
                    for name, part in batch.items()
                }
            )
        moved = move(batch, self._device, self._dtype)
        return self._module(*moved) if isinstance(moved, list) else self._module(moved)


def _plain(result: Any) -> Any:
    if result.is_floating_point():
        return result.float()
    return result.to(torch.uint8 if result.dtype in {torch.uint8, torch.bool} else torch.int64)


def _bytes(part: Any) -> bytes:
    array = part.contiguous().numpy()
    return bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
