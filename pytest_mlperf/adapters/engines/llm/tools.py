"""Convert chats with tools to token ids, and extract tool calls from the answers."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pytest_mlperf import Dataset, SuiteError
from pytest_mlperf.adapters.conventions import json_in
from pytest_mlperf.adapters.engines import broken, one_of, refused_sample, require_module
from pytest_mlperf.adapters.engines.llm.generation import packed
from pytest_mlperf.extension import Rule, is_deeper, text_of

HERMES, TAGGED = "hermes", "qwen3_coder"
CALL_FORMATS = (HERMES, TAGGED)
"""Forms of calls, by the names of vLLM's parsers: as JSON, or with tags for arguments."""

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
THOUGHT_START, THOUGHT_END = "<think>", "</think>"
TAGS = frozenset({CALL, CALL_END, THOUGHT_START, THOUGHT_END})
"""Tags that are kept in the decoded text even if they are special tokens."""

REQUEST_FIELDS = frozenset({"messages", "tools", "tool_choice"})

MAX_ARGUMENT_LEVELS = 64
"""Maximum nesting of a call's argument, which every JSON reader accepts."""

MAX_LITERAL_CHARACTERS = 4096
"""Maximum characters of a list or table that is tried as a Python literal."""


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Options for chats that offer tools.

    Attributes:
        tool_format: Format of the model's tool calls. "hermes": JSON in <tool_call>. "qwen3_coder":
            <function=…> with a <parameter=…> for each argument, as Qwen3.5 and 3.6 write. "auto":
            the format that the chat template contains.
        chat_template_kwargs: Further variables of the chat template in chats that offer tools, such
            as { enable_thinking = false }.
    """

    tool_format: str = "auto"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tool_rules(self) -> Iterator[Rule]:
        yield one_of("tool_format", self.tool_format, ("auto", *CALL_FORMATS))
        variables = self.chat_template_kwargs
        yield "chat_template_kwargs", variables, isinstance(variables, Mapping), "a table"

    def require_tools(self, engine: str, dataset: Dataset) -> None:
        usual = ToolOptions()
        unused = [
            name
            for name in ("tool_format", "chat_template_kwargs")
            if getattr(self, name) != getattr(usual, name)
        ]
        if unused and not offers_tools(dataset):
            raise SuiteError(
                f"engine {engine}: {' and '.join(unused)} would have no effect, as the data set's "
                f"samples offer no tools; leave {' and '.join(unused)} out",
                option=unused,
            )


def offers_tools(dataset: Dataset) -> bool:
    """Return whether a data set's samples are chats in which tools may be called."""
    sample = dataset.input(0) if len(dataset) else None
    return isinstance(sample, Mapping) and bool(sample.get("tools"))


class Offered(NamedTuple):
    """Hold the data of a chat that is needed to parse its answer.

    Attributes:
        schemas: JSON schemas of parameters, by function and parameter name; empty without tools.
        is_thinking: Whether the prompt ends inside a reasoning block, so that the answer starts in
            it.
    """

    schemas: Mapping[str, Mapping[str, Any]]
    is_thinking: bool


@dataclass(kw_only=True, slots=True)
class ToolChats:
    """Convert chats to token ids, and answers to outputs for scorers of function calls.

    Attributes:
        tokenizer: The model's tokenizer, with its chat template.
        form: Format of tool calls, one of `CALL_FORMATS`.
        variables: Further variables for the chat template.
    """

    tokenizer: Any
    form: str
    variables: Mapping[str, Any]
    _offered: dict[int, Offered] = field(default_factory=dict)
    _silent: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self._silent = frozenset(
            token
            for token, added in self.tokenizer.added_tokens_decoder.items()
            if added.special and added.content not in TAGS
        )

    def tokens(self, index: int, request: Mapping[str, Any]) -> list[int]:
        """Return a chat's token ids; store its tools' schemas, used to parse its answer."""
        if further := sorted(set(request) - REQUEST_FIELDS):
            fault = (
                f"has {', '.join(further)}, which this engine does not support; use engine openai "
                "with a server that does"
            )
            raise refused_sample(index, fault)
        if (choice := request.get("tool_choice", "auto")) != "auto":
            fault = f'has tool_choice {choice!r:.80}, but this engine supports only "auto"; use '
            fault += "engine openai with a server that supports it"
            raise refused_sample(index, fault)
        tools = request.get("tools") or []
        try:
            schemas = {
                f["name"]: dict((f.get("parameters") or {}).get("properties") or {})
                for f in (tool["function"] for tool in tools)
            }
            text = self.tokenizer.apply_chat_template(
                request["messages"],
                tools=tools or None,
                add_generation_prompt=True,
                tokenize=False,
                **self.variables,
            )
        except Exception as error:  # a template may raise any error
            fault = f"does not fit the model's chat template: {text_of(error)}"
            raise refused_sample(index, fault) from error
        self._offered[index] = Offered(schemas, text.rstrip().endswith(THOUGHT_START))
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def pictures(self, index: int) -> list[Any]:  # noqa: ARG002 - as chats that have some
        return []

    def forget(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._offered.pop(index, None)

    def output(self, index: int, row: Sequence[int]) -> bytes:
        """Return an answer for scorers: tool calls as JSON, else text; token ids without tools."""
        offered = self._offered[index]
        if not offered.schemas:
            return packed(row)
        kept = [token for token in row if token not in self._silent]
        text = str(
            self.tokenizer.decode(
                kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        return calls_or_text(
            without_thought(text, is_thinking=offered.is_thinking), self.form, offered.schemas
        )


def tool_chats(
    engine: str, folder: Path, tokenizer: Any, options: ToolOptions
) -> tuple[ToolChats, Mapping[str, str]]:
    """Return the converter of a model's chats with tools, and its facts for the fingerprint."""
    require_module(f"engine {engine}", "jinja2", "lm", "the model's chat template")
    template = _template(folder, tokenizer)
    form = options.tool_format
    if form == "auto":
        form = TAGGED if FUNCTION in template else HERMES if CALL in template else ""
    if not form:
        raise SuiteError(
            f"engine {engine}: the chat template in {folder} uses an unknown format of tool calls; "
            f"set tool_format to the format that the model writes: {' or '.join(CALL_FORMATS)}",
            option="tool_format",
        )
    variables = options.chat_template_kwargs
    facts = {
        "tool_format": form,
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest()[:16],
        **{
            f"chat_template.{name}": json.dumps(value, default=str)
            for name, value in variables.items()
        },
    }
    return ToolChats(tokenizer=tokenizer, form=form, variables=variables), facts


def _template(folder: Path, tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):  # several, by purpose
        template = template.get("tool_use") or template.get("default")
    if not template:
        raise broken(
            folder,
            "has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), which chats need; copy it here from the model's source",
        )
    if "tools" not in template:
        raise broken(
            folder,
            "has a chat template that leaves tools out, so the model would not see them; use one "
            "that takes tools",
        )
    return str(template)


# --- answers --------------------------------------------------------------------------------------


def without_thought(text: str, *, is_thinking: bool) -> str:
    """Return an answer after its reasoning, "" if unended; `is_thinking`: the prompt began it."""
    _, end, answer = text.partition(THOUGHT_END)
    if end:
        return answer.lstrip("\n")
    return "" if is_thinking or text.lstrip().startswith(THOUGHT_START) else text


def calls_or_text(text: str, form: str, schemas: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return an answer in UTF-8 as engine openai does: its tool calls, or its text if it has none.

    Tool calls are a JSON list of objects as in OpenAI's API. A call that cannot be parsed gets the
    name "" and its text as arguments. It is never correct, but counts as a call where none was
    expected.
    """
    calls = [_logged(*call) for call in READERS[form](text, schemas)]
    return (f"[{', '.join(calls)}]" if calls else text).encode("utf-8", "replace")


def _logged(name: str, arguments: Any, original: str) -> str:
    for function in ({"name": name, "arguments": arguments}, {"name": "", "arguments": original}):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            if not is_deeper(function, MAX_ARGUMENT_LEVELS - 1):
                return json.dumps({"type": "function", "function": function}, allow_nan=False)
    raise AssertionError("text is JSON")


Called = tuple[str, Any, str]
"""A function's name, its arguments, and its original text; the name "" is unreadable."""


def _pieces(text: str) -> tuple[str, list[str]]:
    head, *parts = text.split(CALL)
    return head, [part.partition(CALL_END)[0] for part in parts]


def _of_json(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Iterator[Called]:  # noqa: ARG001
    for piece in _pieces(text)[1]:
        called = json_in(piece.strip(), None)
        name = called.get("name") if isinstance(called, dict) else None
        if isinstance(called, dict) and isinstance(name, str) and "arguments" in called:
            yield name, called["arguments"], piece
        else:
            yield "", piece, piece


def _of_tags(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Iterator[Called]:
    head, pieces = _pieces(text)
    # Some answers omit the tag around a call.
    for piece in [head] * (FUNCTION in head) + pieces:
        functions = piece.split(FUNCTION)[1:]
        if not functions:
            yield "", piece, piece
        for function in functions:
            yield _tagged(function.partition(FUNCTION_END)[0], schemas)


def _tagged(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> Called:
    name, end, body = text.partition(">")
    name = name.strip()
    head, *parameters = body.split(PARAMETER)
    if not end or not name or head.strip():
        return "", text, text
    arguments: dict[str, Any] = {}
    for part in parameters:
        parameter, end, value = part.partition(">")
        if not end:
            return "", text, text
        content = value.partition(PARAMETER_END)[0].removeprefix("\n").removesuffix("\n")
        arguments[parameter.strip()] = _typed(content, schemas.get(name, {}).get(parameter.strip()))
    return name, arguments, text


READERS: Mapping[str, Callable[[str, Mapping[str, Mapping[str, Any]]], Iterator[Called]]] = {
    HERMES: _of_json,
    TAGGED: _of_tags,
}
"""Readers of the calls in a text, by form."""


def _typed(text: str, schema: Any) -> Any:
    """Convert an argument to its JSON schema's type as vLLM's qwen3_coder parser does."""
    if not isinstance(schema, Mapping):
        return text
    kind = schema.get("type", "object" if "anyOf" in schema else "string")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "string")
    if text.lower() == "null":
        return None
    if kind == "string":
        return text
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in ("integer", "number"):
        return _number(text, whole=kind == "integer")
    value = json_in(text, text)
    return _literal(text) if value is text else value


def _number(text: str, *, whole: bool) -> Any:
    try:
        if whole:
            return int(text)
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return int(value) if value.is_integer() else value


def _literal(text: str) -> Any:
    """Parse a list or dict in Python syntax without running code; else return the text."""
    if len(text) > MAX_LITERAL_CHARACTERS:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
