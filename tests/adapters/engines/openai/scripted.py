"""A real HTTP server, in a thread of its own, that answers as a test scripts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self

from pytest_mlperf.adapters.engines.openai._address import PATHS

Ending = Literal["finish", "cut", "hang"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What to send after a delay: a head, parts as HTTP chunks a pace apart, and how to end."""

    parts: Iterable[bytes] = ()
    status: str = "200 OK"
    kind: str = "text/event-stream"
    end: Ending = "finish"
    delay_s: float = 0.0
    pace_s: float = 0.0


Script = Callable[[Request], Reply]


class Scripted:
    """Answers each request by a function of it, until the `with` block ends.

    Attributes:
        requests: All requests, in the order in which they came.
        protocols: Protocols that TLS agreed on.
    """

    url: str

    def __init__(
        self, script: Script, *, at: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen on an address of this machine, or on a Unix socket if `at` is a path."""
        self._script, self._at, self._tls = script, at, tls
        self.requests: list[Request] = []
        self.protocols: set[str | None] = set()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted")
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)
        name = self._server.sockets[0].getsockname()
        host = f"[{self._at}]" if ":" in self._at else self._at
        scheme = "https" if self._tls else "http"
        self.url = f"unix://{name}" if "/" in self._at else f"{scheme}://{host}:{name[1]}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def streams(self) -> list[Request]:
        """The requests for answers."""
        return [request for request in self.requests if request.method == "POST"]

    def stop_listening(self) -> None:
        """Take no more connections."""
        self._loop.call_soon_threadsafe(self._server.close)

    async def _open(self) -> asyncio.Server:
        self._tasks: set[asyncio.Task[None]] = set()
        if "/" in self._at:
            return await asyncio.start_unix_server(self._serve, self._at)
        return await asyncio.start_server(self._serve, self._at, 0, backlog=1024, ssl=self._tls)

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if tls := writer.get_extra_info("ssl_object"):
            self.protocols.add(tls.selected_alpn_protocol())
        try:
            while await self._turn(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
        }
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(
            method=method, path=path, headers=headers, body=json.loads(raw or b"{}"), raw=raw
        )
        self.requests.append(request)
        reply = self._script(request)
        await asyncio.sleep(reply.delay_s)
        writer.write(
            f"HTTP/1.1 {reply.status}\r\nContent-Type: {reply.kind}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        model = json.dumps(f"{request.body.get('model', 'm')}@main").encode()
        parts = (part.replace(MODEL, model) for part in reply.parts)
        for part in filter(None, parts):  # an empty chunk would end the answer
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(reply.pace_s)
        if reply.end == "hang":
            await asyncio.Event().wait()
        if reply.end == "cut":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


DONE = b"data: [DONE]\n\n"

MODEL = b'"tiny@main"'
"""In an event: the name that was asked for, with a revision as transformers' server has it."""


def event(payload: object) -> bytes:
    """Return an event as servers send it."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def piece(
    text: str | None = None,
    *,
    finish: str | None = None,
    ids: list[int] | None = None,
    counted: dict[str, int] | None = None,
    chat: bool = False,
    role: str | None = None,
) -> bytes:
    """Return an event with a piece of an answer, as vLLM writes it."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
    if chat:
        delta = {"role": role, "content": text}
        choice["delta"] = {key: value for key, value in delta.items() if value is not None}
    else:
        choice["text"] = text
    if ids is not None:
        choice["token_ids"] = ids
    return event({"id": "x", "model": "tiny@main", "choices": [choice], "usage": counted})


def echo(logprobs: list[float | None]) -> bytes:
    """Return an event with a prompt and the log-probabilities of its tokens, as vLLM writes it."""
    tables = {"token_logprobs": logprobs, "tokens": ["t"] * len(logprobs)}
    choice = {"index": 0, "finish_reason": None, "text": "prompt", "logprobs": tables}
    return event({"id": "x", "model": "tiny@main", "choices": [choice], "usage": None})


def failure(status: str, message: str, **more: object) -> Reply:
    """Return a refusal as OpenAI's API words it."""
    body = {"error": {"message": message, "type": "x", **more}}
    return Reply(parts=[json.dumps(body).encode()], status=status, kind="application/json")


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a server behaves: the requests that it takes, and how it streams.

    Attributes:
        tokens: Tokens of each answer, unless the request allows fewer.
        prompt_tokens: What it counts in a text prompt; None: a token a word.
        takes_ids: Prompts may be token ids.
        gives_ids: Token ids come in the stream if the request asks for them.
        usage: When the stream carries usage.
        refuses: Fields that it answers with 422.
        ends: The stream's last event is [DONE].
        paths: What it has to GET.
        cached: Prompt tokens that usage reports as cached.
        echoes: If a request sets echo, it sends the prompt with log-probabilities first: for
            token t those are -t / 1000.
        stops: Its word for the end of an answer that is not cut.
        root: Path and query of its API; another path is not found.
        header: Header that it needs, in lower case, and its value.
        only: Fields that a request may have; None allows all.
    """

    tokens: int = 5
    prompt_tokens: int | None = None
    takes_ids: bool = True
    gives_ids: bool = True
    usage: Literal["asked", "always", "never"] = "asked"
    refuses: frozenset[str] = frozenset()
    ends: bool = True
    paths: dict[str, str] = field(default_factory=lambda: {"/v1/models": '{"data":[{"id":"m"}]}'})
    cached: int | None = None
    echoes: bool = True
    stops: str = "stop"
    root: tuple[str, str] = ("/v1", "")
    header: tuple[str, str] = ("", "")
    only: frozenset[str] | None = None

    def __call__(self, request: Request) -> Reply:
        name, value = self.header
        if name and request.headers.get(name) != value:
            return failure("401 Unauthorized", f"{name} is not {value}, but {request.headers}")
        if request.method == "GET":
            if request.path not in self.paths:
                return failure("404 Not Found", "no such page")
            return Reply(parts=[self.paths[request.path].encode()], kind="application/json")
        names = (f"{self.root[0]}{end}{self.root[1]}" for end in PATHS.values())
        if request.path not in names:
            return failure("404 Not Found", "no such page")
        unknown = set() if self.only is None else set(request.body) - self.only
        if refused := sorted(self.refuses & set(request.body) | unknown):
            body = json.dumps({"detail": f"Unexpected fields in the request: {refused}"})
            return Reply(
                parts=[body.encode()], status="422 Unprocessable Content", kind="application/json"
            )
        if isinstance(request.body.get("prompt"), list) and not self.takes_ids:
            return Reply(
                parts=[b'{"detail":"prompt must be a string."}'],
                status="400 Bad Request",
                kind="application/json",
            )
        return self.stream(request)

    def stream(self, request: Request) -> Reply:
        chat = "messages" in request.body
        most = int(request.body.get("max_tokens") or request.body["max_completion_tokens"])
        count = most if request.body.get("ignore_eos") else min(self.tokens, most)
        with_ids = self.gives_ids and bool(request.body.get("return_token_ids"))
        counted: dict[str, Any] = usage(self._prompt(request), count)
        if self.cached is not None:
            counted["prompt_tokens_details"] = {"cached_tokens": self.cached}
        parts = [piece("", chat=True, role="assistant")] if chat else []
        for number in range(count):
            last = number == count - 1
            parts.append(
                piece(
                    f" w{number}",
                    ids=[100 + number] if with_ids else None,
                    finish=("length" if count == most else self.stops) if last else None,
                    chat=chat,
                )
            )
        if self.echoes and request.body.get("echo"):
            ids = request.body["prompt"]
            parts.insert(0, echo([None, *(-token / 1000 for token in ids[1:])]))
        asked_for = bool(request.body.get("stream_options"))
        if self.usage == "always" or (self.usage == "asked" and asked_for):
            parts.append(event({"id": "x", "choices": [], "usage": counted}))
        return Reply(parts=[*parts, DONE] if self.ends else parts)

    def _prompt(self, request: Request) -> int:
        prompt = request.body.get("prompt")
        if isinstance(prompt, list):
            return len(prompt)
        return self.prompt_tokens or max(3, len(str(request.body).split()))


BLOCK = 16
"""Tokens of a block of vLLM's cache of prefixes."""


@dataclass(kw_only=True)
class PrefixCache:
    """A server that keeps the blocks of all prompts, a word as a token, and is slow on others.

    Attributes:
        answer_s, word_s: Time that an answer takes, and a word of a prompt in no kept block.
        tells: Usage reports the number of cached tokens.
        kept: The beginnings of prompts, in whole blocks.
        shares: Cached words over all words of each prompt, in order of arrival.
    """

    answer_s: float = 0.0
    word_s: float = 0.0
    tells: bool = True
    kept: set[tuple[str, ...]] = field(default_factory=set)
    shares: list[float] = field(default_factory=list)

    def __call__(self, request: Request) -> Reply:
        if request.method == "GET":
            return Manner()(request)
        words = words_of(request)
        begins = [tuple(words[:end]) for end in range(BLOCK, len(words) + 1, BLOCK)]
        cached = next((len(one) for one in reversed(begins) if one in self.kept), 0)
        self.kept.update(begins)
        self.shares.append(cached / len(words))
        manner = Manner(prompt_tokens=len(words), cached=cached if self.tells else None)
        return replace(manner(request), delay_s=self.answer_s + self.word_s * (len(words) - cached))


def words_of(request: Request) -> list[str]:
    """Return the words or token ids of a prompt, or of a chat's last message."""
    prompt = request.body.get("prompt") or request.body["messages"][-1]["content"]
    return prompt.split() if isinstance(prompt, str) else [str(one) for one in prompt]


TRANSFORMERS = Manner(
    takes_ids=False,
    gives_ids=False,
    usage="always",
    refuses=frozenset({"ignore_eos", "min_tokens", "return_token_ids"}),
    ends=False,
    paths={"/v1/models": '{"data":[]}'},
)
"""As `transformers serve` behaves."""
