"""What engines of tasks have in common, whatever runs the model."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.onnxruntime import OnnxRuntimeEngine
from pytest_mlperf.engines.onnxruntime.tensorrt import TensorRtEngine
from pytest_mlperf.engines.tasks import TASKS, TaskEngine
from pytest_mlperf.engines.triton import TritonEngine

ENGINES = pytest.mark.parametrize("kind", [OnnxRuntimeEngine, TensorRtEngine, TritonEngine])


def refusal(kind: type[TaskEngine], **options: Any) -> str:
    """Return the error that building an engine ends with."""
    given: dict[str, Any] = {"dataset": None, "model": None, "precision": "fp32", **options}
    if kind is TritonEngine:
        given["served_model"] = "any"
    with pytest.raises(SuiteError) as caught:
        kind(**given)
    return str(caught.value)


@ENGINES
def test_every_option_of_a_task_is_one_of_the_engine(kind: type[TaskEngine]) -> None:
    parameters = declaration_of(kind).options

    options = {each.name for task in TASKS.values() for each in fields(task)}
    assert options <= set(parameters)
    assert {parameters[name].default for name in options} == {None}


@ENGINES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0 is not a number of samples, at least 1"),
        (
            {"task": "guess"},
            "task = 'guess' is not one of classify, answer, detect, yolo, segment, tensor",
        ),
        ({"task": "detect", "box_order": "zz"}, "box_order = 'zz' is not one of xyxy, yxyx"),
    ],
)
def test_what_means_nothing_is_refused_in_the_engine_s_name(
    kind: type[TaskEngine], options: dict[str, Any], message: str
) -> None:
    assert refusal(kind, **options) == f"engine {kind.name}: {message}"


@ENGINES
@pytest.mark.parametrize(
    ("task", "option", "value", "owners"),
    [
        ("classify", "score_threshold", 0.5, "'detect' or 'yolo'"),
        ("detect", "class_offset", 0, "'classify'"),
        ("answer", "output", "logits", "'segment' or 'tensor'"),
        ("tensor", "overlap", 0.5, "'segment'"),
    ],
)
def test_an_option_of_another_task_is_refused(
    kind: type[TaskEngine], task: str, option: str, value: Any, owners: str
) -> None:
    assert refusal(kind, task=task, **{option: value}) == (
        f"engine {kind.name}: {option} is an option of task = {owners}, but task = {task!r}; "
        "leave it out"
    )


@pytest.mark.parametrize("kind", [OnnxRuntimeEngine, TensorRtEngine])
def test_no_model_is_refused_in_the_engine_s_name(kind: type[TaskEngine]) -> None:
    assert refusal(kind) == f"engine {kind.name}: no model; set workload.model to the ONNX file"
