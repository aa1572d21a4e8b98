"""Read LoadGen's `mlperf_log_summary.txt`, and folders of MLCommons' endpoints client."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun, named
from pytest_mlperf.addons.judge.readers.fields import Values
from pytest_mlperf.extension import read_point, sentence

_LINE = re.compile(r"^[ *]*([^:\n]{2,60}?)\s*:\s*(\S[^\n]*?)\s*\n", re.MULTILINE)

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")

_PERCENTILE = re.compile(
    r"(?P<rank>[\d.]+?)(\.?0*) percentile "
    r"(?P<kind>latency|first token latency|time to output token) \(ns\)"
)

_LATENCY_PREFIXES = {
    "latency": "latency",
    "first token latency": "ttft",
    "time to output token": "tpot",
}

_SUMMARY_RATES = {
    "samples_per_second": ("Samples per second", "Completed samples per second"),
    "tokens_per_second": ("Tokens per second", "Completed tokens per second"),
}

_PARAMETERS = (
    *("Mode", "samples_per_query", "target_qps", "min_duration (ms)", "min_query_count"),
    *("max_async_queries", "performance_sample_count"),
)


def _loadgen(document: ResultFile) -> Iterator[ToolRun]:
    lines = dict(_LINE.findall(document.text))
    numbers = {key: float(value) for key, value in lines.items() if _NUMBER.fullmatch(value)}
    values = Values()
    for metric, keys in _SUMMARY_RATES.items():
        values.add(metric, next((numbers[key] for key in keys if key in numbers), None))
    values.add("latency_mean", numbers.get("Mean latency (ns)"), 1e-9)
    for key, value in numbers.items():
        if match := _PERCENTILE.fullmatch(key):
            values.add(f"{_LATENCY_PREFIXES[match['kind']]}_p{match['rank']}", value, 1e-9)
    scenario, state = lines.get("Scenario", "?"), lines.get("Result is", "missing")
    errors = re.search(r"^(\d+) ERRORS? encountered", document.text, re.MULTILINE)
    reason = "" if state == "VALID" else f"LoadGen's result is {state}"
    if errors:
        reason = reason or f"LoadGen reports {errors[1]} errors"
    values.facts |= {name: Fact(lines.get(name)) for name in _PARAMETERS}
    point = values.point(scenario, broken=reason)
    details = {"SUT": lines["SUT name"][:120]} if "SUT name" in lines else {}
    yield run_of(document, "loadgen", points=(point,), details=details)


LOADGEN = Reader(
    title="LoadGen",
    recognise=lambda document: "MLPerf Results Summary" in document.text[:2000],
    read=_loadgen,
)


def _is_endpoints(document: ResultFile) -> bool:
    folder = document.path
    names = ("result_summary.json", "performance/result_summary.json")
    return (folder / "config.yaml").is_file() and any((folder / n).is_file() for n in names)


_RATE_NAMES = {"throughput": "requests_per_second", "tokens_per_second": "output_tokens_per_second"}


def _endpoints(document: ResultFile) -> Iterator[ToolRun]:
    recorded = read_point(document.path)
    metrics = {_RATE_NAMES.get(name, name): value for name, value in recorded.metrics.items()}
    point = ToolPoint(
        name=f"concurrency {recorded.concurrency}",
        metrics={name: value for name, value in metrics.items() if named(name)},
        facts={n: Fact(text) for n, text in recorded.facts.items() if not n.endswith(".path")},
        broken="; ".join(sentence(reason.text) for reason in recorded.invalid)[:200],
        axis=float(recorded.concurrency),
    )
    yield ToolRun(
        tool="endpoints",
        source=str(document.path),
        digest=recorded.digest,
        points=(point,),
        started=recorded.ended_s - recorded.duration_s,
        duration_s=recorded.duration_s,
        notes=recorded.notes,
    )


ENDPOINTS = Reader(
    title="MLCommons' endpoints client", recognise=_is_endpoints, read=_endpoints, of_folders=True
)
