"""What arrives on a pipe of events is an event with right fields, or one error that shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pytest_mlperf.core import numbers as ranges
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.reason import SignKey
from pytest_mlperf.run.child import events
from pytest_mlperf.run.child.events import (
    NEXT_EVENTS,
    OF_WORKER,
    Check,
    ChildEvents,
    NoEventError,
    event_of,
    is_count,
    is_duration,
    is_number,
    is_rate,
)
from tests.run.harness import FEWER, result_of

RESULT = result_of(
    token_metrics={"tokens_per_sample": 3.5},
    notes={SignKey.IN_ONE_PIECE: "a"},
    client={"loop_p99": 0.001},
)
EXAMPLES: dict[str, dict[str, Any]] = {
    "python": {
        "prefix": "/p",
        "executable": "/p/bin/python",
        "version": "3.12.1",
        "versions": {"numpy": "2.1"},
        "system": None,
    },
    "started": {"pid": 77},
    "loading": {},
    "loaded": {
        "engine": {"version": "1"},
        "dataset": {
            "digest": "ab",
            "samples": 5,
            "sizes": {"tokens": 4.5},
            "fixed_lengths": False,
            "inputs": {"inputs.first": "ab"},
            "input_s": 0.5,
        },
        "files": ["/home/x/data.py"],
        "load_s": 1,
        "pages": ["http://127.0.0.1:8000/metrics"],
    },
    "warmed": {"warmup_s": 0.5, "takes_s": None},
    "probed": {"target_qps": 10.5},
    "running": {"phase": "performance", "expected": 5, "settings": {"target_qps": 5.0}},
    "progress": {"phase": "probe", "done": 4, "outstanding": 1, "fault": None, "elapsed_s": 0.5},
    "finished": {"phase": "accuracy", "folder": "/runs/1", "result": RESULT},
    "ready": {},
    "leaving": {},
    "error": {
        "layer": "x",
        "kind": "E",
        "message": "m",
        "designed": False,
        "log": None,
        "traceback": "",
    },
}


def line_of(name: str, **changes: Any) -> bytes:
    return json.dumps({"event": name, **EXAMPLES[name], **changes}).encode()


class Pipe:
    """A pipe whose writing end a test holds."""

    def __init__(self, follows: Mapping[str, Collection[str]] | None = None) -> None:
        self.ours, self.theirs = os.pipe()
        os.set_blocking(self.theirs, False)
        self.ended = False
        self.events = ChildEvents(
            self.ours,
            OF_WORKER,
            layer="worker",
            whose="engine",
            log="/a.log",
            ended=lambda: self.ended,
            follows=follows,
        )

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)

    def write(self, data: bytes) -> None:
        assert os.write(self.theirs, data) == len(data)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with closing(Pipe()) as event_pipe:
        yield event_pipe


def test_an_event_has_its_fields_and_no_other_of_their_types() -> None:
    assert EXAMPLES.keys() == OF_WORKER.keys()
    for name, fields in EXAMPLES.items():
        assert event_of(line_of(name), OF_WORKER) == {"event": name, **fields}
        for field in fields:
            raw = json.loads(line_of(name))
            del raw[field]
            with pytest.raises(NoEventError, match=f"an event with wrong fields: {field}"):
                event_of(json.dumps(raw).encode(), OF_WORKER)
        with pytest.raises(NoEventError, match="wrong fields: more"):
            event_of(line_of(name, more=1), OF_WORKER)

    few: dict[tuple[str, str], int] = {}
    for name, fields in EXAMPLES.items():
        for field in fields:
            refused = 0
            for wrong in WRONG:
                try:
                    event_of(line_of(name, **{field: wrong}), OF_WORKER)
                except NoEventError as error:
                    refused += str(error) == f"an event with a wrong value of {field}"
            if refused < len(WRONG) - 3:
                few[name, field] = refused
    assert few == {}


WRONG: list[Any] = [None, -1, [], [5], {"a": []}, 2**70, float("inf"), True, "text", 0.5]


def test_an_invalid_event_line_is_refused_with_its_reason() -> None:
    lines = [
        *(
            (line, "not an object that names an event")
            for line in (b"[]", b"5", b"null", b'"loaded"')
        ),
        *((line, "not an object that names an event") for line in (b"{}", b'{"event": []}')),
        (b'{"event": "dance"}', "an unknown event"),
        *((line, "no JSON") for line in (b"", b"Loading weights:  50%", b"\xff\xfe", b"9" * 5_000)),
        *((line, "no JSON") for line in (b"[" * 60_000, b'{"a":' * 60_000)),
        (b'{"event": "loaded"}', "wrong fields: dataset, engine, files, load_s, pages"),
        (b'{"event": "ready", "event": "ready"}', "JSON with a duplicate key"),
        (b'{"event": "warmed", "takes_s": null, "warmup_s": NaN}', "JSON with NaN"),
        (b'{"event": "warmed", "takes_s": null, "warmup_s": -Infinity}', "JSON with -Infinity"),
        (b'{"event": "warmed", "takes_s": null, "warmup_s": 1e999}', "wrong value of warmup_s"),
        (
            b'{"event": "warmed", "takes_s": null, "warmup_s": 1' + b"0" * 400 + b"}",
            "wrong value of warmup_s",
        ),
        (b'{"event": "warmed", "takes_s": null, "warmup_s": true}', "wrong value of warmup_s"),
    ]
    for line, message in lines:
        with pytest.raises(NoEventError, match=message):
            event_of(line, OF_WORKER)
        with closing(Pipe()) as pipe:
            pipe.write(line[:60_000] + b"\n")
            with pytest.raises(RunError) as raised:
                pipe.events.next(0)
        assert (raised.value.layer, raised.value.log) == ("worker", "/a.log")
        text = str(raised.value)
        assert text.startswith("the engine or a library wrote to the pipe that is reserved")
        assert len(text) < 600
        assert text.isascii() or "…" in text


@FEWER
@given(line=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_no_line_is_another_error(line: bytes) -> None:
    with pytest.raises(NoEventError):
        event_of(line, OF_WORKER)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@FEWER
@given(name=st.sampled_from(sorted(EXAMPLES)), data=st.data())
def test_no_field_is_another_error(name: str, data: st.DataObject) -> None:
    fields = data.draw(st.fixed_dictionaries(dict.fromkeys(EXAMPLES[name], json_values)))
    try:
        event = event_of(line_of(name, **fields), OF_WORKER)
    except NoEventError:
        return
    assert event["event"] == name


def test_events_come_in_order_and_one_out_of_turn_is_refused() -> None:
    """So no phase begins again and again."""
    order = ["python", "started", "loading", "progress", "loaded", "warmed", "progress", "probed"]
    order += ["running", "progress", "finished", "ready", "running", "finished", "ready"]
    pipe = Pipe(follows=NEXT_EVENTS)
    for name in [*order, "leaving", "error"]:
        pipe.write(line_of(name) + b"\n")
        assert pipe.events.next(0) is not None

    for names, message in (
        (
            ["ready"],
            (
                'pipe that is reserved for pytest-mlperf: b\'\\{"event": "ready"\\}\' '
                "\\('ready' is not expected as the first one\\);"
            ),
        ),
        (["started", "loading", "loading"], "'loading' is not expected after 'loading'"),
        (["started", "finished"], "'finished' is not expected after 'started'"),
        (["started", "loading", "loaded", "ready", "ready"], "not expected after 'ready'"),
    ):
        with closing(Pipe(follows=NEXT_EVENTS)) as pipe:
            for name in names[:-1]:
                pipe.write(line_of(name) + b"\n")
                assert pipe.events.next(0) is not None
            pipe.write(line_of(names[-1]) + b"\n")
            with pytest.raises(RunError, match=message):
                pipe.events.next(0)


def test_lines_are_put_together_and_taken_apart_and_a_closed_pipe_is_the_end(pipe: Pipe) -> None:
    whole = line_of("loaded") + b"\n"
    pipe.write(whole[:9])
    assert pipe.events.next(0) is None
    pipe.write(whole[9:] + line_of("ready") + b"\n" + line_of("load" + "ing")[:3])
    names = [event["event"] for _ in range(2) if (event := pipe.events.next(0))]
    assert names == ["loaded", "ready"]
    assert pipe.events.next(0) is None

    ours, theirs = os.pipe()
    os.write(theirs, b'{"event": "rea')
    os.close(theirs)
    child_events = ChildEvents(
        ours, OF_WORKER, layer="worker", whose="engine", log="", ended=lambda: False
    )
    assert child_events.next(0) is None
    with pytest.raises(EOFError):
        child_events.next(0)
    os.close(ours)


def test_bytes_without_an_end_return_after_every_read_and_are_bounded(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who waits looks at its own limits in between, and memory does not fill."""
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 20_000)
    for _ in range(3):
        pipe.write(b"\x1bx" * 4_000)
        assert pipe.events.next(0) is None

    with pytest.raises(RunError, match=r"24,000 bytes without the end of a line") as raised:
        pipe.events.next(0)
    assert "\x1b" not in str(raised.value)
    assert r"b'\x1bx" in str(raised.value)
    with closing(Pipe()) as other:
        monkeypatch.setattr(events, "MAX_EVENT_BYTES", 100)
        other.write(line_of("error", message="x" * 200) + b"\n")
        with pytest.raises(RunError, match="bytes in one line"):
            other.events.next(0)


@pytest.mark.parametrize("parts", [1, 3])
def test_messages_sent_before_a_childs_end_are_read_although_the_pipe_stays_open(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """A process that it left behind may hold the pipe for hours."""
    sent = line_of("error", message="x" * 50) + b"\n" + line_of("ready") + b"\n"
    monkeypatch.setattr(events, "PIPE_READ_BYTES", -(-len(sent) // parts))
    pipe.write(sent)
    pipe.ended = True
    seen: list[Any] = []
    read: Callable[[], None] = lambda: seen.append(pipe.events.next(60))  # noqa: E731

    while len([event for event in seen if event]) < 2:
        read()

    assert [event["event"] for event in seen if event] == ["error", "ready"]
    with pytest.raises(EOFError):
        read()


ENDS = (0, 1e-320, 1e-30, 1e10, 1e30, 1e100, 1e101, 1e308, 2**53, 2**53 + 1, 10**400, -1)

KINDS: list[tuple[Check, Any]] = [
    (is_count, ranges.Count),
    (is_number, ranges.Number),
    (is_duration, ranges.Seconds),
    (is_duration, ranges.NotNegative),
    (is_rate, ranges.Positive),
]


@FEWER
@given(value=st.sampled_from(ENDS) | st.floats() | st.integers())
def test_a_number_that_an_event_may_have_is_in_its_range(value: float) -> None:
    for check, kind in KINDS:
        if check(value):
            assert TypeAdapter(kind).validate_python(value) == pytest.approx(value)
