"""Options, models and samples of every task that are refused, and answers that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pytest_mlperf.core.errors import RunError, SuiteError
from tests.adapters.engines.onnxruntime.models import (
    FLOAT,
    detector,
    encoder,
    node,
    pairs,
    question,
    recommender,
    segmenter,
    volume,
    write,
)
from tests.adapters.engines.onnxruntime.recorder import answers, engine
from tests.adapters.engines.onnxruntime.test_classify import byte_model, colour_model
from tests.adapters.engines.onnxruntime.test_tensor import doubled
from tests.adapters.engines.onnxruntime.test_yolo import model as yolo
from tests.adapters.engines.onnxruntime.test_yolo import sample as frame
from tests.refusals import unrefused

Make = Callable[[Path], str]
Row = tuple[Make, dict[str, Any], str]
SampleRow = tuple[Make, dict[str, Any], Any, str]

ANSWER, YOLO, TENSOR = ({"task": name} for name in ("answer", "yolo", "tensor"))
SEGMENT = {"task": "segment", "roi_shape": [4, 4, 4]}
DETECT = {"task": "detect", "batch_size": 1}
ALONE = {"task": "tensor", "batch_size": 1}
LOGIT = {"task": "tensor", "output": "logit"}
COLOUR = np.zeros((3, 2, 2), np.float32)
QUESTION = question(3)
PAIRS = pairs(0)
MASKED = ("input_ids", "input_mask", "segment_ids")

OPTIONS: list[tuple[str, str, Any]] = [
    ("classify", "batch_size", 0),
    ("classify", "threads", 0),
    ("classify", "workers", -1),
    ("classify", "providers", []),
    ("classify", "providers", "CPUExecutionProvider"),
    ("classify", "graph_optimization", "fast"),
    *(("segment", "roi_shape", value) for value in ([128, 128], [4, 4, 0], "4,4,4")),
    *(("segment", "overlap", value) for value in (1.0, -0.5, 0.9999)),
    *(("yolo", "iou_threshold", share) for share in (0.0, 1.5)),
    ("detect", "box_order", "xywh"),
    ("detect", "box_unit", "metre"),
    ("detect", "max_detections", 0),
]


def test_an_option_out_of_range_is_named_with_its_value(tmp_path: Path) -> None:
    model = segmenter(tmp_path)

    def build(task: str, name: str, value: Any) -> None:
        engine(model, [], task=task, **{name: value})

    rows = [(*row, f"{row[1]} = {row[2]!r} is not ") for row in OPTIONS]
    assert unrefused(build, SuiteError, rows) == []


def without_boxes(folder: Path) -> str:
    path = detector(folder)
    model = onnx.load(path)
    del model.graph.output[0]
    onnx.save_model(model, path)
    return path


def identity(folder: Path, kind: int, shape: list[int | str]) -> str:
    nodes = [node("Identity", ["image"], ["y"])]
    return write(folder, nodes, {"image": (kind, shape)}, {"y": (kind, shape)}, {})


colours, encoding = partial(partial, colour_model), partial(partial, encoder)
HALF, TEXT = TensorProto.FLOAT16, TensorProto.STRING

MODELS: list[Row] = [
    (colours(), {"precision": "fp16"}, r"precision is 'fp16', .* is tensor\(float\), not tensor"),
    (colours(dtype=HALF), {}, r"precision is 'fp32', .* tensor\(float16\), not tensor\(float\)"),
    (partial(identity, kind=TEXT, shape=["n"]), {}, r"takes image tensor\(string\); this engine"),
    (partial(identity, kind=FLOAT, shape=[]), {}, "its input 'image' has no batch dimension; expo"),
    *(
        (colours(batch=batch), {"batch_size": size}, f"fixed at {batch}, .* batch_size = {size}")
        for batch, size in ((1, 8), (4, 4), (4, 1))
    ),
    (partial(doubled, dtype=FLOAT, shape=(3, 2)), TENSOR, r"fixed at 3, .* set batch_size = 1"),
    (
        recommender,
        TENSOR,
        r"gives 2 outputs \(probability, logit\); select one with the option output",
    ),
    (recommender, {**TENSOR, "output": "other"}, "has no output 'other'; its outputs are"),
    (encoding(names=("words", *MASKED[1:])), ANSWER, "has no input input_ids, but words, "),
    (encoding(outputs=("one", "two")), ANSWER, 'gives one, two; task = "answer" needs one output'),
    (encoding(batch=4), ANSWER, "batch dimension is fixed at 4"),
    (partial(segmenter, window=(8, 8, 8)), SEGMENT, r"8, 8, 8\); .* roi_shape = \[4, 4, 4\] needs"),
    (encoder, SEGMENT, r"takes input_ids .*, input_mask .*; task = "),
    # Its boxes would be mixed.
    (partial(detector, batch="batch"), {"task": "detect"}, r"no batch dimension\), but batch_size"),
    (without_boxes, DETECT, "has the outputs labels, scores, but no boxes"),
    (recommender, DETECT, r"no input of shape \(batch, channels, height, width\)"),
    (recommender, YOLO, r'task = "yolo" runs models with one input \(batch, 3, heig'),
]


def test_a_model_that_a_task_cannot_run_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    def attempt(make: Make, options: dict[str, Any]) -> None:
        engine(make(tmp_path), [], **options).__enter__()

    assert unrefused(attempt, RunError, MODELS) == []


def tensors(kind: int, sample: Any, message: str) -> SampleRow:
    """Return a row for a model of this type, which gets a sample of another."""
    node_type = "And" if kind == TensorProto.BOOL else "Add"
    return partial(doubled, dtype=kind, node_type=node_type), TENSOR, sample, message


def refused_sample(message: str, **arrays: Any) -> SampleRow:
    """Return a row for the encoder, which gets a question with other arrays."""
    return encoder, ANSWER, {**QUESTION, **arrays}, message


BOOL, INT64, INT32, UINT8 = (
    getattr(TensorProto, name) for name in ("BOOL", "INT64", "INT32", "UINT8")
)
FIXED = partial(doubled, dtype=FLOAT, shape=(3, 2))
WIDE = {name: np.array([1, 2**31, 3]) for name in QUESTION}

SAMPLES: list[SampleRow] = [
    (
        colours(inputs=["image", "mask"]),
        {},
        COLOUR,
        r"image tensor\(float\), mask tensor\(float\), b",
    ),
    (byte_model, {}, COLOUR, r"takes samples of type uint8, but sample 0 .* is float32"),
    (colours(), {}, np.zeros((3, 3, 3), "f4"), r"of shape \(3, 2, 2\), .* shape \(3, 3, 3\)"),
    tensors(BOOL, np.array([0, 2]), "type bool, but .* is int64 from 0 to 2"),
    tensors(INT64, np.ones(2, "f4"), "type int64, but sample 0 .* is float32"),
    tensors(INT32, np.array([1, 2**40]), "int32, but .* is int64 from 1 to 10995116"),
    tensors(UINT8, np.array([1, -1], "i2"), "uint8, but .* is int16 from -1 to 1"),
    tensors(FLOAT, np.array(["a", "b"]), "type float32, but sample 0 .* is <U1"),
    (FIXED, ALONE, np.ones((2, 2), "f4"), r"shape \(3, 2\), but sample 0 .* has shape \(2, 2\)"),
    (
        recommender,
        LOGIT,
        np.ones(3),
        "takes dense .*, sparse_1 .*, but sample 0 .* is one array; u",
    ),
    (recommender, LOGIT, {"dense": np.ones(3)}, "has no 'sparse_0'; it has dense; use a data set"),
    (recommender, LOGIT, {}, "has no 'dense'; it has nothing"),
    (
        recommender,
        LOGIT,
        {**PAIRS, "dense": np.ones((99, 3))},
        r"the same number of rows, but .* dense \(99, 3\)",
    ),
    (
        recommender,
        LOGIT,
        {**PAIRS, "dense": np.ones((9, 4))},
        r"'dense' takes .*\('pairs', 3\), bu",
    ),
    (encoding(integer=INT32), ANSWER, WIDE, r"type int32, but .* is int64 from 1 to 2147483648"),
    (encoding(width=4), ANSWER, QUESTION, r"takes at most 4 tokens, but sample 0 "),
    (
        encoding(names=MASKED[::2], width=40),
        ANSWER,
        QUESTION,
        r"takes exactly 40 tokens \(it has no mask",
    ),
    refused_sample(
        r"one shape \(seq,\), but sample 0 .*_mask \(2,\)", input_mask=np.ones(2, np.int64)
    ),
    refused_sample(r"one shape \(seq,\), but .*_ids \(1, 4\)", input_ids=np.ones((1, 4), np.int64)),
    refused_sample(r"'input_ids' takes samples of type int64, but .*float64", input_ids=np.ones(4)),
    refused_sample(r"input_ids \(0,\)", **{name: np.empty(0, np.int64) for name in QUESTION}),
    (segmenter, SEGMENT, volume(0, shape=(3, 8, 8)), r"do not cover .* \(1, 3, 8, 8\); pad it"),
    (segmenter, SEGMENT, volume(0, shape=(8, 9, 8)), r"steps of \(2, 2, 2\) do .* \(1, 8, 9, 8\)"),
    (segmenter, SEGMENT, np.zeros((2, 4, 4, 4)), r"\(1, None, None, None\), but .*\(2, 4, 4, 4"),
    (yolo, YOLO, np.zeros((3, 4, 4), "f4"), r"needs images, frame and categories .* data set coco"),
]


def test_a_sample_that_the_model_does_not_take_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    def load(make: Make, options: dict[str, Any], sample: Any) -> None:
        with engine(make(tmp_path), [sample], **options) as opened:
            opened.load_samples([0])

    assert unrefused(load, RunError, SAMPLES) == []


def three_logits(folder: Path) -> str:
    path = encoder(folder, outputs=("logits",))
    model = onnx.load(path)
    head = next(each for each in model.graph.initializer if each.name == "head")
    head.CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 3), np.float32), "head"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save_model(model, path)
    return path


def summed(folder: Path) -> str:
    nodes = [node("ReduceSum", ["x"], ["y"], keepdims=0)]
    return write(folder, nodes, {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, [])}, {})


ANSWERS: list[SampleRow] = [
    refused_sample(
        r"model\.onnx: onnxruntime failed: .*indices", input_ids=QUESTION["input_ids"] + 50
    ),
    (three_logits, ANSWER, QUESTION, r"gave \(1, \d+, 3\) for inputs of shape \(1, \d+\)"),
    (summed, TENSOR, np.ones(2), r"output 'y' has shape \(\) for a batch of 1; task = "),
    (yolo, YOLO, frame([[10, 20, 30, 40, 0.5, 3]]), "gave class 3, but the data set has 3 categor"),
    (yolo, YOLO, frame(np.zeros((4, 9))), r"output 'output0' has shape \(1, 4, 9\) for 1 images"),
]


def test_an_answer_that_cannot_be_read_ends_the_run(tmp_path: Path) -> None:
    def run(make: Make, options: dict[str, Any], sample: Any) -> None:
        with pytest.raises(RunError) as caught:
            answers(make(tmp_path), [sample], **options)
        assert caught.value.layer == "engine"
        raise caught.value

    assert unrefused(run, RunError, ANSWERS) == []
