"""A lean OpenAI-compatible server whose answers cost next to nothing, in a process of its own.

Run as `python echo.py --tokens 8 --service-ms 50`; it prints its port and serves until its stdin
ends. Every answer is the same text of `--tokens` tokens: the first one after the service time, the
others with it, or each a pace after the one before. Who asks for exactly `--at-once` tokens at most
is answered without delay. With a pace, `--hidden` of the tokens are counted and never sent
(`--details 1`: usage says that they are reasoning), each event has `--step` tokens, the first one
`--first`, with their ids unless `--ids 0`, and a proxy holds events back until it has `--hold` of
them. The first `--reasoning` tokens that are sent are those of reasoning, in a chat. With
`--calls 1` the answer is a call of a tool: a parser sends its name first, and its arguments when
they are complete. Every `--ping-ms` until the first token a comment keeps the connection alive.
With `--truth 1` the page /truth has the server's own stamps of each answer. Kept free of the
package, so that nothing of it can help or hinder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"
METRICS = (
    b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running %d\n"
    b"# TYPE vllm:request_queue_time_seconds histogram\n"
    b"vllm:request_queue_time_seconds_sum %f\nvllm:request_queue_time_seconds_count %d\n"
)
"""The page of a vLLM in which no request waits, and each one waited for `QUEUED_S`."""

QUEUED_S = 0.002


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def piece(
    text: str, ids: list[int] | None, finish: str | None, *, chat: bool, field: str = "content"
) -> bytes:
    call = {"index": 0, "function": {"arguments": text}}
    delta = {"tool_calls": [call]} if field == "tool_calls" else {field: text}
    content = {"delta": delta} if chat else {"text": text}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish, "token_ids": ids}
    return event(
        {
            "id": "cmpl-0123456789abcdef",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1,
            "model": "echo",
            "choices": [choice],
            "usage": None,
        }
    )


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a paced answer is delivered, see the module."""

    hidden: int = 0
    details: bool = False
    ids: bool = True
    step: int = 1
    first: int = 0
    hold: int = 1
    reasoning: int = 0
    calls: bool = False
    ping_s: float = 0.0
    truth: bool = False

    def hides(self, tokens: int) -> int:
        """Return how many tokens of an answer are never sent."""
        return min(self.hidden, tokens - 1)

    def ends(self, tokens: int) -> tuple[int, ...]:
        """Return how many tokens of an answer are made when each message of it is complete."""
        hidden = self.hides(tokens)
        if self.calls:
            return (hidden + 1, tokens)
        return (*range(hidden + (self.first or self.step), tokens, self.step), tokens)

    def field(self, begin: int) -> str:
        """Return the field of a message that begins with this token."""
        if self.calls:
            return "tool_calls"
        return "reasoning_content" if begin < self.reasoning else "content"


def stream(
    tokens: int,
    prompt: int,
    finish: str,
    manner: Manner = Manner(),
    *,
    with_ids: bool,
    chat: bool,
) -> tuple[bytes, ...]:
    """Return an answer as bytes of HTTP: a piece for each token, with head and end."""
    usage: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    hidden = manner.hides(tokens)
    if manner.details:
        usage["completion_tokens_details"] = {"reasoning_tokens": hidden}
    last = event({"id": "x", "object": "x", "model": "echo", "choices": [], "usage": usage})
    chunks = []
    for begin, end in pairwise((hidden, *manner.ends(tokens))):
        ids = [10 + number for number in range(begin, end)] if with_ids else None
        text = "".join(f" word{number}" for number in range(begin, end))
        ending = ("tool_calls" if manner.calls else finish) if end == tokens else None
        name = manner.field(begin - hidden)
        chunks.append(chunked(piece(text, ids, ending, chat=chat, field=name)))
    chunks[0] = HEAD + chunks[0]
    chunks[-1] += chunked(last + b"data: [DONE]\n\n") + LAST
    return tuple(chunks)


class Echo(asyncio.Protocol):
    """One connection, whose requests come one after the other.

    `running` counts those of all connections.

    Each answer is noted in `answers`, if that is asked for: times in seconds, of one clock.
    """

    running = 0
    ended = 0
    answers: list[dict[str, Any]] = []  # noqa: RUF012 - of the whole server

    def __init__(
        self,
        tokens: int,
        service_s: float,
        pace_s: float = 0.0,
        at_once: int | None = None,
        manner: Manner = Manner(),
    ) -> None:
        self._manner = manner
        self._tokens, self._at_once = tokens, at_once
        self._service_s, self._pace_s = service_s, pace_s
        self._buffer = b""
        self._streams: dict[tuple[int, int, str, bool, bool], tuple[bytes, ...]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, gap, body = self._buffer.partition(b"\r\n\r\n")
            if not gap:
                return
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(body) < length:
                return
            self._buffer = body[length:]
            self._answer(head, body[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._tell(head.split(b" ", 2)[1])
            return
        request = json.loads(body)
        prompt = request.get("prompt")
        text = str(prompt or request.get("messages"))
        count = len(prompt) if isinstance(prompt, list) else max(7, len(text.split()))
        most = request.get("max_tokens") or request["max_completion_tokens"]
        tokens = min(self._tokens, most)
        finish = "stop" if tokens < most else "length"
        key = (tokens, count, finish, "return_token_ids" in request, "messages" in request)
        if (pieces := self._streams.get(key)) is None:
            pieces = stream(
                tokens,
                count,
                finish,
                self._manner,
                with_ids=key[3] and self._manner.ids,
                chat=key[4],
            )
            self._streams[key] = pieces
        loop = asyncio.get_running_loop()
        Echo.running += 1
        note = self._note(tokens, most, count) if self._manner.truth else None
        if most == self._at_once:
            self._write(b"".join(pieces), note)
        elif self._pace_s:
            manner, ends = self._manner, self._manner.ends(tokens)
            if manner.ping_s:
                pieces = (self._keep_alive(pieces[0], ends[0]), *pieces[1:])
            for begin in range(0, len(pieces), manner.hold):
                held = pieces[begin : begin + manner.hold]
                steps = ends[begin + len(held) - 1] - 1
                due_s = self._service_s + steps * self._pace_s
                loop.call_later(due_s, self._write, b"".join(held), note)
        elif self._service_s:
            loop.call_later(self._service_s, self._write, b"".join(pieces), note)
        else:
            self._write(pieces[0], note)
            self._write(b"".join(pieces[1:]), note)

    def _note(self, tokens: int, most: int, prompt: int) -> dict[str, Any]:
        """Note an answer as it is asked for, and when its first token that is sent is made."""
        hidden = self._manner.hides(tokens)
        note = {
            "connection": id(self),
            "most": most,
            "prompt": prompt,
            "tokens": tokens,
            "hidden": hidden,
            "in_first": self._manner.ends(tokens)[0] - hidden,
            "asked_s": asyncio.get_running_loop().time(),
            "made_s": self._service_s + hidden * self._pace_s,
        }
        Echo.answers.append(note)
        return note

    def _keep_alive(self, first: bytes, end: int) -> bytes:
        """Send comments until the first message, and return the rest of that message."""
        loop, every_s = asyncio.get_running_loop(), self._manner.ping_s
        self._write(HEAD)
        until_s = self._service_s + (end - 1) * self._pace_s
        for number in range(int(until_s / every_s)):
            loop.call_later(number * every_s, self._write, chunked(b": ping\n\n"))
        return first.removeprefix(HEAD)

    def _write(self, part: bytes, note: dict[str, Any] | None = None) -> None:
        Echo.running -= part.endswith(LAST)
        Echo.ended += part.endswith(LAST)
        self._transport.write(part)
        if note is not None:
            note["last_s"] = asyncio.get_running_loop().time()
            note.setdefault("first_s", note["last_s"])

    def _tell(self, path: bytes) -> None:
        pages = {
            b"/health": b"{}",
            b"/v1/models": b'{"object":"list","data":[{"id":"echo"}]}',
            b"/version": b'{"version":"1.2.3"}',
            b"/metrics": METRICS % (Echo.running, QUEUED_S * Echo.ended, Echo.ended),
            b"/truth": json.dumps([one for one in Echo.answers if "last_s" in one]).encode(),
        }
        body = pages.get(path, b"")
        status = b"200 OK" if path in pages else b"404 Not Found"
        self._transport.write(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
        )


async def serve(
    tokens: int, service_s: float, pace_s: float, at_once: int | None, manner: Manner, port: int
) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Echo(tokens, service_s, pace_s, at_once, manner), "127.0.0.1", port, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def echo_server(
    tokens: int = 8,
    service_ms: float = 0.0,
    pace_ms: float = 0.0,
    at_once: int | None = None,
    **manner: float,
) -> Iterator[str]:
    """Start one, yield its address, and end it; it ends by itself when this process does."""
    script = str(Path(__file__).absolute())
    command = [sys.executable, "-I", script, "--tokens", str(tokens)]
    times = ["--service-ms", str(service_ms), "--pace-ms", str(pace_ms)]
    times += [] if at_once is None else ["--at-once", str(at_once)]
    times += [text for name, value in manner.items() for text in (option(name), f"{value:g}")]
    with subprocess.Popen(
        [*command, *times], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
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
    parser.add_argument("--service-ms", type=float, default=0.0)
    parser.add_argument("--pace-ms", type=float, default=0.0)
    parser.add_argument("--at-once", type=int)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--details", type=int, default=0)
    parser.add_argument("--ids", type=int, default=1)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--hold", type=int, default=1)
    parser.add_argument("--reasoning", type=int, default=0)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--ping-ms", type=float, default=0.0)
    parser.add_argument("--truth", type=int, default=0)
    arguments = parser.parse_args()
    times = arguments.service_ms / 1000, arguments.pace_ms / 1000
    manner = Manner(
        hidden=arguments.hidden,
        details=bool(arguments.details),
        ids=bool(arguments.ids),
        step=arguments.step,
        first=arguments.first,
        hold=arguments.hold,
        reasoning=arguments.reasoning,
        calls=bool(arguments.calls),
        ping_s=arguments.ping_ms / 1000,
        truth=bool(arguments.truth),
    )
    asyncio.run(serve(arguments.tokens, *times, arguments.at_once, manner, arguments.port))


if __name__ == "__main__":
    main()
