"""Test failures of a server: one clear error with counts, before the run if it can be detected."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.recording import Tokenless
from tests.adapters.engines.triton.harness import (
    answers,
    ask,
    children,
    engine,
    local,
    rows,
    scripted,
    server,
)
from tests.adapters.engines.triton.scripted import NORMAL, TENSOR
from tests.refusals import unrefused

pytestmark = pytest.mark.process

pytest.importorskip("tritonclient.http")

MODEL = NORMAL["model"]


ENDLESS = {"blanks": 1 << 24, "says_length": False, "closes": True}


def inputs(**changes: Any) -> dict[str, Any]:
    """Return a script whose model has another input."""
    return {"model": {**MODEL, "inputs": [{"name": "row", **TENSOR, **changes}]}}


BEFORE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"server": {"hello": "world"}}, {}, "its metadata lacks a name or a list of"),
    ({"blanks": 1 << 24}, {}, "an answer of more than 16 MiB"),
    (ENDLESS, {}, "an answer of more than 16 MiB"),
    (inputs(shape=[float("inf")]), {}, "inputs that cannot be read: {'name'"),
    ({"server": {"name": "\ud800"}}, {}, "an answer that is not JSON: {"),
    ({"server": [1]}, {}, "an answer that is not a JSON object: [1]"),
    ({"model": {**MODEL, "inputs": []}}, {}, "its metadata names no inputs"),
    ({"model": {"name": "echo", "inputs": MODEL["inputs"]}}, {}, "names no outputs"),
    (inputs(shape="wide"), {}, "inputs that cannot be read: {'name': 'row'"),
    (inputs(shape=[]), {}, "its input 'row' has no batch dimension"),
    (inputs(datatype="BYTES"), {}, "its input 'row' is BYTES; this engine sends"),
    (inputs(shape=[4, 4]), {"batch_size": 4}, "fixed at 4, which does not fit batch_size = 4"),
    (
        {"config": {"max_batch_size": 2}},
        {"batch_size": 4},
        "max_batch_size = 2, but batch_size = 4",
    ),
    ({"config": {"response_cache": {"enable": True}}}, {}, "response_cache enabled, so repeated"),
    (
        {"models": ["one", "two"], "ready_after": None},
        {"served_model": "three"},
        "the server has only these models: one, two; correct served_model",
    ),
    (
        {"ready_after": None},
        {"start_timeout": 0.1},
        "within start_timeout = 0.1 s, the model was not ready, or does not exist",
    ),
    ({}, {"model_version": "3"}, "HTTP 404 Not Found: nothing is at"),
    ({}, {"task": "answer"}, "has no input input_ids, but row"),
]


def test_a_servers_metadata_is_checked_before_the_run() -> None:
    for script, options, message in BEFORE:
        with local(**script) as url, pytest.raises(RunError, match=re.escape(message)) as caught:
            answers(rows(1), url=url, **options)
        assert caught.value.layer == "engine"
        assert str(caught.value).startswith("model '")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{free.getsockname()[1]}"
        message = f"model 'echo' at http://{url}: Connection refused; start the server, correct"
        with pytest.raises(RunError, match=re.escape(message)):
            engine(rows(1), url=url).__enter__()


def test_an_answer_that_is_refused_halfway_leaves_no_connection_open() -> None:
    """One that ends with its connection, which is then not the client's to close any more."""
    with server(scripted(**ENDLESS)) as running:
        connections_at_start = psutil.Process().net_connections()

        with pytest.raises(RunError) as caught:  # which keeps all that it was raised in
            answers(rows(1), url=running.url)

        assert psutil.Process().net_connections() == connections_at_start
        assert "more than 16 MiB" in str(caught.value)


def test_a_sample_that_the_model_does_not_take_is_refused_before_the_run() -> None:
    samples: list[tuple[Any, str]] = [
        (
            np.zeros(5, "f4"),
            r"takes samples of shape \(4,\), but sample 0 of the data set has shape",
        ),
        (np.array([1j] * 4), "takes samples of type float32, but sample 0 of the data set is"),
        ({"line": np.zeros(4, "f4")}, "sample 0 of the data set has no 'row'; it has line"),
    ]

    def load(sample: Any) -> None:
        with engine([sample], url=url) as opened:
            opened.load_samples([0])

    with local() as url:
        assert unrefused(load, RunError, samples) == []


AMID = {
    "500": r"a request failed \(HTTP 500 Internal Server Error: the model ran into a wall\)",
    "429": r"a request failed \(HTTP 429 Too Many Requests: slow down\)",
    "garbage": r"a request failed \(an answer that cannot be read \(",
    "nothing": r"a request failed \(an answer without output 'scores'\)",
    "wide": r"output 'scores' is float32 of shape \(None, 4\) by the server's description, but an "
    r"answer has float32 of shape \(2, 5\)",
    "double": r"output 'scores' is float32 of .* but an answer has float64 of shape \(2, 4\)",
    "short": r"its answer to 2 samples cannot be read: cannot reshape array of size 1 into shape",
    "reload": r"a request failed \(version '2' of the model answered, but version '1' did",
    "hang": r"a request failed \(no answer within 1 s\)",
    "half": r"the server is gone \(the connection ended in the middle of an answer\)",
    "kill": r"the server is gone \(.*; the server was killed by SIGKILL.* the last line of the log",
}


def test_failures_in_mid_run_end_the_run() -> None:
    for manner, message in AMID.items():
        is_child = manner == "kill"
        script = {"after": 10, "then": manner}
        with nullcontext() if is_child else local(**script) as url:
            server = {"serve": scripted(**script)} if is_child else {"url": url}
            threads_at_start, running = set(threading.enumerate()), children()
            timeout_s = 1.0 if manner == "hang" else 60.0
            requests = {"concurrency": 1, "batch_size": 2, "request_timeout": timeout_s}
            with engine(rows(60), **server, **requests) as opened:
                sink = ask(opened, 60)
            left = {thread.name for thread in set(threading.enumerate()) - threads_at_start}
            assert [name for name in left if "process_request_thread" not in name] == []
            assert children() == running

        assert isinstance(sink.error, RunError)
        assert re.search(message, str(sink.error)), sink.error
        assert len(sink.outputs) == 20
        if "failed" in message or "gone" in message:
            assert "; 10 requests were answered before" in str(sink.error)


def test_requests_under_way_are_counted_and_given_up_at_the_end() -> None:
    with engine(
        rows(8), serve=scripted(after=3, first="hang", then="500"), concurrency=4
    ) as opened:
        sink = ask(opened, 8)
    assert "; 0 requests were answered before, 3 more were in flight; its log" in str(sink.error)
    counts_at_start = threading.active_count(), children()
    silent = Tokenless()
    with engine(rows(4), serve=scripted(first="hang"), concurrency=4) as opened:
        opened.load_samples(range(4))
        opened.submit(range(4), range(4), silent)
    assert (threading.active_count(), children()) == counts_at_start
    assert (silent.error, silent.outputs) == (None, {})
