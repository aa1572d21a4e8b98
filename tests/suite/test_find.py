"""What a suite may say about a search of the rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.search import Condition
from pytest_mlperf.suite.find import USUAL_RUNS
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.resolve import settings_of

FILE = "s.mlperf.toml"


def write(
    folder: Path,
    find: str,
    *,
    scenario: str = "Server",
    tokens: bool = True,
    limits: str = "",
    more: str = "",
) -> Path:
    """Write a suite whose only scenario has this search."""
    default_limits = (
        'ttft_limit = "2s"\ntpot_limit = "200ms"' if tokens else 'latency_limit = "2s"\n'
    )
    file = folder / FILE
    file.write_text(
        'schema = 1\nround = "v4.1"\n'
        f'[workload]\nname = "mine"\ntokens = {str(tokens).lower()}\n'
        '[[engines]]\nuse = "null"\naccelerators = ["cpu", "H200"]\n'
        f'[[scenarios]]\nname = "{scenario}"\n{limits or default_limits}\nfind = {find}\n{more}\n',
        "utf-8",
    )
    return file


def planned(folder: Path, find: str, **arguments: Any) -> Planned:
    return plan_suite(write(folder, find, **arguments))[0]


def table(subject_to: str, more: str = "") -> str:
    return f'{{ maximise = "target_qps", subject_to = {subject_to}{more} }}'


def test_conditions_name_a_latency_and_a_duration(tmp_path: Path) -> None:
    both = '["ttft_p99 < 1 s", "tpot_p99 < 50 ms"]'
    pairs = [("ttft_p99", 1.0), ("tpot_p99", 0.05)]
    for text, conditions, words in (
        ('"ttft_p99 < 1 s"', pairs[:1], "ttft_p99 < 1 s"),
        ('"  ttft_p50<.5s "', [("ttft_p50", 0.5)], "ttft_p50 < 500 ms"),
        (both, pairs, "ttft_p99 < 1 s and tpot_p99 < 50 ms"),
        ('["itl_p99 < 0.1s"]', [("itl_p99", 0.1)], "itl_p99 < 100 ms"),
        ('"latency_p90 < 1 min"', [("latency_p90", 60.0)], "latency_p90 < 60 s"),
    ):
        find = planned(tmp_path, table(text)).scenario.find
        assert find is not None
        assert find.subject_to == tuple(Condition(metric=m, below=s) for m, s in conditions)
        assert find.in_words == words
        assert (find.precision, find.max_runs, find.start) == (0.02, 8, None)


def test_a_search_is_planned_with_its_runs_and_precision(tmp_path: Path) -> None:
    more = ', precision = "5%", max_runs = 12, start = { H200 = 20 }'

    find = planned(tmp_path, table('"ttft_p99 < 1 s"', more)).scenario.find
    assert find is not None
    assert (find.precision, find.max_runs) == (0.05, 12)
    assert (find.start_on("H200"), find.start_on("cpu")) == (20.0, None)
    six = table('"ttft_p99 < 1 s"', ", max_runs = 6")
    assert planned(tmp_path, six).runs_per_value == (USUAL_RUNS, 6)
    settings = settings_of(planned(tmp_path, table('"ttft_p99 < 1 s"')), target_qps=7.0)
    assert (settings.target_qps, settings.ttft_limit_ns) == (7.0, 2_000_000_000)
    assert settings.tpot_limit_ns == 200_000_000


def test_the_rate_found_is_gated_and_the_latencies_are_not(tmp_path: Path) -> None:
    """By the table's limit, else by the suite's own, or the scenario's; pairs can claim it."""
    find = table('"ttft_p99 < 1 s"')
    own_limits = 'limits = { throughput = { max_drop = "7%" } }'
    suite = '[limits]\nthroughput = { max_drop = "5%" }'
    assert planned(tmp_path, find).limits == {"throughput": 0.03}
    assert planned(tmp_path, find, more=suite).limits == {"throughput": 0.05}
    assert planned(tmp_path, find, more=f"{own_limits}\n{suite}").limits == {"throughput": 0.07}
    with pytest.raises(SuiteError, match=r"ttft_p99 cannot be gated in Server with find; known: "):
        planned(
            tmp_path,
            table('"ttft_p99 < 1 s"'),
            more='limits = { ttft_p99 = { max_rise = "7%" } }',
        )
    pair = '[[pairs]]\na = "null-H200"\nb = "null-cpu"\nexpect = ">= 1.2x"'

    (planned_pair,) = plan_pairs(plan_suite(write(tmp_path, table('"ttft_p99 < 1 s"'), more=pair)))
    assert planned_pair.metric == "throughput"
