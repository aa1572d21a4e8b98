"""What a session reports of a language model under load, and of one whose stream is coalesced."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.metrics import METRICS
from tests.plugin.project import Project

SUITE = """\
schema = 1
round = "v4.1"

[workload]
name = "chat"
tokens = true
dataset = {{ use = "synthetic", samples = 32 }}

[[engines]]
use = "{use}"
accelerators = ["{accelerator}"]
options = {{ {options} }}

[[scenarios]]
name = "Server"
target_qps = 500
min_duration = "100ms"
ttft_limit = "{ttft_limit}"
tpot_limit = "10s"
limits = {{ goodput = {{ max_drop = "40%" }} }}
"""

COALESCED = '''\
"""An engine whose server sends four tokens in a message."""

import time

from pytest_mlperf.engines.null import NullEngine


class InFours(NullEngine):
    def _complete_batch(self, ids, indices, sink):
        time.sleep(0.001)
        sink.first_tokens(ids)
        sink.next_tokens([*ids] * 3)
        time.sleep(0.008)
        sink.next_tokens([*ids] * 4)
        sink.done(ids, None, [8] * len(ids))
'''


def measured(
    project: Project,
    *arguments: str,
    use: str = "null",
    accelerator: str = "cpu",
    options: str = "tokens = 8, latency_s = 0.001, threads = 1",
    ttft_limit: str = "10s",
) -> tuple[dict[str, float], tuple[str, ...], str]:
    """Return the metrics of a run, the notes on it, and what was printed."""
    text = SUITE.format(use=use, accelerator=accelerator, options=options, ttft_limit=ttft_limit)
    (project.path / "suites").mkdir()
    (project.path / "suites/chat.mlperf.toml").write_text(text, "utf-8")
    result = project.run("suites", *arguments)
    run = project.verdicts()["performance"].runs[0]
    return dict(run.metrics), run.notes, result.stdout.str()


def test_every_metric_of_a_language_model_under_load_is_there(project: Project) -> None:
    """All requests are in time, so goodput is the rate of the run."""
    found, notes, shown = measured(project)

    assert found.keys() >= {
        f"{name}_{share}"
        for name in ("latency", "ttft", "tpot", "itl")
        for share in ("p50", "p90", "p99")
    }
    assert found.keys() <= METRICS.keys()
    assert found["goodput"] == pytest.approx(found["throughput"], rel=0.1)
    user_s = 1 / found["tokens_per_second_per_user"]
    assert user_s == pytest.approx(found["tpot_p50"], rel=0.2)
    assert "tokens_per_second_per_gpu" not in found
    assert notes == ()
    assert "goodput/s" in shown


def test_requests_that_miss_a_limit_are_no_goodput(project: Project) -> None:
    found, notes, _ = measured(project, ttft_limit="0.01ms")

    assert "goodput" not in found
    assert notes == ("goodput is 0: no request met its limits",)


def test_tokens_are_shared_by_the_gpus(project: Project) -> None:
    found, _, _ = measured(project, "--mlperf-pretend", "2xH200", accelerator="2xH200")

    assert found["tokens_per_second_per_gpu"] == found["tokens_per_second"] / 2


def test_a_coalesced_stream_has_no_time_between_tokens(project: Project) -> None:
    (project.path / "acme.py").write_text(COALESCED, "utf-8")
    project.pytester.syspathinsert()

    found, notes, shown = measured(project, use="acme:InFours", options="tokens = 8, threads = 4")

    assert not [name for name in found if name.startswith("itl")]
    assert found["tokens_per_second_per_user"] == pytest.approx(
        found["tpot_p50"] ** -1 * 4 / 7, rel=0.3
    )
    (note,) = notes
    assert note.endswith(
        "of the tokens came together with others: the time between two tokens is not known"
    )
    assert "came together with others" in shown
