"""Small ONNX models of every task, and the data sets that a worker runs them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save_model

Length = int | str

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def write(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Sequence[Length]]],
    outputs: Mapping[str, tuple[int, Sequence[Length]]],
    constants: Mapping[str, Any],
) -> str:
    """Write a model of nodes, inputs and outputs (type and shape by name), and constants."""
    graph = helper.make_graph(
        nodes,
        "made-here",
        [helper.make_tensor_value_info(name, *each) for name, each in inputs.items()],
        [helper.make_tensor_value_info(name, *each) for name, each in outputs.items()],
        initializer=[
            numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
        ],
    )
    path = folder / "model.onnx"
    opset = [helper.make_opsetid("", 17)]
    save_model(helper.make_model(graph, ir_version=9, opset_imports=opset), path)
    return str(path)


node = helper.make_node


def drawn(seed: int, *shape: int) -> NDArray[np.float32]:
    """Return numbers around 0, the same for the same seed and shape."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


WORDS, SIDES, HEAD = drawn(1, 50, 8), drawn(2, 2, 8), drawn(3, 8, 2)
KERNEL = drawn(4, 3, 1, 3, 3, 3)


def encoder(
    folder: Path,
    *,
    names: Sequence[str] = ("input_ids", "input_mask", "segment_ids"),
    outputs: Sequence[str] = ("output_start_logits", "output_end_logits"),
    integer: int = INT,
    batch: Length = "batch",
    width: Length = "seq",
    words: NDArray[np.float32] = WORDS,
    layers: int = 1,
) -> str:
    """Write a model of embeddings, one attention that heeds the mask, and a head.

    Args:
        folder: Where to.
        names: Of the inputs; two of them leave out the mask.
        outputs: Two of shape (batch, seq), or one of shape (batch, seq, 2).
        integer: Type of the inputs.
        batch: First dimension.
        width: Second dimension.
        words: Embeddings, (vocabulary, size); of another size than 8, the head is another too.
        layers: Attentions one after the other.
    """
    size = words.shape[1]
    ids, segments = names[0], names[-1]
    nodes = [
        node("Gather", ["word table", ids], ["word"]),
        node("Gather", ["side table", segments], ["side"]),
        node("Add", ["word", "side"], ["x0"]),
    ]
    if len(names) == 3:
        nodes += [
            node("Cast", [names[1]], ["there"], to=FLOAT),
            node("Sub", ["there", "1"], ["less"]),
            node("Mul", ["less", "much"], ["bias"]),
            node("Unsqueeze", ["bias", "axis"], ["wide"]),
        ]
    for n in range(layers):
        seen = f"seen{n}" if len(names) == 3 else f"likeness{n}"
        nodes += [
            node("Transpose", [f"x{n}"], [f"turned{n}"], perm=[0, 2, 1]),
            node("MatMul", [f"x{n}", f"turned{n}"], [f"likeness{n}"]),
            *([node("Add", [f"likeness{n}", "wide"], [seen])] if len(names) == 3 else []),
            node("Softmax", [seen], [f"share{n}"], axis=-1),
            node("MatMul", [f"share{n}", f"x{n}"], [f"mixed{n}"]),
            node("Add", [f"mixed{n}", f"x{n}"], [f"x{n + 1}"]),
        ]
    y = f"x{layers}"
    if len(outputs) == 1:
        nodes.append(node("MatMul", [y, "head"], [outputs[0]]))
    else:
        nodes += [
            node("MatMul", [y, "head"], ["both"]),
            *(
                node("Gather", ["both", f"column{column}"], [name], axis=2)
                for column, name in enumerate(outputs)
            ),
        ]
    last = [2] if len(outputs) == 1 else []
    return write(
        folder,
        nodes,
        {name: (integer, [batch, width]) for name in names},
        {name: (FLOAT, [batch, width, *last]) for name in outputs},
        {
            "word table": words,
            "side table": SIDES if size == 8 else drawn(2, 2, size),
            "head": HEAD if size == 8 else drawn(3, size, 2),
            "1": np.array([1], np.float32),
            "much": np.array([10_000], np.float32),
            "axis": [1],
            **{f"column{column}": column for column in range(len(outputs))},
        },
    )


def logits(
    ids: NDArray[Any], segments: NDArray[Any], words: NDArray[np.float32] = WORDS
) -> NDArray[np.float32]:
    """Return the encoder's output for one sample without padding, shape (seq, 2)."""
    x = words[ids].astype(float) + SIDES[segments]
    share = np.exp(x @ x.T)
    share /= share.sum(axis=1, keepdims=True)
    return np.asarray((share @ x + x) @ HEAD, np.float32)


def question(index: int, *, mask: str = "input_mask", sides: str = "segment_ids") -> dict[str, Any]:
    """Return a sample for the encoder, of 3 to 22 tokens."""
    numbers = np.random.default_rng(index)
    length = int(numbers.integers(3, 23))
    return {
        "input_ids": numbers.integers(1, 50, length),
        mask: np.ones(length, np.int64),
        sides: (np.arange(length) > length // 2).astype(np.int64),
    }


def detector(folder: Path, *, batched: bool = False, batch: Length = 1) -> str:
    """Write a model that reads its detections from the image's first channel.

    A row of pixels is a box, a score and a label: 6 numbers. Unless it is batched, rows with score
    0 are left out, so that the number of boxes differs from image to image.
    """
    plane = [node("Gather", ["images", "zero"], ["plane"], axis=1)]
    cut = [
        node("Slice", ["rows", "from0", "to4", "last"], ["boxes"]),
        node("Gather", ["rows", "four"], ["scores"], axis=-1),
        node("Gather", ["rows", "five"], ["label"], axis=-1),
        node("Cast", ["label"], ["labels"], to=INT),
    ]
    if batched:
        rows = [node("Identity", ["plane"], ["rows"])]
    else:
        rows = [
            node("Squeeze", ["plane", "axis"], ["all"]),
            node("Gather", ["all", "four"], ["every"], axis=-1),
            node("Greater", ["every", "nothing"], ["found"]),
            node("Compress", ["all", "found"], ["rows"], axis=0),
        ]
    first: list[Length] = [batch] if batched else []
    return write(
        folder,
        [*plane, *rows, *cut],
        {"images": (FLOAT, [batch, 3, "height", "width"])},
        {
            "boxes": (FLOAT, [*first, "n", 4]),
            "labels": (INT, [*first, "n"]),
            "scores": (FLOAT, [*first, "n"]),
        },
        {
            "zero": 0,
            "four": 4,
            "five": 5,
            "nothing": np.float32(0),
            "axis": [0],
            "from0": [0],
            "to4": [4],
            "last": [-1],
        },
    )


def photo(index: int, *, height: int = 12, width: int = 9) -> NDArray[np.float32]:
    """Return an image for the detector: up to `height` boxes whose scores fall, or none."""
    numbers = np.random.default_rng(index)
    image = np.zeros((3, height, width), np.float32)
    boxes = int(numbers.integers(1, height + 1)) if index % 5 else 0
    rows = numbers.random((boxes, 6)) * [9, 12, 9, 12, 0.3, 90]
    rows[:, 4] = np.sort(rows[:, 4])[::-1]
    image[0, :boxes, :6] = rows
    return image


def segmenter(
    folder: Path,
    *,
    dtype: int = FLOAT,
    batch: Length = "batch",
    window: Sequence[Length] = ("d", "h", "w"),
) -> str:
    """Write a convolution from one channel to the scores of three classes."""
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    return write(
        folder,
        [node("Conv", ["input", "kernel"], ["output"], pads=[1] * 6)],
        {"input": (dtype, [batch, 1, *window])},
        {"output": (dtype, [batch, 3, *window])},
        {"kernel": KERNEL.astype(kind)},
    )


def volume(index: int, *, shape: Sequence[int] = (12, 8, 16)) -> NDArray[np.float32]:
    """Return a volume for the segmenter."""
    return np.random.default_rng(index).normal(size=(1, *shape)).astype(np.float32)


def recommender(folder: Path, *, batch: Length = "pairs") -> str:
    """Write a model that sums dense values and two looked-up ones of each pair."""
    return write(
        folder,
        [
            node("ReduceSum", ["dense", "axis"], ["sum"], keepdims=0),
            node("Gather", ["table", "sparse_0"], ["found0"]),
            node("ReduceSum", ["found0", "axis"], ["sum0"], keepdims=0),
            node("Gather", ["table", "sparse_1"], ["found1"]),
            node("ReduceSum", ["found1", "axis"], ["sum1"], keepdims=0),
            node("Sum", ["sum", "sum0", "sum1"], ["logit"]),
            node("Sigmoid", ["logit"], ["probability"]),
        ],
        {
            "dense": (FLOAT, [batch, 3]),
            "sparse_0": (INT, [batch, 2]),
            "sparse_1": (INT, [batch, 1]),
        },
        {"probability": (FLOAT, [batch]), "logit": (FLOAT, [batch])},
        {"table": WORDS[:, 0].copy(), "axis": np.array([1])},
    )


def pairs(index: int) -> dict[str, Any]:
    """Return a sample for the recommender as data set criteo gives one, of 1 to 9 pairs."""
    numbers = np.random.default_rng(index)
    rows = int(numbers.integers(1, 10))
    return {
        "dense": numbers.normal(size=(rows, 3)).astype(np.float32),
        "sparse": [numbers.integers(0, 50, (rows, lookups)).astype(np.int32) for lookups in (2, 1)],
    }


def probabilities(sample: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the recommender's output for one sample, shape (pairs,)."""
    sparse_sum = sum(WORDS[lookups, 0].sum(axis=1) for lookups in sample["sparse"])
    sums = sample["dense"].astype(float).sum(axis=1) + sparse_sum
    return np.asarray(1 / (1 + np.exp(-sums)), np.float32)


INPUTS: Mapping[str, Callable[[int], Any]] = {
    "answer": question,
    "detect": photo,
    "segment": volume,
    "tensor": pairs,
}


class Made:
    """A data set of 40 samples for one task, built in a worker by its name."""

    digest = "0" * 64

    def __init__(self, *, task: str) -> None:
        self._make = INPUTS[task]

    def __len__(self) -> int:
        return 40

    def input(self, index: int) -> Any:
        return self._make(index)

    def reference(self, index: int) -> int:
        return index
