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
from tests.engines.onnxruntime.models import (
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
from tests.engines.onnxruntime.recorder import answers, engine
from tests.engines.onnxruntime.test_classify import byte_model, colour_model
from tests.engines.onnxruntime.test_tensor import doubled
from tests.engines.onnxruntime.test_yolo import model as yolo
from tests.engines.onnxruntime.test_yolo import sample as frame

Make = Callable[[Path], str]
Row = tuple[Make, dict[str, Any], str]
SampleRow = tuple[Make, dict[str, Any], Any, str]

ANSWER, YOLO, TENSOR = ({"task": name} for name in ("answer", "yolo", "tensor"))
SEGMENT = {"task": "segment", "roi_shape": [4, 4, 4]}
DETECT = {"task": "detect", "batch_size": 1}
LOGIT = {"task": "tensor", "output": "logit"}
COLOUR = np.zeros((3, 2, 2), np.float32)
QUESTION = question(3)
PAIRS = pairs(0)
MASKLESS = ("input_ids", "segment_ids")

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("classify", {name: 0}) for name in ("batch_size", "threads")),
    ("classify", {"workers": -1}),
    ("classify", {"providers": []}),
    ("classify", {"providers": "CPUExecutionProvider"}),
    ("classify", {"graph_optimization": "fast"}),
    *(("segment", {"roi_shape": value}) for value in ([128, 128], [4, 4, 0], "4,4,4")),
    *(("segment", {"overlap": value}) for value in (1.0, -0.5, 0.9999)),
    *(("yolo", {"iou_threshold": share}) for share in (0.0, 1.5)),
    ("detect", {"box_order": "xywh"}),
    ("detect", {"box_unit": "metre"}),
    ("detect", {"max_detections": 0}),
]


def test_an_option_out_of_range_is_named_with_its_value(tmp_path: Path) -> None:
    for task, options in OPTIONS:
        ((name, value),) = options.items()
        with pytest.raises(SuiteError) as error:
            engine(segmenter(tmp_path), [], task=task, **options)
        assert f"{name} = {value!r} is not " in str(error.value)


def without_boxes(folder: Path) -> str:
    path = detector(folder)
    model = onnx.load(path)
    del model.graph.output[0]
    onnx.save_model(model, path)
    return path


def identity(folder: Path, kind: int, shape: list[int | str]) -> str:
    nodes = [node("Identity", ["image"], ["y"])]
    return write(folder, nodes, {"image": (kind, shape)}, {"y": (kind, shape)}, {})


def colours(**made: Any) -> Make:
    return partial(colour_model, **made)


def encoding(**made: Any) -> Make:
    return partial(encoder, **made)


MODELS: list[Row] = [
    (colours(), {"precision": "fp16"}, r"precision is 'fp16', .* is tensor\(float\), not tensor"),
    (
        colours(dtype=TensorProto.FLOAT16),
        {"precision": "fp32"},
        r"precision is 'fp32', .* is tensor\(float16\), not tensor\(float\)",
    ),
    (
        partial(identity, kind=TensorProto.STRING, shape=["n"]),
        {},
        r"takes image tensor\(string\); this engine runs models with",
    ),
    (partial(identity, kind=FLOAT, shape=[]), {}, "its input 'image' has no batch dimension; expo"),
    *(
        (colours(batch=batch), {"batch_size": size}, f"fixed at {batch}, .* batch_size = {size}")
        for batch, size in ((1, 8), (4, 4), (4, 1))
    ),
    (partial(doubled, dtype=FLOAT, shape=(3, 2)), TENSOR, r"fixed at 3, .* set batch_size = 1"),
    (
        recommender,
        TENSOR,
        r"gives 2 outputs \(probability, logit\); say with the option output which one",
    ),
    (
        recommender,
        {**TENSOR, "output": "other"},
        r"gives no output 'other', but probability, logit; correct the option output",
    ),
    (
        encoding(names=("words", "input_mask", "segment_ids")),
        ANSWER,
        "has no input input_ids, but words, ",
    ),
    (encoding(outputs=("one", "two")), ANSWER, 'gives one, two; task = "answer" needs one output'),
    (encoding(batch=4), ANSWER, "batch dimension is fixed at 4"),
    (
        partial(segmenter, window=(8, 8, 8)),
        SEGMENT,
        r"takes input .*8, 8, 8\); .* roi_shape = \[4, 4, 4\] needs one input",
    ),
    (encoder, SEGMENT, r"takes input_ids .*, input_mask .*; task = "),
    (
        partial(detector, batch="batch"),  # its boxes would be mixed
        {"task": "detect"},
        r"'boxes' has no batch dimension\), but batch_size = 8; set",
    ),
    (without_boxes, DETECT, "gives labels, scores, and no boxes"),
    (recommender, DETECT, r"no input of shape \(batch, channels, height, width\)"),
    (recommender, YOLO, r'task = "yolo" runs models with one input \(batch, 3, heig'),
]


def test_a_model_that_a_task_cannot_run_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    for make, options, message in MODELS:
        with pytest.raises(RunError, match=message) as error:
            engine(make(tmp_path), [], **options).__enter__()
        assert error.value.layer == "engine"


def tensors(kind: int, sample: Any, message: str) -> SampleRow:
    """Return a row for a model of this type, which gets a sample of another."""
    node_type = "And" if kind == TensorProto.BOOL else "Add"
    return partial(doubled, dtype=kind, node_type=node_type), TENSOR, sample, message


SAMPLES: list[SampleRow] = [
    (
        colours(inputs=["image", "mask"]),
        {},
        COLOUR,
        r"takes image tensor\(float\), mask tensor\(float\), but",
    ),
    (byte_model, {}, COLOUR, r"takes samples of type uint8, but sample 0 .* is float32"),
    (colours(), {}, np.zeros((3, 3, 3), "f4"), r"of shape \(3, 2, 2\), .* shape \(3, 3, 3\)"),
    tensors(TensorProto.BOOL, np.array([0, 2]), "type bool, but .* is int64 from 0 to 2"),
    tensors(TensorProto.INT64, np.ones(2, "f4"), "type int64, but sample 0 .* is float32"),
    tensors(TensorProto.INT32, np.array([1, 2**40]), "int32, but .* is int64 from 1 to 10995116"),
    tensors(TensorProto.UINT8, np.array([1, -1], "i2"), "uint8, but .* is int16 from -1 to 1"),
    tensors(FLOAT, np.array(["a", "b"]), "type float32, but sample 0 .* is <U1"),
    (
        partial(doubled, dtype=FLOAT, shape=(3, 2)),
        {**TENSOR, "batch_size": 1},
        np.ones((2, 2), "f4"),
        r"shape \(3, 2\), but sample 0 .* has shape \(2, 2\)",
    ),
    (
        recommender,
        LOGIT,
        np.ones(3),
        "takes dense .*, sparse_1 .*, but sample 0 of the data set is one array; use",
    ),
    (
        recommender,
        LOGIT,
        {"dense": np.ones(3)},
        "has no 'sparse_0'; it has dense; use a data set that names",
    ),
    (recommender, LOGIT, {}, "has no 'dense'; it has nothing"),
    (
        recommender,
        LOGIT,
        {**PAIRS, "dense": np.ones((99, 3))},
        r"takes inputs with as many rows each, but sample 0 .* has dense \(99, 3\)",
    ),
    (
        recommender,
        LOGIT,
        {**PAIRS, "dense": np.ones((9, 4))},
        r"input 'dense' takes .*\('pairs', 3\), but",
    ),
    (
        encoding(integer=TensorProto.INT32),
        ANSWER,
        {name: np.array([1, 2**31, 3]) for name in QUESTION},
        r"type int32, but sample 0 .* is int64 from 1 to 2147483648",
    ),
    (encoding(width=4), ANSWER, QUESTION, r"takes 4 tokens at most, but sample 0 "),
    (
        encoding(names=MASKLESS, width=40),
        ANSWER,
        QUESTION,
        r"takes 40 tokens and no mask, so no padding, but ",
    ),
    (
        encoder,
        ANSWER,
        {**QUESTION, "input_mask": np.ones(2, np.int64)},
        r"one shape \(seq,\), but sample 0 .*_mask \(2,\)",
    ),
    (
        encoder,
        ANSWER,
        {**QUESTION, "input_ids": np.ones((1, 4), np.int64)},
        r"one shape \(seq,\), but .*_ids \(1, 4\)",
    ),
    (
        encoder,
        ANSWER,
        {**QUESTION, "input_ids": np.ones(4)},
        r"input 'input_ids' takes samples of type int64, but .*float64",
    ),
    (encoder, ANSWER, {name: np.empty(0, np.int64) for name in QUESTION}, r"input_ids \(0,\)"),
    (
        segmenter,
        SEGMENT,
        volume(0, shape=(3, 8, 8)),
        r"do not cover sample 0 .* shape \(1, 3, 8, 8\); pad it",
    ),
    (
        segmenter,
        SEGMENT,
        volume(0, shape=(8, 9, 8)),
        r"at steps of \(2, 2, 2\) do not cover sample 0 .* shape \(1, 8, 9, 8\)",
    ),
    (
        segmenter,
        SEGMENT,
        np.zeros((2, 4, 4, 4)),
        r"shape \(1, None, None, None\), but sample 0 .*\(2, 4, 4, 4",
    ),
    (
        yolo,
        YOLO,
        np.zeros((3, 4, 4), "f4"),
        r"needs images, frame and categories .* use data set coco",
    ),
]


def test_a_sample_that_the_model_does_not_take_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    for make, options, sample, message in SAMPLES:
        with (
            engine(make(tmp_path), [sample], **options) as opened,
            pytest.raises(RunError, match=message),
        ):
            opened.load_samples([0])


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
    (
        encoder,
        ANSWER,
        {**QUESTION, "input_ids": QUESTION["input_ids"] + 50},
        r"model\.onnx: onnxruntime gave up: .*indices",
    ),
    (three_logits, ANSWER, QUESTION, r"gave \(1, \d+, 3\) for inputs of shape \(1, \d+\)"),
    (summed, TENSOR, np.ones(2), r"output 'y' has shape \(\) for a batch of 1; task = "),
    (
        yolo,
        YOLO,
        frame([[10, 20, 30, 40, 0.5, 3]]),
        "gave class 3, but the data set has 3 categories",
    ),
    (yolo, YOLO, frame(np.zeros((4, 9))), r"output 'output0' has shape \(1, 4, 9\) for 1 images"),
]


def test_an_answer_that_cannot_be_read_ends_the_run(tmp_path: Path) -> None:
    for make, options, sample, message in ANSWERS:
        with pytest.raises(RunError, match=message) as error:
            answers(make(tmp_path), [sample], **options)
        assert error.value.layer == "engine"
