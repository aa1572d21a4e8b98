"""A server that is too fast for the client is not what was measured."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.engines.openai._null_server import answer
from pytest_mlperf.run.curve import curve_validity, read_curve
from pytest_mlperf.run.worker._client_check import with_reach
from pytest_mlperf.run.worker.closed_loop import LOG, ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from tests.engines.openai.echo import echo_server
from tests.engines.openai.recorder import Recorder, open_engine
from tests.engines.openai.scripted import Manner, Scripted
from tests.run.harness import settings

LOADED = [0]


def keys(folder: Path, tokens: int, service_ms: float, concurrency: int) -> list[Key]:
    """Return why a curve of this one point may not be judged."""
    broken = threading.Event()
    told = replace(settings("Offline"), points=[concurrency], tokens=True, min_duration_ms=500)
    asked = {"max_new_tokens": tokens, "ignore_eos": True, "concurrency": concurrency}

    def fail(error: BaseException) -> None:
        broken.set()
        raise error

    with echo_server(tokens, service_ms) as url, open_engine(url, ["a prompt"], **asked) as engine:
        engine.load_samples(LOADED)
        loop = ClosedLoop(engine, SlotSink(fail, tokens=True), Conversations(LOADED), told)
        log = loop.run("run", 0.01, lambda: None)
        log["points"] = with_reach(log["points"], engine, LOADED, told, fail)
    assert not broken.is_set()
    (folder / LOG).write_text(json.dumps(log))
    return [reason.key for reason in curve_validity(read_curve(folder / LOG)).invalid]


@pytest.mark.process
@pytest.mark.quiet
def test_a_server_that_answers_at_once_measures_the_client_and_one_that_takes_its_time_not(
    tmp_path: Path,
) -> None:
    assert Key.CLIENT_LATE in keys(tmp_path, tokens=512, service_ms=0, concurrency=32)
    assert Key.CLIENT_LATE not in keys(tmp_path, tokens=8, service_ms=200, concurrency=2)


@pytest.mark.process
def test_the_null_server_gives_so_many_tokens_to_any_request() -> None:
    for api in ("completions", "chat"):
        sink = Recorder(3)
        with (
            Scripted(Manner(tokens=4)) as server,
            open_engine(server.url, ["a prompt " * 20_000], api=api) as engine,
        ):
            engine.load_samples(LOADED)
            with engine.null_client(7) as null:
                null.submit([1, 2, 3], [0, 0, 0], sink)
                sink.wait_for_end()
        assert sink.n_tokens == {1: 7, 2: 7, 3: 7}


def test_an_answer_comes_in_as_many_writes_as_asked_for() -> None:
    for tokens, writes in ((2, 1), (7, 3), (8, 8)):
        pieces = answer(tokens, writes, chat=False, ids=True)
        assert len(pieces) == writes
        assert all(b"data: " in piece for piece in pieces)
        whole = b"".join(pieces)
        assert whole.count(b'"token_ids":[1000]') == tokens
        assert whole.startswith(b"HTTP/1.1 200 OK")
        assert whole.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
