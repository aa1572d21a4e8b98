"""Build requests for conversation turns: earlier messages, random words, session header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf.adapters.engines import refused_sample
from pytest_mlperf.adapters.engines.openai._client import Bodies, Body, Prompt, encode
from pytest_mlperf.adapters.engines.openai._salt import Salt
from pytest_mlperf.extension import own_length

RESERVED_HEADERS = frozenset(
    {"host", "user-agent", "accept", "accept-encoding", "authorization", "connection", "upgrade"}
    | {"content-type", "content-length", "transfer-encoding", "expect", "te", "trailer"}
)

CONTENT_START = len('{"content":"')

SALTS: Mapping[type, Salt] = {str: Salt(), list: Salt(around=(b'{"type":"text","text":"', b'"},'))}
"""Salt of a user's message: words before its text, or a part before its others, as pictures."""

HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")


def is_header(name: str, allowed: str = "") -> bool:
    return bool(HEADER.fullmatch(name)) and name.lower() not in RESERVED_HEADERS - {allowed}


@dataclass(kw_only=True, slots=True)
class TurnBodies(Bodies):
    """Build requests for conversation turns; store parts that several turns share only once."""

    _kept: dict[bytes, bytes] = field(default_factory=dict)

    def prompt(self, index: int, form: str) -> Prompt:  # noqa: ARG002 - a chat has one form
        return Prompt(fields=self._request(index), tokens=None)

    def load(
        self,
        indices: Sequence[int],
        form: str,  # noqa: ARG002 - a chat has one form
        fields: Mapping[str, Any],
    ) -> None:
        seen: dict[int, tuple[Any, bytes]] = {}
        for index in indices:
            if index in self._bodies:
                continue
            request, length = self._request(index), own_length(self.dataset, index)
            more = self.of_sample(index, fields, length)
            messages, parts = request.pop("messages"), list[bytes]()
            for message in messages:
                # Keeping the message reserves its id.
                kept = seen.get(id(message)) or (message, self._once(b"," + encode(message)))
                seen[id(message)] = kept
                parts.append(kept[1])
            self._bodies[index] = self._turn(
                index, messages, parts, {**request, **fields, **more}, length
            )

    def unload(self, indices: Sequence[int]) -> None:
        Bodies.unload(self, indices)
        if not self._bodies:
            self._kept.clear()

    def _request(self, index: int) -> dict[str, Any]:
        request = self.dataset.input(index)
        messages = request.get("messages") if isinstance(request, Mapping) else None
        if not messages or not all(isinstance(each, Mapping) for each in messages):
            fault = "has no list of messages, but the first sample has one; all samples need one"
            raise refused_sample(index, fault)
        return dict(request)

    def _turn(
        self,
        index: int,
        messages: Sequence[Mapping[str, Any]],
        parts: Sequence[bytes],
        fields: Mapping[str, Any],
        length: int | None,
    ) -> Body:
        """Return the request of a turn, with a gap for random words in the first user message.

        `parts` are `messages` as JSON, `fields` other fields; the answer has `length` tokens.
        """
        contents = {
            type(message.get("content")): number
            for number, message in reversed([*enumerate(messages)])
            if message.get("role") == "user" and message.get("content") != []
        }
        if (kind := next((kind for kind in SALTS if kind in contents), None)) is None:
            raise refused_sample(index, "is a conversation without a message of role user")
        first = contents[kind]
        user = dict(messages[first])
        text = encode({"content": user.pop("content")})[CONTENT_START:]
        earlier = (b"".join(parts[:first]) + b",")[1:]
        opening = encode({**user, "content": kind()})[:-2]
        return Body(
            head=self._once(b'{"messages":[' + earlier + opening),
            rest=(self._once(text), *parts[first + 1 :], self._once(b"]," + encode(fields)[1:])),
            length=length,
            offers_tools=bool(fields.get("tools")),
            salt=SALTS[kind] if self.salted else None,
        )

    def _once(self, data: bytes) -> bytes:
        return self._kept.setdefault(data, data)
