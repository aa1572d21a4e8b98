"""Test conversations in flight: the next turn and its time, the records, and validity."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.core.reason import Key
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.curve import curve_figures, curve_validity, read_curve
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations, NextRequest, Slots, conversations
from pytest_mlperf.run.worker.point_window import CURVE_LOG, REQUEST_COLUMNS
from tests.adapters.engines.recording import Samples
from tests.run.harness import FEWER
from tests.run.sentences import notes_of
from tests.run.test_curve import Answers, asked_for, log_of, point, refuse


class Recorded(Samples):
    def __init__(self, pauses_s: Sequence[Any]) -> None:
        super().__init__(["x"] * len(pauses_s))
        self._pauses_s = pauses_s

    def pause_s(self, index: int) -> Any:
        return self._pauses_s[index]


PAUSES_S = [None, 0.0, 0.005, None, None, 0.002]
"""Conversations of three turns, of one, and of two."""


class Seen(Answers):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.turns_by_session: dict[str, list[int]] = defaultdict(list)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        assert isinstance(sink, SlotSink)
        self.turns_by_session[sink.session(ids[0])] += indices
        super().submit(ids, indices, sink)


def run(
    engine: Answers, points: Sequence[int], pauses_s: Sequence[Any] = PAUSES_S, *, ms: int = 150
) -> tuple[dict[str, Any], SlotSink]:
    sink = SlotSink(refuse, tokens=bool(engine.tokens), records=True)
    loaded = conversations(Recorded(pauses_s), range(0))
    log = ClosedLoop(engine, sink, loaded, asked_for(points, ms=ms)).run("run", 0.004, lambda: None)
    assert sink.outstanding == sink.under_way == 0
    assert sink.faults.count == 0
    return log, sink


def test_turns_follow_each_other_to_the_end_of_their_conversation() -> None:
    """A session is of one conversation under way in one run."""
    engine = Seen()
    run(engine, [3])
    assert engine.most == 3
    assert "" not in engine.turns_by_session
    assert len(engine.turns_by_session) > 6
    whole = [[0, 1, 2], [3], [4, 5]]
    for slot, turns in enumerate(engine.turns_by_session.values()):
        (recorded,) = (one for one in whole if turns[0] in one)
        if slot >= 3:  # the first of each slot begin anywhere
            assert turns[0] == recorded[0]
        begin = recorded.index(turns[0])
        assert turns == recorded[begin : begin + len(turns)]
    ended = [turns for turns in engine.turns_by_session.values() if turns[-1] in (2, 3, 5)]
    assert len(ended) >= len(engine.turns_by_session) - 3, (
        "at most one of each slot is broken off at the end"
    )

    first, other = Seen(), Seen()
    run(first, [1])
    run(other, [1])
    assert first.turns_by_session.keys().isdisjoint(other.turns_by_session)
    both = min(len(first.seen), len(other.seen))
    assert first.seen[:both] == other.seen[:both], "what is asked is the same"


def test_a_turn_is_asked_when_its_pause_is_over_and_pauses_hold_a_slot(tmp_path: Path) -> None:
    """The recorded pause lies between an answer and the next turn, on one clock."""
    pause_s = 0.02
    _, sink = run(Answers(), [2], [None, pause_s, pause_s, pause_s], ms=200)
    ends: dict[tuple[int, int], float] = {}
    assert sink.records
    for record in sink.records:
        record_fields = dict(zip(REQUEST_COLUMNS, record, strict=True))
        if (
            end_of_last_turn := ends.get((record_fields["conversation"], record_fields["turn"] - 1))
        ) is not None:
            assert record_fields["issued_s"] >= end_of_last_turn + pause_s
        ends[record_fields["conversation"], record_fields["turn"]] = record_fields["last_token_s"]
    assert len(ends) == len(sink.records)

    log, _ = run(Answers(), [3], [None, 0.02, 0.02, 0.02, 0.02], ms=300)
    (window,) = log["points"]
    assert window["paused"] > 0
    assert window["under_way"] + window["paused"] <= 3 * 1.001
    (tmp_path / CURVE_LOG).write_text(json.dumps(log))
    assert read_curve(tmp_path / CURVE_LOG).points[0].paused == window["paused"]


def test_turns_are_distinguished_and_late_ones_grouped(tmp_path: Path) -> None:
    log, sink = run(Answers(tokens=3), [2], ms=200)
    (window,) = log["points"]
    assert [row[0] for row in window["turns"]] == [1, 2, 3]
    assert sum(row[1] for row in window["turns"]) == window["requests"] == len(sink.records or ())
    took_s = sum(
        row[REQUEST_COLUMNS.index("last_token_s")] - row[REQUEST_COLUMNS.index("issued_s")]
        for row in sink.records or ()
    )
    expected = window["tokens"] / took_s
    assert window["metrics"]["e2e_tps_per_user"] == pytest.approx(expected, rel=1e-6)
    assert all(0 < ttft_s <= latency_s for _, _, latency_s, ttft_s in window["turns"])
    (tmp_path / CURVE_LOG).write_text(json.dumps(log))
    notes = notes_of(curve_figures(read_curve(tmp_path / CURVE_LOG), "cpu"))
    assert any(note.startswith("at 2: median TTFT ") for note in notes)

    log, _ = run(Answers(takes_s=0.0005), [4], [None, *[0.0] * 39], ms=200)
    turns = [row[0] for row in log["points"][0]["turns"]]
    assert turns == sorted(set(turns))
    assert turns[-1] == 20


def test_a_client_that_does_not_keep_up_is_no_pause() -> None:
    held = point(4, under_way=1.0, paused=2.99, turns=[(1, 50, 0.4, 0.1), (2, 50, 0.2, 0.05)])
    lost = replace(held, paused=2.5)

    assert not curve_validity(log_of(held)).invalid
    (reason,) = curve_validity(log_of(lost)).invalid
    assert reason.key is Key.CONCURRENCY_NOT_HELD
    assert sentence(reason.text) == (
        "at 4: 1 of 4 conversations had a request in flight on average; 2.5 waited for "
        "their next turn: the engine limits its concurrency, or the client could not keep up"
    )


def test_a_note_compares_first_turns_with_later_ones() -> None:
    for turns, expected in (
        (
            [(1, 9, 0.4, 0.1), (2, 9, 0.2, 0.05), (5, 3, 0.3, 0.02)],
            "TTFT 100 ms of first turns, 20",
        ),
        (
            [(1, 9, 0.4, 0.0), (20, 9, 0.2, 0.0)],
            "latency 400 ms of first turns, 200 to 200 ms of turns 2 to 20 and later",
        ),
    ):
        (note,) = notes_of(curve_figures(log_of(point(4, turns=turns)), "cpu"))
        assert note.startswith(f"at 4: median {expected}")
    assert not notes_of(curve_figures(log_of(point(4, turns=[(1, 9, 0.4, 0.1)])), "cpu"))

    parts = [(10, 100, 0.4)] * 9 + [(0, 0, 0.0)]
    assert notes_of(curve_figures(log_of(point(4, parts=parts)), "cpu"))
    assert not notes_of(curve_figures(log_of(point(4, parts=parts, paused=1.0)), "cpu"))


def test_turns_count_from_their_conversations_begin() -> None:
    """All turns are asked, however few samples a run holds."""
    loaded = conversations(Recorded(PAUSES_S), range(2))
    assert [loaded.turn(index) for index in loaded.indices] == [1, 2, 3, 1, 1, 2]
    assert loaded.begins == [0, 3, 4]
    assert Conversations(range(6)).turn(3) is None
    assert conversations(Samples(["x"] * 6), range(2)).indices == range(2)

    for pauses_s, expected in (
        ([0.0], "sample 0 is 0.0; it must be None, because no sample comes before it"),
        ([None, -1.0], "sample 1 is -1.0; it must be seconds or None"),
        ([None, float("nan")], "sample 1 is nan"),
        ([None, "1"], "sample 1 is '1'"),
    ):
        with pytest.raises(RunError, match=f"pause_s of {expected}"):
            conversations(Recorded(pauses_s), range(0))


@FEWER
@given(st.lists(st.sampled_from([None, 0.0, 1.0]), max_size=30), st.integers(0, 9))
def test_slots_ask_whole_conversations(pauses_s: list[float | None], seed: int) -> None:
    """Whatever is recorded; a pause is always that of the turn that comes next."""
    everything = [None, *pauses_s]
    loaded = Conversations(range(len(everything)), everything)
    slots = Slots(loaded, random.Random(seed), 0)
    last_turn = slots.next(0)
    for step in range(60):
        pause_s = slots.pause(0, float(step))
        if pause_s:
            assert slots.due_s == step + pause_s
            assert slots.pop() == 0
        turn = slots.next(0)
        if turn.conversation == last_turn.conversation:
            assert turn.index == last_turn.index + 1
            assert everything[turn.index] == pause_s
        else:
            assert turn.turn == 1
            assert pause_s == 0
        last_turn = turn


def test_slots_are_due_in_the_order_of_their_pauses_and_only_turns_have_a_session() -> None:
    loaded = Conversations(range(4), [None, 3.0, None, 1.0])
    slots = Slots(loaded, random.Random(1), 0)
    first = {}
    for slot in range(8):
        first[slot] = slots.next(slot)
        slots.pause(slot, 10.0)
    due = [slots.pop() for _ in range(slots.waiting)]
    assert due == sorted(due, key=lambda slot: (loaded.pause_s(first[slot].index), slot))
    assert {first[slot].index for slot in due} == {0, 2}
    assert slots.waiting == 0

    from pytest_mlperf.run.worker._handicap import SlowSink

    sink = SlotSink(refuse, tokens=False)
    sink.expect_request(1, NextRequest(5), 0)
    sink.expect_request(3, NextRequest(5, 7, 1), 0)
    assert sink.session(1) == sink.session(2) == ""
    assert SlowSink(sink, 0.1).session(3) == sink.session(3) != ""
