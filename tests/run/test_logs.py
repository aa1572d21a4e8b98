"""A log of LoadGen gives figures only when it is whole and free of errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.run.answers import ACCURACY_LOG, AccuracyLog
from pytest_mlperf.run.logs import DETAIL, Detail, parse_detail
from tests.run.harness import entry, run_to_end, settings, spec


def written(folder: Path, *lines: str) -> Path:
    path = folder / DETAIL
    path.write_text("".join(lines), "utf-8")
    return path


def parsed(folder: Path, values: Mapping[str, Any]) -> Detail:
    lines = [entry(key, value) for key, value in values.items()]
    return parse_detail(written(folder, *lines, entry("num_errors", 0)))


@pytest.mark.process
def test_logs_that_were_cut_anywhere_are_refused(real: Path, tmp_path: Path) -> None:
    outputs = AccuracyLog(real / "accuracy/block-0" / ACCURACY_LOG)
    assert sorted(outputs.items()) == [
        (i, n.to_bytes(8, "little")) for i, n in enumerate((4, 2, 7))
    ]
    logs: list[tuple[str, str, int, Callable[[Path], object]]] = [
        ("performance", DETAIL, 970, parse_detail),
        ("accuracy/block-0", DETAIL, 97, parse_detail),
        ("accuracy/block-0", ACCURACY_LOG, 1, AccuracyLog),
    ]
    for phase, name, step, parse in logs:
        text = (real / phase / name).read_text("utf-8").rstrip("\n")
        path = tmp_path / name
        path.write_text(text, "utf-8")
        parse(path)
        for length in range(0, len(text) - 1, step):
            path.write_text(text[:length], "utf-8")
            with pytest.raises(RunError) as raised:
                parse(path)
            assert (raised.value.layer, raised.value.log) == ("loadgen", str(path))


def test_errors_of_loadgen_are_counted_and_a_run_is_valid_where_loadgen_says_so(
    tmp_path: Path,
) -> None:
    lines = [entry("error_runtime", f"wrong {number}", is_error=True) for number in range(30)]
    detail = parse_detail(written(tmp_path, *lines, entry("num_errors", 30)))
    assert (detail.num_errors, detail.errors[0]) == (30, "wrong 0")
    with pytest.raises(RunError, match=r"(?s)30 errors.*wrong 0") as raised:
        detail.require_no_errors()
    assert raised.value.layer == "loadgen"
    parsed(tmp_path, {}).require_no_errors()
    path = tmp_path / "log"
    with pytest.raises(RunError, match=f"cannot read {path}: No such file"):
        parse_detail(path)

    path.write_bytes(b":::MLLOG \xff\xfe")
    with pytest.raises(RunError, match=f"{path} is not UTF-8"):
        parse_detail(path)

    reason = "Reduce target QPS."
    for values, valid, reasons in (
        ({"result_validity": "VALID"}, True, ()),
        ({"result_validity": "INVALID"}, False, ()),
        ({}, False, ()),
        ({"result_validity": "INVALID", "result_invalid_reason": f"{reason} "}, False, (reason,)),
    ):
        detail = parsed(tmp_path, values)
        assert (detail.valid, detail.invalid_reasons) == (valid, reasons)

    detail = parsed(tmp_path, {"result_min_duration_met": True, "early_stopping_met": False})
    assert {key: value for key, value in detail.values.items() if key.endswith("_met")} == {
        "result_min_duration_met": True,
        "early_stopping_met": False,
    }


def latencies(key: str, *percentiles: str) -> dict[str, int]:
    """Return percentiles in ns: 50.00 is 50 ms, 99.00 is 99 ms."""
    return {key.format(p): round(float(p) * 1e6) for p in percentiles}


QUERIES = latencies("result_{}_percentile_latency_ns", "50.00", "90.00", "99.00")
MULTI = latencies("result_{}_percentile_per_query_latency_ns", "50.00", "90.00", "99.00")
TTFT = latencies("result_first_token_{}_percentile_latency_ns", "50.00", "90.00", "99.00")
TPOT = latencies("result_time_per_output_token_{}_percentile_ns", "50.00", "90.00", "99.00")
LATENCY_S = {"latency_p50": 0.05, "latency_p90": 0.09, "latency_p99": 0.099}
TOKENS_S = {
    f"{name}_{share}": seconds
    for name in ("ttft", "tpot")
    for share, seconds in (("p50", 0.05), ("p90", 0.09), ("p99", 0.099))
}
RATE = {"result_completed_samples_per_sec": 12.5}
TOKEN_RATE = {"result_completed_tokens_per_second": 100.0}


def test_metrics_are_in_si_units_and_one_that_is_missing_or_not_positive_is_refused(
    tmp_path: Path,
) -> None:
    offline = {"result_samples_per_second": 10, "result_tokens_per_second": 80.5, **QUERIES}
    tokens = {**RATE, **TOKEN_RATE, **QUERIES, **TTFT, **TPOT}
    rates = {"throughput": 12.5, "tokens_per_second": 100.0}
    cases: list[tuple[str, dict[str, Any], dict[str, float]]] = [
        ("Offline", {"result_samples_per_second": 47140.3}, {"throughput": 47140.3}),
        ("Offline", offline, {"throughput": 10.0, "tokens_per_second": 80.5}),
        ("Server", {**RATE, **QUERIES}, {"throughput": 12.5, **LATENCY_S}),
        ("Server", tokens, {**rates, **LATENCY_S, **TOKENS_S}),
        ("SingleStream", QUERIES, LATENCY_S),
        # Samples of a query share its latency; the query's is the one MLPerf reports.
        ("MultiStream", {**MULTI, "result_90.00_percentile_latency_ns": 1}, LATENCY_S),
    ]
    for scenario, values, expected in cases:
        metrics = parsed(tmp_path, values).metrics(Scenario(scenario))
        assert metrics == pytest.approx(expected)
        assert metrics.keys() <= METRICS.keys()

    server = {**RATE, **TOKEN_RATE, **QUERIES}
    for scenario, values, key in (
        ("Offline", {}, "result_samples_per_second"),
        ("Offline", {"result_samples_per_second": None}, "result_samples_per_second"),
        ("Server", {**server, **TPOT}, "first_token"),
        ("Server", {**server, **TPOT, **dict.fromkeys(TTFT, 0)}, "first_token"),
        ("Server", {**server, **TTFT, **dict.fromkeys(TPOT, -7)}, "time_per_output_token"),
        ("SingleStream", {}, "percentile_latency_ns"),
    ):
        with pytest.raises(RunError, match=key):
            parsed(tmp_path, values).metrics(Scenario(scenario))


@pytest.mark.process
@pytest.mark.parametrize("scenario", ["SingleStream", "MultiStream", "Server"])
def test_a_run_of_hardly_any_query_is_readable_although_its_rates_are_no_numbers(
    tmp_path: Path, scenario: str
) -> None:
    case = settings(scenario, target_qps=1.0, fixed_work_s=0.01, min_query_count=1)
    run_to_end(spec(tmp_path, settings=case))

    detail = parse_detail(tmp_path / "performance" / DETAIL)
    assert detail.values["early_stopping_met"] is False
    assert detail.metrics(Scenario(scenario))["latency_p50"] > 0
