"""What a session reports of a language model under load, and of one whose stream is coalesced."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.reason import SignKey
from pytest_mlperf.reports.sentences import sentence
from tests.plugin.project import Project

SUITE = """\
schema = 1
round = "v4.1"

[workload]
name = "{name}"
tokens = true
dataset = {{ use = "synthetic", samples = 32 }}

[[engines]]
use = "{use}"
accelerators = {accelerators}
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

from pytest_mlperf.builtin.null import NullEngine


class InFours(NullEngine):
    def _complete_batch(self, ids, indices, sink):
        time.sleep(0.001)
        sink.first_tokens(ids)
        sink.next_tokens([*ids] * 3)
        time.sleep(0.008)
        sink.next_tokens([*ids] * 4)
        sink.done(ids, None, [8] * len(ids))
'''


@pytest.fixture
def session(project: Project) -> tuple[Mapping[str, Run], str]:
    """Return the runs of a session by case, and its output."""
    (project.path / "acme.py").write_text(COALESCED, "utf-8")
    project.pytester.syspathinsert()
    (project.path / "suites").mkdir()
    rows = [
        ("chat", "null", '["cpu"]', "latency_s = 0.001, threads = 1", "10s"),
        ("late", "acme:InFours", '["cpu"]', "threads = 4", "0.01ms"),
        ("fours", "acme:InFours", '["cpu", "2xH200"]', "threads = 4", "10s"),
    ]
    for name, use, accelerators, options, limit in rows:
        text = SUITE.format(
            name=name,
            use=use,
            accelerators=accelerators,
            options=f"tokens = 8, {options}",
            ttft_limit=limit,
        )
        (project.path / f"suites/{name}.mlperf.toml").write_text(text, "utf-8")
    result = project.run("suites", "--mlperf-pretend=2xH200")
    verdicts = [each.verdict for each in project.results().cases]
    runs = {f"{v.case.workload} {v.case.accelerator}": v.runs[0] for v in verdicts}
    return runs, result.stdout.str()


def test_a_language_model_under_load_has_its_latency_metrics(
    session: tuple[Mapping[str, Run], str],
) -> None:
    """Whose requests are all in time, so that goodput is the rate; which are late; in fours."""
    runs, output = session
    run = runs["chat cpu"]
    metrics = run.metrics
    assert metrics.keys() >= {
        f"{name}_{share}"
        for name in ("latency", "ttft", "tpot", "itl")
        for share in ("p50", "p90", "p99")
    }
    assert metrics.keys() <= METRICS.keys()
    assert metrics["goodput"] == pytest.approx(metrics["throughput"], rel=0.1)
    user_s = 1 / metrics["tokens_per_second_per_user"]
    assert user_s == pytest.approx(metrics["tpot_p50"], rel=0.2)
    assert "tokens_per_second_per_gpu" not in metrics
    assert run.notes == ()
    assert "goodput/s" in output

    shared = runs["fours 2xH200"].metrics
    assert shared["tokens_per_second_per_gpu"] == shared["tokens_per_second"] / 2

    late = runs["late cpu"]
    assert "goodput" not in late.metrics
    assert "goodput is 0: no request met its limits" in map(sentence, late.notes)

    fours = runs["fours cpu"]
    assert not [name for name in fours.metrics if name.startswith("itl")]
    assert fours.metrics["tokens_per_second_per_user"] == pytest.approx(
        fours.metrics["tpot_p50"] ** -1 * 4 / 7, rel=0.3
    )
    assert [sign.key for sign in fours.signs] == [SignKey.TOKENS_TOGETHER]
    assert "arrived together with others" in output
