"""Which replica gets which samples, without a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.run.child.protocol import ReplicaSpec
from pytest_mlperf.run.worker import _pipe as wire
from pytest_mlperf.run.worker._dispatch import REPLICA_PARTS, Dispatcher
from pytest_mlperf.run.worker._replica_group import ReplicaProcess
from pytest_mlperf.run.worker._sink import CountingSink
from tests.run.test_sink import give_up


class Sent:
    """Three replicas, and the ids that each was sent."""

    def __init__(self, scenario: str) -> None:
        self.replicas = [
            ReplicaProcess(
                spec=ReplicaSpec(name=f"replica {n}"),
                process=cast("Any", None),
                pipe=cast("Any", None),
                log=Path("none.log"),
            )
            for n in range(3)
        ]
        self.ids: list[list[list[int]]] = [[], [], []]
        self.messages: list[wire.Message] = []
        self.dispatcher = Dispatcher(self.replicas, self._send, Scenario(scenario))
        self.sink = CountingSink(give_up)
        self.dispatcher.use(self.sink)

    def _send(self, replica: ReplicaProcess, messages: Sequence[wire.Message]) -> None:
        for message in messages:
            self.messages.append(message)
            number, ids = message[1], message[2]
            listed = replica.lists._lists[number] if isinstance(ids, int) else wire.unpacked(ids)
            position = next(n for n, other in enumerate(self.replicas) if other is replica)
            self.ids[position].append(list(listed))

    def submit(self, ids: list[int], indices: list[int]) -> None:
        self.sink.expect(ids)
        self.dispatcher.submit(ids, indices)


def test_a_query_goes_to_the_replica_with_the_least_open_work() -> None:
    sent = Sent("Server")
    for sample in (1, 2, 3):
        sent.dispatcher._submit_gathered([(sample, 0)])
    assert sent.ids == [[[1]], [[2]], [[3]]]

    sent.dispatcher.completed(sent.replicas[1], wire.packed([2]))
    sent.dispatcher._submit_gathered([(4, 0)])

    assert sent.ids[1] == [[2], [4]]
    assert [replica.tally.open for replica in sent.replicas] == [1, 1, 1]


def test_queries_of_a_stream_stay_whole_on_one_replica() -> None:
    sent = Sent("MultiStream")
    sent.submit([1, 2], [5, 6])
    sent.dispatcher.completed(sent.replicas[0], wire.packed([1, 2]))
    sent.submit([3, 4], [7, 8])

    assert sent.ids == [[[1, 2], [3, 4]], [], []]


def test_gathered_queries_stay_together_only_where_answers_are_short() -> None:
    sent = Sent("Server")
    sent.dispatcher._submit_gathered([(1, 0), (2, 0), (3, 0)])
    assert sent.ids == [[[1]], [[2]], [[3]]]

    for replica in sent.replicas:
        replica.answer_s = 1e-4
    sent.dispatcher._submit_gathered([(4, 0), (5, 0)])

    assert [group for groups in sent.ids for group in groups if len(group) > 1] == [[4, 5]]


def test_a_list_is_handed_out_in_parts_the_largest_samples_first() -> None:
    sent = Sent("Offline")
    samples = 24
    sent.dispatcher.costs = {index: float(index) for index in range(samples)}
    ids = list(range(100, 100 + samples))
    sent.submit(ids, list(range(samples)))

    part = samples // (REPLICA_PARTS * 3)
    first = [group for groups in zip(*sent.ids, strict=True) for group in groups]
    assert [len(group) for group in first] == [part] * 6
    assert [sample for group in first for sample in group] == ids[: -len(first) * part - 1 : -1]
    for replica, groups in zip(sent.replicas, sent.ids, strict=True):
        for group in groups:  # it grows: what is completed makes room for the next part
            sent.dispatcher.completed(replica, wire.packed(group))
    handed_out = [sample for message in sent.messages for sample in wire.unpacked(message[2])]
    assert sorted(handed_out) == ids


def test_messages_name_conversations_where_the_sink_has_any() -> None:
    sent = Sent("Server")
    sent.dispatcher.session_of = {1: "talk", 2: ""}.__getitem__
    sent.dispatcher._submit_gathered([(1, 0)])
    sent.dispatcher._submit_gathered([(2, 0)])

    assert [message[5] for message in sent.messages] == [{1: "talk"}, {}]
