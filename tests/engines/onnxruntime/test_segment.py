"""Task "segment": a model slid over a volume, as MLPerf's reference does it."""

from __future__ import annotations

import math
import re
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.engines.tasks._images import highest, importance
from tests.engines.onnxruntime.models import encoder, segmenter, volume
from tests.engines.onnxruntime.recorder import answers, engine, run
from tests.engines.recording import Tokenless

ROI = [4, 4, 4]
VOLUMES = [volume(index, shape=shape) for index, shape in enumerate([(12, 8, 16), (4, 4, 4)])]


def bell(place: int, length: int) -> float:
    """Return the weight of a place in a line, 1 in its middle."""
    return math.exp(-0.5 * ((place - (length - 1) / 2) / (length / 8)) ** 2)


def weights(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return the weights of a window's voxels, one by one."""
    found = np.empty(shape)
    for place in np.ndindex(*shape):
        product = math.prod(bell(at, length) for at, length in zip(place, shape, strict=True))
        found[place] = math.cbrt(product)
    return np.asarray(found / found.max(), np.float32)


def plain(model: str, image: NDArray[Any], roi: Sequence[int], steps: Sequence[int]) -> bytes:
    """Run window by window, with the norm kept for every class."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    total = np.zeros((3, *image.shape[1:]), np.float32)
    norm = np.zeros_like(total)
    bells = weights(roi)
    deep, high, wide = image.shape[1:]
    for i in range(0, deep - roi[0] + 1, steps[0]):
        for j in range(0, high - roi[1] + 1, steps[1]):
            for k in range(0, wide - roi[2] + 1, steps[2]):
                part = (
                    slice(None),
                    slice(i, i + roi[0]),
                    slice(j, j + roi[1]),
                    slice(k, k + roi[2]),
                )
                total[part] += session.run(None, {"input": image[part][None]})[0][0] * bells
                norm[part] += bells
    classes: NDArray[np.uint8] = np.argmax(total / norm, axis=0).astype(np.uint8)
    return classes.tobytes()


@pytest.mark.parametrize("batch_size", [1, 5, 100])
@pytest.mark.parametrize("workers", [0, 2])
def test_classes_are_those_of_a_plain_computation(
    tmp_path: Path, batch_size: int, workers: int
) -> None:
    """Voxel by voxel, however many windows go together; volumes differ in shape."""
    model = segmenter(tmp_path)

    found = answers(
        model, VOLUMES, task="segment", roi_shape=ROI, batch_size=batch_size, workers=workers
    )

    assert found == [plain(model, image, ROI, [2, 2, 2]) for image in VOLUMES]
    assert set(found[0]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("roi", "overlap", "steps"),
    [([4, 4, 4], 0.0, [4, 4, 4]), ([8, 4, 4], 0.75, [2, 1, 1]), ([4, 5, 2], 0.3, [2, 3, 1])],
)
def test_windows_may_have_other_shapes_and_steps(
    tmp_path: Path, roi: list[int], overlap: float, steps: list[int]
) -> None:
    """A step is the part of the window that the next one does not cover, rounded down."""
    model = segmenter(tmp_path)

    (found,) = answers(model, VOLUMES[:1], task="segment", roi_shape=roi, overlap=overlap)

    assert found == plain(model, VOLUMES[0], roi, steps)


def test_a_half_precision_model_is_summed_in_single_precision(tmp_path: Path) -> None:
    """As the reference's arrays of float32 do."""
    model = segmenter(tmp_path, dtype=TensorProto.FLOAT16)
    image = VOLUMES[0].astype(np.float16)

    (found,) = answers(model, [image], task="segment", roi_shape=ROI, precision="fp16")

    assert found == plain(model, image, ROI, [2, 2, 2])


def test_each_volume_is_completed_by_itself(tmp_path: Path) -> None:
    sink = run(segmenter(tmp_path), VOLUMES * 2, task="segment", roi_shape=ROI, batch_size=8)

    assert sink.batches == [[1000], [1001], [1002], [1003]]


def test_memory_is_a_few_times_that_of_the_volume(tmp_path: Path) -> None:
    """For 3 classes: 12 bytes a voxel for sums, 4 for the norm, 1 for the class."""
    image = volume(1, shape=(64, 128, 128))
    options = {"task": "segment", "roi_shape": [16, 32, 32], "batch_size": 2}

    with engine(segmenter(tmp_path), [image], **options) as opened:
        opened.load_samples([0])
        tracemalloc.start()
        opened.submit([0], [0], Tokenless())
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert peak_bytes < 21 * image.size


def test_means_decide_and_of_equal_means_the_first_class() -> None:
    """Two sums that differ in their last bit have the same mean once it is rounded."""
    weight = np.full((1, 1, 1), 1.9, np.float32)
    second = np.float32(2) - np.arange(1, 40, dtype=np.float32) * np.float32(2**-22)
    sums = np.stack([np.nextafter(second, np.float32(0)), second])
    means = sums / weight.reshape(1, 1)
    equal = means[0] == means[1]

    found = [int(highest(pair.reshape(2, 1, 1, 1).copy(), weight)[0, 0, 0]) for pair in sums.T]

    assert found == [0 if same else 1 for same in equal]
    assert 0 < sum(equal) < len(equal)


def test_the_volume_itself_is_never_written_on(tmp_path: Path) -> None:
    image = VOLUMES[1].copy()

    first, second = answers(
        segmenter(tmp_path), [image, image], task="segment", roi_shape=ROI, batch_size=1
    )

    assert first == second
    assert (image == VOLUMES[1]).all()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 8, 8), r"do not cover sample 0 .* shape \(1, 3, 8, 8\); pad it"),
        ((8, 9, 8), r"at steps of \(2, 2, 2\) do not cover sample 0 .* shape \(1, 8, 9, 8\)"),
    ],
)
def test_a_volume_that_windows_do_not_cover_is_refused(
    tmp_path: Path, shape: tuple[int, ...], message: str
) -> None:
    with (
        engine(segmenter(tmp_path), [volume(0, shape=shape)], task="segment", roi_shape=ROI) as it,
        pytest.raises(RunError, match=message),
    ):
        it.load_samples([0])


def test_a_volume_of_other_channels_is_refused(tmp_path: Path) -> None:
    with (
        engine(segmenter(tmp_path), [np.zeros((2, 4, 4, 4))], task="segment", roi_shape=ROI) as it,
        pytest.raises(
            RunError, match=r"shape \(1, None, None, None\), but sample 0 .*\(2, 4, 4, 4"
        ),
    ):
        it.load_samples([0])


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ((8, 8, 8), r"takes input .*8, 8, 8\); .* roi_shape = \[4, 4, 4\] needs one input"),
        ((), r"takes input_ids .*, input_mask .*; task = "),
    ],
)
def test_a_model_for_other_windows_is_refused(
    tmp_path: Path, window: tuple[Any, ...], message: str
) -> None:
    model = segmenter(tmp_path, window=window) if window else encoder(tmp_path)

    with pytest.raises(RunError, match=message):
        engine(model, [], task="segment", roi_shape=ROI).__enter__()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("roi_shape", [128, 128]),
        ("roi_shape", [4, 4, 0]),
        ("roi_shape", "4,4,4"),
        ("overlap", 1.0),
        ("overlap", -0.5),
        ("overlap", 0.9999),
    ],
)
def test_an_option_out_of_range_is_named(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(SuiteError, match=re.escape(f"{option} = {value!r} is not ")):
        engine(segmenter(tmp_path), [], task="segment", **{option: value})


@given(shape=st.tuples(*[st.integers(1, 7)] * 3))
def test_weights_are_symmetric_and_highest_in_the_middle(shape: tuple[int, int, int]) -> None:
    found = importance(shape)

    assert found.max() == 1.0
    assert found.min() > 0
    assert (found == found[::-1]).all()
    assert found[tuple(length // 2 for length in shape)] == 1.0
    assert np.allclose(found, weights(shape), rtol=1e-6)
