"""Server-sent events, and what the events of one answer say."""

from __future__ import annotations

import json
from typing import Any

from pytest_mlperf.engines.server_json import whole_number, words

END = b"[DONE]"
"""Payload of the last event; some servers leave it out."""

FIELDS = (b":", b"event:", b"id:", b"retry:", b"data:")
"""Starts of a line of an event; the first is a comment."""

SHOWN = 120
"""Bytes of a broken event that a message shows."""

FINISHES = frozenset({"stop", "length", "eos_token"})
"""Reasons why a complete answer ends: at an end token, or at max_tokens."""


class EventError(Exception):
    """An event is broken or tells of an error.

    Attributes:
        kind: What happened, in words that are the same for all such events.
    """

    def __init__(self, kind: str, detail: str) -> None:
        """Keep the kind beside the text."""
        super().__init__(detail)
        self.kind = kind


class Events:
    """Cuts a stream of bytes into the payloads of its events.

    Lines end with LF or CRLF; what servers send between events to keep a connection is left out.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        """Start with nothing."""
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads of the events that `data` completes.

        Raises:
            EventError: The stream has lines of something else.
        """
        if self._rest:
            data = self._rest + data
        if b"\r" in data:  # JSON escapes it, so it only ends lines
            data = data.replace(b"\r\n", b"\n")
        whole, gap, self._rest = data.rpartition(b"\n\n")
        if not gap:
            return []
        return [payload for block in whole.split(b"\n\n") if (payload := _payload(block))]

    def close(self) -> list[bytes]:
        """Return the last payload where a server left out the empty line after it."""
        rest, self._rest = self._rest.strip(b"\r\n"), b""
        payload = _payload(rest) if rest.startswith(b"data:") else b""
        # Half an event is no broken one: the stream ended early.
        return [payload] if payload == END or payload.endswith(b"}") else []


def _payload(block: bytes) -> bytes:
    if block.startswith(b"data:") and b"\n" not in block:
        return block[6:] if block[5:6] == b" " else block[5:]
    lines = [line for line in block.split(b"\n") if line]
    for line in lines:
        if not line.startswith(FIELDS):
            raise EventError("malformed event", f"not a line of an event: {shown(line)}")
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(data)


class Answer:
    """One answer, as its events tell it.

    Attributes:
        text: Its text so far, where it is kept.
        ids: Its token ids so far, where they are kept.
        n_ids: How many token ids came, kept or not.
        completion_tokens: The server's count; None until it says one.
        prompt_tokens: The server's count of the prompt's; None until it says one.
        finish: Why it ended; None until it did.
        started: Text or token ids came.
        complete: Nothing more is needed of its stream.
    """

    __slots__ = (
        "_keeps",
        "complete",
        "completion_tokens",
        "finish",
        "ids",
        "n_ids",
        "prompt_tokens",
        "started",
        "text",
    )

    def __init__(self, *, keeps: bool) -> None:
        """Start empty; `keeps` says whether anyone reads text and token ids."""
        self._keeps = keeps
        self.text: list[str] = []
        self.ids: list[int] = []
        self.n_ids = 0
        self.completion_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.finish: str | None = None
        self.started = False
        self.complete = False

    @property
    def tokens(self) -> int | None:
        """Its tokens as the server counts them, or else its token ids; None where neither came."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return self.n_ids or None

    def take(self, payload: bytes) -> int:
        """Read an event.

        Only events that may say something new are parsed: the first ones, those with usage, an
        error or the end, and all of them where the answer is kept. In the others token ids are
        counted by their commas.

        Returns:
            The tokens that are surely new: the event's token ids, or 1 for an answer's first text.

        Raises:
            EventError: It is no event of an answer, or tells of an error.
        """
        if payload == END:
            self.complete = self.finish is not None
            return 0
        if self.started and not self._keeps and _adds_only(payload):
            new = _count_ids(payload)
            self.n_ids += new
            return new
        return self._read(payload)

    def _read(self, payload: bytes) -> int:
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            raise EventError("malformed event", f"no JSON: {shown(payload)}") from None
        if not isinstance(event, dict):
            raise EventError("malformed event", f"no JSON object: {shown(payload)}")
        if problem := error_text(event):
            raise EventError("error in the stream", problem)
        try:
            choices = event.get("choices") or ()
            new = self._choice(choices[0]) if choices else 0
            self._usage(event.get("usage"))
        except (TypeError, AttributeError, KeyError, ValueError):
            raise EventError(
                "malformed event", f"not as OpenAI's API has them: {shown(payload)}"
            ) from None
        return new

    def _choice(self, choice: dict[str, Any]) -> int:
        delta = choice.get("delta")
        text = (choice if delta is None else delta).get("text" if delta is None else "content")
        thought = delta and (delta.get("reasoning_content") or delta.get("reasoning"))
        ids = choice.get("token_ids") or []
        if not isinstance(text or "", str) or not isinstance(ids, list):
            raise TypeError("text is no text, or token ids are no list")
        reason = choice.get("finish_reason")
        if reason is not None:
            if reason not in FINISHES:
                raise EventError(
                    f"finish_reason {str(reason)[:40]!r}", "the server gave up an answer"
                )
            self.finish = reason
        first = not self.started and bool(text or thought or ids)
        self.started |= first
        self.n_ids += len(ids)
        if self._keeps:
            self.ids += map(whole_number, ids)
            self.text += [text] if text else []
        return len(ids) or int(first)

    def _usage(self, usage: dict[str, Any] | None) -> None:
        if not usage or usage.get("completion_tokens") is None:
            return
        self.completion_tokens = whole_number(usage["completion_tokens"])
        if usage.get("prompt_tokens") is not None:
            self.prompt_tokens = whole_number(usage["prompt_tokens"])
        # Before the end it is a running count.
        self.complete = self.finish is not None


def error_text(body: Any) -> str:
    """Return what an object of a server says went wrong; "" where it tells of no error."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error") or body.get("detail")
    if body.get("object") == "error":
        error = error or body
    if isinstance(error, dict):
        error = error.get("message") or error
    if isinstance(error, list):  # pydantic's list of what is wrong with a request
        error = "; ".join(
            words(item.get("msg", item) if isinstance(item, dict) else item) for item in error
        )
    return words(error) if error else ""


def shown(data: bytes) -> str:
    """Return the start of foreign bytes, in one line and without control characters."""
    text = data[:SHOWN].decode("utf-8", "replace")
    return repr(text) + ("…" if len(data) > SHOWN else "")


def _adds_only(payload: bytes) -> bool:
    """Tell whether an event has nothing but more text or token ids.

    In a JSON string every quote is escaped, so that no text looks like one of these keys.
    """
    if payload[:1] != b"{" or payload[-1:] != b"}" or b'"error"' in payload:
        return False
    if b'"choices":[{' not in payload and b'"choices": [{' not in payload:
        return False
    for key in (b'"finish_reason":', b'"usage":'):
        at = payload.find(key)
        if at >= 0 and not payload.startswith((b"null", b" null"), at + len(key)):
            return False
    return True


def _count_ids(payload: bytes) -> int:
    at = payload.find(b'"token_ids":')
    if at < 0:
        return 0
    opens = payload.find(b"[", at)
    if opens < 0 or payload[at + 12 : opens].strip():
        return 0  # null, and the bracket is another one's
    ids = payload[opens + 1 : payload.find(b"]", opens)].strip()
    return ids.count(b",") + 1 if ids else 0
