"""Requests and answers over HTTP, with a scripted server."""

from __future__ import annotations

import contextlib
import select
import struct
import threading
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_mlperf.adapters.engines.triton import TritonEngine
from pytest_mlperf.adapters.engines.triton import _clients as http_client
from pytest_mlperf.adapters.engines.triton._clients import HttpClient, RequestError, ServiceAddress
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.onnxruntime.recorder import Listed
from tests.adapters.engines.triton.harness import answers, ask, engine, local, rows, scripted

pytestmark = pytest.mark.process

pytest.importorskip("tritonclient.http")

EXPECTED = [struct.pack("<q", index % 4) for index in range(30)]


def test_every_sample_has_its_own_answer() -> None:
    """As bytes if the server reads them, and as text, which carries every number exactly.

    Any float32, the smallest, the largest and NaN. A model that
    becomes ready later is waited for.
    """
    row = np.array([np.float32(1) / 3, 1e-45, -3.4028235e38, np.nan], "f4")
    with local(ready_after=3) as url:
        for binary, batch_size in product((True, False), (1, 7)):
            assert answers(rows(30), url=url, binary=binary, batch_size=batch_size) == EXPECTED
        (output,) = answers([row], url=url, binary=False, task="tensor")
    assert np.array_equal(np.frombuffer(output, "<f4"), row, equal_nan=True)
    for script, arrays in (({}, "bytes"), ({"server": {"name": "plain", "version": "1"}}, "JSON")):
        with local(**script) as url, engine(rows(1), url=url) as opened:
            assert opened.describe()["arrays"] == arrays
            assert ask(opened, 1).error is None


def rest(client: HttpClient) -> None:
    """Wait until the server has closed the client's connection."""
    sock = client._connection.sock
    assert sock is not None
    assert select.select([sock], [], [], 60)[0]


def test_a_connection_that_the_server_closes_at_rest_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unannounced, after an answer; a request that meets the closing is sent again after a rest."""
    with local(closes=True) as url, contextlib.ExitStack() as stack:
        client = HttpClient(ServiceAddress.of("http", url), "echo", "", timeout_s=60, binary=True)
        stack.callback(client.close)
        for _ in range(3):
            assert client.server()["name"] == "scripted"
            rest(client)
        monkeypatch.setattr(http_client, "MAX_IDLE_SECONDS", -1.0)
        client.server()
        rest(client)
        unseen = SimpleNamespace(select=lambda *_: ([], [], []))
        monkeypatch.setattr(http_client, "select", unseen)
        assert client.server()["name"] == "scripted"
        rest(client)
        monkeypatch.setattr(http_client, "MAX_IDLE_SECONDS", 1e9)
        with pytest.raises(RequestError) as caught:
            client.server()
    assert caught.value.lost


def test_as_many_threads_complete_samples_as_requests_may_be_under_way() -> None:
    threads_at_start = threading.active_count()

    with engine(rows(30), serve=scripted(), concurrency=3) as opened:
        first, again = ask(opened, 30, wants_output=False), ask(opened, 30)
        assert threading.active_count() >= threads_at_start + 3

    assert first.error is again.error is None
    assert len(first.threads | again.threads) <= 3
    assert threading.active_count() == threads_at_start


def test_the_description_has_what_the_server_says() -> None:
    config = {
        "max_batch_size": 8,
        "instance_group": [{"count": 2, "kind": "KIND_GPU"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
    }
    options = {"serve": scripted(config=config), "environment": {"A": "1"}}
    with engine(rows(1), **options, batch_size=8, model_version="2") as opened:
        description = dict(opened.describe())

    server_facts = {
        name: description.pop(name) for name in ("tritonclient", "config_sha256", "serve")
    }
    assert server_facts["serve"].startswith(("python", "pypy"))
    assert "/" not in server_facts["serve"].split("{port}")[0]
    assert description == {
        "engine": "triton",
        "server": "scripted",
        "server_version": "7",
        "server_extensions": "binary_tensor_data",
        "model_versions": "1",
        "platform": "none",
        "config.instance_group": '[{"count": 2, "kind": "KIND_GPU"}]',
        "config.dynamic_batching": '{"max_queue_delay_microseconds": 100}',
        "config.max_batch_size": "8",
        "served_model": "echo",
        "model_version": "2",
        "protocol": "http",
        "reach": "loopback",
        "arrays": "bytes",
        "environment.A": "1",
        "concurrency": "16",
        "batch_size": "8",
        "class_offset": "0",
    }


def test_the_files_of_a_server_of_our_own_are_part_of_the_description(tmp_path: Path) -> None:
    digests = {}
    for name, content in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / name / "echo/1").mkdir(parents=True)
        (tmp_path / name / "echo/1/model.txt").write_text(content, "utf-8")
        serve = [*scripted(), "{model}"]
        with engine([], serve=serve, model=str(tmp_path / name)) as opened:
            digests[name] = opened.describe()["weights_sha256"]
    assert digests["same"] == digests["one"] != digests["other"]
    assert len(digests["one"]) == 16


def test_the_engine_keeps_the_contract() -> None:
    options = {"served_model": "echo", "serve": scripted(), "batch_size": 7}

    answered = check_engine(TritonEngine, Listed(rows(24)), options=options)

    assert answered == dict(enumerate(EXPECTED[:24]))
