"""What engines of tasks have in common, whatever runs the model."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.onnxruntime import OnnxRuntimeEngine
from pytest_mlperf.adapters.engines.onnxruntime.tensorrt import TensorRtEngine
from pytest_mlperf.adapters.engines.tasks import TASKS
from pytest_mlperf.adapters.engines.triton import TritonEngine
from pytest_mlperf.core.declaration import declaration_of
from pytest_mlperf.core.errors import SuiteError

ENGINES: list[Any] = [OnnxRuntimeEngine, TensorRtEngine, TritonEngine]


def test_every_option_of_a_task_is_one_of_the_engine() -> None:
    options = {each.name for task in TASKS.values() for each in fields(task)}
    for kind in ENGINES:
        parameters = declaration_of(kind).options
        assert options <= set(parameters)
        assert {parameters[name].default for name in options} == {None}


def test_options_that_mean_nothing_are_refused_in_the_engine_s_name() -> None:
    def another(task: str, option: str, value: Any, owners: str) -> tuple[dict[str, Any], str]:
        return {"task": task, option: value}, (
            f"{option} is an option of task = {owners}, but task = {task!r}; leave it out"
        )

    rows: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 0}, "batch_size = 0 is not a number of samples, at least 1"),
        (
            {"task": "guess"},
            "task = 'guess' is not one of classify, answer, detect, yolo, segment, tensor",
        ),
        ({"task": "detect", "box_order": "zz"}, "box_order = 'zz' is not one of xyxy, yxyx"),
        another("classify", "score_threshold", 0.5, "'detect' or 'yolo'"),
        another("detect", "class_offset", 0, "'classify'"),
        another("answer", "output", "logits", "'segment' or 'tensor'"),
        another("tensor", "overlap", 0.5, "'segment'"),
        ({}, "no model; set workload.model to the ONNX file"),
    ]
    for kind in ENGINES:
        served = {"served_model": "any"} if kind is TritonEngine else {}
        for options, message in rows[:-1] if served else rows:
            usual = {"dataset": None, "model": None, "precision": "fp32", **served}
            with pytest.raises(SuiteError) as caught:
                kind(**{**usual, **options})
            assert str(caught.value) == f"engine {kind.name}: {message}"
