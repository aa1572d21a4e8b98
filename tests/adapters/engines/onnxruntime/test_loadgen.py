"""Every task under the real LoadGen, in a worker process, as every run has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog
from pytest_mlperf.run.logs import DETAIL, parse_detail
from tests.adapters.engines.onnxruntime.models import (
    INPUTS,
    detector,
    encoder,
    recommender,
    segmenter,
)
from tests.adapters.engines.onnxruntime.recorder import answers
from tests.run.harness import RunningWorker, settings, spec

CASES: dict[str, tuple[str, Callable[[Path], str], dict[str, Any]]] = {
    "answer": ("Offline", encoder, {"batch_size": 8}),
    "detect": ("SingleStream", detector, {"batch_size": 1}),
    "segment": ("Offline", segmenter, {"roi_shape": [4, 4, 4]}),
    "tensor": ("Server", recommender, {"workers": 2, "output": "probability"}),
}


@pytest.mark.process
@pytest.mark.parametrize(
    "task",
    [
        "detect",
        "tensor",
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ("answer", "segment")),
    ],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(tmp_path: Path, task: str) -> None:
    """LoadGen keeps the very answers that the engine gives outside of it, by sample."""
    scenario, make, options = CASES[task]
    model = make(tmp_path)
    case = spec(
        tmp_path,
        engine="pytest_mlperf.adapters.engines.onnxruntime:OnnxRuntimeEngine",
        options={"task": task, **options},
        dataset="tests.adapters.engines.onnxruntime.models:Made",
        dataset_options={"task": task},
        model=model,
        precision="fp32",
        settings=settings(scenario, target_qps=200.0, min_query_count=60, performance_samples=40),
    )
    with RunningWorker(case) as worker:
        loaded = worker.wait_for("loaded")
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(40)))
        accuracy = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0

    assert loaded["engine"]["task"] == task
    assert finished["result"]["faults"] == accuracy["result"]["faults"] == []
    assert parse_detail(Path(finished["folder"]) / DETAIL).num_errors == 0
    kept = dict(AccuracyLog(Path(accuracy["folder"]) / ACCURACY_LOG).items())
    inputs = [INPUTS[task](index) for index in range(40)]
    alone = answers(model, inputs, task=task, **options)
    assert sorted(kept) == list(range(40))
    if task in {"answer", "tensor"}:  # How samples are batched decides the last bits.
        for index, answer in enumerate(alone):
            assert np.allclose(
                np.frombuffer(kept[index], "<f4"), np.frombuffer(answer, "<f4"), atol=1e-4
            )
    else:
        assert [kept[index] for index in range(40)] == alone
    assert len({len(answer) for answer in kept.values()}) > 1 or task == "segment"
