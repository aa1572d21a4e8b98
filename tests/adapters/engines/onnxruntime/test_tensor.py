"""Task "tensor": an output as it is, of samples that are one row or several."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.adapters.engines.onnxruntime.models import node, pairs, probabilities, recommender, write
from tests.adapters.engines.onnxruntime.recorder import answers, engine
from tests.adapters.engines.recording import Tokenless

SAMPLES = [pairs(index) for index in range(30)]


def doubled(
    folder: Path, dtype: int, *, shape: tuple[int | str, ...] = ("n", 2), node_type: str = "Add"
) -> str:
    """Write a model that adds its input to itself."""
    return write(
        folder,
        [node(node_type, ["x", "x"], ["y"])],
        {"x": (dtype, shape)},
        {"y": (dtype, shape)},
        {},
    )


def test_each_sample_gets_the_rows_of_its_own_pairs(tmp_path: Path) -> None:
    """Samples of different numbers of pairs share a batch; lists are NAME_0, NAME_1."""
    model = recommender(tmp_path)
    options: dict[str, Any] = {"task": "tensor", "output": "probability"}
    for batch_size, workers in product([1, 7, 64], [0, 2]):
        outputs = answers(model, SAMPLES, batch_size=batch_size, workers=workers, **options)
        for raw, sample in zip(outputs, SAMPLES, strict=True):
            got = np.frombuffer(raw, "<f4")
            assert got.shape == (len(sample["dense"]),)
            assert np.allclose(got, probabilities(sample), atol=1e-6)

    def rows(part: Any, **more: Any) -> list[bytes]:
        samples = [
            {"dense": each["dense"][part], "sparse": [n[part] for n in each["sparse"]], **more}
            for each in SAMPLES
        ]
        return answers(model, samples, task="tensor", output="logit")

    # A sample without the batch dimension is one row; arrays without an input are left out.
    assert rows(0) == rows(slice(1)) == rows(0, caption=np.ones(3))
    assert {len(raw) for raw in rows(0)} == {4}


def test_inputs_become_the_type_that_the_model_takes(tmp_path: Path) -> None:
    halves, whole, signed = [1.5, 2], [1, 2], [1, -2]
    for kind, values, dtype in (
        (TensorProto.FLOAT, halves, np.float32),
        (TensorProto.FLOAT, halves, np.float64),
        (TensorProto.FLOAT, whole, np.int64),
        (TensorProto.FLOAT, whole, np.uint8),
        (TensorProto.DOUBLE, halves, np.float32),
        (TensorProto.INT32, signed, np.int64),
        (TensorProto.INT64, signed, np.int32),
        (TensorProto.INT64, [1, 0], np.bool_),
        (TensorProto.FLOAT16, halves, np.float32),
    ):
        sample, taken = np.array(values, dtype), helper.tensor_dtype_to_np_dtype(kind)
        precision = {"float64": "fp64", "float16": "fp16"}.get(np.dtype(taken).name, "fp32")
        (output,) = answers(doubled(tmp_path, kind), [sample], task="tensor", precision=precision)
        assert output == (2 * sample.astype(taken)).tobytes()
    mask = doubled(tmp_path, TensorProto.BOOL, node_type="And")
    for sample in (np.array([True, False]), np.array([1, 0], np.int64)):
        assert answers(mask, [sample], task="tensor") == [b"\1\0"]


def test_a_mapped_file_is_read_when_the_sample_is_loaded(tmp_path: Path) -> None:
    """What happens to the file during a run changes no answer, and costs no time."""
    file = tmp_path / "values.npy"
    np.save(file, np.ones((4, 2), np.float32))
    mapped = np.load(file, mmap_mode="r+")
    sink = Tokenless()

    with engine(doubled(tmp_path, TensorProto.FLOAT), mapped, task="tensor") as opened:
        opened.load_samples([3])
        mapped[:] = 5
        opened.submit([0], [3], sink)

    assert sink.outputs[0] == np.full(2, 2, np.float32).tobytes()


def test_rows_of_different_lengths_never_share_a_call(tmp_path: Path) -> None:
    model = doubled(tmp_path, TensorProto.FLOAT, shape=("n", "length"))
    inputs = [np.full((1 + i % 2, 1 + i % 3), i, np.float32) for i in range(20)]

    outputs = answers(model, inputs, task="tensor", batch_size=6)
    assert outputs == [(2 * each).tobytes() for each in inputs]
    sample, fixed = np.ones((3, 2), np.float32), doubled(tmp_path, TensorProto.FLOAT, shape=(3, 2))
    assert answers(fixed, [sample], task="tensor", batch_size=1) == [(2 * sample).tobytes()]
