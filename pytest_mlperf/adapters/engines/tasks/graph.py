"""Check the inputs and outputs of an opened model, and run it on samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_mlperf import RunError
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.lazy import NDArray, np

NUMPY = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}

INPUT_TYPES = {"fp64": "tensor(double)", "fp32": "tensor(float)", "fp16": "tensor(float16)"}
NO_PRECISION = {f"tensor({each})" for each in ("int8", "uint8", "int32", "int64", "bool")}
"""Types of ids, masks and images, which are the same for all precisions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """Describe an input or output of a model; `type` is onnxruntime's, e.g. "tensor(float)".

    The shape begins with the batch dimension; a variable dimension is a name or None.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Describe a model's inputs and outputs; each engine implements `run`."""

    where: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def run(
        self, outputs: Sequence[str], feed: Mapping[str, NDArray[Any]]
    ) -> Sequence[NDArray[Any]]:
        """Compute and return the named outputs; `feed` has a batch for each input by name."""
        raise NotImplementedError

    def refuse(self, reason: str) -> RunError:
        return engine_error(f"{self.where}: {reason}")

    def pick(self, name: str | None) -> Tensor:
        """Return output `name` (None: the only output); RunError unless exactly one matches."""
        matches = [each for each in self.outputs if name in (None, each.name)]
        if len(matches) == 1:
            return matches[0]
        names = ", ".join(each.name for each in self.outputs)
        if name is None:
            raise self.refuse(
                f"gives {len(matches)} outputs ({names}); select one with the option output"
            )
        raise self.refuse(
            f"has no output {name!r}; its outputs are {names}; correct the option output"
        )


def check_inputs(graph: Graph, precision: str | None) -> None:
    """Raise RunError if an input's type is not supported, or contradicts the precision."""
    for tensor in graph.inputs:
        if tensor.type not in NUMPY:
            inputs = ", ".join(f"{each.name} {each.type}" for each in graph.inputs)
            raise graph.refuse(
                f"takes {inputs}; this engine runs models with inputs of type {', '.join(NUMPY)}"
            )
        if not tensor.shape:
            raise graph.refuse(
                f"its input {tensor.name!r} has no batch dimension; export the model with the "
                "batch as first dimension of every input"
            )
        expected = INPUT_TYPES.get(precision or "", tensor.type)
        if tensor.type not in NO_PRECISION and tensor.type != expected:
            raise graph.refuse(
                f"precision is {precision!r}, but the model's input {tensor.name!r} is "
                f"{tensor.type}, not {expected}; correct precision or the model"
            )


def check_batch(graph: Graph, batch_size: int, *, takes_rows: bool) -> None:
    """Refuse (RunError) a fixed batch dimension; batch_size 1 allows 1, or any if `takes_rows`."""
    for tensor in graph.inputs:
        batch = tensor.shape[0]
        fills = batch == 1 or takes_rows
        if isinstance(batch, int) and not (fills and batch_size == 1):
            raise graph.refuse(
                f"the batch dimension is fixed at {batch}, which does not fit batch_size = "
                f"{batch_size}; export the model with a dynamic batch"
                + (", or set batch_size = 1" if fills else "")
            )


Sample = Mapping[str, "NDArray[Any]"]

IDS = frozenset({"input_ids"})
MASK = frozenset({"input_mask", "attention_mask"})
SEGMENTS = frozenset({"segment_ids", "token_type_ids"})
"""Names of an encoder's inputs in MLPerf's models and in those of transformers."""


def input_names(tensor: Tensor) -> frozenset[str]:
    """Return the names that a data set may use for this input; an ending ":0" is removed."""
    name = tensor.name.removesuffix(":0")
    return next((each for each in (IDS, MASK, SEGMENTS) if name in each), frozenset({name}))


def input_arrays(graph: Graph, raw: Any, index: int) -> dict[str, NDArray[Any]]:
    """Convert a sample to an array for each model input, in the input's type; check no shapes.

    `raw` is one array for a model with one input, or a dict of arrays by name; names that the model
    does not have are ignored. A list of arrays stands for the inputs NAME_0, NAME_1, ...
    """
    if isinstance(raw, Mapping):
        arrays = _by_name(graph, raw, index)
    elif len(graph.inputs) == 1:
        arrays = {graph.inputs[0].name: raw}
    else:
        raise graph.refuse(
            f"takes {_list(graph)}, but sample {index} of the data set is one array; use a data "
            "set that gives arrays by these names"
        )
    return {each.name: _convert(graph, each, arrays[each.name], index) for each in graph.inputs}


def check_shape(
    graph: Graph, tensor: Tensor, sample: NDArray[Any], expected: Sequence[Any], index: int
) -> None:
    """Raise RunError unless sample `index` has the expected shape; named lengths are variable."""
    if not matches_shape(sample.shape, expected):
        raise graph.refuse(
            f"input {tensor.name!r} takes samples of shape {tuple(expected)}, but sample {index} "
            f"of the data set has shape {sample.shape}; set the options of the data set, or the "
            "model, so that the shapes agree"
        )


def matches_shape(shape: Sequence[int], model_shape: Sequence[int | str | None]) -> bool:
    """Check a sample's shape against the model's, in which only integers are fixed lengths."""
    return len(shape) == len(model_shape) and all(
        want == have for have, want in zip(shape, model_shape, strict=True) if isinstance(want, int)
    )


def _by_name(graph: Graph, raw: Mapping[str, Any], index: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(value, list | tuple) and value and hasattr(value[0], "dtype"):
            flat.update((f"{name}_{number}", each) for number, each in enumerate(value))
        else:
            flat[name] = value
    arrays = {}
    for tensor in graph.inputs:
        matching = input_names(tensor).intersection(flat)
        if not matching:
            raise graph.refuse(
                f"takes {_list(graph)}, but sample {index} of the data set has no {tensor.name!r}; "
                f"it has {', '.join(flat) or 'nothing'}; use a data set that names its arrays like "
                "the model's inputs"
            )
        arrays[tensor.name] = flat[min(matching)]
    return arrays


def _convert(graph: Graph, tensor: Tensor, raw: Any, index: int) -> NDArray[Any]:
    # A mapped file would be read during a run.
    array = np.array(raw) if isinstance(raw, np.memmap) else np.asarray(raw)
    dtype = np.dtype(NUMPY[tensor.type])
    # A normalised image would wrap around in uint8: -1.0 would become 255.
    fitting = np.can_cast(array.dtype, dtype, "same_kind")
    if array.dtype.kind in "iu" and array.dtype != dtype and array.size:
        low, high = array.min(), array.max()
        if dtype.kind == "b":
            fitting = low >= 0 and high <= 1
        elif dtype.kind in "iu" and fitting:
            limits = np.iinfo(dtype)
            fitting = low >= limits.min and high <= limits.max
    if not fitting:
        raise graph.refuse(
            f"input {tensor.name!r} takes samples of type {dtype}, but sample {index} of the data "
            f"set is {_worded(array)}; use a data set that gives {dtype}, or a model with "
            f"{array.dtype} input"
        )
    return np.ascontiguousarray(array, dtype) if array.ndim else array.astype(dtype)


def _worded(array: NDArray[Any]) -> str:
    if array.dtype.kind in "iu" and array.size:
        return f"{array.dtype} from {array.min()} to {array.max()}"
    return str(array.dtype)


def _list(graph: Graph) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in graph.inputs)


class Task:
    """Base class of tasks, e.g. classify: prepare samples for a model, and convert its outputs.

    Attributes:
        graph: Model that `bind` has set.
        at_once: Maximum number of samples in a call of the model.
    """

    takes_rows: ClassVar[bool] = False
    """Whether a sample may have several rows of the model's batch."""

    graph: Graph
    at_once: int

    def bind(self, graph: Graph, batch_size: int) -> None:
        """Store a model and its batch size; raise RunError if it does not fit the task."""
        check_batch(graph, batch_size, takes_rows=self.takes_rows)
        self.graph, self.at_once = graph, batch_size

    def describe(self) -> Mapping[str, str]:
        raise NotImplementedError

    @property
    def sorts(self) -> bool:
        """Whether samples may differ in shape, so that they are sorted by `key` before batching."""
        return not all(
            isinstance(length, int) for each in self.graph.inputs for length in each.shape[1:]
        )

    def prepare(self, raw: Any, index: int) -> Sample:
        sample = input_arrays(self.graph, raw, index)
        for tensor in self.graph.inputs:
            check_shape(self.graph, tensor, sample[tensor.name], tensor.shape[1:], index)
        return sample

    def key(self, sample: Sample) -> Any:
        """Return the key that samples of equal shape share."""
        return tuple(array.shape for array in sample.values())

    def run(self, indices: Sequence[int], samples: Sequence[Sample]) -> list[bytes]:
        answers = [b""] * len(samples)
        for positions in self.groups(samples):
            batch = self.run_batch(
                [indices[at] for at in positions], [samples[at] for at in positions]
            )
            for position, answer in zip(positions, batch, strict=True):
                answers[position] = answer
        return answers

    def run_batch(self, indices: Sequence[int], samples: Sequence[Sample]) -> Iterable[bytes]:
        raise NotImplementedError

    def groups(self, samples: Sequence[Sample]) -> Iterator[list[int]]:
        """Yield the positions of the samples to run together: those of equal shape (same `key`)."""
        if len(samples) == 1 or not self.sorts:
            yield list(range(len(samples)))
            return
        by_key: dict[Any, list[int]] = {}
        for position, sample in enumerate(samples):
            by_key.setdefault(self.key(sample), []).append(position)
        yield from by_key.values()

    def call(self, outputs: Sequence[str], samples: Sequence[Sample]) -> Sequence[NDArray[Any]]:
        return self.graph.run(
            outputs, {name: stack([each[name] for each in samples]) for name in samples[0]}
        )


def stack(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Stack arrays of equal shape to (arrays, *shape); a single array is not copied."""
    if len(arrays) == 1:
        return arrays[0][None]
    shape = arrays[0].shape
    # For small arrays this takes a third of the time of numpy.stack.
    return np.concatenate(arrays).reshape(len(arrays), *shape) if shape else np.array(arrays)
