"""Test HTTP of hostile servers: an invalid answer is an error and never fills the memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

pytest.importorskip("httptools")

from pytest_mlperf.adapters import connections
from pytest_mlperf.adapters.connections import HEAD_BYTES, new_loop
from pytest_mlperf.adapters.engines.openai._address import Address
from pytest_mlperf.adapters.engines.openai._client import Client, Listener
from pytest_mlperf.adapters.engines.openai._events import Failed, StreamedAnswer
from tests.adapters.engines.openai.scripted import DONE, piece
from tests.refusals import unrefused

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

WHOLE = piece("a", ids=[1]) + piece("b", ids=[2], finish="stop") + DONE
KIND = b"Content-Type: text/event-stream\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + KIND + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(WHOLE)


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


@contextlib.asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[Client]:
    """Have a client of a server, which answers each connection so."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(Address(root=f"http://127.0.0.1:{port}"), "/completions", {}, 30)
    await client.open()
    try:
        yield client
    finally:
        await client.close()
        server.close()


def ask(*replies: bytes | Sequence[bytes]) -> list[StreamedAnswer]:
    """Ask once for each reply, of pieces that a server writes; it then closes the connection."""
    left = [[reply] if isinstance(reply, bytes) else list(reply) for reply in replies]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while left:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                for part in left.pop(0):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if not writer.is_closing() and not left:
                    break
        writer.close()

    async def main() -> list[StreamedAnswer]:
        answers = [StreamedAnswer(keeps=True) for _ in replies]
        async with served(serve) as client:
            for answer in answers:
                await asyncio.wait_for(client.stream(b"{}", answer, Listener()), 30)
        return answers

    with contextlib.closing(new_loop()[0]) as loop:
        return loop.run_until_complete(main())


OK, LAST = b"HTTP/1.1 200 OK\r\n", b"0\r\n\r\n"

FRAMES: list[bytes | list[bytes]] = [
    CHUNKED + chunks(WHOLE) + LAST,
    CHUNKED + chunks(*(bytes([byte]) for byte in WHOLE)) + b"0\r\nX-Sum: 3\r\n\r\n",
    [bytes([byte]) for byte in CHUNKED + chunks(WHOLE) + LAST],
    OK + KIND + LENGTH + WHOLE,
    OK + KIND + b"\r\n" + WHOLE,
    OK.replace(b"1.1", b"1.0") + KIND + b"\r\n" + WHOLE,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
    + (OK + KIND + LENGTH + WHOLE),
    CHUNKED + chunks(WHOLE.replace(b"\n", b"\r")) + LAST,
    CHUNKED + chunks(WHOLE),  # broken off after the last word
    CHUNKED + chunks(WHOLE) + b"zz\r\n",
]


def test_every_way_to_frame_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By chunks, by length, by the connection's end; wherever it is cut, also in a character."""
    sent = piece("grüß \U0001f600", ids=[1, 2], finish="stop") + DONE
    cuts = [[CHUNKED + chunks(sent[:n]), chunks(sent[n:]) + LAST] for n in range(1, len(sent))]
    answers = [ask(reply)[0] for reply in (*FRAMES, *cuts)]
    assert {(answer.complete, *answer.ids) for answer in answers} == {(True, 1, 2)}
    assert all(answer.text == ["grüß \U0001f600"] for answer in answers[len(FRAMES) :])

    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop, name = new_loop()
    loop.close()
    assert (type(loop).__module__.partition(".")[0], name) == ("asyncio", "asyncio")
    assert ask(CHUNKED + chunks(WHOLE) + LAST)[0].complete


def test_an_answer_is_not_taken_for_the_next_ones() -> None:
    whole = OK + KIND + LENGTH + WHOLE
    other = piece("z", ids=[7], finish="stop") + DONE
    first, second = ask([whole + whole], CHUNKED + chunks(other) + LAST)
    assert (first.ids, second.ids) == ([1, 2], [7])


def test_a_server_without_a_trusted_certificate_is_refused() -> None:
    pool = connections.Connections("https://localhost")
    asyncio.run(pool.open())
    context = pool._context
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


CLOSED = "the server closed the connection"
UPGRADE = b"Upgrade: h2c\r\nConnection: upgrade\r\n\r\n"

BROKEN: list[tuple[bytes | list[bytes], str]] = [
    (b"SSH-2.0-OpenSSH_9.2\r\n", "connection closed before an answer: no HTTP: "),
    (OK + b"X: " + b"y" * 3 * HEAD_BYTES, "the headers of the answer have more than"),
    ([OK] + [b"X-%d: y\r\n" % n for n in range(9000)], "the headers of the answer have"),
    (CHUNKED + b"5;" + b"x" * 3 * HEAD_BYTES, "the headers of the answer have more than 65,536 by"),
    (CHUNKED + b"xyz\r\n", "connection closed before an answer: no HTTP: "),
    (CHUNKED + chunks(piece("a", ids=[1])) + b"xyz\r\n", "stream ended early: no HTTP: "),
    (CHUNKED + b"fffffffffffffffffff\r\n", "no HTTP: "),
    (CHUNKED, f"connection closed before an answer: {CLOSED}"),
    (b"", f"connection closed before an answer: {CLOSED}"),
    (OK + KIND + b"Content-Length: 999\r\n\r\n" + WHOLE[:200], f"stream ended early: {CLOSED}"),
    (b"HTTP/1.1 101 Switching Protocols\r\n" + UPGRADE, "no HTTP/1.1: the server switches"),
    (
        OK + KIND + b"Content-Encoding: gzip\r\n" + LENGTH + WHOLE,
        "the answer is compressed (gzip), which was not requested",
    ),
    (b"HTTP/1.1 302 Found\r\nLocation: http://other/\r\n\r\n", "HTTP 302 (Found)"),
    (CHUNKED + chunks(b"data: " + b"x" * (1 << 21)), "malformed event: it has more than 1 MiB"),
    (CHUNKED + chunks(b'data: {"choices":[{"text":"\xc3\x28"}]}\n\n'), "malformed event: "),
    (OK + b"Content-Length: 3\r\n\r\nhey", "has no content type, not text/event-stream: hey"),
    (b"HTTP/1.1 500 No\r\n\r\n" + b"e" * 200_000, "HTTP 500 (Internal Server Error): eee"),
]


def test_an_invalid_answer_is_reported() -> None:
    assert unrefused(ask, Failed, BROKEN) == []
    message = (
        "connection closed before an answer: the server closed the connection; the connection was "
        "reused after an earlier answer: the server must keep idle connections longer than 1 s, or "
        "send 'Connection: close'"
    )
    with pytest.raises(Failed, match=re.escape(message)):
        ask(CHUNKED + chunks(WHOLE) + LAST, b"")


def test_a_connection_that_brought_a_failure_of_the_server_is_not_used_again() -> None:
    """uvicorn closes it, and does not say so; `transformers serve` without a cache of models."""
    refused = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(refused if head.startswith(b"GET") else CHUNKED + chunks(WHOLE) + LAST)
        await reader.read(16)  # until it is asked again, or hung up on
        writer.close()

    async def main() -> StreamedAnswer:
        async with served(serve) as client:
            with pytest.raises(Failed, match="HTTP 500"):
                await client.get("/v1/models")
            answer = StreamedAnswer(keeps=True)
            await client.stream(b"{}", answer, Listener())
        return answer

    assert asyncio.run(main()).complete


def test_a_server_that_closes_connections_without_a_word_gets_new_ones() -> None:
    """As llama.cpp's does after a stream; it is found before anything is timed."""

    async def count(*, keeps: bool) -> tuple[bool, int]:
        opened = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            opened.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError):
                while await reader.readuntil(b"{}"):
                    writer.write(CHUNKED + chunks(WHOLE) + LAST)
                    if not keeps:
                        break
            writer.close()

        async with served(serve) as client:
            for _ in range(2):
                assert (await client.ask(b"{}")).complete
            for _ in range(2):
                await client.stream(b"{}", StreamedAnswer(keeps=True), Listener())
        return client.keeps_connections, len(opened)

    assert asyncio.run(count(keeps=True)) == (True, 1)
    assert asyncio.run(count(keeps=False)) == (False, 4)
