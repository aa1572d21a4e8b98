"""Parse server-sent events and the answers in them; describe refused requests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pytest_mlperf.adapters.engines.openai._count import Piece
from pytest_mlperf.adapters.engines.serving import message_text, whole_number

END = b"[DONE]"
"""Payload of the last event; some servers leave it out."""

EVENT_FIELDS = (b":", b"event:", b"id:", b"retry:", b"data:")
BOM = b"\xef\xbb\xbf"

MAX_EVENT_BYTES = 1 << 20
IDS = re.compile(rb'"token_ids": ?\[([^\]]*)\]')

TEXT_SUBSTITUTES = {
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "tool_calls": "tools",
    "function_call": "tools",
    "refusal": "text",
}
"""Fields of a chat's answer in place of text, by kind; they may hold the first token."""

BLANKS = " \t\r\n"

REASONING = frozenset(key for key, kind in TEXT_SUBSTITUTES.items() if kind == "reasoning")

VISIBLE = re.compile(
    rb'"(content|text|refusal)": ?"(?:\\[nrt]| )*+[^" ]|"(tool_calls|function_call)": ?[\[{]+ ?"'
)
"""Field of an event with more than reasoning and white space."""

MAX_QUOTED_BYTES = 120

MAX_NAME_CHARACTERS = 200
STOPS = frozenset({"stop", "eos_token", "stop_sequence"})
"""Names of an end at an end token or a stop sequence; the last two are of TGI."""

FINISHES = STOPS | {"length", "tool_calls", "function_call"}
"""Reasons why a complete answer ends: as `STOPS`, at max_tokens, or with calls of tools."""


class Failed(Exception):
    def __init__(self, kind: str, detail: str = "", *, status: int | None = None) -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail
        self.status = status


def refused(status: int, reason: str) -> Failed:
    words = HTTPStatus(status).phrase if status in set(HTTPStatus) else "unknown status"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        words = "rate limit"
    return Failed(f"HTTP {status} ({words})", reason, status=status)


class EventStream:
    """Split bytes into complete events; lines end with LF, CRLF or CR; `rest`: unfinished event."""

    __slots__ = ("_after_cr", "_begun", "rest")

    def __init__(self) -> None:
        self.rest = b""
        self._begun = self._after_cr = False

    def feed(self, data: bytes) -> bytes:
        """Return the events that `data` completes, their lines ended by LF."""
        if self._after_cr or b"\r" in data:
            data = self._line_feeds(data)
        if self.rest:
            data = self.rest + data
        if not self._begun and len(data) >= len(BOM):
            data = data.removeprefix(BOM)
            self._begun = True
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self.rest = data
        else:
            data, self.rest = data[:end], data[end:]
        if len(self.rest) > MAX_EVENT_BYTES:
            raise Failed("malformed event", f"it has more than {MAX_EVENT_BYTES >> 20} MiB")
        return data if end > 1 else b""

    def close(self) -> bytes:
        """Return the last event if the stream lacks only the empty line after it, else b""."""
        rest, self.rest = self.rest.removeprefix(BOM).strip(b"\n"), b""
        last = payload(rest) if rest.startswith(b"data:") else b""
        # An incomplete event is not malformed: the stream ended early.
        return rest + b"\n\n" if last == END or last.endswith(b"}") else b""

    def _line_feeds(self, data: bytes) -> bytes:
        """Replace CR and CRLF by LF; safe, because JSON strings contain CR only in escaped form."""
        if self._after_cr:  # that line has ended
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def has_data(events: bytes) -> bool:
    """Return whether events, or the beginning of one, contain data lines and not only comments."""
    return events.startswith(b"data:") or b"\ndata:" in events


def payload(block: bytes) -> bytes:
    """Return the data of an event; b"" for a comment."""
    if block.startswith(b"data:") and b"\n" not in block:
        return block[6:] if block[5:6] == b" " else block[5:]
    lines = [line for line in block.split(b"\n") if line]
    for line in lines:
        if not line.startswith(EVENT_FIELDS):
            raise Failed("malformed event", f"a line is not in the SSE format: {quoted(line)}")
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")])


@dataclass(kw_only=True, slots=True)
class StreamedAnswer:
    """Read one answer from its events; keep text and token ids only if `keeps`.

    Attributes:
        pieces: Parts of the answer in order (kind, content), stored only if `keeps`.
        n_ids: Number of token ids received, also if they are not stored.
        completion_tokens: The server's count of tokens in the answer; None until it sends one.
            `prompt_tokens` likewise.
        accepted: Number of accepted draft or predicted tokens, if the server reports it.
        cached: Number of cached prompt tokens; None if not reported.
        model, build: Model name and system fingerprint of the server; "" if not reported.
        finish: The server's finish_reason; None until it sends one.
        fields: Names of fields that contained more than white space: "content" or "text", and keys
            of `TEXT_SUBSTITUTES`. For events that are not parsed, the first field that is not
            reasoning is assumed.
        started: Whether text or token ids have arrived.
        complete: Whether the answer is complete, so that the rest of the stream is not needed.
        events: Number of SSE events with a part of the answer, without an empty last one.
        joined: Number of events after the first that arrived in the same read as an earlier event.
        first_ids: Number of token ids in the first event.
        first_count: The server's count of tokens with the first event; 0 if not reported.
        reasoning_tokens: The server's count of reasoning tokens, sent or not.
        shows_reasoning: Whether reasoning was sent.
        logprobs: Log-probabilities of tokens in order, stored only if `keeps`; None for tokens
            without one, such as the first token of a prompt.
    """

    keeps: bool
    text: list[str] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    n_ids: int = 0
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    accepted: int = 0
    cached: int | None = None
    model: str = ""
    build: str = ""
    finish: str | None = None
    fields: set[str] = field(default_factory=set)
    started: bool = False
    complete: bool = False
    events: int = 0
    joined: int = field(default=0, compare=False)
    first_ids: int = 0
    first_count: int = 0
    reasoning_tokens: int = 0
    shows_reasoning: bool = False
    logprobs: list[float | None] = field(default_factory=list)

    @property
    def tokens(self) -> int | None:
        """The server's token count, else the number of token ids; None if both are missing."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return self.n_ids or None

    @property
    def is_empty(self) -> bool:
        """Whether the answer has no text, no refusal and no tool calls."""
        return self.fields <= REASONING

    @property
    def hidden(self) -> int:
        """Number of reasoning tokens that the server counted but did not send."""
        if self.shows_reasoning or not self.reasoning_tokens:
            return 0
        room = (self.tokens or 0) - max(self.events, self.n_ids)
        return max(0, min(self.reasoning_tokens, room))

    @property
    def visible(self) -> int:
        return (self.tokens or 0) - self.hidden

    @property
    def in_first(self) -> int:
        """Visible tokens in the first SSE event; 0 without token ids or a running token count."""
        left = (self.tokens or 0) - self.first_count
        if self.first_count and not self.first_ids and left >= self.events - 1 > 0:
            return max(1, self.visible - left)
        return self.first_ids

    @property
    def after_first(self) -> int:
        """Visible tokens after the first SSE event; 0 if that event has all tokens."""
        if self.events < 2:  # an end token may follow that is counted and not sent
            return int(self.visible == 2 and self.first_ids < 2)
        return max(1, self.visible - max(1, self.in_first))

    def is_of(self, models: Collection[str]) -> bool:
        """Check whether one of `models` answered, also as "name@revision"; True if not reported."""
        return not self.model or bool({self.model, self.model.partition("@")[0]} & {*models})

    def read_events(self, events: bytes) -> int:
        """Read complete SSE events; return the number of new token ids, or 1 for the first text.

        To save time, only the first events, events with usage, an error or the end, and all events
        of an answer that is stored are parsed. In other events, token ids are counted by their
        commas, in one pass.
        """
        new, begin = 0, 0
        skips = not self.keeps
        while begin < len(events) and not self.complete:
            if skips and self.started:
                skips = False
                ends = events.find(b'"finish_reason":"', begin)
                end = len(events) if ends < 0 else events.rfind(b"\n\n", begin, ends) + 2
                if (
                    end > begin + 1
                    and (added := _count_plain_events(events[begin:end])) is not None
                ):
                    ids, count = added
                    if self.is_empty and (shows := VISIBLE.search(events, begin, end)):
                        self.fields.add((shows[1] or shows[2]).decode())
                    self.n_ids += ids
                    self.events += count
                    self.completion_tokens = None
                    new += ids
                    begin = end
                    continue
            end = events.find(b"\n\n", begin)
            content = payload(events[begin:end])
            if content == END:
                self.complete = self.finish is not None
            elif content:
                new += self._read(content)
            begin = end + 2
        return new

    def _read(self, content: bytes) -> int:
        try:
            event = json.loads(content)
        except (ValueError, RecursionError):
            raise Failed("malformed event", f"no JSON: {quoted(content)}") from None
        if not isinstance(event, dict):
            raise Failed("malformed event", f"no JSON object: {quoted(content)}")
        if problem := error_text(event):
            raise Failed("error in the stream", problem)
        try:
            choices = event.get("choices") or ()
            if len(choices) > 1 or (choices and choices[0].get("index")):
                raise Failed("several answers", f"one was requested: {quoted(content)}")
            self.model, self.build = (
                str(event.get(name) or before)[:MAX_NAME_CHARACTERS]
                for name, before in (("model", self.model), ("system_fingerprint", self.build))
            )
            new = self._choice(choices[0]) if choices else 0
            self._usage(event.get("usage"))
            if self.events == 1:
                self.first_count = self.completion_tokens or 0
        except (TypeError, AttributeError, KeyError, ValueError):
            raise Failed(
                "malformed event", f"not in the format of OpenAI's API: {quoted(content)}"
            ) from None
        return new

    def _choice(self, choice: dict[str, Any]) -> int:
        delta = choice.get("delta")
        text = (choice if delta is None else delta).get("text" if delta is None else "content")
        substitutes = [key for key in TEXT_SUBSTITUTES if delta.get(key)] if delta else []
        self.fields.update(substitutes, ["content"] if str(text or "").strip(BLANKS) else [])
        ids = choice.get("token_ids") or []
        if not isinstance(text or "", str) or not isinstance(ids, list):
            raise TypeError("text is not a string, or token ids are not a list")
        reason = choice.get("finish_reason") or None
        if text or substitutes or ids or reason is None:
            self.completion_tokens = None  # an earlier count is outdated
        if reason is not None:
            if reason not in FINISHES:
                kind = f"finish_reason {str(reason)[:40]!r}"
                raise Failed(kind, "the server did not finish an answer")
            self.finish = reason
        first = not self.started and bool(text or substitutes or ids)
        self.started |= first
        if first:
            self.first_ids = len(ids)
            self.shows_reasoning = (text or "").startswith("<think")
        if delta and any(map(delta.get, REASONING)):
            self.shows_reasoning = True
        self.events += bool(text or substitutes or ids) or (self.started and reason is None)
        self.n_ids += len(ids)
        if self.keeps:
            self.ids += map(whole_number, ids)
            self.text += [text] if text else []
            listed = (choice.get("logprobs") or {}).get("token_logprobs") or ()
            self.logprobs += [None if value is None else float(value) for value in listed]
            self.pieces += _pieces(delta or {}, text)
        return len(ids) or int(first)

    def _usage(self, usage: dict[str, Any] | None) -> None:
        if not usage or usage.get("completion_tokens") is None:
            return
        self.completion_tokens = whole_number(usage["completion_tokens"])
        if usage.get("prompt_tokens") is not None:
            self.prompt_tokens = whole_number(usage["prompt_tokens"])
        of_prompt = usage.get("prompt_tokens_details") or {}
        if of_prompt.get("cached_tokens") is not None:
            self.cached = whole_number(of_prompt["cached_tokens"])
        details = usage.get("completion_tokens_details") or {}
        if details.get("accepted_prediction_tokens") is not None:
            self.accepted = whole_number(details["accepted_prediction_tokens"])
        if details.get("reasoning_tokens") is not None:
            self.reasoning_tokens = whole_number(details["reasoning_tokens"])
        # Before the end it is a running count.
        self.complete = self.finish is not None


def prompt_logprobs(answer: StreamedAnswer, ids: Sequence[int]) -> list[float]:
    """Return the log-probabilities of a prompt's tokens, NaN for the first; else raise Failed."""
    came = answer.logprobs[: len(ids)]
    if len(came) < len(ids) or None in came[1:]:
        raise Failed(
            "no log-probabilities of the prompt",
            f"the server gave {sum(value is not None for value in came[1:])} log-probabilities for "
            f"the {len(ids) - 1} prompt tokens after the first",
        )
    return [math.nan, *(value for value in came[1:] if value is not None)]


def _pieces(delta: dict[str, Any], text: str | None) -> Iterator[Piece]:
    added = {
        TEXT_SUBSTITUTES[key]: delta[key] for key in reversed(TEXT_SUBSTITUTES) if delta.get(key)
    }
    for kind, value in added.items():
        calls = [{"function": value}] if isinstance(value, dict) else value
        if not isinstance(calls, list if kind == "tools" else str):
            raise TypeError(f"{kind} is neither text nor calls")
        yield kind, [each for each in calls if isinstance(each, dict)] if kind == "tools" else calls
    if text:
        yield "text", text


def error_text(body: Any) -> str:
    """Return the error message of a server's JSON object; "" if it has none."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error") or body.get("detail")
    if body.get("object") == "error" or ("message" in body and "choices" not in body):
        error = error or body
    if isinstance(error, dict):
        error = error.get("message") or error
    if isinstance(error, list):  # pydantic's list of errors
        error = "; ".join(
            message_text(item.get("msg", item) if isinstance(item, dict) else item)
            for item in error
        )
    return message_text(error) if error else ""


def quoted(data: bytes) -> str:
    """Return the start of untrusted bytes as a literal in one line."""
    text = data[:MAX_QUOTED_BYTES].decode("utf-8", "replace")
    return repr(text) + ("…" if len(data) > MAX_QUOTED_BYTES else "")


def _ids_in(events: bytes) -> int:
    ids: list[bytes] = IDS.findall(events)
    joined = b"".join(ids)
    if joined.translate(None, b"0123456789,"):
        return sum(each.count(b",") + 1 for each in ids if each.strip())
    return joined.count(b",") + len(ids) - ids.count(b"")


def _count_plain_events(events: bytes) -> tuple[int, int] | None:
    """Return the counts (token ids, events) if events only add text or token ids, else None."""
    # JSON strings escape every quote, so that no text looks like one of these keys.
    count = events.count(b"}\n\ndata: {") + 1
    whole = events.startswith(b"data: {") and events.endswith(b"}\n\n")
    if not whole or events.count(b"\n") != 2 * count:
        return None
    if b'"error"' in events:
        return None
    if events.count(b'"choices":[{') == count:
        null = b"null"
    elif events.count(b'"choices": [{') == count:
        null = b" null"
    else:
        return None
    for key in (b'"finish_reason":', b'"usage":'):
        if (times := events.count(key)) and times != events.count(key + null):
            return None
    return _ids_in(events), count
