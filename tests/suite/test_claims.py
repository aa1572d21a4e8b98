"""What a suite may claim about two of its engine entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import model_of

SUITE = """\
schema = 1
round = "v4.1"
division = "open"
[workload]
name = "mine"
[[engines]]
use = "null"
name = "trt"
precision = "fp8"
accelerators = ["H200", "H100"]
techniques = ["pruning"]
[[engines]]
use = "null"
name = "trt"
precision = "fp16"
accelerators = ["H200", "A100"]
[[engines]]
use = "null"
name = "old"
precision = "fp16"
accelerators = ["cpu"]
[[scenarios]]
name = "Offline"
[[scenarios]]
name = "Server"
latency_limit = "1s"
target_qps = { H200 = 10, H100 = 8 }
"""
FIRST = SUITE.count("\n") + 1


def pair(a: str, b: str, expect: str = ">= 1.2x", **more: str) -> str:
    given = {"a": a, "b": b, "expect": expect, **more}
    return "[[pairs]]\n" + "".join(f'{key} = "{value}"\n' for key, value in given.items())


def pairs(tmp_path: Path, *tables: str) -> list[tuple[str, str, str, str, float]]:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(SUITE + "".join(tables), "utf-8")
    return [
        (each.case.id, each.a.case.id, each.b.case.id, each.metric, each.least)
        for each in plan_pairs(plan_suite(file))
    ]


def test_a_pair_runs_where_both_sides_run(tmp_path: Path) -> None:
    assert pairs(tmp_path, pair("trt-fp8", "trt-fp16")) == [
        (
            "mine-Offline-trt-fp8-vs-fp16-H200",
            "mine-Offline-trt-fp8-H200",
            "mine-Offline-trt-fp16-H200",
            "throughput",
            1.2,
        )
    ]


@pytest.mark.parametrize(
    ("table", "names", "metric"),
    [
        (
            pair("trt-fp8-H200", "trt-fp8-H100"),
            ["mine-Offline-trt-fp8-H200-vs-H100"],
            "throughput",
        ),
        (pair("trt-fp8-H200", "trt-fp16"), ["mine-Offline-trt-fp8-vs-fp16-H200"], "throughput"),
        (
            pair("trt-fp8-H200", "trt-fp16-A100"),
            ["mine-Offline-trt-fp8-vs-fp16-H200-vs-A100"],
            "throughput",
        ),
        (
            pair("trt-fp8-H200", "old-cpu"),
            ["mine-Offline-trt-vs-old-fp8-vs-fp16-H200-vs-cpu"],
            "throughput",
        ),
        (
            pair("trt-fp8", "trt-fp16", name="quantised", scenario="Server"),
            ["mine-Server-quantised-fp8-vs-fp16-H200"],
            "latency_p50",
        ),
        (
            pair("trt-fp8", "trt-fp16", scenario="Server", metric="latency_p90"),
            ["mine-Server-trt-fp8-vs-fp16-H200"],
            "latency_p90",
        ),
    ],
)
def test_sides_scenario_and_metric_can_be_named(
    tmp_path: Path, table: str, names: list[str], metric: str
) -> None:
    found = pairs(tmp_path, table)

    assert [name for name, *_ in found] == names
    assert {each[3] for each in found} == {metric}


def test_a_pair_knows_what_it_needs_and_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(SUITE + pair("trt-fp8-H200", "trt-fp16-A100"), "utf-8")

    (found,) = plan_pairs(plan_suite(file))

    assert found.line == FIRST
    assert found.accelerators == ("H200", "A100")
    assert found.techniques == ("pruning",)
    assert found.kinds == ("pair",)
    assert found.seconds_per_run == 120


@pytest.mark.parametrize(
    ("table", "line", "message"),
    [
        (
            pair("trt", "trt-fp16"),
            1,
            "pairs[0].a: several engine entries are called 'trt': write one of trt-fp8, trt-fp16",
        ),
        (
            pair("trt-fp9", "trt-fp16"),
            1,
            "pairs[0].a: no engine entry is called 'trt-fp9'; did you mean 'trt-fp8'?",
        ),
        (
            pair("trt-fp8", "old"),
            0,
            "pairs[0]: a runs on H200, H100, b on cpu: name the accelerators, e.g. "
            'a = "trt-fp8-H200" and b = "old-fp16-cpu"',
        ),
        (
            pair("trt-fp8", "trt-fp8"),
            0,
            "pairs[0]: a and b are one and the same: there is nothing to compare",
        ),
        (
            pair("trt-fp8", "trt-fp16", scenario="MultiStream"),
            4,
            "pairs[0].scenario: this suite has no scenario 'MultiStream'; known: Offline, Server",
        ),
        (
            pair("trt-fp8", "trt-fp16", metric="latency_p50"),
            4,
            "pairs[0].metric: 'latency_p50' cannot be compared in Offline; known: "
            "build_time, load_time, peak_device_memory, peak_host_memory, slowest_replica, "
            "throughput, tokens_per_second, tokens_per_second_per_gpu",
        ),
        (
            pair("trt-fp8-H200", "trt-fp8-H100", scenario="Server"),
            0,
            "pairs[0]: Server needs one target_qps for both sides: latencies at different rates "
            "cannot be compared",
        ),
        (
            pair("trt-fp8", "trt-fp16", expect="1.2x"),
            3,
            "pairs[0].expect: '1.2x' is no claim; write how many times better: \">= 1.2x\"",
        ),
        (
            pair("trt-fp8", "trt-fp16", expect=">= 0x"),
            3,
            "pairs[0].expect: '>= 0x' is no claim; write how many times better: \">= 1.2x\"",
        ),
        (
            pair("trt-fp8", "trt-fp16") * 2,
            4,
            "pairs[1]: duplicate pair: pairs[0] is the same; give one a name of its own "
            '(name = "...")',
        ),
    ],
)
def test_a_claim_that_cannot_be_tested_is_refused(
    tmp_path: Path, table: str, line: int, message: str
) -> None:
    with pytest.raises(SuiteError) as caught:
        pairs(tmp_path, table)

    assert str(caught.value) == f"{tmp_path / 's.mlperf.toml'}:{FIRST + line}: {message}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'techniques = ["pruning"]',
            'techniques = ["prunning"]',
            "11: engines[0].techniques[0]: no technique 'prunning'; did you mean 'pruning'?",
        ),
        (
            'division = "open"\n',
            "",
            '10: engines[0].techniques: pruning: write division = "open" at the top of the suite',
        ),
    ],
)
def test_a_technique_is_one_of_the_open_division(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(SUITE.replace(old, new), "utf-8")

    with pytest.raises(SuiteError) as caught:
        plan_suite(file)

    assert str(caught.value) == f"{file}:{message}"


def test_an_engine_entry_may_have_a_model_of_its_own(tmp_path: Path) -> None:
    for name in ("dense.onnx", "pruned.onnx"):
        (tmp_path / name).write_bytes(b"x")
    file = tmp_path / "s.mlperf.toml"
    text = SUITE.replace('name = "mine"', 'name = "mine"\nmodel = "dense.onnx"')
    file.write_text(
        text.replace('techniques = ["pruning"]', 'techniques = ["pruning"]\nmodel = "pruned.onnx"'),
        "utf-8",
    )

    models = {case.case.precision: model_of(case) for case in plan_suite(file)}

    assert models == {"fp8": str(tmp_path / "pruned.onnx"), "fp16": str(tmp_path / "dense.onnx")}


def test_a_model_that_is_not_here_is_named_with_its_line(tmp_path: Path) -> None:
    from pytest_mlperf.core.errors import UnavailableError

    file = tmp_path / "s.mlperf.toml"
    file.write_text(SUITE.replace('name = "old"', 'name = "old"\nmodel = "gone.onnx"'), "utf-8")
    case = plan_suite(file)[-1]

    with pytest.raises(UnavailableError) as caught:
        model_of(case)

    assert str(caught.value).startswith(f"{file}:20: the model gone.onnx is not here")
