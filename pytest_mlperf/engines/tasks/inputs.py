"""From what a data set gives for a sample to one array for each input of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_mlperf.engines.tasks.graph import NUMPY, Graph, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

Sample = Mapping[str, "NDArray[Any]"]
"""The arrays of one sample, by the names of the model's inputs."""

IDS = frozenset({"input_ids"})
MASK = frozenset({"input_mask", "attention_mask"})
SEGMENTS = frozenset({"segment_ids", "token_type_ids"})
"""Names that an encoder's inputs have in MLPerf's models and in those of transformers."""


def names(tensor: Tensor) -> frozenset[str]:
    """Return what a data set may call an input; ":0" is TensorFlow's way to count outputs."""
    name = tensor.name.removesuffix(":0")
    return next((each for each in (IDS, MASK, SEGMENTS) if name in each), frozenset({name}))


def take(graph: Graph, given: Any, index: int) -> dict[str, NDArray[Any]]:
    """Return an array for each input of the model, in its type; shapes are not looked at.

    Args:
        graph: The model.
        given: One array, for a model with one input; or arrays by the names of its inputs, and
            what it has no input for is left out. A list of arrays stands for NAME_0, NAME_1, ...
        index: Of the sample, for messages.

    Raises:
        RunError: An input is missing, or of a type that cannot become the model's.
    """
    if isinstance(given, Mapping):
        found = _by_name(graph, given, index)
    elif len(graph.inputs) == 1:
        found = {graph.inputs[0].name: given}
    else:
        raise graph.refuse(
            f"takes {_list(graph)}, but sample {index} of the data set is one array; use a data "
            "set that gives arrays by these names"
        )
    return {each.name: _convert(graph, each, found[each.name], index) for each in graph.inputs}


def check_shape(
    graph: Graph, tensor: Tensor, sample: NDArray[Any], taken: Sequence[Any], index: int
) -> None:
    """Refuse an array that does not fit; lengths with a name take any.

    Raises:
        RunError: Says both shapes.
    """
    if not fits(sample.shape, taken):
        raise graph.refuse(
            f"input {tensor.name!r} takes samples of shape {tuple(taken)}, but sample {index} of "
            f"the data set has shape {sample.shape}; set the data set's options to match"
        )


def fits(shape: Sequence[int], taken: Sequence[int | str | None]) -> bool:
    """Tell whether a shape matches the model's; named dimensions take any length."""
    return len(shape) == len(taken) and all(
        want == have for have, want in zip(shape, taken, strict=True) if isinstance(want, int)
    )


def _by_name(graph: Graph, given: Mapping[str, Any], index: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, list | tuple) and value and hasattr(value[0], "dtype"):
            flat.update((f"{name}_{number}", each) for number, each in enumerate(value))
        else:
            flat[name] = value
    found = {}
    for tensor in graph.inputs:
        known = names(tensor).intersection(flat)
        if not known:
            raise graph.refuse(
                f"takes {_list(graph)}, but sample {index} of the data set has no {tensor.name!r}; "
                f"it has {', '.join(flat) or 'nothing'}; use a data set that names its arrays like "
                "the model's inputs"
            )
        found[tensor.name] = flat[min(known)]
    return found


def _convert(graph: Graph, tensor: Tensor, given: Any, index: int) -> NDArray[Any]:
    import numpy as np

    # A mapped file would be read in the middle of a run.
    array = np.array(given) if isinstance(given, np.memmap) else np.asarray(given)
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
    """Return the type of an array, and of integers the range too, which may be what is wrong."""
    if array.dtype.kind in "iu" and array.size:
        return f"{array.dtype} from {array.min()} to {array.max()}"
    return str(array.dtype)


def _list(graph: Graph) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in graph.inputs)
