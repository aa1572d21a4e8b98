"""Requests and answers over HTTP, with a scripted server."""

from __future__ import annotations

import select
import struct
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_mlperf.engines.triton import TritonEngine
from pytest_mlperf.engines.triton import _clients as http_client
from pytest_mlperf.engines.triton._clients import Address, HttpClient, RequestError
from pytest_mlperf.testing import check_engine
from tests.engines.onnxruntime.recorder import Listed
from tests.engines.triton.harness import answers, ask, engine, local, rows, scripted

pytestmark = pytest.mark.process

pytest.importorskip("tritonclient.http")

EXPECTED = [struct.pack("<q", index % 4) for index in range(30)]


def test_every_sample_has_its_own_answer() -> None:
    with local() as url:
        for binary, batch_size in product((True, False), (1, 7)):
            assert answers(rows(30), url=url, binary=binary, batch_size=batch_size) == EXPECTED


def test_text_carries_every_number_exactly() -> None:
    """What float32 can hold, the smallest and the largest too, and what is no number."""
    row = np.array([np.float32(1) / 3, 1e-45, -3.4028235e38, np.nan], "f4")

    with local() as url:
        (found,) = answers([row], url=url, binary=False, task="tensor")

    assert np.array_equal(np.frombuffer(found, "<f4"), row, equal_nan=True)


def test_bytes_are_sent_to_a_server_that_can_read_them() -> None:
    for script, arrays in (({}, "bytes"), ({"server": {"name": "plain", "version": "1"}}, "JSON")):
        with local(**script) as url, engine(rows(1), url=url) as opened:
            assert opened.describe()["arrays"] == arrays
            assert ask(opened, 1).error is None


@pytest.fixture
def closing() -> Iterator[HttpClient]:
    """Return a client of a server that closes each connection after one answer, unannounced."""
    with local(closes=True) as url:
        client = HttpClient(Address.of("http", url), "echo", "", timeout_s=60, binary=True)
        yield client
        client.close()


def rest(client: HttpClient) -> None:
    """Wait until the server has closed the client's connection."""
    sock = client._connection.sock
    assert sock is not None
    assert select.select([sock], [], [], 60)[0]


def test_a_connection_that_the_server_closes_at_rest_is_opened_again(closing: HttpClient) -> None:
    for _ in range(3):
        assert closing.server()["name"] == "scripted"
        rest(closing)


def test_a_request_that_meets_the_closing_is_sent_again_after_a_rest_only(
    closing: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "IDLE_S", -1.0)
    closing.server()
    rest(closing)
    unseen = SimpleNamespace(select=lambda *_: ([], [], []))
    monkeypatch.setattr(http_client, "select", unseen)
    assert closing.server()["name"] == "scripted"
    rest(closing)
    monkeypatch.setattr(http_client, "IDLE_S", 1e9)
    with pytest.raises(RequestError) as caught:
        closing.server()
    assert caught.value.lost


def test_as_many_threads_complete_samples_as_requests_may_be_under_way() -> None:
    before = threading.active_count()

    with engine(rows(30), serve=scripted(), concurrency=3) as opened:
        first, again = ask(opened, 30, wants_output=False), ask(opened, 30)
        assert threading.active_count() >= before + 3

    assert first.error is again.error is None
    assert len(first.threads | again.threads) <= 3
    assert threading.active_count() == before


def test_a_model_that_becomes_ready_later_is_waited_for() -> None:
    with local(ready_after=3) as url:
        assert answers(rows(4), url=url) == EXPECTED[:4]


def test_the_description_has_what_the_server_says() -> None:
    """What decides speed and answers is in it, ports and paths of this machine are not."""
    config = {
        "max_batch_size": 8,
        "instance_group": [{"count": 2, "kind": "KIND_GPU"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 100},
    }
    with engine(
        rows(1),
        serve=scripted(config=config),
        environment={"A": "1"},
        batch_size=8,
        model_version="2",
    ) as opened:
        found = dict(opened.describe())

    shown = {name: found.pop(name) for name in ("tritonclient", "config_sha256", "serve")}
    assert shown["serve"].startswith(("python", "pypy"))
    assert "/" not in shown["serve"].split("{port}")[0]
    assert found == {
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
    def described(folder: Path) -> str:
        with engine([], serve=[*scripted(), "{model}"], model=str(folder)) as opened:
            return opened.describe()["weights_sha256"]

    for name, content in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / name / "echo/1").mkdir(parents=True)
        (tmp_path / name / "echo/1/model.txt").write_text(content, "utf-8")
    first = described(tmp_path / "one")

    assert described(tmp_path / "same") == first
    assert described(tmp_path / "other") != first
    assert len(first) == 16


def test_the_engine_keeps_the_contract() -> None:
    """Asked in every way of LoadGen, it owes a run nothing."""
    options = {"served_model": "echo", "serve": scripted(), "batch_size": 7}

    answered = check_engine(TritonEngine, Listed(rows(24)), options=options)

    assert answered == dict(enumerate(EXPECTED[:24]))
