"""Read the log of a run by any LoadGen release: the detail log, else the summary.

Detail logs of 2019 and 2020 (v0.5, v0.7) are not JSON, and some large ones are not in the
repositories; the summary has the same values, with two decimals for Server.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.results._folders import SUMMARY_LOG
from pytest_mlperf.addons.official.results._reading import text_of
from pytest_mlperf.extension import Scenario
from pytest_mlperf.run.logs import DETAIL, PREFIX, Detail, parse_text

MAX_SUMMARY_BYTES = 2**20
SCENARIOS = {"Single Stream": "SingleStream", "Multi Stream": "MultiStream"}
"""Names in the first releases."""

_MODES = {"Performance": "PerformanceOnly", "Submission": "SubmissionRun"}

_NAMES = {
    "Samples per second": "result_samples_per_second",
    "Tokens per second": "result_tokens_per_second",
    "Tokens per second (inferred)": "result_inferred_tokens_per_second",
    "Completed samples per second": "result_completed_samples_per_sec",
    "Completed tokens per second": "result_completed_tokens_per_second",
    "Completed tokens per second (inferred)": "result_inferred_completed_tokens_per_second",
    "Scheduled samples per second": "result_scheduled_samples_per_sec",
    "QPS w/o loadgen overhead": "result_qps_without_loadgen_overhead",
    "90th percentile latency (ns)": "result_90.00_percentile_latency_ns",
    "Early stopping 90th percentile estimate": "early_stopping_latency_ss",
    "Early stopping 99th percentile estimate": "early_stopping_latency_ms",
    "qsl_rng_seed": "effective_qsl_rng_seed",
    "min_duration (ms)": "effective_min_duration_ms",
    "min_query_count": "effective_min_query_count",
    "samples_per_query": "effective_samples_per_query",
    "performance_sample_count": "effective_performance_sample_count",
}
"""Keys of the detail log by names in the summary."""

_KEPT = re.compile(
    r"(effective|result|early_stopping|generated|requested_qsl|power)_.*|loadgen_version"
)
"""Keys that are used; others, such as lists of samples, may be large."""

_RATES: Mapping[str, str] = {
    Scenario.SINGLE_STREAM: "result_qps_with_loadgen_overhead",
    Scenario.SERVER: "result_completed_samples_per_sec",
}

_PERCENTILE = re.compile(r"(\d\d\.\d\d) percentile latency \(ns\)")
_CLOCK = re.compile(r"(POWER_BEGIN|POWER_END): [^\n]{0,80}\"time\" : ([-0-9:. ]{10,30})\n")
"""Time of a run in a detail log of the first releases."""

_SUMMARY_LINE = re.compile(r"[ *]*([^:]{1,60}?)\s*:\s*(\S.{0,80})")


def read_log(run: Path, root: Path) -> Detail:
    """Return LoadGen's log of a run; raise MlperfError if it is missing or damaged."""
    detail, summary = run / DETAIL, run / SUMMARY_LOG
    text = text_of(detail, root) if detail.exists() else ""
    if text and (PREFIX in text or not summary.exists()):
        log = parse_text(detail, text, old=True)
        values = {
            sys.intern(key): value
            for key, value in log.values.items()
            if _KEPT.fullmatch(key) and not isinstance(value, list | dict)
        }
        return replace(log, values=values)
    if summary.exists():
        log = _summary(summary, text_of(summary, root, MAX_SUMMARY_BYTES))
        clocks = {match[1].lower(): match[2].strip() for match in _CLOCK.finditer(text)}
        return replace(log, values={**log.values, **clocks})
    raise MlperfError(f"{run} has no LoadGen log, neither {DETAIL} nor {SUMMARY_LOG}")


def is_summary(log: Detail) -> bool:
    """Return whether a log was read from the summary file, not the detail log."""
    return log.path.endswith(SUMMARY_LOG)


def queries_of(log: Detail) -> float:
    """Return a run's number of queries; derived from a rate for LoadGen before v2.0."""
    if (count := log.values.get("result_query_count")) is not None:
        return float(count)
    begin_s, end_s = log.window_s
    rate = log.values.get(_RATES.get(str(log.values.get("effective_scenario")), ""))
    if isinstance(rate, int | float) and 0 < rate < math.inf:
        return rate * max(0.0, end_s - begin_s)
    return float(count_of(log, "generated_query_count", 0))


def count_of(log: Detail, key: str, default: int = 1) -> int:
    """Return an integer from a log, or the default if it is missing or invalid."""
    count = log.values.get(key)
    return count if type(count) is int and 0 < count < 2**64 else default


def _summary(path: Path, content: str) -> Detail:
    lines = [match for line in content.splitlines() if (match := _SUMMARY_LINE.fullmatch(line))]
    texts = {match[1]: match[2].strip() for match in lines}
    if missing := [name for name in ("Scenario", "Mode", "Result is") if name not in texts]:
        raise MlperfError(f"{path} is cut off or not a LoadGen summary: it has no {missing[0]!r}")
    values: dict[str, Any] = {
        key: _number(path, name, texts[name]) for name, key in _NAMES.items() if name in texts
    }
    values |= {
        f"result_{match[1]}_percentile_latency_ns": _number(path, name, text)
        for name, text in texts.items()
        if (match := _PERCENTILE.fullmatch(name))
    }
    scenario, mode = texts["Scenario"], texts["Mode"]
    values |= {
        "effective_scenario": SCENARIOS.get(scenario, scenario),
        "effective_test_mode": _MODES.get(mode.split(" ")[0], mode),
        "result_validity": texts["Result is"],
    }
    return Detail(
        path=str(path),
        values=values,
        errors=(),
        num_errors=0 if "No errors encountered" in content else 1,
        invalid_reasons=(),
    )


def _number(path: Path, name: str, text: str) -> float | int:
    try:
        return int(text) if text.isascii() and text.isdigit() else float(text)
    except ValueError:
        raise MlperfError(f"{path}: {name!r} is not a number: {text!r}") from None
