"""The engine under the real LoadGen, in a worker process, against a server in another one."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.run.worker.point_window import CURVE_LOG, REQUESTS
from tests.adapters.engines.openai.echo import echo_server
from tests.adapters.engines.openai.recorder import RUN_TOKENS, answering
from tests.adapters.engines.openai.scripted import Manner, Reply, Request, Scripted, failure
from tests.adapters.engines.under_loadgen import run, token_settings
from tests.run.harness import error_of, run_to_end, spec

pytestmark = pytest.mark.process

PROMPTS = [[5 + number % 20] * 10 for number in range(24)]
TEXTS = ["Say something."] * len(PROMPTS)
TOKENS = 9


def case(folder: Path, url: str, scenario: str, **options: Any) -> Any:
    return spec(
        folder,
        engine="pytest_mlperf.adapters.engines.openai:OpenAiEngine",
        options={"url": url, "max_new_tokens": RUN_TOKENS, **options},
        dataset="tests.adapters.engines.recording:Samples",
        dataset_options={"samples": PROMPTS if options.get("api") != "chat" else TEXTS},
        precision="fp32",
        settings=token_settings(scenario, len(PROMPTS), target_qps=200.0, min_query_count=100),
    )


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("Offline", {"concurrency": 4}),
        ("Server", {"api": "chat"}),
        pytest.param("SingleStream", {}, marks=pytest.mark.nightly),
    ],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    tmp_path: Path, scenario: str, options: dict[str, Any]
) -> None:
    """Every token is counted and timed, and the completing thread outlives LoadGen."""
    with echo_server(TOKENS, service_ms=2, pace_ms=12) as url:
        ran = run(case(tmp_path, url, scenario, **options), len(PROMPTS))

    assert ran.facts["server.version"] == "1.2.3"
    assert ran.result["completing_threads"] == 1
    assert ran.detail.metrics(Scenario(scenario))["tokens_per_second"] > 0
    assert ran.every_token_is_timed
    assert ran.tokens["tokens_per_sample"] == TOKENS


def test_a_server_that_begins_to_refuse_ends_the_worker_with_one_error(tmp_path: Path) -> None:
    numbers, refused = itertools.count(1), failure("429 Too Many Requests", "slow down")

    def reply(request: Request) -> Reply:
        return refused if next(numbers) > 60 else Manner()(request)

    with Scripted(answering(reply)) as server:
        events, code = run_to_end(case(tmp_path, server.url, "Server"))
    error = error_of(events)
    assert (code, error["layer"], error["designed"]) == (70, "engine", True)
    assert "x HTTP 429 (rate limit); first: sample" in error["message"]
    assert "finished" not in {told["event"] for told in events}


def test_conversations_are_measured_turn_by_turn(tmp_path: Path) -> None:
    turns = [
        {"conversation_id": name, "turn": turn, "role": role, "content": f"{role} {turn}"}
        for name in ("a", "b")
        for turn, role in enumerate(("user", "assistant", "user", "assistant", "user"), 1)
    ]
    file = tmp_path / "turns.jsonl"
    file.write_text("\n".join(map(json.dumps, turns)), "utf-8")
    curve_settings = token_settings("Offline", 6)
    with echo_server(TOKENS, service_ms=2) as url:
        events, _ = run_to_end(
            spec(
                tmp_path,
                engine="pytest_mlperf.adapters.engines.openai:OpenAiEngine",
                options={"url": url, "api": "chat", "max_new_tokens": RUN_TOKENS},
                dataset="pytest_mlperf.adapters.datasets.conversations:ConversationsDataset",
                dataset_options={"path": str(file)},
                precision="fp32",
                settings=replace(
                    curve_settings,
                    scenario=Scenario.CONCURRENCY,
                    points=[3],
                    min_duration_ms=100,
                    tokens=True,
                ),
                requests=True,
            )
        )

    assert events[-1]["event"] == "leaving", events[-1]
    (loaded,) = (one for one in events if one["event"] == "loaded")
    assert 0 < loaded["dataset"]["sizes"]["prefix_share"] < 1
    (window,) = json.loads((tmp_path / "performance" / CURVE_LOG).read_text("utf-8"))["points"]
    assert [row[0] for row in window["turns"]] == [1, 2, 3]
    with gzip.open(tmp_path / "performance" / REQUESTS, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    assert len(records) == window["requests"]
    assert {(one["index"], one["turn"]) for one in records} == set(enumerate([1, 2, 3] * 2))
