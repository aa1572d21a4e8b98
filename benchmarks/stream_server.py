"""A server that streams as fast as it can, or at a pace, and says when it sent what.

Run as `python -m benchmarks.stream_server --tokens 64 --every-ms 10`; it prints its port and serves
until its stdin ends. Answers are prebuilt; a request that came before is known by its bytes. At a
pace, streams are sent one event each at the same moment ("in step") or at moments of their own
(`--spread`). GET /stamps has the moment of each event by the prompt's first token, monotonic
nanoseconds, which are those of every process of this machine; GET /answered the moments
at which answers were that were sent at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, cast

from tests.adapters.engines.openai.echo import HEAD, LAST, chunked, event, piece


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How events are sent.

    Attributes:
        tokens: Events with a token each, for an answer.
        every_s: Time between two of them; 0: all at once.
        spread: Each stream has moments of its own.
        stall_s: Once, a second after the first answer began, nothing is sent for so long.
    """

    tokens: int
    every_s: float = 0.0
    spread: bool = False
    stall_s: float = 0.0


@dataclass
class Shared:
    """What all connections of a server know."""

    pace: Pace
    answers: dict[tuple[Any, ...], list[bytes]] = field(default_factory=dict)
    stamps: dict[int, list[int]] = field(default_factory=dict)
    answered: array[int] = field(default_factory=lambda: array("q"))
    waiting: list[Connection] = field(default_factory=list)
    began_s: float | None = None

    def answer(self, body: bytes) -> tuple[int, list[bytes]]:
        """Return the first token of a request's prompt, and what to write."""
        asked = json.loads(body)
        prompt = asked.get("prompt")
        count = min(self.pace.tokens, asked.get("max_tokens") or self.pace.tokens)
        finish = "length" if count == asked.get("max_tokens") else "stop"
        ids = bool(asked.get("return_token_ids"))
        chat = "messages" in asked
        length = len(prompt) if isinstance(prompt, list) else 30
        key = (count, finish, ids, chat, length)
        if (parts := self.answers.get(key)) is None:
            parts = [
                chunked(
                    piece(
                        f" word{number}",
                        [10 + number] if ids else None,
                        finish if number == count - 1 else None,
                        chat=chat,
                    )
                )
                for number in range(count)
            ]
            counted = {
                "prompt_tokens": length,
                "completion_tokens": count,
            }
            name = "chat.completion.chunk" if chat else "text_completion"
            last = event({"id": "x", "object": name, "choices": [], "usage": counted})
            parts[0] = HEAD + parts[0]
            parts[-1] += chunked(last + b"data: [DONE]\n\n") + LAST
            self.answers[key] = parts
        return (prompt[0] if isinstance(prompt, list) else 0), parts

    def tick(self) -> None:
        """Send one event of every stream in step, and come again."""
        loop = asyncio.get_running_loop()
        if self.stalled_s(loop.time()) <= 0:
            waiting, self.waiting = self.waiting, []
            for connection in waiting:
                if connection.send():
                    self.waiting.append(connection)
        loop.call_later(self.pace.every_s, self.tick)

    def stalled_s(self, now_s: float) -> float:
        """Return for how long nothing is sent from now on."""
        if self.began_s is None or not self.pace.stall_s or now_s < self.began_s + 1:
            return 0.0
        return self.began_s + 1 + self.pace.stall_s - now_s


class Connection(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._buffer = b""
        self._parts: list[bytes] = []
        self._sent: list[int] = []
        self._next = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, gap, body = self._buffer.partition(b"\r\n\r\n")
        if not gap:
            return
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < length:
            return
        self._buffer = b""
        if not head.startswith(b"POST"):
            self._page(head.split(b" ", 2)[1])
        else:
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        shared = self._shared
        first, self._parts = shared.answer(body)
        if not shared.pace.every_s:
            self._transport.write(b"".join(self._parts))
            shared.answered.append(monotonic_ns())
            return
        loop = asyncio.get_running_loop()
        if shared.began_s is None:
            shared.began_s = loop.time()
        self._next, self._sent = 0, []
        shared.stamps[first] = self._sent
        if shared.pace.spread:
            loop.call_later(random.random() * shared.pace.every_s, self._alone)
        else:
            shared.waiting.append(self)

    def send(self) -> bool:
        """Send the next event; tell whether there are more."""
        if self._transport.is_closing():
            return False
        self._sent.append(monotonic_ns())
        self._transport.write(self._parts[self._next])
        self._next += 1
        return self._next < len(self._parts)

    def _alone(self) -> None:
        loop = asyncio.get_running_loop()
        if (wait_s := self._shared.stalled_s(loop.time())) > 0:
            loop.call_later(wait_s, self._alone)
        elif self.send():
            loop.call_later(self._shared.pace.every_s, self._alone)

    def _page(self, path: bytes) -> None:
        body, status = b"{}", b"200 OK"
        if path == b"/v1/models":
            body = b'{"data":[{"id":"echo"}]}'
        elif path == b"/stamps":
            body = json.dumps(self._shared.stamps).encode()
        elif path == b"/answered":
            body = json.dumps(list(self._shared.answered)).encode()
        elif path != b"/health":
            status = b"404 Not Found"
        head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(pace: Pace) -> None:
    loop, shared = asyncio.get_running_loop(), Shared(pace)
    server = await loop.create_server(lambda: Connection(shared), "127.0.0.1", 0, backlog=4096)
    if pace.every_s:
        shared.tick()
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def stream_server(pace: Pace) -> Iterator[str]:
    """Start one, yield its address, and end it; it ends by itself when this process does."""
    asked = ["--tokens", str(pace.tokens), "--every-ms", str(1e3 * pace.every_s)]
    asked += ["--stall-ms", str(1e3 * pace.stall_s)] + ["--spread"] * pace.spread
    command = [sys.executable, "-m", "benchmarks.stream_server", *asked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--every-ms", type=float, default=0.0)
    parser.add_argument("--stall-ms", type=float, default=0.0)
    parser.add_argument("--spread", action="store_true")
    asked = parser.parse_args()
    every_s, stall_s = asked.every_ms / 1e3, asked.stall_ms / 1e3
    pace = Pace(tokens=asked.tokens, every_s=every_s, spread=asked.spread, stall_s=stall_s)
    with contextlib.suppress(ImportError):  # it must be faster than what it measures
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(serve(pace))


if __name__ == "__main__":
    main()
