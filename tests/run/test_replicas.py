"""Several processes that load an engine each, and one LoadGen before them."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.run.child.protocol import ReplicaSpec
from pytest_mlperf.run.worker._pipe import (
    DONE,
    FIRST,
    GATHER_SECONDS,
    LOADED,
    MIN_REMEMBERED_LENGTH,
    NEXT,
    Lists,
    Message,
    Pipe,
    merge_messages,
    numbered,
    packed,
    unpacked,
)
from pytest_mlperf.stores.artefacts import ARTEFACTS, ArtefactArchive
from tests.run.harness import FEWER, NULL, RunningWorker, settings, spec

ENGINES = "tests.run.engines_in_replicas:"
THREE = [ReplicaSpec(name=f"replica {number} (GPU {number + 4})") for number in range(3)]


def worker(folder: Path, how: str = "", **changes: Any) -> RunningWorker:
    """Return a worker whose engine has three replicas, of which the second one does `how`."""
    fails = {"engine": f"{ENGINES}OneFails", "options": {"how": how}}
    return RunningWorker(spec(folder, **{"replicas": THREE, **fails, **changes}))


def finished(running: RunningWorker) -> dict[str, Any]:
    with running:
        result: dict[str, Any] = running.wait_for("finished")["result"]
        running.wait_for("ready")
        running.send(command="stop")
        assert running.exit_code() == 0
    return result


@pytest.mark.process
@pytest.mark.parametrize(
    "scenario",
    [
        *("Offline", "SingleStream"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("Server", "MultiStream")),
    ],
)
def test_every_sample_is_completed_once_by_one_of_them(tmp_path: Path, scenario: str) -> None:
    case = settings(scenario, target_qps=1000.0)
    result = finished(worker(tmp_path, engine=f"{ENGINES}Counts", settings=case))

    logs = [(tmp_path / f"replica-{n}.log").read_text("utf-8").split() for n in range(3)]
    together = [sample for log in logs for sample in log]
    assert result["faults"] == []
    assert len(together) == len(set(together)) == result["issued"] == result["completed"]
    if scenario in ("Offline", "Server"):
        assert all(logs)
        assert max(map(len, logs)) < 2 * min(map(len, logs))
    else:  # one query at a time, whole, always to the same one
        assert logs[1:] == [[], []]


@pytest.mark.process
def test_accuracy_gets_the_outputs_and_artefacts_of_all(tmp_path: Path) -> None:
    case = settings("MultiStream", samples_per_query=7)
    with worker(tmp_path, performance=False, settings=case, handicap=0.01) as running:
        running.wait_for("ready")
        running.send(command="accuracy", block=0, indices=list(range(200)))
        event = running.wait_for("finished")
        running.send(command="stop")

    log = json.loads((Path(event["folder"]) / "mlperf_log_accuracy.json").read_text("utf-8"))
    answers = {row["qsl_idx"]: int.from_bytes(bytes.fromhex(row["data"]), "little") for row in log}
    assert answers == {index: index for index in range(200)}
    archive = ArtefactArchive(Path(event["folder"]) / ARTEFACTS)
    outputs = {index: archive.read(index) for index in sorted(archive.names)}
    assert outputs == {index: {"index": b"%d" % index} for index in range(200)}


@pytest.mark.process
def test_tokens_have_the_times_at_which_a_replica_saw_them(tmp_path: Path) -> None:
    """The way to LoadGen's process does not count in the time between two tokens."""
    limits = {"ttft_limit_ns": 10**9, "tpot_limit_ns": 10**9, "latency_limit_ns": None}

    result = finished(worker(tmp_path, settings=settings("Server", tokens=True, **limits)))

    assert result["faults"] == []
    assert result["token_metrics"]["tokens_per_sample"] == 2
    assert result["token_metrics"]["tpot_p50"] < 1e-4
    assert result["accepted_drafts"] == 1 + 2 + 3  # of all


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("loading", "replica 1 (GPU 5): RuntimeError: this GPU is broken"),
        ("loads for ever", "replica 1 (GPU 5) had not ended loading its model for 6 s"),
        ("differs", "(GPU 4) and replica 1 (GPU 5) differ in library of describe(): 1.0 and 2.0"),
        ("raises", "replica 1 (GPU 5): RuntimeError: out of memory"),
        ("dies", "replica 1 (GPU 5) was killed by SIGKILL; "),
        ("stops", "samples and completed none for 6 s"),
        ("is silent", "samples and completed none for 6 s"),
        ("prints on", "samples and completed none for 6 s"),
        ("writes to any descriptor", "sent its worker an invalid message (Unpickling"),
        ("answers twice", "replica 1 (GPU 5): done() was given id "),
        ("answers nonsense", "replica 1 (GPU 5): done() was given id \"('nobody', 'asked')\""),
    ],
)
def test_one_that_fails_is_named_and_all_are_ended(tmp_path: Path, how: str, message: str) -> None:
    patience_s = 6 if message.endswith("for 6 s") else 60
    with worker(tmp_path, how, replica_patience_s=patience_s) as running:
        error = running.wait_for("error")
        gone = running.group_is_gone()

    assert message in error["message"]
    assert "replica 1 (GPU 5)" in error["message"]
    assert error["layer"] == "engine"
    assert gone


@pytest.mark.process
def test_one_that_loads_for_long_and_says_so_does_not_hang(tmp_path: Path) -> None:
    """And the loaded samples are described by their number and their sizes."""
    three = [ReplicaSpec(name=f"replica {n}", gpus=[f"a{n}", f"b{n}"]) for n in range(3)]
    with worker(tmp_path, "loads long", replicas=three, replica_patience_s=6) as running:
        loaded = running.wait_for("loaded")
        assert "." in running.log.read_text("utf-8")

    assert loaded["pages"] == ["http://h/all", *(f"http://h/{n}" for n in range(3))]
    assert loaded["engine"] == {"library": "1.0", "replicas": "3", "work.replica_gpus": "2"}


@pytest.mark.quiet
@pytest.mark.process
def test_a_handicap_slows_every_replica(tmp_path: Path) -> None:
    took_s = []
    for handicap in (0.0, 0.5):
        folder = tmp_path / str(handicap)
        folder.mkdir()
        options = {"latency_s": 2e-3, "batch_size": 8}
        case = settings(target_qps=1500.0)
        slowed = worker(folder, engine=NULL, options=options, settings=case, handicap=handicap)
        took_s.append(finished(slowed)["duration_s"])

    assert 1.7 < took_s[1] / took_s[0] < 2.4


def test_an_ordered_list_is_encoded_by_its_place_and_a_long_one_by_numbers() -> None:
    """Other ids are packed, and invalid ones are named in words."""
    assert unpacked(packed([1, 2**64 - 1])) == [1, 2**64 - 1]
    assert unpacked(packed([-1, 5, "x"])) == ["-1", 5, "'x'"]  # type: ignore[list-item]
    ids = list(range(1000, 1000 + MIN_REMEMBERED_LENGTH))
    theirs, ours = Lists(), Lists()
    theirs.add(7, ids.copy())
    ours.add(7, ids)
    places = [theirs.locate(part) for part in (ids[:10], tuple(ids[10:30]), ids[31:33], ids[30:])]
    assert places == [(7, 0, 10), (7, 10, 20), None, (7, 30, MIN_REMEMBERED_LENGTH - 30)]
    made = [place for place in places if place]
    assert [list(ours.ids(place)) for place in made[::-1]] == [ids[30:], ids[10:30], ids[:10]]
    assert [theirs.locate(part) for part in (ids[:10], [])] == [None, None]

    ids = list(range(5000, 5000 + MIN_REMEMBERED_LENGTH))
    ours = Lists()
    ours.add(3, ids)
    numbers = numbered(3, MIN_REMEMBERED_LENGTH)
    assert len(set(numbers)) == MIN_REMEMBERED_LENGTH
    assert ours.worker_ids(numbers[::-1]) == ids[::-1]
    never = [numbers[-1] + 1, *numbered(4, 1), 77, "'x'"]
    assert ours.worker_ids(never) == never
    assert Lists().worker_ids(numbers) == numbers


def done(at_us: float, *ids: int, tokens: list[int] | None = None) -> Message:
    """Return the message of a replica about ids, `at_us` microseconds after it began."""
    return (DONE, at_us * 1e-6, list(ids), None, tokens)


def sent(*messages: Message) -> list[tuple[Any, ...]]:
    """Return messages as they are heard; ids that are packed as they were."""
    return [
        tuple(unpacked(part) if isinstance(part, bytes) else part for part in message)
        for message in merge_messages(messages)
    ]


def test_events_of_one_moment_are_sent_at_once() -> None:
    def placed(at_s: float, *ids: int) -> Message:
        return (DONE, at_s, ids, None, None)

    at_once: list[tuple[Message, Message, Message]] = [
        (done(1, 5), done(9, 7), done(9, 5, 7)),
        (done(1, 5, tokens=[3]), done(9, 7, tokens=[4]), done(9, 5, 7, tokens=[3, 4])),
        ((FIRST, 1e-6, [5]), (FIRST, 9e-6, [7]), (FIRST, 9e-6, [5, 7])),
        (placed(1e-6, 0, 0, 8), placed(9e-4, 0, 8, 4), placed(9e-4, 0, 0, 12)),
    ]
    # another moment, another kind, not the next, outputs, wrong counts, a place and ids
    apart: list[tuple[Message, Message]] = [
        (done(1, 5), done(60, 7)),
        ((FIRST, 1e-6, [5]), done(9, 7)),
        (placed(1e-6, 0, 0, 8), placed(2e-6, 0, 9, 4)),
        (placed(1e-6, 0, 0, 8), placed(2e-6, 1, 8, 4)),
        ((DONE, 1e-6, [5], [b"a"], None), done(9, 7)),
        (done(1, 5, tokens=[3]), done(9, 7)),
        (done(1, 5, tokens=[3, 3]), done(9, 7, tokens=[])),
        (placed(1e-6, 0, 0, 8), done(9, 7)),
        ((LOADED, {}), (LOADED, {})),
    ]
    assert [sent(*two) for *two, _ in at_once] == [[both] for *_, both in at_once]
    assert [tuple(sent(*two)) for two in apart] == apart


@FEWER
@given(
    st.lists(
        st.tuples(
            st.sampled_from([FIRST, NEXT, DONE]),
            st.floats(0, 1e-3),
            st.lists(st.integers(1, 9), min_size=1, max_size=3),
        ),
        min_size=1,
    )
)
def test_nothing_is_lost_reordered_or_delayed(
    events: list[tuple[str, float, list[int]]],
) -> None:
    events.sort(key=lambda event: event[1])
    heard_of = sent(
        *((kind, at_s, [*ids], *((None, [2] * len(ids)) if kind == DONE else ()))
          for kind, at_s, ids in events)
    )  # fmt: skip

    single_events = [(kind, at_s, sample) for kind, at_s, ids in events for sample in ids]
    heard = [(kind, at_s, x) for kind, at_s, ids, *_ in heard_of for x in ids]
    assert [(kind, x) for kind, _, x in heard] == [(kind, x) for kind, _, x in single_events]
    assert all(
        0 <= b[1] - a[1] <= GATHER_SECONDS for a, b in zip(single_events, heard, strict=True)
    )
    counted = [n for kind, *_, tokens in heard_of if kind == DONE for n in tokens]
    assert len(counted) == sum(kind == DONE for kind, *_ in single_events)


def test_messages_come_whole_and_in_order_however_they_are_cut() -> None:
    here, there = (Pipe(end.detach()) for end in socket.socketpair())
    small, large = [("a", 1)], [("b", "x" * 3_000_000)]

    def send() -> None:
        there.send(small)
        there.send(large)
        there.send(small)

    sending = threading.Thread(target=send)
    sending.start()
    heard: list[Message] = []
    while len(heard) < 3:
        heard += here.receive()
    sending.join()
    there.send(small)
    there.send(small)

    assert heard == [*small, *large, *small]
    assert here.receive() == [*small, *small]
    there.close()
    with pytest.raises(EOFError):
        here.receive()
    here.close()
