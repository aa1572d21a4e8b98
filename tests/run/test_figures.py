"""Test the figures of a run: LoadGen's own, and ours if they can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.figures import Findings, client_findings, figures, load_findings, per_gpu
from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail
from pytest_mlperf.run.worker import _delivery as delivery
from pytest_mlperf.run.worker import _sink as sink
from pytest_mlperf.run.worker import clocks as token_times
from pytest_mlperf.run.worker._delivery import LimitedSink, TokenSink
from pytest_mlperf.suite.plan import plan_suite
from tests.jobs import job_of
from tests.run.harness import only, result_of, run_to_end, settings, spec
from tests.run.sentences import notes_of
from tests.run.test_sink import Received, give_up
from tests.run.test_token_times import Clock

RATE = {"result_completed_samples_per_sec": 12.5}
QUERIES = {f"result_{p}_percentile_latency_ns": 50_000_000 for p in ("50.00", "90.00", "99.00")}


def detail(**values: Any) -> Detail:
    """Return a log of Server in which every latency is 50 ms."""
    every = {**RATE, **QUERIES, **values}
    return Detail(path="log", values=every, errors=(), num_errors=0, invalid_reasons=())


def result(notes: dict[str, str] | None = None, **ours: float) -> dict[str, Any]:
    return result_of(token_metrics=ours, notes=notes or {})


def test_loadgens_figures_count_where_it_has_them() -> None:
    run_figures = figures(result(latency_p99=0.049, goodput=12.0), detail(), Scenario.SERVER)

    latencies = dict.fromkeys(("latency_p50", "latency_p90", "latency_p99"), 0.05)
    assert run_figures.metrics == {"throughput": 12.5, "goodput": 12.0, **latencies}
    assert (run_figures.zero, notes_of(run_figures)) == ((), ())
    with pytest.raises(
        RunError, match=r"tpot_p50 is 0.0 by the measured times; it must be positive"
    ):
        figures(result(tpot_p50=0.0), detail(), Scenario.SERVER)
    for accelerator, expected in (("H200", 100.0), ("8xH100", 12.5), ("cpu", None)):
        metrics = per_gpu({"tokens_per_second": 100.0}, accelerator)
        assert metrics.get("tokens_per_second_per_gpu") == expected


def test_a_goodput_of_0_is_distinguished_from_an_unknown_one() -> None:
    """LoadGen counts the wait before an engine that is slow to take samples; our stamps do not."""
    unmet = "goodput is 0: no request met its limits"
    unknown = "goodput is unknown: requests waited up to 0.045 s before they reached the engine"
    cases: list[tuple[float, float, tuple[str, ...], str]] = [
        (0.049, 0.0, ("goodput",), unmet),
        (0.005, 12.5, (), unknown),
    ]
    for latency_s, goodput, zeros, note in cases:
        ours = {"latency_p99": latency_s, "goodput": goodput}
        run_figures = figures(result({"in_one_piece": "before"}, **ours), detail(), Scenario.SERVER)
        assert "goodput" not in run_figures.metrics
        assert run_figures.zero == zeros
        assert notes_of(run_figures) == ("before", note)
        assert [sentence(sign.text) for sign in run_figures.signs] == ["before", note][
            : 2 - len(zeros)
        ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(0.0)
    for module in (delivery, sink, token_times):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def test_only_samples_that_met_the_limit_count(clock: Clock) -> None:
    """In any order of completion, one by one or many at once; a repeated one does not."""
    sink = LimitedSink(give_up, Received().port, limit_s=1.0)
    sink.expect([1, 2, 3])
    clock.now_s = 0.5
    sink.expect([4])
    sink.done([2])
    clock.now_s = 1.5
    sink.done([4, 3, 2])
    clock.now_s = 2.0
    sink.done([1])

    assert sink.token_metrics["goodput"] == 2 / 2.0  # 2 after 0.5 s, 4 after 1.0 s
    assert sink.token_metrics["latency_p50"] == pytest.approx(1.5)
    assert sink.faults.count == 1


def test_goodput_of_a_language_model_counts_answers_in_time(clock: Clock) -> None:
    """Late ones wait for their first token, the others do not."""
    for late in (0, 12, 40):
        clock.now_s = 0.0
        sink = TokenSink(give_up, Received().port, needs_first=True, limits_s=(0.5, 10.0))
        sink.expect(range(40))
        sink.first_tokens(range(late, 40))
        clock.now_s = 1.0
        sink.first_tokens(range(late))
        clock.now_s = 4.0
        sink.done(range(40), None, [4] * 40)
        assert sink.token_metrics["goodput"] == (40 - late) / 4.0

    unlimited = TokenSink(give_up, Received().port, needs_first=False)
    unlimited.expect([1])
    clock.now_s = 5.0
    unlimited.done([1], None, [4])
    assert "goodput" not in unlimited.token_metrics


@pytest.mark.process
@pytest.mark.parametrize(
    ("limit_s", "in_time"), [(1.0, 1.0), pytest.param(1e-6, 0.0, marks=pytest.mark.nightly)]
)
def test_a_run_of_loadgen_counts_samples_that_met_its_limit(
    tmp_path: Path, limit_s: float, in_time: float
) -> None:
    case = settings("Server", latency_limit_ns=round(limit_s * 1e9), target_qps=500.0)
    options = {"latency_s": 5e-4, "threads": 1}

    events, code = run_to_end(spec(tmp_path, options=options, settings=case))

    assert code == 0
    log = parse_detail(tmp_path / "performance" / DETAIL)
    expected = log.metrics(Scenario.SERVER)["throughput"] * in_time
    ours = only(events, "finished")["result"]["token_metrics"]
    assert ours["goodput"] == pytest.approx(expected, rel=0.1)
    assert "goodput" not in log.values


SERVED = """
schema = 1
round = "v4.1"

[workload]
name = "served"
dataset = { use = "synthetic", samples = 8 }

[[engines]]
use = "null"

[[scenarios]]
name = "Server"
target_qps = 10
latency_limit = "2s"

[limits]
latency_p99 = { max_rise = "10%" }
"""


def job(folder: Path, text: str) -> Job:
    path = folder / "s.mlperf.toml"
    path.write_text(text, "utf-8")
    (planned,) = plan_suite(path)
    return job_of(planned)


def test_a_late_client_is_noted(tmp_path: Path) -> None:
    served = job(tmp_path, SERVED)
    for loop_s, noted in ((0.65, True), (0.1, True), (1e-3, False)):
        client = {"issue_p99": 0.0, "loop_p99": loop_s}
        findings = client_findings({"latency_p99": 0.712}, client, served)
        assert findings.invalid == ()
        assert bool(notes_of(findings)) is bool(findings.signs) is noted


SEEN = {
    **dict.fromkeys(
        ("pressure_s", "memory_some_s", "memory_full_s", "switches", "faults", "swapped_in")
    ),
    "window_s": 10.0,
    "cores": 2,
    "own_s": 7.0,
    "foreign_s": 12.0,
    "waited_s": 3.0,
    "stolen_s": 0.0,
    "throttled_s": 0.0,
    "others": {"python": 1.2},
}


@pytest.mark.parametrize(
    ("engine", "accelerator", "options", "share"),
    [
        ("null", "cpu", "", 0.594),
        ("null", "H200", "", 0.3),
        ("openai", "cpu", 'options = { url = "http://10.0.0.7:8000" }', 0.3),
        ("openai", "cpu", 'options = { url = "http://localhost:8000" }', None),
    ],
)
def test_the_effect_of_other_processes_depends_on_where_the_engine_computes(
    tmp_path: Path, engine: str, accelerator: str, options: str, share: float | None
) -> None:
    """A server here looks like a stranger if its processes were not found."""
    if engine == "openai":
        pytest.importorskip("httptools", reason="needs pytest-mlperf[openai]")
    entry = f'use = "{engine}"\naccelerators = ["{accelerator}"]\n{options}'
    asked_job = job(tmp_path, SERVED.replace('use = "null"', entry))

    here = False if "localhost" in options else None
    findings = load_findings(asked_job, {**SEEN, "serves": here})

    assert findings.contention is not None
    assert findings.contention.serves is (False if "url" in options else None)
    if here is False:
        findings_of_server = load_findings(asked_job, {**SEEN, "serves": True})
        assert findings_of_server.contention is not None
        assert findings_of_server.contention.share == pytest.approx(0.594, abs=1e-3)
    assert findings.contention.share == (None if share is None else pytest.approx(share, abs=1e-3))
    assert findings == Findings(contention=findings.contention)
    assert load_findings(asked_job, None) == Findings()
