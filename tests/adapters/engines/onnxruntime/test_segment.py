"""Task "segment": a model slid over a volume, as MLPerf's reference does it."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto

from pytest_mlperf.adapters.engines.tasks._images import best_classes, importance
from tests.adapters.engines.onnxruntime.models import segmenter, volume
from tests.adapters.engines.onnxruntime.recorder import answers, engine, run
from tests.adapters.engines.recording import Tokenless

ROI = [4, 4, 4]
VOLUMES = [volume(index, shape=shape) for index, shape in enumerate([(12, 8, 16), (4, 4, 4)])]


def bell(index: int, length: int) -> float:
    """Return the weight of a place in a line, 1 in its middle."""
    return math.exp(-0.5 * ((index - (length - 1) / 2) / (length / 8)) ** 2)


def weights(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return the weights of a window's voxels, one by one."""
    weights_by_place = np.empty(shape)
    for index in np.ndindex(*shape):
        product = math.prod(bell(at, length) for at, length in zip(index, shape, strict=True))
        weights_by_place[index] = math.cbrt(product)
    return np.asarray(weights_by_place / weights_by_place.max(), np.float32)


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
                corner = zip((i, j, k), roi, strict=True)
                part = (slice(None), *(slice(start, start + size) for start, size in corner))
                total[part] += session.run(None, {"input": image[part][None]})[0][0] * bells
                norm[part] += bells
    classes: NDArray[np.uint8] = np.argmax(total / norm, axis=0).astype(np.uint8)
    return classes.tobytes()


def test_classes_are_those_of_a_plain_computation(tmp_path: Path) -> None:
    """Voxel by voxel, however many windows go together; volumes differ in shape.

    A step is the part of the window that the next one does not cover, rounded down. A model of half
    precision is summed in single precision, as the reference's arrays of float32 do.
    """
    model = segmenter(tmp_path)
    expected = [plain(model, image, ROI, [2, 2, 2]) for image in VOLUMES]
    assert set(expected[0]) == {0, 1, 2}
    copies = [image.copy() for image in VOLUMES]
    options: dict[str, Any] = {"task": "segment", "roi_shape": ROI}
    for batch_size, workers in ((1, 0), (5, 2), (100, 0)):
        sizes = {"batch_size": batch_size, "workers": workers}
        assert answers(model, copies, **sizes, **options) == expected
    assert all((copy == image).all() for copy, image in zip(copies, VOLUMES, strict=True))
    assert run(model, VOLUMES * 2, **options).batches == [[1000], [1001], [1002], [1003]]
    for roi, overlap, steps in (
        ([4, 4, 4], 0.0, [4, 4, 4]),
        ([8, 4, 4], 0.75, [2, 1, 1]),
        ([4, 5, 2], 0.3, [2, 3, 1]),
    ):
        (output,) = answers(model, VOLUMES[:1], task="segment", roi_shape=roi, overlap=overlap)
        assert output == plain(model, VOLUMES[0], roi, steps)
    half, image = segmenter(tmp_path, dtype=TensorProto.FLOAT16), VOLUMES[0].astype(np.float16)
    (output,) = answers(half, [image], precision="fp16", **options)
    assert output == plain(half, image, ROI, [2, 2, 2])


def test_memory_is_a_few_times_that_of_the_volume(tmp_path: Path) -> None:
    """For 3 classes: 12 bytes a voxel for sums, 4 for the norm, 1 for the class."""
    image = volume(1, shape=(64, 64, 64))
    options = {"task": "segment", "roi_shape": [16, 16, 16], "batch_size": 2}

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

    classes = [
        int(best_classes(pair.reshape(2, 1, 1, 1).copy(), weight)[0, 0, 0]) for pair in sums.T
    ]

    assert classes == [0 if same else 1 for same in equal]
    assert 0 < sum(equal) < len(equal)


@given(shape=st.tuples(*[st.integers(1, 7)] * 3))
def test_weights_are_symmetric_and_highest_in_the_middle(shape: tuple[int, int, int]) -> None:
    weights_of_window = importance(shape)

    assert weights_of_window.max() == 1.0
    assert weights_of_window.min() > 0
    assert (weights_of_window == weights_of_window[::-1]).all()
    assert weights_of_window[tuple(length // 2 for length in shape)] == 1.0
    assert np.allclose(weights_of_window, weights(shape), rtol=1e-6)
