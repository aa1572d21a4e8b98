"""The null server, by which is found how fast the client can be."""

from __future__ import annotations

import pytest

from pytest_mlperf.engines.openai._null_server import answer
from tests.engines.openai.recorder import Recorder, open_engine
from tests.engines.openai.scripted import Manner, Scripted

LOADED = [0]


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
