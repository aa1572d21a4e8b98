"""Test recorded conversations: the prompt of each turn, and refused files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.conversations import ConversationsDataset
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError
from pytest_mlperf.testing import check_dataset
from tests.adapters.datasets.refusals import not_refused

CALL = {
    "id": "functions.bash:0",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"cmd": "ls"}'},
}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]


def turn(conversation: str, number: int, role: str, content: Any = None, **more: Any) -> Any:
    text = {} if content is None else {"content": content}
    return {"conversation_id": conversation, "turn": number, "role": role, **text, **more}


AGENT = [
    turn("a\x1b[31m", 1, "user", "List the files.", system="You are terse.", tools=TOOLS),
    turn("a\x1b[31m", 2, "assistant", reasoning_content="Use bash.", tool_calls=[CALL]),
    turn(
        "a\x1b[31m",
        3,
        "tool",
        tool_results=[
            {"tool_call_id": "functions.bash:0", "content": "a.txt"},
            {"tool_call_id": "functions.bash:1", "content": ""},
        ],
        delay_seconds=1.5,
    ),
    turn("a\x1b[31m", 4, "assistant", "There is a.txt."),
]
"""As MLCommons' converter writes an agent's conversation."""

CHAT = [
    turn("b", 1, "user", "Hello — ü😀"),
    turn("b", 2, "assistant", "Hi."),
    turn("b", 3, "user", "And now?", delay_seconds=0),
    turn("b", 4, "assistant", "Bye."),
    turn("b", 5, "user", "Are you there?"),
]


def written(folder: Path, lines: Sequence[Any]) -> str:
    path = folder / "turns.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return written(tmp_path, [{"_type": "dataset_metadata", "version": 1}, *AGENT, *CHAT])


def test_a_sample_is_a_turn_that_asks_with_all_that_was_recorded_before(path: str) -> None:
    dataset = ConversationsDataset(path=path)

    assert len(dataset) == 5
    assert dataset.input(1) == {
        "messages": [
            {"role": "system", "content": "You are terse."},
            {"role": "user", "content": "List the files."},
            {
                "role": "assistant",
                "reasoning_content": "Use bash.",
                "tool_calls": [CALL],
                "content": None,
            },
            {"role": "tool", "tool_call_id": "functions.bash:0", "content": "a.txt"},
            {"role": "tool", "tool_call_id": "functions.bash:1", "content": ""},
        ],
        "tools": TOOLS,
    }
    assert dataset.input(2) == {"messages": [{"role": "user", "content": "Hello — ü😀"}]}
    roles = [message["role"] for message in dataset.input(4)["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_turns_of_a_conversation_follow_each_other_after_their_delays(
    path: str, tmp_path: Path
) -> None:
    """They may lie in any order inside their conversation; count is of conversations."""
    dataset = ConversationsDataset(path=path)

    assert [dataset.pause_s(index) for index in range(5)] == [None, 1.5, None, 0, 0]
    assert [dataset.group(index) for index in range(5)] == ["a\x1b[31m"] * 2 + ["b"] * 3
    hurried = ConversationsDataset(path=path, delays=False)
    assert hurried.pause_s(1) == 0
    assert hurried.digest != dataset.digest
    assert len(ConversationsDataset(path=path, count=1)) == 2
    with pytest.raises(SuiteError, match="count = 3, but there are 2 conversations"):
        ConversationsDataset(path=path, count=3)
    other = written(tmp_path, [*reversed(AGENT), *reversed(CHAT)])
    assert ConversationsDataset(path=other).digest == dataset.digest


def test_the_recorded_answer_is_what_answers_are_compared_with(path: str, tmp_path: Path) -> None:
    """The first turn says how long answers are unless others do."""
    dataset = ConversationsDataset(path=path)
    assert [dataset.reference(index) for index in (1, 2, 3)] == ["There is a.txt.", "Hi.", "Bye."]
    rows = [(index, f"sample {index} has no recorded answer in text") for index in (0, 4)]
    assert not_refused(RunError, rows, dataset.reference) == [], "a call of a tool, and no answer"
    lines = [{**CHAT[0], "max_new_tokens": 64}, *CHAT[1:4], {**CHAT[4], "max_new_tokens": 8}]
    dataset = ConversationsDataset(path=written(tmp_path, lines))
    assert [dataset.output_tokens(index) for index in range(3)] == [64, 64, 8]


def test_the_shared_prefix_is_the_earlier_turns(tmp_path: Path) -> None:
    """By their bytes: nothing of a first turn, most of a late one."""
    text = "x" * 1000
    lines = [
        turn("a", number, "user" if number % 2 else "assistant", text) for number in range(1, 6)
    ]
    dataset = ConversationsDataset(path=written(tmp_path, lines))

    assert dataset.sizes([0]) == {"prefix_share": 0}
    # Prompts of 1, 3 and 5 messages; of the last two, 1 and 3 were asked before.
    assert dataset.sizes(range(3))["prefix_share"] == pytest.approx(4 / 9, rel=0.01)


def test_every_part_of_a_turn_counts_in_the_digest(path: str, tmp_path: Path) -> None:
    changes: Sequence[dict[str, Any]] = [
        {"content": "Hello"},
        {"tools": TOOLS},
        {"system": "x"},
        {"name": "x"},
    ]
    digests = {ConversationsDataset(path=path).digest}
    for change in changes:
        lines = [*AGENT, {**CHAT[0], **change}, *CHAT[1:]]
        digests.add(ConversationsDataset(path=written(tmp_path, lines)).digest)
    for number, change in ((1, {"content": "Ho."}), (4, {"delay_seconds": 3})):
        changed = [{**line, **change} if n == number else line for n, line in enumerate(CHAT)]
        digests.add(ConversationsDataset(path=written(tmp_path, [*AGENT, *changed])).digest)

    assert len(digests) == 7


def changed(index: int, **change: Any) -> list[Any]:
    """Return a conversation with something else in one line; ... leaves a key out."""
    lines = [dict(line) for line in CHAT]
    lines[index] = {k: v for k, v in {**lines[index], **change}.items() if v is not ...}
    return lines


def agent(index: int, **change: Any) -> list[Any]:
    """Return the beginning of an agent's conversation, something else in its last line."""
    return [*AGENT[:index], {**AGENT[index], **change}]


HOSTILE = "\x1b[2J\n" * 9
BAD: list[tuple[list[Any], int, str, str]] = [
    (CHAT[:1] + CHAT[2:], 2, "turn", "turn 2 is missing before turn 3"),
    (CHAT[1:], 1, "turn", "turn 1 is missing before turn 2"),
    (CHAT[:2] + CHAT[1:], 3, "turn", "turn 2 occurs twice"),
    (changed(1, turn=...), 2, "turn", "it is missing; turns are numbered from 1"),
    (changed(1, turn=0), 2, "turn", "0 is not a turn number"),
    (changed(0, turn=True), 1, "turn", "True is not a turn number"),
    (changed(1, role="asistant"), 2, "role", "'asistant' is not one of user, assistant, tool"),
    (changed(0, role="system"), 1, "role", "'system' is not one of user, assistant, tool"),
    (changed(1, role=HOSTILE), 2, "role", r"'\x1b[2J\n\x1b[2J\n"),
    (changed(1, role=["user"]), 2, "role", "['user'] is not one of user, assistant, tool"),
    ([turn("b", 1, "assistant", "Hi.")], 1, "role", "assistant comes at the beginning, but user"),
    (changed(1, role="user"), 2, "role", "user comes after user, but assistant is expected"),
    (
        changed(2, role="tool", tool_results=[{"tool_call_id": "x", "content": ""}]),
        *(3, "role", "this turn has tool results, but the assistant"),
    ),
    (
        changed(1, tool_calls=[CALL]),
        3,
        "role",
        "role = 'user', but the assistant's turn before it calls tools",
    ),
    (
        changed(2, conversation_id=...),
        3,
        "conversation_id",
        "it is missing; every turn needs an id",
    ),
    (changed(2, conversation_id=""), 3, "conversation_id", "'' is not an id"),
    (
        [*CHAT[:2], *AGENT, *CHAT[2:]],
        7,
        "conversation_id",
        "'b' began on earlier lines; put its turns on consecutive lines",
    ),
    ([{"messages": []}], 1, "conversation_id", "it is missing"),
    (changed(2, content=...), 3, "content", "it is missing or empty"),
    (changed(1, content=""), 2, "content", "it is missing or empty"),
    (changed(0, content=[{"type": "text"}]), 1, "content", "[{'type': 'text'}] is no"),
    (changed(0, system=3), 1, "system", "3 is not text"),
    (agent(2, tool_results=[]), 3, "tool_results", "it must be a list of one or more results"),
    (
        agent(2, tool_results=[{"content": "x"}]),
        *(3, "tool_results", "each result needs tool_call_id and content, both as text"),
    ),
    (agent(1, tool_calls=[]), 2, "tool_calls", "it must be a list of calls"),
    (
        agent(1, tool_calls=[{"id": "x", "type": "function"}]),
        *(2, "tool_calls", 'it must be a list of calls, each with an id, the type "function"'),
    ),
    (changed(0, tools="bash"), 1, "tools", "it is not a list of objects"),
    (changed(2, delay_seconds=-1), 3, "delay_seconds", "-1 is not a time from 0 to 600 s"),
    (changed(2, delay_seconds=1e400), 3, "delay_seconds", "inf is not a time from 0 to 600 s"),
    (changed(2, delay_seconds="3"), 3, "delay_seconds", "'3' is not a time from 0 to 600 s"),
    (changed(0, max_new_tokens=0), 1, "max_new_tokens", "0 is not a number of"),
]


def test_a_line_of_no_conversation_is_named(tmp_path: Path) -> None:
    for lines, line, column, message in BAD:
        expected = re.escape(f"line {line}, column '{column}': {message}")
        with pytest.raises(MlperfError, match=expected) as caught:
            ConversationsDataset(path=written(tmp_path, lines))
        assert str(caught.value).isprintable()


def test_a_file_that_is_cut_or_empty_or_has_some_lengths_is_refused(tmp_path: Path) -> None:
    lines = [{**AGENT[0], "max_new_tokens": 9}, *AGENT[1:], *CHAT]
    rows: list[tuple[list[Any], int | None, str]] = [
        (lines, None, "max_new_tokens is missing in 3 of 5 turns that ask for an answer; set"),
        ([], None, "the file has no lines"),
        (CHAT, -9, "line 5: it is not JSON"),
    ]

    def read(lines: list[Any], end: int | None) -> None:
        path = Path(written(tmp_path, lines))
        path.write_text(path.read_text("utf-8")[:end], "utf-8")
        ConversationsDataset(path=str(path))

    assert not_refused(MlperfError, rows, read) == []


def test_a_wrong_option_is_named(path: str) -> None:
    rows: list[Any] = [
        ({"count": 0}, "data set conversations: count = 0 is not a number of conversations"),
        ({"delays": "no"}, "data set conversations: delays = 'no' is not true or false"),
    ]
    start = "data set conversations: "

    def read(options: dict[str, Any]) -> None:
        ConversationsDataset(path=path, **options)

    assert not_refused(SuiteError, rows, read, start=start) == []


@pytest.mark.process
def test_it_keeps_the_contract_of_data_sets(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT[:4])

    assert len(check_dataset(ConversationsDataset, options={"path": path})) == 2
