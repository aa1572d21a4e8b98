"""An engine under the real LoadGen, in a worker process: a run, then an accuracy pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.job import LoadGenSettings
from pytest_mlperf.core.reason import SignKey
from pytest_mlperf.run.child.protocol import WorkerSpec
from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail
from tests.run.harness import RunningWorker, settings

LIMIT_NS = 60_000_000_000
"""Of time to first token and time per token: never missed."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The results of a worker that succeeded.

    Attributes:
        facts: The engine's description.
        result: Of the run.
        detail: LoadGen's log of the run.
        accuracy: The folder of the accuracy pass.
        log: The worker's output.
    """

    facts: Mapping[str, str]
    result: Mapping[str, Any]
    detail: Detail
    accuracy: Path
    log: str

    @property
    def tokens(self) -> Mapping[str, float]:
        """The run's metrics of tokens."""
        metrics: Mapping[str, float] = self.result["token_metrics"]
        return metrics

    @property
    def every_token_is_timed(self) -> bool:
        """Whether all latencies of tokens are there; on a busy machine, or it says why one is not.

        Where the engine's thread was kept waiting, tokens come together and have no gaps, and
        answers may come whole.
        """
        notes = self.result["notes"]
        needed = {"ttft_p99", "tpot_p99", "itl_p99"}
        if SignKey.ANSWERS_BUFFERED in notes:
            needed = set()
        elif SignKey.TOKENS_TOGETHER in notes:
            needed.remove("itl_p99")
        return self.tokens.keys() >= needed


def token_settings(scenario: str, samples: int, **changes: Any) -> LoadGenSettings:
    """Return settings of a run whose tokens are timed."""
    limits = {"ttft_limit_ns": LIMIT_NS, "tpot_limit_ns": LIMIT_NS}
    fields: dict[str, Any] = {
        "tokens": True,
        "performance_samples": samples,
        "equal_issue": scenario == "Offline",
        "latency_limit_ns": None,
        **(limits if scenario == "Server" else {}),
    }
    return settings(scenario, **{**fields, **changes})


def run(
    case: WorkerSpec,
    samples: int,
    *,
    at_load: Callable[[RunningWorker], object] = lambda worker: None,
) -> Ran:
    """Run a case and answer all samples once more; nothing has a fault, no process is left."""
    with RunningWorker(case) as worker:
        loaded = worker.wait_for("loaded")
        at_load(worker)
        finished = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="accuracy", block=0, indices=list(range(samples)))
        accuracy = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send(command="stop")
        assert worker.exit_code() == 0
        assert worker.group_is_gone()
    detail = parse_detail(Path(finished["folder"]) / DETAIL)
    assert finished["result"]["faults"] == []
    assert detail.num_errors == 0
    assert accuracy["result"]["completed"] == samples
    return Ran(
        facts=loaded["engine"],
        result=finished["result"],
        detail=detail,
        accuracy=Path(accuracy["folder"]),
        log=worker.log.read_text("utf-8"),
    )
