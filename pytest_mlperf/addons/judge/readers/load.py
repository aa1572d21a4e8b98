"""Read summaries of k6 and statistics files of Locust."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from pytest_mlperf.addons.judge.files import Reader, ResultFile, has_keys, run_of
from pytest_mlperf.addons.judge.model import Fact, ToolPoint, ToolRun
from pytest_mlperf.addons.judge.readers.fields import JsonObject, Values, per

_K6_MARKS = ("http_req_duration", "http_reqs", "iterations", "http_req_failed")


def _k6_metrics(document: ResultFile) -> JsonObject:
    """Return k6's metrics by name, from either format of its summary."""
    holder = document.head.at("results") or document.head
    named = {str(m.get("name")): m for m in holder.entries("metrics")} or holder.at("metrics")
    metrics = {name: metric for name, metric in named.items() if isinstance(metric, Mapping)}
    return JsonObject({k: {**v, **JsonObject(v).at("values")} for k, v in metrics.items()})


def _k6(document: ResultFile) -> Iterator[ToolRun]:
    by_name = _k6_metrics(document)
    values = Values(by_name.at("http_reqs"), {"requests_per_second": "rate"})
    # Failed requests are in http_req_duration.
    expected = by_name.at("http_req_duration{expected_response:true}")
    values.statistics("latency", expected or by_name.at("http_req_duration"), 1e-3)
    checks = by_name.at("checks")
    values.add("checks", checks.get("value", checks.get("rate")))
    values.sent, values.failed = _k6_failed(by_name)
    dropped, iterations = (
        by_name.at(name).number("count") or 0.0 for name in ("dropped_iterations", "iterations")
    )
    users = by_name.at("vus_max")
    values.share("dropped iterations", dropped, dropped + iterations)
    values.facts["virtual users"] = Fact(users.plain("max" if "max" in users else "value"))
    points = [values.point("all requests")]
    for name in by_name:
        for expression, state in by_name.at(name, "thresholds").items():
            # The classic summary has true for a failed threshold, handleSummary has ok.
            bad = not state.get("ok") if isinstance(state, Mapping) else state is True
            title = f"threshold {name} {expression}"
            points.append(ToolPoint(name=title, broken="the threshold failed" if bad else ""))
    seconds = document.head.at("state").positive("testRunDurationMs", 1e-3)
    yield run_of(document, "k6", points=tuple(points), duration_s=seconds)


def _k6_failed(by_name: JsonObject) -> tuple[int | None, int | None]:
    """Return (requests, failed requests) by k6's metric http_req_failed; None if not recorded."""
    failures = by_name.at("http_req_failed")
    failed, fine = failures.whole("passes"), failures.whole("fails")
    if failed is not None and fine is not None:
        return failed + fine, failed
    total = by_name.at("http_reqs").whole("count")
    total = failures.whole("total") if total is None else total
    share = failures.number("value" if "value" in failures else "rate")
    failed = failures.whole("matches")
    if failed is None and share is not None and total is not None:
        failed = round(share * total)
    return total, failed


def _is_k6(document: ResultFile) -> bool:
    by_name = _k6_metrics(document)
    # Records of AIPerf have http_req_duration as well, with a unit.
    return any(mark in by_name and "unit" not in by_name[mark] for mark in _K6_MARKS)


K6 = Reader(title="k6", recognise=_is_k6, read=_k6)


LOCUST_RANKS = (90, 95)
"""Percentiles for information: Locust rounds them to whole milliseconds and to two digits, so that
a rise from 104.9 to 105.1 ms looks like one of 10 %. Its mean is exact, and is judged."""


def _locust(document: ResultFile) -> Iterator[ToolRun]:
    requests = document.objects
    starts = filter(None, (raw.moment("start_time") for raw in requests))
    points = tuple(map(_locust_point, requests))
    yield run_of(document, "locust", points=points, started=min(starts, default=None))


def _locust_point(raw: JsonObject) -> ToolPoint:
    histogram = sorted((float(key), count) for key, count in raw.at("response_times").items())
    reached = list(accumulate(count for _, count in histogram))
    places = (sum(count < r / 100 * reached[-1] for count in reached) for r in LOCUST_RANKS)
    times = (histogram[place][0] if histogram else None for place in places)
    sent, first, last = map(raw.number, ("num_requests", "start_time", "last_request_timestamp"))
    timed = sent - (raw.number("num_none_requests") or 0) if sent is not None else None
    row = {
        "Type": raw.get("method") or "",
        "Name": raw.get("name"),
        "Request Count": sent,
        "Failure Count": raw.get("num_failures"),
        "Average Response Time": per(raw.get("total_response_time"), timed),
        "Average Content Size": per(raw.get("total_content_length"), sent),
        "Requests/s": per(sent, last - first if first and last else None),
        **{f"{rank}%": time for rank, time in zip(LOCUST_RANKS, times, strict=True)},
    }
    return _locust_row(JsonObject(row))


def _locust_row(row: JsonObject) -> ToolPoint:
    """Return the point of a row of Locust's table of statistics; its times are in milliseconds."""
    values = Values(row, {"requests_per_second": "Requests/s"})
    values.add("latency_mean", row.get("Average Response Time"), 1e-3)
    for rank in LOCUST_RANKS:
        values.add(f"latency_p{rank}", row.get(f"{rank}%"), 1e-3)
    values.sent, values.failed = row.whole("Request Count"), row.whole("Failure Count")
    seconds = per(row.get("Request Count"), row.get("Requests/s"))
    values.facts |= {
        "bytes per answer": Fact(row.positive("Average Content Size"), tolerance=0.05),
        "seconds of load": Fact(seconds, tolerance=0.25),  # a run ends by its time limit
    }
    return values.point(f"{row['Type']} {row['Name']}".strip())


_LOCUST_COLUMNS = {"Type", "Name", "Request Count", "Failure Count"}


def _locust_table(document: ResultFile) -> Iterator[ToolRun]:
    rows = document.rows
    if len(rows) > 2:  # "Aggregated" is the sum of the other rows
        rows = [texts for texts in rows if texts["Name"] != "Aggregated"]
    cells = (
        {c: text if c in {"Type", "Name"} else _cell(text) for c, text in texts.items()}
        for texts in rows
    )
    points = tuple(_locust_row(JsonObject(row)) for row in cells)
    yield run_of(document, "locust-csv", points=points)


def _cell(text: Any) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text or "")
    return None


LOCUST = Reader(
    title="Locust",
    recognise=has_keys("num_requests", "num_failures", "response_times"),
    read=_locust,
)
LOCUST_TABLE = Reader(
    title="Locust's CSV",
    recognise=lambda document: any(row.keys() >= _LOCUST_COLUMNS for row in document.rows[:1]),
    read=_locust_table,
)
