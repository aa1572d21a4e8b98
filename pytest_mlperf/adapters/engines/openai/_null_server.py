"""Answer every request at once with the same stream of tokens, without computing anything.

Run as `python _null_server.py --tokens 8 --writes 8 --api chat`; it prints its port and serves
until its stdin ends. A write is one call of `transport.write`. All open streams get their n-th
write before any stream gets the next one, as from a server that processes streams in batches. Only
the standard library is imported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence

RESPONSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)

LENGTH_PATTERN = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)

BACKLOG = 4096


def answer(tokens: int, writes: int, *, chat: bool, ids: bool) -> list[bytes]:
    """Return an answer's SSE events in `writes` parts, as a chat if `chat`, with token `ids`."""
    events = list(_events(tokens, chat=chat, ids=ids))
    return [
        b"".join(events[n * tokens // writes : (n + 1) * tokens // writes]) for n in range(writes)
    ]


def _events(tokens: int, *, chat: bool, ids: bool) -> Iterator[bytes]:
    word = {"delta": {"content": " word"}} if chat else {"text": " word"}
    with_ids = {"token_ids": [1000]} if ids else {}
    choice = {"index": 0, **word, "logprobs": None, "finish_reason": None, **with_ids}
    usual = _chunk(_event(choices=[choice], usage=None))
    last = _event(choices=[{**choice, "finish_reason": "length"}], usage=None)
    usage = _event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": tokens})
    end = _chunk(last) + _chunk(usage + b"data: [DONE]\n\n") + _chunk(b"")
    for number in range(tokens):
        yield (RESPONSE_HEAD if number == 0 else b"") + (end if number == tokens - 1 else usual)


def _event(**fields: object) -> bytes:
    common = {"id": "cmpl-0123456789abcdef", "object": "chunk", "created": 1, "model": "null"}
    return b"data: " + json.dumps({**common, **fields}, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class NullConnection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, pieces: Sequence[bytes]) -> None:
        self._loop = loop
        self._pieces = pieces
        self._came = bytearray()
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        if not self._needed and (end := self._came.find(b"\r\n\r\n")) >= 0:
            length = LENGTH_PATTERN.search(self._came, 0, end + 2)
            self._needed = end + 4 + (int(length[1]) if length else 0)
        if 0 < self._needed <= len(self._came):
            del self._came[: self._needed]
            self._needed = 0
            self._write(0)

    def _write(self, number: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._pieces[number])
        if number + 1 < len(self._pieces):
            self._loop.call_soon(self._write, number + 1)


async def serve(pieces: Sequence[bytes]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: NullConnection(loop, pieces), "127.0.0.1", 0, backlog=BACKLOG
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--writes", type=int, required=True)
    parser.add_argument("--api", choices=("chat", "completions"), required=True)
    parser.add_argument("--ids", action="store_true")
    arguments = parser.parse_args()
    chat = arguments.api == "chat"
    asyncio.run(serve(answer(arguments.tokens, arguments.writes, chat=chat, ids=arguments.ids)))


if __name__ == "__main__":
    main()
