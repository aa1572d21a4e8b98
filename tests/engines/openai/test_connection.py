"""HTTP as hostile servers write it: what is no answer is a failure, and never fills the memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

pytest.importorskip("httptools")

from pytest_mlperf.engines.openai import _connection
from pytest_mlperf.engines.openai._client import Client, Listener
from pytest_mlperf.engines.openai._connection import HEAD_BYTES, new_loop
from pytest_mlperf.engines.openai._events import Failed, StreamedAnswer
from tests.engines.openai.scripted import DONE, piece

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

WHOLE = piece("a", ids=[1]) + piece("b", ids=[2], finish="stop") + DONE
KIND = b"Content-Type: text/event-stream\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + KIND + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(WHOLE)


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


@contextlib.asynccontextmanager
async def served(serve: Serve, key: str | None = None) -> AsyncIterator[Client]:
    """Have a client of a server, which answers each connection so."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", "/v1/completions", key, 30)
    await client.open()
    try:
        yield client
    finally:
        await client.close()
        server.close()


def ask(*replies: bytes | Sequence[bytes], key: str | None = None) -> list[StreamedAnswer]:
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
        async with served(serve, key) as client:
            for answer in answers:
                await asyncio.wait_for(client.stream(b"{}", answer, Listener()), 30)
        return answers

    loop, _ = new_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


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


def test_every_way_to_frame_an_answer() -> None:
    """By chunks, by length, by the connection's end; wherever it is cut."""
    answers = [ask(reply)[0] for reply in FRAMES]

    assert [(answer.complete, answer.ids) for answer in answers] == [(True, [1, 2])] * len(FRAMES)


def test_an_answer_is_not_taken_for_the_next_ones() -> None:
    """A connection on which more came than was asked for is not used again."""
    whole = b"HTTP/1.1 200 OK\r\n" + KIND + LENGTH + WHOLE
    other = piece("z", ids=[7], finish="stop") + DONE
    reply = CHUNKED + chunks(other) + b"0\r\n\r\n"

    first, second = ask([whole + whole], reply)

    assert (first.ids, second.ids) == ([1, 2], [7])


CLOSED = "the server closed the connection"

BROKEN: list[tuple[bytes | list[bytes], str]] = [
    (b"SSH-2.0-OpenSSH_9.2\r\n", "connection closed before an answer: no HTTP: "),
    (OK + b"X: " + b"y" * 3 * HEAD_BYTES, "no HTTP: a head of more than"),
    ([OK] + [b"X-%d: y\r\n" % n for n in range(9000)], "a head of more"),
    (CHUNKED + b"5;" + b"x" * 3 * HEAD_BYTES, "no HTTP: a head of more than 65,536 bytes"),
    (CHUNKED + b"xyz\r\n", "connection closed before an answer: no HTTP: "),
    (CHUNKED + chunks(piece("a", ids=[1])) + b"xyz\r\n", "stream ended early: no HTTP: "),
    (CHUNKED + b"fffffffffffffffffff\r\n", "no HTTP: "),
    (CHUNKED, f"connection closed before an answer: {CLOSED}"),
    (b"", f"connection closed before an answer: {CLOSED}"),
    (
        OK + KIND + b"Content-Length: 999\r\n\r\n" + piece("a", ids=[1]),
        f"stream ended early: {CLOSED}",
    ),
    (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        "no HTTP: the server changes the protocol",
    ),
    (
        OK + KIND + b"Content-Encoding: gzip\r\n" + LENGTH + WHOLE,
        "no event stream: it is packed (gzip), unasked",
    ),
    (b"HTTP/1.1 302 Found\r\nLocation: http://other/\r\n\r\n", "HTTP 302 (Found)"),
    (CHUNKED + chunks(b"data: " + b"x" * (1 << 21)), "malformed event: it has more than 1 MiB"),
    (CHUNKED + chunks(b'data: {"choices":[{"text":"\xc3\x28"}]}\n\n'), "malformed event: "),
    (OK + b"Content-Length: 3\r\n\r\nhey", "the answer is of no type: hey"),
    (b"HTTP/1.1 500 No\r\n\r\n" + b"e" * 200_000, "HTTP 500 (Internal Server Error): eee"),
]


def test_what_is_no_answer_is_told() -> None:
    for reply, expected in BROKEN:
        with pytest.raises(Failed, match=re.escape(expected)):
            ask(reply)


def test_a_kept_connection_that_closes_without_a_word_says_so() -> None:
    message = (
        "connection closed before an answer: the server closed the connection, on a connection "
        "kept from the request before: if the server is well, it must keep idle ones longer than "
        "1 s, or say that it closes one"
    )

    with pytest.raises(Failed, match=re.escape(message)):
        ask(CHUNKED + chunks(WHOLE) + b"0\r\n\r\n", b"")


def test_a_connection_that_brought_a_failure_of_the_server_is_not_used_again() -> None:
    """uvicorn closes it, and does not say so; `transformers serve` without a cache of models."""
    refused = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(refused if head.startswith(b"GET") else CHUNKED + chunks(WHOLE) + b"0\r\n\r\n")
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


@pytest.mark.parametrize("keeps", [True, False])
def test_a_server_that_closes_connections_without_a_word_gets_new_ones(*, keeps: bool) -> None:
    """As llama.cpp's does after a stream; it is found before anything is timed."""
    opened = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"{}"):
                writer.write(CHUNKED + chunks(WHOLE) + b"0\r\n\r\n")
                if not keeps:
                    break
        writer.close()

    async def main() -> bool:
        async with served(serve) as client:
            for _ in range(2):
                assert (await client.ask(b"{}")).complete
            for _ in range(2):
                await client.stream(b"{}", StreamedAnswer(keeps=True), Listener())
        return client.keeps_connections

    assert (asyncio.run(main()), len(opened)) == (keeps, 1 if keeps else 4)


def test_a_character_may_be_cut_anywhere() -> None:
    sent = piece("grüß \U0001f600", ids=[1], finish="stop") + DONE
    for cut in range(1, len(sent)):
        (answer,) = ask([CHUNKED + chunks(sent[:cut]), chunks(sent[cut:]) + b"0\r\n\r\n"])
        assert answer.text == ["grüß \U0001f600"]


def test_without_uvloop_the_loop_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop, name = new_loop()
    loop.close()

    assert (type(loop).__module__.partition(".")[0], name) == ("asyncio", "asyncio")
    (answer,) = ask(CHUNKED + chunks(WHOLE) + b"0\r\n\r\n")
    assert answer.complete


def test_a_server_without_a_trusted_certificate_is_no_server() -> None:
    pool = _connection.Connections("https://localhost")

    async def opened() -> ssl.SSLContext | None:
        await pool.open()
        return pool._context

    context = asyncio.run(opened())
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
