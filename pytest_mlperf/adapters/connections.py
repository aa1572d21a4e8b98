"""Keep HTTP/1.1 connections to one server open between requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote, urlsplit

from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.extension import text_of

MAX_IDLE_SECONDS = 1.0
"""Maximum idle time of a reused connection; servers close idle ones silently, after 2 s
(gunicorn) or 5 s (uvicorn, hypercorn, Node)."""

UNSAID = (
    "the connection was reused after an earlier answer: the server must keep idle connections "
    f"longer than {MAX_IDLE_SECONDS:g} s, or send 'Connection: close'"
)
"""Explanation of a connection that a server closed without an answer."""

CLOSE_DELAY_SECONDS = 0.05
"""Time to wait after an answer for a server that closes connections without notice."""

RESETS = (ConnectionResetError, BrokenPipeError)
"""Errors of a connection that the other end has closed."""

RESOLVE_S = 10.0
"""Time after which the addresses of a name are resolved again."""

CLOSE_SECONDS = 2.0
"""Maximum wait for the loop to close dropped connections."""

HANDSHAKE_S = 10.0
"""Maximum time of a TLS handshake."""

HEAD_BYTES = 65_536
"""Maximum bytes of the headers, and of other data around an answer's content, per read."""


class Exchange:
    """Receive an HTTP response in parts; if a method raises an exception, the request ends."""

    __slots__ = ()

    def head(self, status: int, kind: str, packing: str) -> None:
        """Receive status, content type (`kind`), content encoding (`packing`); "" if missing."""
        raise NotImplementedError

    def data(self, data: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Handle the end of the response; do nothing by default."""


class NoConnection(Exception):
    """Report that no address of the server accepts a connection."""


class HttpConnection(asyncio.Protocol):
    """Send successive requests over one connection.

    Attributes:
        kept: Whether the connection stays open for another request (keep-alive).
        idle_s: Time at which the connection became idle, on the event loop's clock [s].
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, parser: Any, opened: set[HttpConnection]
    ) -> None:
        self.kept = True
        self.idle_s = 0.0
        self._opened = opened
        self._loop = loop
        self._parser = parser(self)
        self._over: asyncio.Future[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._kind = self._packing = ""
        self._status = self._bare = 0
        self._framed = self._headed = self._ended = False

    def send(self, request: bytes, exchange: Exchange) -> asyncio.Future[None]:
        """Send a request; return a future that completes with the response, or raises its error."""
        self._begin()
        self._exchange = exchange
        self._over = self._loop.create_future()
        self._transport.write(request)
        return self._over

    @property
    def ready(self) -> bool:
        return self.kept and not self._transport.is_closing()

    @property
    def answered(self) -> bool:
        return self._headed

    def drop(self) -> None:
        self.kept = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        over = self._over
        if over is None or over.done():  # unrequested data
            self.drop()
            return
        try:
            self._take(data)
        except Exception as error:
            self.kept = False
            over.set_exception(error)
            return
        if self._ended:
            over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.kept = False
        self._opened.discard(self)
        over, self._over = self._over, None
        if over is None or over.done():
            return
        try:
            if exc is not None or not self._headed or self._framed:
                raise exc or ConnectionResetError("the server closed the connection")
            self._exchange.end()  # such an answer ends with its connection
        except Exception as error:
            over.set_exception(error)
        else:
            over.set_result(None)

    def _take(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except load_httptools().HttpParserError as error:
            fault: Exception | None = ConnectionAbortedError(f"no HTTP: {text_of(error)}")
        except load_httptools().HttpParserUpgrade:
            fault = ConnectionAbortedError("no HTTP/1.1: the server switches protocols")
        else:
            fault = None
        if self._headed and self._status:
            self._exchange.head(self._status, self._kind, self._packing)
            self._status = 0
        if parts := self._parts:
            self._parts, self._bare = [], 0
            self._exchange.data(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            self._bare += len(data)
            if self._bare > HEAD_BYTES:
                raise ConnectionAbortedError(
                    f"the headers of the answer have more than {HEAD_BYTES:,} bytes"
                )
        if self._ended:
            self._exchange.end()
        elif fault is not None:
            raise fault

    # Callbacks of httptools:

    def on_message_begin(self) -> None:
        if self._ended:  # a second answer to one request
            self.kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:
            return  # a trailer
        name = name.lower()
        if name == b"content-type":
            self._kind = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"content-encoding":
            self._packing = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        if self._ended:
            return
        status = self._parser.get_status_code()
        if status < 200:  # an interim response
            self._kind = self._packing = ""
            self._framed = False
            return
        self._headed, self._status = True, status
        # uvicorn closes silently after a 500 of an uncaught exception.
        self.kept = self.kept and status < 500 and self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if not self._ended:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self._ended = self._headed


class Connections:
    """Manage connections to one server, one per request in flight, on one event loop."""

    def __init__(self, url: str, *, keep_alive: bool = True) -> None:
        """Store the server's URL, or "unix:" and a socket's path; connect later.

        If `keep_alive` is False, each request opens a new connection.
        """
        self._hung_up = 0 if keep_alive else 2
        parts = urlsplit(url)
        self._socket = parts.path if parts.scheme == "unix" else ""
        self._secure = parts.scheme == "https"
        self._host = "localhost" if self._socket else parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        if not self._host.isascii():
            with contextlib.suppress(UnicodeError):  # resolving the name reports it
                self._host = self._host.encode("idna").decode()
        host_name = f"[{self._host}]" if ":" in self._host else self._host
        self.host = host_name if parts.port is None else f"{host_name}:{parts.port}"
        self.path = "" if self._socket else quote(parts.path, safe="/%~+:@!$&'()*,;=")
        self._opened: set[HttpConnection] = set()
        self._idle: deque[HttpConnection] = deque()
        self._resolving: asyncio.Task[Sequence[str]] | None = None
        self._resolved_s = 0.0
        self._turn = 0

    @property
    def keeps(self) -> bool:
        """Whether connections are reused; False once the server closed two idle connections."""
        return self._hung_up < 2

    async def open(self) -> None:
        """Prepare for connections on the running loop; send nothing."""
        self._loop = asyncio.get_running_loop()
        self._parser = load_httptools().HttpResponseParser
        self._context = None
        if self._secure:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])

    async def close(self) -> None:
        """Drop every connection, and wait until the loop has released it."""
        self._idle.clear()
        last_s = self._loop.time() + CLOSE_SECONDS
        while self._opened and self._loop.time() < last_s:
            for connection in self._opened:
                connection.drop()
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # uvloop closes released connections one pass later

    async def ask(self, request: bytes, exchange: Exchange) -> None:
        """Send a request and pass its response to `exchange`; raise OSError or NoConnection."""
        reused = self._kept()
        connection = reused or await self._connect()
        try:
            await connection.send(request, exchange)
        except BaseException as error:
            connection.drop()
            if reused is None or connection.answered or not isinstance(error, RESETS):
                raise
            raise ConnectionResetError(f"{text_of(error)}; {UNSAID}") from None
        if connection.kept and self.keeps:
            connection.idle_s = self._loop.time()
            self._idle.append(connection)
        else:
            connection.drop()

    async def check_closing(self) -> None:
        """Check outside a run whether the server closes a connection after a streamed answer.

        Some servers (llama.cpp) close connections without notice, so that a request in flight would
        be lost. If that happens twice, each request gets a new connection.
        """
        if self._idle:
            connection = self._idle[-1]
            await asyncio.sleep(CLOSE_DELAY_SECONDS)
            self._hung_up += not connection.ready

    def _kept(self) -> HttpConnection | None:
        """Return the open connection that was idle for the shortest time; None if all expired."""
        least_s = self._loop.time() - MAX_IDLE_SECONDS
        while self._idle and self._idle[0].idle_s < least_s:
            self._idle.popleft().drop()
        while self._idle:
            connection = self._idle.pop()
            if connection.ready:
                return connection
        return None

    async def _connect(self) -> HttpConnection:
        failure = "it has no address"
        addresses = await self._addresses()
        self._turn += 1
        for number in range(len(addresses)):
            address = addresses[(number + self._turn) % len(addresses)]
            try:
                if self._socket:
                    _, local = await self._loop.create_unix_connection(self._new, address)
                    return local
                _, connection = await self._loop.create_connection(
                    self._new,
                    address,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._host if self._secure else None,
                    ssl_handshake_timeout=HANDSHAKE_S if self._secure else None,
                )
            except OSError as error:
                failure = text_of(error)
            else:
                return connection
        raise NoConnection(f"cannot connect to {self._socket or self.host}: {failure}")

    def _new(self) -> HttpConnection:
        return HttpConnection(self._loop, self._parser, self._opened)

    async def _addresses(self) -> Sequence[str]:
        """Return the host's addresses; concurrent connections share one lookup."""
        if self._resolving is None or self._loop.time() - self._resolved_s > RESOLVE_S:
            self._resolving, self._resolved_s = (
                self._loop.create_task(self._resolve()),
                self._loop.time(),
            )
        resolving = self._resolving
        try:
            return await asyncio.shield(resolving)
        except (OSError, UnicodeError) as error:  # UnicodeError: not the name of a host
            if self._resolving is resolving:
                self._resolving = None
            raise NoConnection(f"cannot connect to {self.host}: {text_of(error)}") from None

    async def _resolve(self) -> Sequence[str]:
        if self._socket:
            return [self._socket]
        infos = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))


def load_httptools(user: str = "engine openai", extra: str = "openai") -> Any:
    """Import httptools; if missing, the error says that `user` needs it and names the pip extra."""
    try:
        import httptools
    except ImportError as error:
        raise not_installed(user, str(error.name), extra) from error
    return httptools


def new_loop() -> tuple[asyncio.AbstractEventLoop, str]:
    """Return (event loop, name of its library): uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop(), "asyncio"
    return uvloop.new_event_loop(), f"uvloop {uvloop.__version__}"
