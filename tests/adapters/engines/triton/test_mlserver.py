"""A real KServe v2 server, MLServer, with the tiny models: over HTTP and gRPC, alone and judged."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from pytest_mlperf.adapters.datasets.imagenet import ImageNetDataset
from pytest_mlperf.adapters.engines.serving import HOST, free_port
from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog
from pytest_mlperf.run.logs import DETAIL, parse_detail
from tests.adapters.engines.onnxruntime import recorder
from tests.adapters.engines.onnxruntime.models import encoder, question
from tests.adapters.engines.triton.harness import ROOT, answers, models, needs_mlserver, server
from tests.run.harness import RunningWorker, settings, spec

pytestmark = [needs_mlserver, pytest.mark.process]

TINY = ROOT / "suites/tiny/resnet50"
MODEL = str(TINY / "resnet50-tiny.onnx")
DATA: dict[str, Any] = {"path": str(TINY / "data/imagenet"), "size": 32, "crop": 1.0, "classes": 10}

PROTOCOLS = ("http", "grpc")


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    pytest.importorskip("tritonclient.grpc")
    pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def images() -> list[Any]:
    """Return the first samples of the tiny ResNet's data set."""
    dataset = ImageNetDataset(**DATA)
    return [dataset.input(index) for index in range(40)]


class Running(NamedTuple):
    """Addresses by protocol of a server with "resnet50" and "bert", and the file of the latter."""

    urls: dict[str, str]
    bert: str


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return a server that runs while the tests of this module do."""
    folder, port = tmp_path_factory.mktemp("models"), free_port()
    bert = encoder(folder)
    with server(models(folder, resnet50=MODEL, bert=bert), port) as started:
        yield Running({"http": started.url, "grpc": f"{HOST}:{port}"}, bert)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_are_those_of_engine_onnxruntime(
    running: Running, images: list[Any], protocol: str
) -> None:
    """The encoder's samples have many lengths; it has three inputs and two outputs."""
    server = {"url": running.urls[protocol], "protocol": protocol}
    for batch_size in (1, 8):
        outputs = answers(images, **server, served_model="resnet50", batch_size=batch_size)
        assert outputs == recorder.answers(MODEL, images, batch_size=1)

    inputs, options = [question(index) for index in range(20)], {"task": "answer", "batch_size": 4}
    outputs = answers(inputs, **server, served_model="bert", **options)
    alone = recorder.answers(running.bert, inputs, **options)
    for output, other in zip(outputs, alone, strict=True):
        assert np.allclose(np.frombuffer(output, "<f4"), np.frombuffer(other, "<f4"), atol=1e-4)


def workers(protocol: str, **options: Any) -> dict[str, Any]:
    """Return the worker options that run the tiny ResNet-50 through a server."""
    return {
        "engine": "pytest_mlperf.adapters.engines.triton:TritonEngine",
        "options": {"served_model": "resnet50", "protocol": protocol, "batch_size": 8, **options},
        "dataset": "pytest_mlperf.adapters.datasets.imagenet:ImageNetDataset",
        "dataset_options": DATA,
        "model": MODEL,
        "precision": "fp32",
    }


@pytest.mark.parametrize(
    ("protocol", "scenario", "starts"),
    [("http", "SingleStream", False), ("grpc", "Offline", True), ("grpc", "Server", False)],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    tmp_path: Path, running: Running, images: list[Any], protocol: str, scenario: str, starts: bool
) -> None:
    where = (
        {"serve": models(tmp_path, resnet50=MODEL)} if starts else {"url": running.urls[protocol]}
    )
    case = spec(
        tmp_path,
        **workers(protocol, **where),
        settings=settings(scenario, target_qps=50.0, min_query_count=30, performance_samples=40),
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
        assert worker.group_is_gone()

    assert loaded["engine"]["server"] == "mlserver"
    assert loaded["engine"]["server_version"].startswith("1.")
    assert ("weights_sha256" in loaded["engine"]) is starts
    assert finished["result"]["faults"] == accuracy["result"]["faults"] == []
    assert parse_detail(Path(finished["folder"]) / DETAIL).num_errors == 0
    kept = dict(AccuracyLog(Path(accuracy["folder"]) / ACCURACY_LOG).items())
    alone = recorder.answers(MODEL, images, batch_size=1)
    assert [kept[index] for index in range(40)] == alone
    assert psutil.wait_procs(servers(tmp_path), timeout=20)[1] == []


def servers(folder: Path) -> Iterator[psutil.Process]:
    """Yield the servers that run on a folder of models, and what watches over them."""
    for process in psutil.process_iter():
        try:
            if process.cmdline()[-2:] == ["start", str(folder)]:
                yield process
        except psutil.Error:
            continue


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_is_killed_in_mid_run_is_one_error(tmp_path: Path, protocol: str) -> None:
    case = spec(
        tmp_path,
        **workers(protocol, serve=models(tmp_path, resnet50=MODEL), batch_size=1),
        settings=settings("Offline", target_qps=100.0, min_duration_ms=60_000),
    )
    with RunningWorker(case) as worker:
        worker.wait_for("running")
        while not worker.wait_for("progress")["done"]:
            pass
        (alone,) = (each for each in servers(tmp_path) if not each.children())
        os.kill(alone.pid, signal.SIGKILL)
        error = worker.wait_for("error")
        assert worker.exit_code() == 70
        assert worker.group_is_gone()

    assert error["layer"] == "engine"
    assert re.fullmatch(
        rf"model 'resnet50' at {protocol}://127\.0\.0\.1:\d+: the server is gone \(.+\); [\d,]+ "
        r"requests were answered before(, [\d,]+ more were under way)?; the server was killed by "
        r"SIGKILL.*; its log .*server\.log ends: .*",
        error["message"],
    ), error["message"]
    assert psutil.wait_procs(servers(tmp_path), timeout=20)[1] == []
