"""Task "tensor": an output as it is, of samples that are one row or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from pytest_mlperf.core.errors import RunError
from tests.engines.onnxruntime.models import node, pairs, probabilities, recommender, write
from tests.engines.onnxruntime.recorder import answers, engine
from tests.engines.recording import Tokenless

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


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_gets_the_rows_of_its_own_pairs(
    tmp_path: Path, batch_size: int, workers: int
) -> None:
    """Samples of different numbers of pairs share a batch; lists are NAME_0, NAME_1."""
    found = answers(
        recommender(tmp_path),
        SAMPLES,
        task="tensor",
        output="probability",
        batch_size=batch_size,
        workers=workers,
    )

    for raw, sample in zip(found, SAMPLES, strict=True):
        got = np.frombuffer(raw, "<f4")
        assert got.shape == (len(sample["dense"]),)
        assert np.allclose(got, probabilities(sample), atol=1e-6)


def test_a_sample_without_the_batch_dimension_is_one_row(tmp_path: Path) -> None:
    """The answer is the same as for a sample of one row."""
    model = recommender(tmp_path)
    single = [
        {
            "dense": each["dense"][0],
            "sparse": [lookups[0] for lookups in each["sparse"]],
        }
        for each in SAMPLES
    ]
    rows = [
        {"dense": each["dense"][:1], "sparse": [lookups[:1] for lookups in each["sparse"]]}
        for each in SAMPLES
    ]

    found = answers(model, single, task="tensor", output="logit")
    assert found == answers(model, rows, task="tensor", output="logit")
    assert {len(each) for each in found} == {4}


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (TensorProto.FLOAT, np.array([1.5, 2], np.float32)),
        (TensorProto.FLOAT, np.array([1.5, 2], np.float64)),
        (TensorProto.FLOAT, np.array([1, 2], np.int64)),
        (TensorProto.FLOAT, np.array([1, 2], np.uint8)),
        (TensorProto.DOUBLE, np.array([1.5, 2], np.float32)),
        (TensorProto.INT32, np.array([1, -2], np.int64)),
        (TensorProto.INT64, np.array([1, -2], np.int32)),
        (TensorProto.INT64, np.array([True, False])),
        (TensorProto.FLOAT16, np.array([1.5, 2], np.float32)),
    ],
)
def test_inputs_become_the_type_that_the_model_takes(
    tmp_path: Path, dtype: int, given: Any
) -> None:
    """And the answer has the model's type, whatever the data set's."""
    taken = helper.tensor_dtype_to_np_dtype(dtype)
    precision = {"float64": "fp64", "float16": "fp16"}.get(np.dtype(taken).name, "fp32")

    (found,) = answers(doubled(tmp_path, dtype), [given], task="tensor", precision=precision)

    assert found == (2 * given.astype(taken)).tobytes()


@pytest.mark.parametrize("given", [np.array([True, False]), np.array([1, 0], np.int64)])
def test_a_mask_may_be_given_as_zeros_and_ones(tmp_path: Path, given: Any) -> None:
    model = doubled(tmp_path, TensorProto.BOOL, node_type="And")

    assert answers(model, [given], task="tensor") == [b"\1\0"]


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        (
            TensorProto.BOOL,
            np.array([0, 2], np.int64),
            "type bool, but sample 0 .* is int64 from 0 to 2",
        ),
        (TensorProto.INT64, np.array([1, 2], np.float32), "type int64, but sample 0 .* is float32"),
        (
            TensorProto.INT32,
            np.array([1, 2**40], np.int64),
            "type int32, but .* is int64 from 1 to 10995116",
        ),
        (
            TensorProto.UINT8,
            np.array([1, -1], np.int16),
            "type uint8, but sample 0 .* is int16 from -1 to 1",
        ),
        (TensorProto.FLOAT, np.array(["a", "b"]), "type float32, but sample 0 .* is <U1"),
    ],
)
def test_values_that_would_change_are_refused(
    tmp_path: Path, dtype: int, given: Any, message: str
) -> None:
    kind = "And" if dtype == TensorProto.BOOL else "Add"
    model = doubled(tmp_path, dtype, node_type=kind)

    with (
        engine(model, [given], task="tensor") as opened,
        pytest.raises(RunError, match=message),
    ):
        opened.load_samples([0])


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
    """Each group of equal rows is a batch; answers go to their own samples."""
    model = doubled(tmp_path, TensorProto.FLOAT, shape=("n", "length"))
    inputs = [np.full((1 + i % 2, 1 + i % 3), i, np.float32) for i in range(20)]

    found = answers(model, inputs, task="tensor", batch_size=6)

    assert found == [(2 * each).tobytes() for each in inputs]


def test_a_model_of_a_fixed_number_of_rows_takes_samples_of_as_many(tmp_path: Path) -> None:
    model = doubled(tmp_path, TensorProto.FLOAT, shape=(3, 2))
    sample = np.ones((3, 2), np.float32)

    assert answers(model, [sample], task="tensor", batch_size=1) == [(2 * sample).tobytes()]
    with (
        engine(model, [sample[:2]], task="tensor", batch_size=1) as opened,
        pytest.raises(RunError, match=r"shape \(3, 2\), but sample 0 .* has shape \(2, 2\)"),
    ):
        opened.load_samples([0])
    with pytest.raises(RunError, match=r"fixed at 3, .* batch_size = 8; .* set batch_size = 1"):
        engine(model, [sample], task="tensor").__enter__()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, r"gives 2 outputs \(probability, logit\); say with the option output which one"),
        ("other", r"gives no output 'other', but probability, logit; correct the option output"),
    ],
)
def test_the_output_must_be_known(tmp_path: Path, output: str | None, message: str) -> None:
    with pytest.raises(RunError, match=message):
        engine(recommender(tmp_path), [], task="tensor", output=output).__enter__()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones(3), "takes dense .*, sparse_1 .*, but sample 0 of the data set is one array; use"),
        ({"dense": np.ones(3)}, "has no 'sparse_0'; it has dense; use a data set that names"),
        ({}, "has no 'dense'; it has nothing"),
        (
            {**SAMPLES[0], "dense": np.ones((99, 3))},
            r"takes inputs with as many rows each, but sample 0 .* has dense \(99, 3\)",
        ),
        ({**SAMPLES[0], "dense": np.ones((9, 4))}, r"input 'dense' takes .*\('pairs', 3\), but"),
    ],
)
def test_samples_that_the_model_does_not_take_are_refused(
    tmp_path: Path, given: Any, message: str
) -> None:
    with (
        engine(recommender(tmp_path), [given], task="tensor", output="logit") as opened,
        pytest.raises(RunError, match=message),
    ):
        opened.load_samples([0])


def test_arrays_that_the_model_has_no_input_for_are_left_out(tmp_path: Path) -> None:
    more = [{**each, "caption": np.ones(3)} for each in SAMPLES[:3]]
    model = recommender(tmp_path)

    assert answers(model, more, task="tensor", output="logit") == answers(
        model, SAMPLES[:3], task="tensor", output="logit"
    )


def test_an_output_without_the_batch_is_an_error(tmp_path: Path) -> None:
    model = write(
        tmp_path,
        [node("ReduceSum", ["x"], ["y"], keepdims=0)],
        {"x": (TensorProto.FLOAT, ["n", 2])},
        {"y": (TensorProto.FLOAT, [])},
        {},
    )

    with pytest.raises(RunError, match=r"output 'y' has shape \(\) for a batch of 2; task = "):
        answers(model, [np.ones(2), np.ones(2)], task="tensor")
