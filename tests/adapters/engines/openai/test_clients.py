"""A client in several processes is one client: of loads, stamps, conversations and errors."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.openai._null_server import answer
from pytest_mlperf.core.reason import Key
from pytest_mlperf.registry import clients_of
from pytest_mlperf.run.child.protocol import ReplicaSpec
from pytest_mlperf.run.curve import CurveLog, curve_validity, read_curve
from pytest_mlperf.run.worker.point_window import CURVE_LOG
from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.recorder import Recorder, in_a_run, open_engine
from tests.adapters.engines.openai.scripted import Manner, Reply, Request, Scripted, failure
from tests.run.harness import RunningWorker, settings, spec

CLIENTS = 2
ENGINE = "pytest_mlperf.adapters.engines.openai:OpenAiEngine"
SERVICE_S = 0.05


def worker(
    folder: Path, url: str, lines: Sequence[Any], *, loop: Mapping[str, Any], **options: Any
) -> RunningWorker:
    """Return a worker that measures a curve of prompts, or of turns of conversations."""
    file = folder / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    kind = "prompts:UserPrompts" if "prompt" in lines[0] else "conversations:Conversations"
    kind = kind.replace("prompts:", "user_prompts:")
    curve = {"scenario": "Concurrency", "tokens": True, "min_duration_ms": 600, "ramp_ms": 0}
    return RunningWorker(
        spec(
            folder,
            engine=ENGINE,
            options={"url": url, "clients": CLIENTS, "max_new_tokens": 32, **options},
            dataset=f"pytest_mlperf.adapters.datasets.{kind}Dataset",
            dataset_options={"path": str(file)},
            settings=replace(settings("Offline"), **{**curve, **loop}),
            replicas=[ReplicaSpec(name=f"client {n}", client=True) for n in range(CLIENTS)],
        )
    )


def measured(running: RunningWorker) -> tuple[dict[str, Any], dict[str, Any], CurveLog]:
    """Return the engine's description, the results of the run, and its log."""
    with running:
        facts: dict[str, Any] = running.wait_for("loaded")["engine"]
        result: dict[str, Any] = running.wait_for("finished")["result"]
        running.wait_for("ready")
        running.send(command="stop")
        assert running.process.wait(20) == 0
    return facts, result, read_curve(running.folder / "performance" / CURVE_LOG)


PROMPTS = [{"prompt": f"prompt {number}"} for number in range(8)]


OPEN = {"points": [100], "scenario": "OpenLoop", "arrivals": "constant"}


@pytest.mark.process
@pytest.mark.parametrize("loop", [{"points": [8]}, pytest.param(OPEN, marks=pytest.mark.nightly)])
def test_a_load_is_that_of_one_client_and_stamps_are_those_of_who_reads(
    tmp_path: Path, loop: dict[str, Any]
) -> None:
    """Each sends four at a time at most, so that more than four under way are of both."""
    with echo_server(8, 1e3 * SERVICE_S, pace_ms=20) as url:
        facts, result, log = measured(worker(tmp_path, url, PROMPTS, loop=loop, concurrency=8))

    (point,) = log.points
    assert (facts["clients"], facts["concurrency"]) == ("2", "8")
    assert "replicas" not in facts
    assert result["replicas"] == []
    assert result["client"].keys() == {
        f"{part}_p{n}" for part in ("issue", "loop") for n in (50, 90, 99)
    }
    assert point.metrics["throughput"] < 8 / SERVICE_S
    assert point.metrics["throughput"] * point.metrics["latency_p50"] > 4.2  # J. D. C. Little, 1961
    assert SERVICE_S <= point.metrics["ttft_p50"] <= point.metrics["latency_p50"]
    assert point.finishes == {"stop": point.requests}
    assert point.tokens == 8 * point.requests


@pytest.mark.process
def test_the_reach_of_several_clients_is_measured_with_as_many(tmp_path: Path) -> None:
    """Against a server that computes nothing for each; their processor time is the client's."""
    loop = {"points": [16], "min_duration_ms": 200}
    with echo_server(64) as url:
        _, _, log = measured(worker(tmp_path, url, PROMPTS, loop=loop, max_new_tokens=128))

    (point,) = log.points
    assert point.client_busy > 0.1
    assert point.client_reach is not None
    assert point.client_reach > 0


@pytest.mark.process
def test_turns_of_a_conversation_have_one_name_from_any_client(tmp_path: Path) -> None:
    turns = [
        {"conversation_id": name, "turn": number, "role": role, "content": f"{role} {number}"}
        for name in "abcd"
        for number, role in enumerate(["user", "assistant"] * 3, start=1)
    ]
    chat = {"api": "chat", "session_header": "X-Session-ID", "count_tokens": "server"}
    with Scripted(Manner(tokens=4)) as server:
        loop = {"points": [3], "min_duration_ms": 100}
        measured(worker(tmp_path, server.url, turns, loop=loop, **chat))
        named = [one for one in server.streams if "x-session-id" in one.headers]

    turns_by_session: dict[str, Counter[int]] = {}
    for request in named:
        texts = [message["content"] for message in request.body["messages"]]
        turn = turns_by_session.setdefault(request.headers["x-session-id"], Counter())
        turn[len(texts)] += 1
        salt = texts[0].partition("]")[0]
        assert salt.startswith("[")
    whole = [turn for turn in turns_by_session.values() if len(turn) == 3]
    assert len(whole) > 3
    assert all(set(turn.values()) == {1} for turn in whole)


@pytest.mark.process
def test_the_error_of_one_ends_the_run_by_its_name(tmp_path: Path) -> None:
    answer = Manner(tokens=4)

    def breaks(request: Request) -> Reply:
        late = len(server.streams) > 40
        return failure("500 Internal Server Error", "out of memory") if late else answer(request)

    with (
        Scripted(breaks) as server,
        worker(tmp_path, server.url, PROMPTS, loop={"points": [4]}) as running,
    ):
        error = running.wait_for("error")

    assert error["layer"] == "engine"
    failed = r"requests failed: .*x HTTP 500 \(Internal Server Error\); first: sample"
    # On a quick machine the warm-up sends so many.
    assert re.match(f"(at 4: )?client .*{failed}", error["message"])


@pytest.mark.process
@pytest.mark.nightly
def test_requests_that_may_fail_do_so_in_each(tmp_path: Path) -> None:
    """One in 32 fails: the curve goes on, and its figures leave the failed ones out."""
    answer, numbers = Manner(tokens=4), itertools.count()

    def breaks(request: Request) -> Reply:
        if in_a_run(request) and next(numbers) % 32 == 31:
            return failure("500 Internal Server Error", "out of memory")
        return answer(request)

    loop = {"points": [8], "max_failed": 0.1}
    with Scripted(breaks) as server:
        _, result, log = measured(worker(tmp_path, server.url, PROMPTS, loop=loop))

    (point,) = log.points
    assert 0 < point.failed < 0.1 * point.requests
    assert point.finishes == {"stop": point.requests}
    assert result["completed"] == result["issued"]
    reasons = curve_validity(log, may_fail=0.1).invalid
    assert Key.REQUESTS_FAILED not in {reason.key for reason in reasons}


def test_the_number_of_clients_is_the_entrys() -> None:
    entries = [("openai", {}), ("openai", {"clients": 3}), ("null", {})]
    assert [clients_of(name, options) for name, options in entries] == [1, 3, 1]


LOADED = [0]


@pytest.mark.process
def test_the_null_server_answers_any_request_with_a_fixed_number_of_tokens() -> None:
    for api in ("completions", "chat"):
        sink = Recorder(3)
        with (
            Scripted(Manner(tokens=4)) as server,
            open_engine(server.url, ["a prompt " * 20_000], api=api) as engine,
        ):
            engine.load_samples(LOADED)
            with engine.null_client(7) as null:
                null.submit([1, 2, 3], [0, 0, 0], sink)
                sink.wait_for_end()
        assert sink.n_tokens == {1: 7, 2: 7, 3: 7}


def test_an_answer_comes_in_as_many_writes_as_asked_for() -> None:
    for tokens, writes in ((2, 1), (7, 3), (8, 8)):
        pieces = answer(tokens, writes, chat=False, ids=True)
        assert len(pieces) == writes
        assert all(b"data: " in piece for piece in pieces)
        whole = b"".join(pieces)
        assert whole.count(b'"token_ids":[1000]') == tokens
        assert whole.startswith(b"HTTP/1.1 200 OK")
        assert whole.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
