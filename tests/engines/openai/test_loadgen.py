"""The engine under the real LoadGen, in a worker process, against a server in another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.run.logs import parse_detail
from tests.engines.openai.echo import echo_server
from tests.engines.openai.recorder import RUN_TOKENS, in_a_run
from tests.engines.openai.scripted import Asked, Manner, Reply, Scripted, failure
from tests.run.harness import RunningWorker, error_of, run_to_end, settings, spec

pytest.importorskip("aiohttp")

PROMPTS = [[5 + number % 20] * 10 for number in range(24)]
TEXTS = ["Say something."] * len(PROMPTS)
TOKENS = 9
LIMIT_NS = 60_000_000_000


def case(folder: Path, url: str, scenario: str, **options: Any) -> Any:
    limits: dict[str, Any] = {"ttft_limit_ns": LIMIT_NS, "tpot_limit_ns": LIMIT_NS}
    return spec(
        folder,
        engine="pytest_mlperf.engines.openai:OpenAiEngine",
        options={"url": url, "max_new_tokens": RUN_TOKENS, **options},
        dataset="tests.engines.openai.recorder:Samples",
        dataset_options={"prompts": PROMPTS if options.get("api") != "chat" else TEXTS},
        precision="fp32",
        settings=settings(
            scenario,
            tokens=True,
            target_qps=200.0,
            min_query_count=100,
            performance_samples=len(PROMPTS),
            equal_issue=scenario == "Offline",
            latency_limit_ns=None,
            **(limits if scenario == "Server" else {}),
        ),
    )


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("Offline", {}),
        ("Offline", {"concurrency": 4}),
        ("Server", {}),
        ("Server", {"api": "chat"}),
        ("SingleStream", {}),
    ],
)
def test_a_run_and_an_accuracy_pass_end_without_a_fault(
    tmp_path: Path, scenario: str, options: dict[str, Any]
) -> None:
    """Every token is counted and timed, and the completing thread outlives LoadGen."""
    with echo_server(TOKENS, service_ms=2) as url:
        asked = case(tmp_path, url, scenario, **options)
        with RunningWorker(asked) as worker:
            loaded = worker.wait_for("loaded")
            finished = worker.wait_for("finished")
            worker.wait_for("ready")
            worker.send(command="accuracy", block=0, indices=list(range(len(PROMPTS))))
            accuracy = worker.wait_for("finished")
            worker.wait_for("ready")
            worker.send(command="stop")
            assert worker.exit_code() == 0

    assert loaded["engine"]["server.version"] == "1.2.3"
    assert finished["result"]["faults"] == []
    assert finished["result"]["completing_threads"] == 1
    assert accuracy["result"]["completed"] == len(PROMPTS)
    detail = parse_detail(Path(finished["folder"]) / "mlperf_log_detail.txt")
    assert detail.num_errors == 0
    assert detail.metrics(scenario)["tokens_per_second"] > 0
    metrics = finished["result"]["token_metrics"]
    assert metrics.keys() >= {"ttft_p99", "tpot_p99"}
    assert metrics["tokens_per_sample"] == TOKENS


@pytest.mark.parametrize("scenario", ["Offline", "Server"])
def test_a_server_that_begins_to_refuse_ends_the_worker_with_one_error(
    tmp_path: Path, scenario: str
) -> None:
    """Its message has the counts; nothing is reported as a result."""
    answered = 0

    def script(asked: Asked) -> Reply:
        nonlocal answered
        if asked.method == "POST" and in_a_run(asked.body):
            answered += 1
            if answered > 60:
                return failure("429 Too Many Requests", "slow down")
        return Manner()(asked)

    with Scripted(script) as server:
        events, code = run_to_end(case(tmp_path, server.url, scenario))

    error = error_of(events)
    assert code == 70
    assert error["layer"] == "engine"
    assert error["designed"]
    assert "x HTTP 429 (rate limit); first: sample" in error["message"]
    assert "finished" not in {told["event"] for told in events}
