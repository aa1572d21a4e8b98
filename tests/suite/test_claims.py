"""What a suite may claim about two of its engine entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import model_of
from tests.suite.texts import CLAIMS


def pair(a: str, b: str, expect: str = ">= 1.2x", **more: str) -> str:
    values = {"a": a, "b": b, "expect": expect, **more}
    return "[[pairs]]\n" + "".join(f'{key} = "{value}"\n' for key, value in values.items())


def pairs(tmp_path: Path, *tables: str) -> list[tuple[str, str, str, str, float]]:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(CLAIMS + "".join(tables), "utf-8")
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
    file = tmp_path / "s.mlperf.toml"
    file.write_text(CLAIMS + pair("trt-fp8-H200", "trt-fp16-A100"), "utf-8")

    (planned_pair,) = plan_pairs(plan_suite(file))
    assert planned_pair.line == CLAIMS.count("\n") + 1
    assert planned_pair.accelerators == ("H200", "A100")
    assert planned_pair.techniques == ("pruning",)
    assert planned_pair.kinds == ("pair",)
    assert planned_pair.seconds_per_run == 120


def test_sides_scenario_and_metric_can_be_named(tmp_path: Path) -> None:
    server = {"scenario": "Server"}
    of_table = {
        pair("trt-fp8-H200", "trt-fp8-H100"): "Offline-trt-fp8-H200-vs-H100 throughput",
        pair("trt-fp8-H200", "trt-fp16"): "Offline-trt-fp8-vs-fp16-H200 throughput",
        pair("trt-fp8-H200", "trt-fp16-A100"): "Offline-trt-fp8-vs-fp16-H200-vs-A100 throughput",
        pair("trt-fp8-H200", "old-cpu"): "Offline-trt-vs-old-fp8-vs-fp16-H200-vs-cpu throughput",
        pair("trt-fp8", "trt-fp16", name="quantised", **server): (
            "Server-quantised-fp8-vs-fp16-H200 latency_p50"
        ),
        pair("trt-fp8", "trt-fp16", metric="latency_p90", **server): (
            "Server-trt-fp8-vs-fp16-H200 latency_p90"
        ),
    }
    pairs_by_table = {
        table: [f"{name} {metric}" for name, _, _, metric, _ in pairs(tmp_path, table)]
        for table in of_table
    }

    assert pairs_by_table == {table: [f"mine-{text}"] for table, text in of_table.items()}


def test_an_engine_entry_may_have_a_model_of_its_own(tmp_path: Path) -> None:
    """One that is not here is named with its line."""
    for name in ("dense.onnx", "pruned.onnx"):
        (tmp_path / name).write_bytes(b"x")
    file = tmp_path / "s.mlperf.toml"
    text = CLAIMS.replace('name = "mine"', 'name = "mine"\nmodel = "dense.onnx"')
    file.write_text(
        text.replace('techniques = ["pruning"]', 'techniques = ["pruning"]\nmodel = "pruned.onnx"'),
        "utf-8",
    )

    models = {case.case.precision: model_of(case) for case in plan_suite(file)}
    assert models == {"fp8": str(tmp_path / "pruned.onnx"), "fp16": str(tmp_path / "dense.onnx")}
    from pytest_mlperf.core.errors import UnavailableError

    file = tmp_path / "s.mlperf.toml"
    file.write_text(CLAIMS.replace('name = "old"', 'name = "old"\nmodel = "gone.onnx"'), "utf-8")
    case = plan_suite(file)[-1]
    with pytest.raises(UnavailableError) as caught:
        model_of(case)
    assert str(caught.value).startswith(f"{file}:20: the model gone.onnx is not here")
