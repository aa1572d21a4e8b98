"""Count output tokens with a reference tokenizer, as MLPerf Endpoints does.

Rules of mlcommons/endpoints at ea3327530376fef63d706f4105612e17c2c80a8d (2026-08-21): text is
tokenised without special tokens. An answer with reasoning or tool calls is formatted by the chat
template, and the tokens of an empty answer in that template are subtracted. Tokens after the first
piece are counted separately.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.extension import text_of

Piece = tuple[str, Any]
"""Kind and content of a part: "text" or "reasoning" with a text, "tools" with calls."""

TEMPLATE_QUESTION = {"role": "user", "content": "x"}


class ReferenceCount:
    """Count answers' tokens by the model's tokenizer after a run; too slow for use inside it."""

    def __init__(self, tokenizer: Any) -> None:
        """Store the tokenizer; count the tokens that its chat template adds to an empty answer."""
        self._tokenizer = tokenizer
        self._frame: int | None = None
        if getattr(tokenizer, "chat_template", None):
            with contextlib.suppress(RunError):  # a template that needs more messages
                self._frame = self._templated({"role": "assistant", "content": ""})

    def counts(self, answers: Mapping[int, Sequence[Piece]]) -> dict[int, tuple[int, int]]:
        """Return for each answer the number of tokens, and the number after its first piece."""
        plain = [id_ for id_, pieces in answers.items() if all(k == "text" for k, _ in pieces)]
        parts = (part for id_ in plain for part in (answers[id_], answers[id_][1:]))
        lengths = self._lengths([joined(text for _, text in part) for part in parts])
        counted = dict(zip(plain, zip(lengths[::2], lengths[1::2], strict=True), strict=True))
        others = {id_: answers[id_] for id_ in answers if id_ not in counted}
        return counted | {
            id_: (self._message(pieces), self._message(pieces[1:]))
            for id_, pieces in others.items()
        }

    def count(self, pieces: Sequence[Piece]) -> int:
        """Return the number of tokens of one answer."""
        if all(kind == "text" for kind, _ in pieces):
            return self._lengths([joined(text for _, text in pieces)])[0]
        return self._message(pieces)

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        encoded = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return [len(ids) for ids in encoded]

    def _message(self, pieces: Iterable[Piece]) -> int:
        """Count an answer's tokens in the chat template; without one, sum those of its parts."""
        pieces = list(pieces)
        text, reasoning = (joined(v for k, v in pieces if k == kind) for kind in PIECE_KINDS)
        calls = merged([v for k, v in pieces if k == "tools"])
        if self._frame is None:
            parts = [reasoning, text, json.dumps(calls) if calls else ""]
            return sum(self._lengths([part for part in parts if part]))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return max(0, self._templated(message) - self._frame)

    def _templated(self, message: Mapping[str, Any]) -> int:
        try:
            ids = self._tokenizer.apply_chat_template(
                [TEMPLATE_QUESTION, message],
                tokenize=True,
                add_generation_prompt=False,
                return_dict=False,
            )
        except Exception as error:  # templates can raise anything
            raise engine_error(
                f"the tokenizer's chat template cannot format an answer: {text_of(error)}"
            ) from error
        return len(ids)


PIECE_KINDS = ("text", "reasoning")


def joined(texts: Iterable[str]) -> str:
    """Join texts and combine surrogate pairs that JSON had split; replace lone surrogates."""
    return "".join(texts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def merged(pieces: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge streamed pieces of tool calls by their `index`; parse arguments that are JSON."""
    calls: dict[int, dict[str, Any]] = {}
    for call in (call for piece in pieces for call in piece):
        index, added = call.get("index"), call.get("function")
        parts = added if isinstance(added, dict) else {}
        function = calls.setdefault(
            index if isinstance(index, int) else 0, {"name": "", "arguments": ""}
        )
        for key in function:
            value = parts.get(key) or ""
            function[key] += value if isinstance(value, str) else json.dumps(value)
    for function in calls.values():
        with contextlib.suppress(ValueError, RecursionError):
            function["arguments"] = json.loads(function["arguments"] or "{}")
    return [{"type": "function", "function": each} for _, each in sorted(calls.items())]
