"""Read k6's summaries and Locust's statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import (
    Values,
    mapping,
    moment,
    number,
    positive,
    whole,
)


def _k6_metrics(document: ResultFile) -> Mapping[str, Any]:
    """Return metrics by name, also from the machine-readable summary's list."""
    for holder in (document.head, mapping(document.head, "results")):
        metrics = holder.get("metrics")
        if isinstance(metrics, list):
            named = (metric for metric in metrics if isinstance(metric, Mapping))
            return {str(metric.get("name")): metric for metric in named}
        if isinstance(metrics, Mapping):
            return metrics
    return {}


def _is_k6(document: ResultFile) -> bool:
    by_name = _k6_metrics(document)
    return any(name in by_name for name in ("http_req_duration", "http_reqs", "iterations")) or (
        "http_req_failed" in by_name
    )


_EXPECTED = "http_req_duration{expected_response:true}"


def _k6(document: ResultFile) -> Iterator[ToolRun]:
    by_name = {
        name: metric if "values" not in metric else {**metric, **mapping(metric, "values")}
        for name, metric in _k6_metrics(document).items()
        if isinstance(metric, Mapping)
    }
    values = Values()
    # Failed requests are in http_req_duration.
    values.statistics("latency", by_name.get(_EXPECTED) or by_name.get("http_req_duration"), 1e-3)
    values.add("requests_per_second", mapping(by_name, "http_reqs").get("rate"))
    checks = mapping(by_name, "checks")
    values.add("checks", checks.get("value", checks.get("rate")))
    sent, failed = _k6_failed(by_name)
    points = [ToolPoint(name="all requests", **values.fields, sent=sent, failed=failed)]
    for name, metric in by_name.items():
        for expression, state in mapping(metric, "thresholds").items():
            # The classic summary has true for a failed threshold, handleSummary has ok.
            bad = not state.get("ok") if isinstance(state, Mapping) else state is True
            text = f"threshold {name} {expression}"
            points.append(ToolPoint(name=text, broken="the threshold failed" if bad else ""))
    state = mapping(document.head, "state")
    yield run_of(
        document,
        "k6",
        points=tuple(points),
        duration_s=positive(state.get("testRunDurationMs"), 1e-3),
    )


def _k6_failed(by_name: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the number of requests and of failed ones, from http_req_failed."""
    failures = mapping(by_name, "http_req_failed")
    failed, fine = whole(failures.get("passes")), whole(failures.get("fails"))
    if failed is not None and fine is not None:
        return failed + fine, failed
    share = number(failures.get("value", failures.get("rate")))
    total = whole(mapping(by_name, "http_reqs").get("count"))
    matches = whole(failures.get("matches"))
    if total is None:
        total = whole(failures.get("total"))
    if matches is None and share is not None and total is not None:
        matches = round(share * total)
    return total, matches


K6 = Reader(title="k6", recognise=_is_k6, read=_k6)


def _is_locust(document: ResultFile) -> bool:
    return {"num_requests", "num_failures", "response_times"} <= document.head.keys()


def _locust(document: ResultFile) -> Iterator[ToolRun]:
    points = []
    objects = document.objects
    for raw in objects:
        values = Values()
        histogram = mapping(raw, "response_times")
        times = sorted((float(key), count) for key, count in histogram.items())
        for rank in (50, 90, 95, 99):
            value = _rank(times, rank / 100)
            values.add(f"latency_p{rank}", value, 1e-3)
        sent, failed = whole(raw.get("num_requests")), whole(raw.get("num_failures"))
        total = positive(raw.get("total_response_time"), 1e-3)
        if total and sent:
            values.metrics["latency_mean"] = total / sent
        seconds = _seconds(raw)
        if sent and seconds:
            values.metrics["requests_per_second"] = sent / seconds
        name = f"{raw.get('method') or ''} {raw.get('name')}".strip()
        points.append(ToolPoint(name=name, **values.fields, sent=sent, failed=failed))
    starts = filter(None, (moment(raw.get("start_time")) for raw in objects))
    yield run_of(document, "locust", points=tuple(points), started=min(starts, default=None))


def _seconds(raw: Mapping[str, Any]) -> float | None:
    first, last = (number(raw.get(key)) for key in ("start_time", "last_request_timestamp"))
    return last - first if first and last and last > first else None


def _rank(times: list[tuple[float, int]], share: float) -> float | None:
    total, seen = sum(count for _, count in times), 0
    for time, count in times:
        seen += count
        if seen >= share * total:
            return time
    return None


_LOCUST_COLUMNS = {"Type", "Name", "Request Count", "Failure Count"}


def _is_locust_table(document: ResultFile) -> bool:
    return bool(document.rows) and document.rows[0].keys() >= _LOCUST_COLUMNS


def _locust_table(document: ResultFile) -> Iterator[ToolRun]:
    points = []
    rows = document.rows
    for row in rows:
        if row["Name"] == "Aggregated" and len(rows) > 2:
            continue  # the sum of the other rows
        values = Values()
        columns = {"Median Response Time": "p50", "Average Response Time": "mean"}
        columns |= {f"{rank}%": f"p{rank}" for rank in (90, 95, 99)}
        for column, statistic in columns.items():
            values.add(f"latency_{statistic}", _cell(row, column), 1e-3)
        values.add("requests_per_second", _cell(row, "Requests/s"))
        sent, failed = (whole(_cell(row, f"{kind} Count")) for kind in ("Request", "Failure"))
        points.append(
            ToolPoint(
                name=f"{row['Type']} {row['Name']}".strip(),
                **values.fields,
                facts={"bytes per answer": _size(row)},
                sent=sent,
                failed=failed,
            )
        )
    yield run_of(document, "locust", points=tuple(points))


def _size(row: Mapping[str, str]) -> Fact:
    return Fact(positive(_cell(row, "Average Content Size")), tolerance=0.05)


def _cell(row: Mapping[str, str], column: str) -> float | None:
    """Return a number; None for "N/A" and absent columns."""
    try:
        return float(row.get(column) or "")
    except ValueError:
        return None


LOCUST = Reader(title="Locust", recognise=_is_locust, read=_locust)
LOCUST_TABLE = Reader(title="Locust's CSV", recognise=_is_locust_table, read=_locust_table)
