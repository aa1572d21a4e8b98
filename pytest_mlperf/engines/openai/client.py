"""Requests to an OpenAI-compatible server, streamed over aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pytest_mlperf.core.errors import EnvironmentFault, RunError
from pytest_mlperf.engines.files import one_line
from pytest_mlperf.engines.openai.events import Answer, EventError, Events, error_text
from pytest_mlperf.engines.openai.failures import Failed, refused
from pytest_mlperf.engines.server_json import LARGEST_PAGE, parse_json

if TYPE_CHECKING:
    import aiohttp
    import yarl

KEEP_S = 2.0
"""An idle connection is used again for so long: servers close theirs after 5 s, without a word."""

ERROR_BYTES = 65_536
"""What is read of an answer that is no stream."""

PAGE_S = 60.0
"""Longest time in which a page about the server must be here, whatever request_timeout is."""

SAID = 300
"""Characters of a server's words in a message."""


class Listener(Protocol):
    """Follows one answer as it comes."""

    def heard(self) -> None:
        """Take note that the server said something."""
        ...

    def tokens(self, count: int) -> None:
        """Take note of tokens that are surely new."""
        ...

    def complete(self) -> None:
        """Take note that nothing more is needed of the stream; at most once."""
        ...


class Nobody:
    """Listens to nothing."""

    def heard(self) -> None:
        """Do nothing."""

    def tokens(self, count: int) -> None:
        """Do nothing."""

    def complete(self) -> None:
        """Do nothing."""


class Client:
    """One server's address, with the connections to it; used on one event loop."""

    def __init__(self, url: str, path: str, key: str | None, timeout_s: float) -> None:
        """Keep what to talk to.

        Args:
            url: Where the server is, without a path.
            path: Where it takes the requests.
            key: Sent with each of them, and masked in all that it answers.
            timeout_s: Longest time a single question outside a run takes.
        """
        self.url = url
        self._path = url + path
        self._key = key
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession
        self._target: yarl.URL

    async def open(self) -> str:
        """Make room for connections and return aiohttp's version; nothing is sent.

        Raises:
            EnvironmentFault: aiohttp is not installed.
        """
        aiohttp = library()
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",  # what is packed comes late
        }
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            # Time is kept for all streams together, which costs nothing for each.
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        import yarl  # aiohttp's own

        self._target = yarl.URL(self._path)
        return str(aiohttp.__version__)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def stream(self, body: bytes, answer: Answer, listener: Listener) -> None:
        """Send a request and read its stream until the answer is complete, then to its end.

        Args:
            body: The request, as JSON.
            answer: Takes what its events say.
            listener: Is told what comes, when it comes.

        Raises:
            Failed: The server refused, or the stream broke or ended early.
        """
        aiohttp = library()
        try:
            async with self._session.post(self._path, data=body, allow_redirects=False) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise await self._refusal(response)
                await read(response.content, answer, listener)
        except EventError as error:
            raise Failed(error.kind, self.mask(str(error))) from None
        except aiohttp.ClientConnectorError as error:
            raise Failed("no connection", self.mask(one_line(error))) from None
        except (aiohttp.ClientError, OSError) as error:
            # Once the answer is complete, its stream may break off.
            if not answer.complete:
                raise Failed(_broke(answer), self.mask(one_line(error))) from None

    async def ask(self, body: bytes) -> Answer:
        """Send one request outside a run and return its whole answer.

        Raises:
            Failed: There is none.
        """
        answer = Answer(keeps=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.stream(body, answer, Nobody())
        except TimeoutError:
            raise Failed(
                "time-out", f"no whole answer within request_timeout = {self._timeout_s:g} s"
            ) from None
        return answer

    async def get(self, path: str) -> bytes | None:
        """Return the page that the server has at a path; None where it has none.

        Raises:
            Failed: It takes too long, or is larger than any page that says something of a server.
        """
        aiohttp = library()
        limit_s = min(self._timeout_s, PAGE_S)
        try:
            async with (
                asyncio.timeout(limit_s),
                self._session.get(self.url + path, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    response.close()  # servers hang up after an error: the next needs a new one
                    return None
                return await self._page(response, path)
        except TimeoutError:
            raise Failed("time-out", f"{path} was not here within {limit_s:g} s") from None
        except (aiohttp.ClientError, OSError):
            return None

    async def _page(self, response: aiohttp.ClientResponse, path: str) -> bytes:
        """Read a page, of which no more is kept in memory than it may have."""
        page = bytearray()
        while data := await _some(response.content):
            page += data
            if len(page) > LARGEST_PAGE:
                response.close()  # the rest would be read else
                raise Failed("too large", f"{path} has more than {LARGEST_PAGE >> 20} MiB")
        return bytes(page)

    def mask(self, text: str) -> str:
        """Return a server's words as one line that can be shown: no key, no control characters."""
        text = " ".join(text.split())
        if self._key is not None:
            text = text.replace(self._key, "***")
        text = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
        return text[:SAID] + ("…" if len(text) > SAID else "")

    async def _refusal(self, response: aiohttp.ClientResponse) -> Failed:
        """Return the failure that an answer without a stream is."""
        answer = await response.content.read(ERROR_BYTES)
        try:
            words = error_text(parse_json(answer))
        except ValueError:
            words = ""
        said = self.mask(words or answer.decode("utf-8", "replace"))
        if response.status != 200:
            return refused(response.status, said)
        return Failed("no event stream", f"the answer is {response.content_type}: {said}")


async def read(content: aiohttp.StreamReader, answer: Answer, listener: Listener) -> None:
    """Read a stream until the answer is complete, then to its end.

    Raises:
        Failed: The stream ended early.
        EventError: An event means nothing, or an error.
        OSError: The connection was lost.
    """
    events, done = Events(), False
    while data := await _some(content):
        listener.heard()
        if not done:
            done = _take(events.feed(data), answer, listener)
    if done or _take(events.close(), answer, listener):
        return
    # Some servers have no word for the end: the stream's own end says it.
    if answer.finish is None:
        raise Failed("stream ended early", _so_far(answer))
    answer.complete = True
    listener.complete()


async def _some(content: aiohttp.StreamReader) -> bytes:
    try:
        data: bytes = await content.readany()
    except RuntimeError as error:  # aiohttp's word for a connection lost between two reads
        raise ConnectionResetError(str(error)) from error
    return data


def library() -> Any:
    """Return aiohttp.

    Raises:
        EnvironmentFault: It is not installed.
    """
    try:
        import aiohttp
    except ImportError as error:
        raise EnvironmentFault(
            f"engine openai needs {error.name}, which is not installed; "
            "try: pip install 'pytest-mlperf[openai]'"
        ) from error
    return aiohttp


def unreachable(url: str, failure: Failed) -> RunError:
    """Return the error of a server that does not answer at all."""
    return RunError(
        "engine",
        f"no server answers at {url} ({failure}); start it, or let the suite do so with serve",
    )


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return a request's fields as JSON.

    Raises:
        RunError: A text has half a character, which cannot be sent.
    """
    try:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        text = error.object[max(0, error.start - 20) : error.start + 20]
        raise RunError(
            "engine",
            f"a request cannot be sent: its text has a lone surrogate, near {text!a}; correct "
            "the data set, or served_model",
        ) from None


def _take(payloads: Sequence[bytes], answer: Answer, listener: Listener) -> bool:
    """Read events that came together; tell their tokens, and the end, which is returned."""
    new = 0
    for payload in payloads:
        new += answer.take(payload)
        if answer.complete:
            break
    if new:
        listener.tokens(new)
    if answer.complete:
        listener.complete()
    return answer.complete


def _broke(answer: Answer) -> str:
    return "stream ended early" if answer.started else "connection closed before an answer"


def _so_far(answer: Answer) -> str:
    if not answer.started:
        return "it had no text"
    tokens = answer.tokens
    return "after text without its end" if tokens is None else f"after {tokens} tokens"
