"""Test task "classify", and the parts that all tasks share: samples, batches, threads, sessions."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from pytest_mlperf.adapters.datasets.imagenet import ImageNetDataset
from pytest_mlperf.adapters.engines.onnxruntime import OnnxRuntimeEngine
from pytest_mlperf.adapters.scorers.top1 import Top1Scorer
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from tests.adapters.engines.onnxruntime.models import node, write
from tests.adapters.engines.recording import Tokenless

TINY = Path(__file__).parents[4] / "suites" / "tiny" / "resnet50"
MODEL = TINY / "resnet50-tiny.onnx"
TRAINING = json.loads((TINY / "training.json").read_text("utf-8"))


class Colours:
    """Images of 2 x 2 pixels; sample i is brightest in channel i % 3, which is its class."""

    digest = "0" * 64

    def __init__(self, *, size: int = 2) -> None:
        self.decoded: list[int] = []
        self._size = size

    def __len__(self) -> int:
        return 30

    def input(self, index: int) -> NDArray[np.float32]:
        self.decoded.append(index)
        image = np.zeros((3, self._size, self._size), np.float32)
        image[index % 3] = 1.0
        return image

    def reference(self, index: int) -> int:
        return index % 3


@pytest.fixture(scope="module")
def digits() -> ImageNetDataset:
    return ImageNetDataset(path=str(TINY / "data" / "imagenet"), size=32, crop=1.0, classes=10)


def tiny(dataset: Any, **options: Any) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(
        **{"dataset": dataset, "model": str(MODEL), "precision": "fp32", **options}
    )


def colour_model(
    folder: Path,
    *,
    dtype: int = TensorProto.FLOAT,
    batch: int | str = "batch",
    outputs: Sequence[str] = ("scores",),
    inputs: Sequence[str] = ("image",),
    size: int | str = 2,
) -> str:
    """Write a model whose scores are the means of the three channels.

    Output "scores" is (batch, 3); "ArgMax:0" is the class; "count" is the class plus 1.
    """
    shapes: dict[str, tuple[int, list[int | str]]] = {
        "scores": (dtype, [batch, 3]),
        "ArgMax:0": (TensorProto.INT64, [batch]),
        "count": (TensorProto.INT64, [batch]),
    }
    nodes = [
        node("ReduceMean", ["image"], ["scores"], axes=[2, 3], keepdims=0),
        node("ArgMax", ["scores"], ["ArgMax:0"], axis=1, keepdims=0),
        node("Add", ["ArgMax:0", "one"], ["count"]),
    ]
    return write(
        folder,
        nodes,
        {name: (dtype, [batch, 3, size, size]) for name in inputs},
        {name: shapes[name] for name in outputs},
        {"one": np.array([1])},
    )


def submitted(engine: OnnxRuntimeEngine, indices: Sequence[int]) -> Tokenless:
    """Load samples and submit them as one list, by ids from 0 on."""
    sink = Tokenless(len(indices))
    with engine:
        engine.load_samples(indices)
        engine.submit(range(len(indices)), indices, sink)
        sink.wait()
    return sink


def classify(engine: OnnxRuntimeEngine, indices: Sequence[int]) -> list[int]:
    """Return the classes of samples."""
    outputs = submitted(engine, indices).outputs
    return [struct.unpack("<q", outputs[number])[0] for number in range(len(indices))]


@pytest.mark.slow
def test_the_committed_model_reaches_the_recorded_accuracy(digits: ImageNetDataset) -> None:
    assert hashlib.sha256(MODEL.read_bytes()).hexdigest() == TRAINING["model_sha256"]
    assert digits.digest == TRAINING["dataset_digest"]
    assert len(digits) == TRAINING["validation_images"]
    assert MODEL.stat().st_size < 2_000_000
    outputs = submitted(tiny(digits, batch_size=8), range(len(digits))).outputs

    references = [digits.reference(index) for index in range(len(digits))]
    scores = Top1Scorer().score([outputs[index] for index in range(len(digits))], references)
    assert scores.aggregate["top1"] == TRAINING["top1_onnxruntime_percent"]
    assert 95.0 < scores.aggregate["top1"] < 100.0


def test_sessions_and_levels_of_optimization_change_no_answer(digits: ImageNetDataset) -> None:
    """Scores are bit-identical between two sessions of one thread."""
    first, again = (submitted(tiny(digits, task="tensor"), range(4)).outputs for _ in range(2))
    assert first == again
    assert {len(scores) for scores in first.values()} == {4 * 10}
    levels = ("disable", "basic", "extended", "all")
    classes = [classify(tiny(digits, graph_optimization=level), range(4)) for level in levels]
    assert classes == [classify(tiny(digits), range(4))] * 4

    options = {"batch_size": 4, "threads": 2, "workers": 1, "graph_optimization": "basic"}
    with tiny(digits, **options) as engine:
        described = engine.describe()
    assert described == {
        "engine": "onnxruntime",
        "onnxruntime": onnxruntime.__version__,
        "weights_sha256": hashlib.sha256(MODEL.read_bytes()).hexdigest()[:16],
        "providers": "CPUExecutionProvider",
        **{name: str(value) for name, value in options.items()},
        "class_offset": "0",
    }


def test_samples_are_completed_in_batches_of_which_the_last_may_be_partial(tmp_path: Path) -> None:
    indices, model = [4, 3, 3, 2, 0], colour_model(tmp_path)
    for batch_size, batches in {
        1: [[10], [11], [12], [13], [14]],
        2: [[10, 11], [12, 13], [14]],
        5: [[10, 11, 12, 13, 14]],
        8: [[10, 11, 12, 13, 14]],
    }.items():
        sink, silent = Tokenless(), Tokenless(wants_output=False)
        with tiny(Colours(), model=model, batch_size=batch_size) as engine:
            engine.load_samples(range(5))
            engine.submit([10, 11, 12, 13, 14], indices, sink)
            engine.submit([10, 11, 12, 13, 14], indices, silent)
        assert sink.batches == silent.batches == batches
        answers = [struct.unpack("<q", sink.outputs[sample])[0] for sample in range(10, 15)]
        assert answers == [index % 3 for index in indices]


def test_class_numbers_are_preferred_to_scores_and_argmax_to_other_numbers(tmp_path: Path) -> None:
    cases: list[tuple[list[str], int, list[int]]] = [
        (["scores"], 0, [0, 1, 2]),
        (["ArgMax:0"], 0, [0, 1, 2]),
        (["scores", "ArgMax:0"], 0, [0, 1, 2]),
        (["scores", "count"], 0, [1, 2, 3]),
        (["count", "ArgMax:0", "scores"], 0, [0, 1, 2]),
        (["count", "scores"], -1, [0, 1, 2]),
    ]
    for outputs, offset, classes in cases:
        model = colour_model(tmp_path, outputs=outputs)
        assert classify(tiny(Colours(), model=model, class_offset=offset), range(3)) == classes


def test_samples_become_what_the_model_takes(tmp_path: Path) -> None:
    class Masked(Colours):
        def input(self, index: int) -> Any:
            return {"mask": np.ones((3, 2, 2)), "image": super().input(index)}

    class Bytes(Colours):
        def input(self, index: int) -> Any:
            return super().input(index).astype(np.uint8)

    rows: list[tuple[Any, Any, dict[str, Any]]] = [
        (Colours(), {"dtype": TensorProto.FLOAT16}, {"precision": "fp16"}),
        (Colours(), {"batch": 1}, {"batch_size": 1}),
        (Masked(), {"inputs": ["image", "mask"]}, {}),
        (Bytes(), None, {}),
    ]
    for dataset, form, options in rows:
        model = byte_model(tmp_path) if form is None else colour_model(tmp_path, **form)
        assert classify(tiny(dataset, model=model, **options), range(3)) == [0, 1, 2]


def test_samples_are_decoded_once_and_never_while_work_is_submitted(tmp_path: Path) -> None:
    dataset, sink = Colours(), Tokenless(expected=1)

    with tiny(dataset, model=colour_model(tmp_path), workers=1) as engine:
        engine.load_samples([4, 5, 4])
        engine.load_samples([5, 6])
        engine.load_samples([])
        engine.submit([1, 2, 3], [6, 5, 4], Tokenless())
        engine.submit([5], [17], sink)
        sink.wait_for_end()

    assert dataset.decoded == [4, 5, 6]
    assert isinstance(sink.errors[0], KeyError), "an error in a worker reaches the sink"


def test_unloading_frees_samples_and_keeps_the_others(tmp_path: Path) -> None:
    sink, images_by_index, kept = Tokenless(), {}, []

    class Watched(Colours):
        def input(self, index: int) -> NDArray[np.float32]:
            image = super().input(index)
            images_by_index[index] = weakref.ref(image)
            return image

    def look() -> None:
        kept.append(
            sorted(index for index, image in images_by_index.items() if image() is not None)
        )

    with tiny(Watched(), model=colour_model(tmp_path)) as engine:
        engine.load_samples([7, 8, 9])
        engine.unload_samples([8, 20])
        engine.submit([0, 1], [9, 7], sink)
        look()
        with pytest.raises(KeyError):
            engine.submit([2], [8], sink)
        engine.unload_samples([7])
        look()
    look()
    assert kept == [[7, 9], [9], []]
    assert [sink.outputs[number][0] for number in (0, 1)] == [9 % 3, 7 % 3]


@pytest.mark.slow
def test_workers_complete_every_sample_once_in_threads_of_their_own(
    digits: ImageNetDataset, tmp_path: Path
) -> None:
    expected = classify(tiny(digits, batch_size=1), range(20))
    for workers in (1, 2):
        sink = Tokenless(expected=20)
        with tiny(digits, workers=workers) as engine:
            engine.load_samples(range(20))
            for number in range(20):
                engine.submit([number], [number], sink)
            sink.wait()
        assert sorted(sink.ids) == list(range(20))
        assert max(map(len, sink.batches)) <= 8
        assert len(sink.threads) <= workers
        assert threading.get_ident() not in sink.threads
        assert [struct.unpack("<q", sink.outputs[number])[0] for number in range(20)] == expected
    both_at_work = threading.Barrier(2)

    class Meeting(Tokenless):
        def done(self, *arguments: Any) -> None:
            both_at_work.wait(timeout=60)
            super().done(*arguments)

    meeting = Meeting(expected=16)  # two workers share one large query
    with tiny(Colours(), model=colour_model(tmp_path), workers=2) as engine:
        engine.load_samples(range(16))
        engine.submit(range(16), range(16), meeting)
        meeting.wait()
    assert len(meeting.threads) == 2


def test_a_model_that_is_missing_or_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match=r"absent\.onnx: this model file does not exist"):
        tiny(Colours(), model=str(tmp_path / "absent.onnx"))
    with pytest.raises(SuiteError, match=r"set workload\.model"):
        tiny(Colours(), model=None)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(MODEL.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"broken\.onnx: onnxruntime cannot run this model"):
        tiny(Colours(), model=str(broken)).__enter__()
    unable = "AzureExecutionProvider"  # it runs no operators itself, and the CPU is not asked
    if unable in onnxruntime.get_available_providers():
        with pytest.raises(RunError, match=unable) as caught:
            tiny(Colours(), providers=[unable]).__enter__()
        assert caught.value.layer == "engine"
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EnvironmentFault, match=re.escape("pip install 'pytest-mlperf[onnx]'")):
        tiny(Colours()).__enter__()


def test_images_of_several_sizes_go_together_by_size(tmp_path: Path) -> None:
    class Sizes(Colours):
        def input(self, index: int) -> Any:
            self._size = 2 + index % 2
            return super().input(index)

    model = colour_model(tmp_path, size="side")

    sink = submitted(tiny(Sizes(), model=model, batch_size=4), range(10))

    assert sink.batches == [[1, 3, 5, 7], [9, 0, 2, 4], [6, 8]]
    assert [sink.outputs[index][0] for index in range(10)] == [index % 3 for index in range(10)]


def byte_model(folder: Path) -> str:
    """Write a model that takes images of bytes, and whose scores are the channels' maxima."""
    return write(
        folder,
        [node("ReduceMax", ["image"], ["scores"], axes=[2, 3], keepdims=0)],
        {"image": (TensorProto.UINT8, ["batch", 3, 2, 2])},
        {"scores": (TensorProto.UINT8, ["batch", 3])},
        {},
    )
