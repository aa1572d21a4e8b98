"""Read recorded conversations in the JSONL format of MLCommons' endpoints client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets import files
from pytest_mlperf.adapters.datasets.files.json_lines import objects
from pytest_mlperf.adapters.datasets.prompts import SampleFile

NEXT = {
    "": ("user",),
    "user": ("assistant",),
    "assistant": ("tool", "user"),
    "tool": ("assistant", "user"),
}
"""Roles that may follow a role, as in MLCommons' client; "" is the beginning."""

MAX_DELAY_SECONDS = 600.0
"""Maximum delay before a turn; after a longer time without events a run may count as hung."""

METADATA = "dataset_metadata"

Line = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ConversationsOptions(files.FileOptions, dataset="conversations", noun="conversations"):
    """Options of the data set conversations.

    Attributes:
        path: JSONL file, or a folder with one. A line is a turn with "conversation_id", "turn" from
            1 on, "role" ("user", "assistant", "tool"), "content", and optionally "system", "tools",
            "tool_calls", "tool_results", "reasoning_content", "name", "delay_seconds" and
            "max_new_tokens" or "max_completion_tokens". Lines of a conversation are adjacent.
        delays: Whether to wait the recorded `delay_seconds` before a turn, as for a tool or a user.
        repeat: Whether to send conversations unchanged, without the engine's `salt`.
    """

    path: str
    delays: bool = True
    repeat: bool = False

    def __post_init__(self) -> None:
        delays = ("delays", self.delays, type(self.delays) is bool, "true or false")
        repeat = ("repeat", self.repeat, type(self.repeat) is bool, "true or false")
        self.check(delays, repeat)

    def find(self) -> Path:
        path = Path(self.path)
        return files.find_file(path, endings=(".jsonl",), whole="file of conversations")


@dataclass(kw_only=True, slots=True)
class Conversation:
    """Hold a conversation: id (`group`), messages with recorded answers, and their JSON bytes."""

    group: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, messages: Sequence[dict[str, Any]]) -> None:
        self.messages += messages
        self.sizes += [len(files.encode(json.dumps(each, ensure_ascii=False))) for each in messages]


@dataclass(kw_only=True, slots=True)
class Turn:
    """Hold a request: a conversation's first `end` messages; the first `begun` were sent before."""

    conversation: Conversation
    begun: int
    end: int
    tools: Sequence[Any] | None
    delay_s: float
    output_tokens: int | None
    answer: str | None = None


class ConversationsDataset(files.FileDataset[Turn]):
    """Turns that require an answer, each with all messages that were recorded before it.

    A prompt contains the recorded answers, not the server's, so every run sends the same prompts.
    """

    options = ConversationsOptions
    kind = b"conversations"

    def _read(self, options: ConversationsOptions, file: Path) -> None:
        self.repeat = options.repeat
        source = SampleFile(file=file, row="line", whole="file")
        whole = list(islice(_conversations(source), options.count))
        source.check_size(len(whole), None)
        files.require_enough(file, options.count, len(whole), options.noun)
        self._samples = [turn for turns in whole for turn in turns]
        self._require_lengths(file)

    def _require_lengths(self, file: Path) -> None:
        without = sum(turn.output_tokens is None for turn in self._samples)
        if 0 < without < len(self._samples):
            raise RunError(
                "dataset",
                f"{file}: max_new_tokens is missing in {without:,} of {len(self._samples):,} "
                "turns that ask for an answer; set it on the first turn of every "
                "conversation, or nowhere",
            )

    def _content(self, index: int) -> list[bytes]:
        turn = self._samples[index]
        messages = turn.conversation.messages[turn.begun : turn.end]
        about = (turn.begun, self._delay_s(turn), turn.output_tokens)
        texts = json.dumps(messages), json.dumps(turn.tools), repr(about), repr(turn.answer)
        return list(map(files.encode, texts))

    def input(self, index: int) -> dict[str, Any]:
        """Return the fields of an OpenAI chat request: "messages", and "tools" if any."""
        turn = self._sample(index)
        fields: dict[str, Any] = {"messages": turn.conversation.messages[: turn.end]}
        return fields if turn.tools is None else {**fields, "tools": turn.tools}

    def reference(self, index: int) -> str:
        if (answer := self._sample(index).answer) is not None:
            return answer
        raise RunError(
            "dataset",
            f"data set conversations: sample {index} has no recorded answer in text, with which "
            "the scorer compares; add it to the file, or remove the scorer",
        )

    def output_tokens(self, index: int) -> int | None:
        return self._sample(index).output_tokens

    def group(self, index: int) -> str:
        return self._sample(index).conversation.group

    def pause_s(self, index: int) -> float | None:
        """Return the delay of a turn after the previous answer [s]; None for the first turn."""
        turn = self._sample(index)
        return self._delay_s(turn) if turn.begun else None

    def sizes(self, indices: Sequence[int]) -> dict[str, float]:
        """Return "prefix_share": the share of the prompts' bytes that earlier turns sent."""
        turns = [self._sample(index) for index in indices]
        total = sum(sum(turn.conversation.sizes[: turn.end]) for turn in turns)
        repeated = sum(sum(turn.conversation.sizes[: turn.begun]) for turn in turns)
        return {"prefix_share": repeated / total} if total else {}

    def _delay_s(self, turn: Turn) -> float:
        return turn.delay_s if self._asked.delays else 0.0


def _conversations(source: SampleFile) -> Iterator[list[Turn]]:
    records = (line for line in objects(source.file) if line[1].get("_type") != METADATA)
    earlier: set[str] = set()
    for group, lines in groupby(records, lambda line: _id(source, line)):
        turns = sorted(lines, key=lambda line: _number(source, line))
        if group in earlier:
            defect = f"{group!r:.40} began on earlier lines; put its turns on consecutive lines"
            raise source.wrong(turns[0][0], "conversation_id", defect)
        earlier.add(group)
        yield _turns(source, group, turns)


def _turns(source: SampleFile, group: str, lines: Sequence[Line]) -> list[Turn]:
    conversation, turns, previous_role = Conversation(group=group), list[Turn](), ""
    calls = False
    first = lines[0][1]
    if (system := _text(source, lines[0], "system", optional=True)) is not None:
        conversation.add([{"role": "system", "content": system}])
    for number, (line, record) in enumerate(lines, 1):
        if record["turn"] != number:
            defect = f"turn {number} is missing before turn {record['turn']}"
            if record["turn"] < number:
                defect = f"turn {record['turn']} occurs twice"
            raise source.wrong(line, "turn", defect)
        role = _role(source, line, record, previous_role, calls=calls)
        messages = _messages(source, (line, record), role)
        if role == "assistant":
            calls = "tool_calls" in messages[0]
            turns[-1].answer = messages[0]["content"]
        else:
            begun = turns[-1].end if turns else 0
            end = len(conversation.messages) + len(messages)
            settings = _settings(source, (line, record), first)
            turns.append(Turn(conversation=conversation, begun=begun, end=end, **settings))
        conversation.add(messages)
        previous_role = role
    return turns


def _settings(source: SampleFile, line: Line, first: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn's tools, delay and answer length; `first` supplies missing tools and length."""
    number, record = line
    tools = record.get("tools") or first.get("tools") or None
    if tools is not None and not _are_objects(tools):
        raise source.wrong(number, "tools", "it is not a list of objects")
    delay_s = record.get("delay_seconds") or 0.0
    if type(delay_s) not in (int, float) or not 0 <= delay_s <= MAX_DELAY_SECONDS:
        defect = f"{repr(delay_s)[:40]} is not a time from 0 to {MAX_DELAY_SECONDS:g} s"
        raise source.wrong(number, "delay_seconds", defect)
    length = _length(source, line, first)
    return {"tools": tools, "delay_s": float(delay_s), "output_tokens": length}


def _length(source: SampleFile, line: Line, first: Mapping[str, Any]) -> int | None:
    for record in (line[1], first):
        for column in ("max_new_tokens", "max_completion_tokens"):
            if (length := record.get(column)) is not None:
                return source.length(line[0], column, length)
    return None


def _id(source: SampleFile, line: Line) -> str:
    group = line[1].get("conversation_id")
    if type(group) is int or (isinstance(group, str) and group):
        return str(group)
    defect = "it is missing" if group is None else f"{repr(group)[:40]} is not an id"
    raise source.wrong(line[0], "conversation_id", f"{defect}; every turn needs an id, as text")


def _number(source: SampleFile, line: Line) -> int:
    number = line[1].get("turn")
    if type(number) is not int or number < 1:
        defect = "it is missing" if number is None else f"{repr(number)[:40]} is not a turn number"
        raise source.wrong(line[0], "turn", f"{defect}; turns are numbered from 1")
    return number


def _role(
    source: SampleFile, line: int, record: Mapping[str, Any], previous_role: str, *, calls: bool
) -> str:
    role, roles = record.get("role"), [name for name in NEXT if name]
    if not isinstance(role, str) or role not in roles:
        defect = f"{repr(role)[:40]} is not one of {', '.join(roles)}"
        raise source.wrong(line, "role", defect)
    if role not in NEXT[previous_role]:
        after = f"after {previous_role}" if previous_role else "at the beginning"
        expected = " or ".join(NEXT[previous_role])
        defect = f"{role} comes {after}, but {expected} is expected"
        raise source.wrong(line, "role", defect)
    if previous_role == "assistant" and calls != (role == "tool"):
        defect = "this turn has tool results, but the assistant's turn before it calls no tool"
        if calls:
            defect = f"role = {role!r}, but the assistant's turn before it calls tools: add a turn "
            defect += 'with role = "tool" and tool_results between them'
        raise source.wrong(line, "role", defect)
    return role


def _messages(source: SampleFile, line: Line, role: str) -> list[dict[str, Any]]:
    number, record = line
    if role == "tool":
        results = record.get("tool_results")
        if not results or not _are_objects(results):
            raise source.wrong(number, "tool_results", "it must be a list of one or more results")
        pairs = [(each.get("tool_call_id"), each.get("content")) for each in results]
        if not all(isinstance(call, str) and isinstance(text, str) for call, text in pairs):
            defect = "each result needs tool_call_id and content, both as text"
            raise source.wrong(number, "tool_results", defect)
        return [{"role": role, "tool_call_id": call, "content": text} for call, text in pairs]
    message: dict[str, Any] = {"role": role}
    for column in ("name", "reasoning_content"):
        if (text := _text(source, line, column, optional=True)) is not None:
            message[column] = text
    calls = record.get("tool_calls") if role == "assistant" else None
    if calls is not None:
        if not calls or not _are_objects(calls) or not all(map(_is_call, calls)):
            defect = (
                'it must be a list of calls, each with an id, the type "function", and a function '
                "with name and arguments"
            )
            raise source.wrong(number, "tool_calls", defect)
        message["tool_calls"] = calls
    message["content"] = _text(source, line, "content", optional=calls is not None)
    return [message]


def _is_call(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    return (
        isinstance(call.get("id"), str)
        and call.get("type") == "function"
        and isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str | dict)
    )


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _text(source: SampleFile, line: Line, column: str, *, optional: bool) -> str | None:
    text = line[1].get(column)
    if text is None and optional:
        return None
    if not isinstance(text, str) or (not text and not optional):
        defect = "it is missing or empty" if not text else f"{repr(text)[:40]} is not text"
        raise source.wrong(line[0], column, defect)
    return text
