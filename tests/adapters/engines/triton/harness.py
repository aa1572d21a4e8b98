"""Short ways to an engine whose server is a child process: scripted, or MLServer."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_mlperf.adapters.engines.serving import Server
from pytest_mlperf.adapters.engines.triton import TritonEngine
from pytest_mlperf.adapters.engines.triton._service import GRPC_PORT, HEALTH
from tests.adapters.engines.onnxruntime.recorder import Listed
from tests.adapters.engines.recording import Tokenless
from tests.adapters.engines.triton.scripted import server_of

ROOT = Path(__file__).parents[4]

SCRIPTED = Path(__file__).with_name("scripted.py")

TIMEOUT_S = 60.0

MLSERVER = os.environ.get("PYTEST_MLPERF_MLSERVER", str(ROOT / ".venv-mlserver/bin/python"))

needs_mlserver = pytest.mark.skipif(
    not Path(MLSERVER).is_file(),
    reason="needs MLServer in an environment of its own: make .venv-mlserver, or set "
    "PYTEST_MLPERF_MLSERVER to the Python of one that has mlserver and onnxruntime",
)


def children() -> set[int]:
    """Return the processes that this one has started, and theirs."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def rows(count: int) -> list[Any]:
    """Return inputs of the scripted server's model: the class of row i is i % 4."""
    return [np.roll(np.array([9, 1, 0, -1], "f4"), index % 4) for index in range(count)]


def scripted(**script: Any) -> list[str]:
    """Return the command that starts a scripted server."""
    return [sys.executable, str(SCRIPTED), "{port}", json.dumps(script)]


@contextmanager
def local(**script: Any) -> Iterator[str]:
    """Yield the address of a scripted server in threads of this process."""
    with server_of(script) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}"
        finally:
            running.over.set()
            running.shutdown()
            thread.join()


def server(command: Sequence[str], grpc_port: int = 1) -> Server:
    """Return a server that is not started yet, for several engines."""
    return Server(
        [word.replace(GRPC_PORT, str(grpc_port)) for word in command],
        engine="triton",
        model=None,
        health=HEALTH,
        start_timeout_s=TIMEOUT_S,
        environment={},
    )


def engine(inputs: Any, **options: Any) -> TritonEngine:
    """Return an engine for a list of inputs, not entered."""
    arguments = {"dataset": Listed(inputs), "model": None, "precision": "fp32"}
    return TritonEngine(**{**arguments, "served_model": "echo", **options})


def ask(opened: TritonEngine, count: int, *, wants_output: bool = True) -> Tokenless:
    """Submit samples 0 to count as one list, by the ids 1000 and up, and wait for the end."""
    sink = Tokenless(wants_output=wants_output, expected=count)
    opened.load_samples(range(count))
    opened.submit(range(1000, 1000 + count), range(count), sink)
    sink.wait_for_end()
    return sink


def answers(inputs: Sequence[Any], **options: Any) -> list[bytes]:
    """Return the answers to all inputs, in their order."""
    with engine(inputs, **options) as opened:
        sink = ask(opened, len(inputs))
    if sink.error is not None:
        raise sink.error
    return [sink.outputs[1000 + index] for index in range(len(inputs))]


def models(folder: Path, **paths: Path | str) -> list[str]:
    """Write the settings of MLServer for ONNX files by name; return the command that starts it.

    The command is for engine triton, which replaces the ports.
    """
    settings = {"host": "127.0.0.1", "metrics_endpoint": None, "parallel_workers": 0}
    (folder / "settings.json").write_text(json.dumps({**settings, "debug": False}), "utf-8")
    for name, path in paths.items():
        (folder / name).mkdir()
        model = {
            "name": name,
            "implementation": "served_onnx.OnnxModel",
            "parameters": {"uri": str(path), "version": "v1"},
        }
        (folder / name / "model-settings.json").write_text(json.dumps(model), "utf-8")
    variables = ["MLSERVER_HTTP_PORT={port}", "MLSERVER_GRPC_PORT={grpc_port}"]
    variables += [f"PYTHONPATH={SCRIPTED.with_name('runtime')}", "PYTHONDONTWRITEBYTECODE=1"]
    return ["env", *variables, MLSERVER, "-m", "mlserver.cli.main", "start", str(folder)]
