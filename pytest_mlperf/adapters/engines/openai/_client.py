"""Make requests to an OpenAI-compatible server before a run, and read streamed answers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf import Dataset
from pytest_mlperf.adapters.connections import Connections, Exchange, NoConnection
from pytest_mlperf.adapters.engines import engine_error, refused_sample
from pytest_mlperf.adapters.engines.llm.generation import TokenPrompts
from pytest_mlperf.adapters.engines.openai._address import Address, Secrets
from pytest_mlperf.adapters.engines.openai._events import (
    EventStream,
    Failed,
    StreamedAnswer,
    error_text,
    has_data,
    refused,
)
from pytest_mlperf.adapters.engines.openai._salt import Count, Salt, salt_for
from pytest_mlperf.adapters.engines.serving import MAX_PAGE_BYTES, parse_json
from pytest_mlperf.extension import own_length, text_of

ERROR_BYTES = 65_536
"""Maximum bytes to read of an answer that is not a stream."""

GET_TIMEOUT_SECONDS = 60.0
"""Maximum time for a page about the server, whatever request_timeout is."""

MAX_QUOTED_CHARACTERS = 300

MAX_COUNTED_PROMPTS = 4096
"""Maximum number of text prompts whose tokens are counted, as further prompts are similar."""

SALT_PROMPTS = 16
MIN_WORD_TOKENS = 0.6
"""Minimum tokens per word: usual tokenizers make one or more, few join words."""

NO_CONNECTION = "no connection"
"""Kind of a failure without a server's response."""


class Listener:
    """Define the callbacks of one streamed answer, which do nothing by default."""

    __slots__ = ()

    def heard(self, *, comments: bool = False) -> None:
        """Handle the arrival of SSE events; `comments` is True if all were SSE comments."""

    def tokens(self, count: int) -> None:
        """Handle the arrival of `count` new tokens; by default do nothing."""

    def complete(self) -> None:
        """Act on the complete answer, in a subclass that needs it; called at most once."""


class Client:
    """Send requests to one server on one event loop."""

    def __init__(
        self, address: Address, path: str, secrets: Mapping[str, str], timeout_s: float
    ) -> None:
        """Prepare requests to `path` of the API; `secrets` are headers whose values are masked."""
        self.url, self.api = address.root, address.api
        self.path, self.sends = f"{self.api}{path}", " and ".join(secrets)
        self._query = address.query
        self._secrets = Secrets(secrets.values())
        self._timeout_s = timeout_s
        self._connections = Connections(self.url)
        headers = {
            "Host": self._connections.host,
            "User-Agent": "pytest-mlperf",
            "Accept-Encoding": "identity",  # compressed data comes late
            **secrets,
        }
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._post = (
            f"POST {self._connections.path}{self.path}{self._query} HTTP/1.1\r\n{self._headers}"
            "Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()
        self.open, self.close = self._connections.open, self._connections.close

    @property
    def keeps_connections(self) -> bool:
        return self._connections.keeps

    async def stream(
        self, body: bytes, answer: StreamedAnswer, listener: Listener, header: bytes = b""
    ) -> None:
        """Send a request; read its stream into `answer`; raise Failed if that is incomplete."""
        request = b"%b%d\r\n%b\r\n%b" % (self._post, len(body), header, body)
        try:
            await self._connections.ask(request, Streamed(answer, listener))
        except Failed as failure:  # an event may quote the key
            kind, detail = self.mask(failure.kind), self.mask(failure.detail)
            raise Failed(kind, detail, status=failure.status) from None
        except NoConnection as error:
            raise Failed(NO_CONNECTION, self.mask(text_of(error))) from None
        except OSError as error:
            # Once the answer is complete, its stream may break off.
            if not answer.complete:
                kind = "stream ended early"
                if not answer.started:
                    kind = "connection closed before an answer"
                raise Failed(kind, self.mask(text_of(error))) from None

    async def ask(self, body: bytes) -> StreamedAnswer:
        """Send one request outside a run and return its whole answer, or raise Failed."""
        answer = StreamedAnswer(keeps=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.stream(body, answer, Listener())
                await self._connections.check_closing()
        except TimeoutError:
            raise Failed(
                "time-out", f"no complete answer within request_timeout = {self._timeout_s:g} s"
            ) from None
        return answer

    async def get(self, path: str, longest_s: float = GET_TIMEOUT_SECONDS) -> bytes:
        """Return the body of GET `path`; raise Failed if it is missing, too large or too late."""
        limit_s = min(self._timeout_s, longest_s)
        target = f"{self._connections.path}{path}{self._query}"
        request = f"GET {target} HTTP/1.1\r\n{self._headers}\r\n".encode()
        too_large = Failed("too large", f"{path} has more than {MAX_PAGE_BYTES >> 20} MiB")
        page = _Response(MAX_PAGE_BYTES, too_large)
        try:
            async with asyncio.timeout(limit_s):
                await self._connections.ask(request, page)
        except TimeoutError:
            raise Failed("time-out", f"no answer to GET {path} within {limit_s:g} s") from None
        except (NoConnection, OSError) as error:
            raise Failed(NO_CONNECTION, self.mask(text_of(error))) from None
        if page.status != 200:
            failure = page.failure()
            raise Failed(failure.kind, self.mask(failure.detail), status=page.status)
        return bytes(page.content)

    def mask(self, text: str) -> str:
        """Return a server's text as one line without secrets and control characters."""
        text = " ".join(self._secrets.mask(text).split())
        text = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
        return text[:MAX_QUOTED_CHARACTERS] + ("…" if len(text) > MAX_QUOTED_CHARACTERS else "")


class _Response(Exchange):
    """Receive a response that is no event stream; raise `fault` if it is longer than `limit`."""

    def __init__(self, limit: int, fault: Failed | None = None) -> None:
        self._limit, self._fault = limit, fault
        self.content = bytearray()

    def head(self, status: int, kind: str, packing: str) -> None:
        self.status, self._kind, self._packing = status, kind, packing

    def data(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > self._limit:
            raise self._fault or self.failure()

    def failure(self) -> Failed:
        try:
            reason = error_text(parse_json(bytes(self.content)))
        except ValueError:
            reason = ""
        reason = reason or self.content[:ERROR_BYTES].decode("utf-8", "replace")
        if self.status != 200:
            return refused(self.status, reason)
        if self._packing not in ("", "identity"):
            return Failed(
                "no event stream",
                f"the answer is compressed ({self._packing}), which was not requested",
            )
        kind = f"content type {self._kind}" if self._kind else "no content type"
        return Failed("no event stream", f"the answer has {kind}, not text/event-stream: {reason}")


class Streamed(Exchange):
    """Read a streamed answer until it is complete, then discard the rest of the stream."""

    def __init__(self, answer: StreamedAnswer, listener: Listener) -> None:
        self._answer = answer
        self._listener = listener
        self._events = EventStream()
        self._done = False
        self._refusal: _Response | None = None

    def head(self, status: int, kind: str, packing: str) -> None:
        if status != 200 or kind != "text/event-stream" or packing not in ("", "identity"):
            self._refusal = _Response(ERROR_BYTES)
            self._refusal.head(status, kind, packing)

    def data(self, data: bytes) -> None:
        if self._refusal is not None:
            self._refusal.data(data)
            return
        if self._done:
            self._listener.heard()
            return
        block = self._events.feed(data)
        self._listener.heard(comments=not has_data(block or self._events.rest))
        self._take(block)

    def end(self) -> None:
        if self._refusal is not None:
            raise self._refusal.failure()
        if not self._done:
            self._take(self._events.close())
        if self._done:
            return
        # Some servers send no [DONE]: the end of the stream completes the answer.
        answer = self._answer
        if answer.finish is None:
            raise Failed("stream ended early", _so_far(answer))
        answer.complete = True
        self._listener.complete()

    def _take(self, block: bytes) -> None:
        answer, event_count = self._answer, self._answer.events
        if new := answer.read_events(block):
            self._listener.tokens(new)
        if (came := answer.events - event_count) > 1:
            answer.joined += came - 1
        if answer.complete:
            self._done = True
            self._listener.complete()


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return a request's fields as JSON; raise an error for text with a lone surrogate."""
    try:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        text = error.object[max(0, error.start - 20) : error.start + 20]
        raise engine_error(
            f"a request cannot be sent: its text has a lone surrogate, near {text!a}; correct "
            "the data set, or served_model",
        ) from None


LENGTH_FIELDS = ("max_tokens", "max_completion_tokens")
"""Fields of a request with the maximum length of its answer; a server takes one or both."""


def length_field(fields: Mapping[str, Any]) -> str:
    """Return the name of the field that limits the answer's length."""
    return next(name for name in LENGTH_FIELDS if name in fields)


def max_tokens_fact(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return {"max_tokens": "sent as NAME"} if requests use another field name, else {}."""
    name = length_field(fields)
    return {} if name == LENGTH_FIELDS[0] else {"max_tokens": f"sent as {name}"}


def _so_far(answer: StreamedAnswer) -> str:
    if not answer.started:
        return "it had no text"
    tokens = answer.tokens
    return "after some text" if tokens is None else f"after {tokens} tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """Hold a sample as request fields, and its number of tokens, None if unknown.

    Attributes:
        ids, text: Content of the prompt; only one of the two is set.
        fewest: Lower bound of the number of tokens, by the words of the text; 0 for token ids.
    """

    fields: Mapping[str, Any]
    tokens: int | None
    ids: Sequence[int] = ()
    text: str = ""
    fewest: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Hold a request as JSON, ready to be sent.

    Attributes:
        head, rest: JSON before and after the salt (random words); requests share these bytes.
        replaced: JSON that the salt replaces.
        prompt_tokens: Number of tokens in the prompt; None if unknown.
        fewest: Minimum number of tokens in the prompt.
        exact: Whether the server must count exactly `prompt_tokens`, without template or begin
            token.
        length: Answer length that the sample prescribes [tokens]; None without one.
        offers_tools: Whether the answer may consist of tool calls.
        salt: Random words for this prompt; None if it is not salted.
    """

    head: bytes
    replaced: bytes = b""
    rest: Sequence[bytes] = ()
    prompt_tokens: int | None = None
    fewest: int = 0
    exact: bool = True
    length: int | None = None
    offers_tools: bool = False
    salt: Salt | None = None

    def with_salt(self, key: str) -> bytes:
        """Return the request with the random words for `key`; unchanged if `key` is ""."""
        salt = self.salt.text(key, self.replaced) if key and self.salt else self.replaced
        return b"".join((self.head, salt, *self.rest))

    def tokens_of(self, key: str) -> int | None:
        """Return the prompt's token count, with the random words for `key`; None if unknown."""
        if not key or self.salt is None or self.prompt_tokens is None:
            return self.prompt_tokens
        return self.prompt_tokens + self.salt.tokens(key)


def as_text(tokenizer: Any, ids: Sequence[int]) -> tuple[str, bool]:
    """Return token ids as text, and whether the tokenizer encodes it to the same ids."""
    added = list(tokenizer("")["input_ids"])  # the server adds them, too
    begin = len(added) if list(ids[: len(added)]) == added else 0
    for start in sorted({begin, 0}, reverse=True):
        text = str(
            tokenizer.decode(
                list(ids[start:]), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        if list(tokenizer(text)["input_ids"]) == list(ids):
            return text, True
    return text, False


@dataclass(kw_only=True, slots=True)
class Bodies:
    """Build the requests of the loaded samples, by data set index.

    Attributes:
        chat: Whether text is sent as a user message.
        as_they_are: Whether the data set's text is sent unchanged; else token ids, or text made
            from them.
        prompts: Token ids of samples, for data sets whose text is not sent unchanged.
        tokenizer: Function that returns the model's tokenizer, for servers that only accept text.
        seed_of: Function that returns the sampling seed of a sample, or None.
        salted: Whether timed runs send different prompts of the same lengths.
        count: Function that counts the tokens of texts; None without a tokenizer.
    """

    dataset: Dataset
    chat: bool
    as_they_are: bool
    prompts: TokenPrompts
    tokenizer: Callable[[], Any]
    seed_of: Callable[[int], int | None] = lambda _: None
    salted: bool = False
    count: Count | None = None
    _salts: dict[str, Salt | None] = field(default_factory=dict)
    _bodies: dict[int, Body] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._bodies)

    def __getitem__(self, index: int) -> Body:
        return self._bodies[index]

    def prompt(self, index: int, form: str) -> Prompt:
        """Return a sample as "tokens" or as "text", for a request outside a run."""
        return self._made(index, form)[0]

    def load(self, indices: Sequence[int], form: str, fields: Mapping[str, Any]) -> None:
        new = [index for index in indices if index not in self._bodies]
        shared = encode(fields)
        changed = []
        counts = self._counts(new[: max(0, MAX_COUNTED_PROMPTS - len(self._bodies))])
        for index in new:
            prompt, same = self._made(index, form)
            if not same:
                changed.append(index)
            length = own_length(self.dataset, index)
            more = self.of_sample(index, fields, length)
            rest = encode({**fields, **more}) if more else shared
            data = encode(prompt.fields)[:-1] + b"," + rest[1:]
            salt = self._salt(form)
            head, replaced, end = salt.split(data) if salt else (data, b"", b"")
            self._bodies[index] = Body(
                head=head,
                replaced=replaced,
                rest=(end,),
                prompt_tokens=counts.get(index, prompt.tokens),
                fewest=prompt.fewest,
                exact=index not in counts,
                length=length,
                salt=salt,
            )
        if changed:
            raise engine_error(
                f"{len(changed)} of {len(new)} prompts change when their token ids are decoded to "
                f"text and tokenised again (the first is sample {changed[0]}), but this server "
                "takes only text; use a server that takes token ids, such as vLLM, or a data set "
                "of text",
            )

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._bodies.pop(index, None)

    def of_sample(
        self, index: int, fields: Mapping[str, Any], length: int | None
    ) -> dict[str, int]:
        seed, fewest = self.seed_of(index), fields.get("min_tokens")
        changed = {} if seed is None else {"seed": seed}
        if length is not None:
            changed |= {length_field(fields): length}
            changed |= {} if fewest is None else {"min_tokens": min(fewest, length)}
        return changed

    def _counts(self, indices: Sequence[int]) -> dict[int, int]:
        if self.count is None or not self.as_they_are:
            return {}
        texts = [_checked(index, self.dataset.input(index)) for index in indices]
        return dict(zip(indices, self.count(texts), strict=True))

    def _salt(self, form: str) -> Salt | None:
        if self.salted and form not in self._salts:
            few = (
                self._made(index, form)[0] for index in range(min(SALT_PROMPTS, len(self.dataset)))
            )
            parts = [(prompt.ids, prompt.text) for prompt in few]
            made_up = bool(getattr(self.dataset, "made_up", False))
            self._salts[form] = salt_for(parts, self.count, replaces=made_up)
        return self._salts.get(form)

    def _made(self, index: int, form: str) -> tuple[Prompt, bool]:
        if self.as_they_are:
            return self._text(_checked(index, self.dataset.input(index)), None), True
        self.prompts.load([index])
        ids = self.prompts[index]
        self.prompts.unload([index])
        if form == "tokens":
            return Prompt(fields={"prompt": ids}, tokens=len(ids), ids=ids), True
        text, same = as_text(self.tokenizer(), ids)
        return self._text(text, len(ids) if same else None), same

    def _text(self, text: str, tokens: int | None) -> Prompt:
        fields: dict[str, Any] = {"prompt": text}
        if self.chat:
            fields = {"messages": [{"role": "user", "content": text}]}
        return Prompt(
            fields=fields,
            tokens=None if self.chat else tokens,
            text=text,
            fewest=math.ceil(MIN_WORD_TOKENS * len(text.split())),
        )


def _checked(index: int, prompt: Any) -> str:
    if isinstance(prompt, str) and prompt:
        return prompt
    fault = "is an empty prompt; leave it out of the data set"
    if not isinstance(prompt, str):
        fault = (
            f"is of type {type(prompt).__name__}, but the first sample is text; all must be text"
        )
    raise refused_sample(index, fault)
