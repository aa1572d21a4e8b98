"""Test that metrics pages are read over HTTP during a run, with any behaviour of the server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pytest_mlperf.core.server import ServerReading
from pytest_mlperf.run.curve import CurveLog
from pytest_mlperf.run.scraping import MAX_PAGE_BYTES, MetricsPage, PageError, Scraper
from pytest_mlperf.run.server import SERVER_FILE, ServerLog, server_findings, watched_server
from pytest_mlperf.run.worker.point_window import OpenWindow, PointWindow
from tests.exporters import Show, exporting, page
from tests.run.sentences import notes_of

TYPE = "# TYPE vllm:num_requests_waiting gauge\n"


def test_looks_go_over_one_connection_and_are_kept_in_the_runs_folder(tmp_path: Path) -> None:
    looked = threading.Event()
    ports = set()

    def show(handler: BaseHTTPRequestHandler) -> None:
        ports.add(handler.client_address)
        number = exporter.requests
        page(f"{TYPE}vllm:num_requests_waiting {number}\n")(handler)
        if number == 3:
            looked.set()

    with exporting(show) as exporter:
        readings: list[bytes] = []
        with Scraper([exporter.url], lambda _, texts: readings.extend(texts), period_s=0.01):
            assert looked.wait(30)
        with watched_server([exporter.url], tmp_path) as log:
            while not log.readings:
                time.sleep(0)

    assert len(ports) == 2  # a connection each
    assert readings[:2] == [f"{TYPE}vllm:num_requests_waiting {n}\n".encode() for n in (1, 2)]
    kept = json.loads((tmp_path / SERVER_FILE).read_text("utf-8"))
    assert kept["readings"][0][1] == log.readings[0].values
    assert log.readings[0].values["waiting"] > 3
    assert abs(log.readings[0].time_s - time.time()) < 60
    assert kept["cpu_s"] > 0
    assert kept["failures"] == 0


def test_without_a_page_or_with_a_clock_that_was_set_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads_at_start = threading.active_count()
    with watched_server([], tmp_path) as absent:
        assert threading.active_count() == threads_at_start
    assert [*tmp_path.iterdir()] == []
    assert notes_of(server_findings(absent, Window(0.0, 1.0))) == (
        "the server shows no metrics at /metrics: its queue and its caches are not known",
    )

    with (
        exporting(page(f"{TYPE}vllm:num_requests_waiting 1\n")) as exporter,
        watched_server([exporter.url], tmp_path) as log,
    ):
        monkeypatch.setattr(time, "time", lambda: 7.0)
    assert notes_of(server_findings(log, Window(0.0, 1.0))) == (
        "the server's metrics are not known: the wall clock was set during the run, so that its "
        "window cannot be found",
    )


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 2**16)


def dripping(begin: bytes) -> Show:
    """Return a page that sends a byte now and then after the beginning of an answer."""

    def show(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(begin)
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.05)

    return show


OK = b"HTTP/1.1 200 OK\r\n"


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read()  # until the client goes


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"x 1\n")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("show", "reason"),
    [
        (page("gone", 404), "answers 404"),
        (endless, f"is larger than {MAX_PAGE_BYTES // 2**20} MiB"),
        (dripping(OK + b"\r\n"), r"takes longer than 0\.2 s"),
        (dripping(OK + b"X-Head: "), r"takes longer than 0\.2 s"),
        (dripping(OK + b"Transfer-Encoding: chunked\r\n\r\n9;"), r"takes longer than 0\.2 s"),
        (silent, r"takes longer than 0\.2 s"),
        (cut, "ends 996 bytes too early"),
        (lambda handler: handler.wfile.write(b"\0" * 99 + b"\n"), "does not answer"),
    ],
    ids=["404", "endless", "drip", "drip of head", "drip of chunk", "silent", "cut", "no http"],
)
def test_an_invalid_page_fails_in_time_and_the_next_look_is_a_new_one(
    show: Show, reason: str
) -> None:
    with exporting(show) as exporter:
        looked = MetricsPage(exporter.url, timeout_s=0.2 if "takes longer" in reason else 30)
        with pytest.raises(PageError, match=reason):
            looked.read()
        exporter.show = page("a 1\n")
        looked._timeout_s = 30.0
        assert looked.read() == b"a 1\n"
        looked.close()


def test_a_server_that_is_gone_fails_and_a_look_that_hangs_is_ended() -> None:
    with exporting(page("a 1\n")) as exporter:
        url = exporter.url
    with pytest.raises(PageError, match=r"does not answer: .*refused"):
        MetricsPage(url).read()

    answered = threading.Event()

    def show(handler: BaseHTTPRequestHandler) -> None:
        answered.set()
        silent(handler)

    with exporting(show) as exporter:
        scraper = Scraper([exporter.url], lambda *_: None, period_s=0.01)
        with scraper:
            assert answered.wait(30)
        assert not scraper._thread.is_alive()


LOG = ServerLog(readings=[ServerReading(time_s=10.5 + n, values={"waiting": n}) for n in range(9)])


class Window:
    def __init__(self, *window_s: float) -> None:
        self.window_s = window_s[0], window_s[1]


def log_of(values: Sequence[dict[str, float]]) -> ServerLog:
    readings = [ServerReading(time_s=10.0 + n, values=each) for n, each in enumerate(values)]
    return ServerLog(readings=readings)


def curve(*points: PointWindow) -> CurveLog:
    return CurveLog(path="", samples=1, points=points)


def test_a_run_of_loadgen_has_one_window_and_a_curve_one_for_each_point() -> None:
    points = (_point(1, 10.0), _point(8, 14.0))
    assert server_findings(LOG, Window(10.0, 13.0)).server == {"waiting": 1.0, "waiting_max": 2.0}
    assert server_findings(LOG, curve(*points)).server == {
        "waiting@1": 1.0, "waiting_max@1": 2.0, "waiting@8": 5.0, "waiting_max@8": 6.0,
    }  # fmt: skip

    log = ServerLog(readings=LOG.readings[:2], failures=["http://h/metrics answers 500"] * 8)
    assert notes_of(server_findings(log, Window(10.0, 20.0))) == (
        "the server's metrics were read only 2 times in 10 s: http://h/metrics answers 500",
    )
    assert notes_of(server_findings(LOG, Window(10.0, 20.0))) == ()
    assert server_findings(ServerLog(), Window(10.0, 20.0)).server == {}


VLLM = {"accepted": 0.0, "drafted": 0.0, "drafts": 0.0}
GATED = ("throughput", "draft_acceptance", "draft_length", "prefix_hit_share")


def test_metrics_of_a_server_that_limits_name_become_metrics_of_the_run() -> None:
    """One of 0 is in `zero`; without a limit all stay the server's figures."""
    growing = [{"accepted": 2.0 * n, "drafted": 4.0 * n, "drafts": 1.0 * n} for n in range(4)]
    hits = [
        {**each, "prefix_hits": 0.0, "prefix_queries": 9.0 * n} for n, each in enumerate(growing)
    ]
    values = {"draft_acceptance": 0.5, "draft_length": 3.0}

    reported = server_findings(log_of(hits), Window(9.5, 13.5))
    gated = server_findings(log_of(hits), Window(9.5, 13.5), None, GATED)
    at_8 = server_findings(log_of(growing), curve(_point(8, 9.5)), None, ["draft_length@8"])

    assert (reported.metrics, reported.zero, notes_of(reported)) == ({}, (), ())
    assert reported.server == gated.server == {**values, "prefix_hit_share": 0.0}
    assert (gated.metrics, gated.zero, notes_of(gated)) == (values, ("prefix_hit_share",), ())
    assert at_8.metrics == {"draft_length@8": 3.0}


def test_stages_of_a_server_are_metrics_of_the_run_without_a_limit() -> None:
    """At each point of a curve; a time of zero is left out."""
    log = log_of(
        [
            {"queue_sum": 3.0 * n, "queue_count": 4.0 * n, "decode_sum": 1.0,
             "decode_count": 9.0 * n, "waiting": 1.0}
            for n in range(3)
        ]
    )  # fmt: skip
    seen = server_findings(log, Window(9.5, 13.0))

    assert seen.metrics == {"stage_queue": 0.75}
    assert seen.zero == ()
    assert seen.server == {"waiting": 1.0, "waiting_max": 1.0}
    at_64 = server_findings(log, curve(_point(64, 9.5)))
    assert at_64.metrics == {"stage_queue@64": 0.75}


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (ServerLog(), "the server has no readable /metrics page. Measure a server that has one"),
        (ServerLog(lack="no page"), "the server has no readable /metrics page. "),
        (ServerLog(failures=["answers 500"]), "the server has no readable /metrics page. "),
        (
            log_of([{"waiting": 1.0}] * 3),
            "the server's /metrics page lacks vllm:spec_decode_num_accepted_tokens_total and "
            "vllm:spec_decode_num_drafts_total. Measure a server that has them",
        ),
        (log_of([VLLM] * 3), "the server counted nothing between two readings. "),
        (log_of([VLLM]), "the server counted nothing between two readings. "),
    ],
    ids=["no client", "no page", "failures", "no counters", "no drafts", "one look"],
)
def test_a_gated_metric_that_the_server_does_not_show_is_noted(log: ServerLog, cause: str) -> None:
    figures = server_findings(log, Window(9.5, 12.5), None, ["throughput", "draft_length"])

    assert "draft_length" not in {*figures.metrics, *figures.zero}
    start = f"acceptance length has a limit, but was not measured: {cause}"
    assert [note for note in notes_of(figures) if note.startswith(start)] == [notes_of(figures)[-1]]
    assert notes_of(figures)[-1].endswith(", or remove the limit")


def test_hits_are_compared_with_the_shared_share_of_prompts() -> None:
    values = [{"prefix_hits": 100.0 * n, "prefix_queries": 1000.0 / 3 * n} for n in range(4)]
    log = log_of(values)
    hits = "30% of the prompts' tokens were in the server's prefix cache; the "
    for shared, more in (
        (None, ""),
        (0.35, ""),
        (0.48, "prompts share 48% with earlier ones: the cache is off or too small"),
        (0.0, "prompts share 0% with earlier ones: prompts were sent again"),
    ):
        notes = notes_of(server_findings(log, Window(9.5, 13.5), shared))
        assert len(notes) == bool(more)
        assert all(note.startswith(f"{hits}{more}") for note in notes)
        assert notes_of(server_findings(log, curve(_point(8, 9.5)), shared)) == tuple(
            f"at 8: {note}" for note in notes
        )


def test_requests_of_other_clients_are_noted() -> None:
    other = (
        (
            "at 8: the server had 25 requests on average, 8 of them from this run: another "
            "client uses it"
        ),
    )
    closed = replace(_point(8, 9.5), under_way=8.0)
    arriving = OpenWindow(before=0, after=0, most=9, unanswered=0, late={})
    for waiting, running, notes in ((0.0, 8.0, ()), (2.0, 8.0, ()), (9.0, 16.0, other)):
        log = log_of([{"waiting": waiting, "running": running}] * 4)
        assert notes_of(server_findings(log, curve(closed))) == notes
        assert notes_of(server_findings(log, curve(replace(closed, open=arriving)))) == ()


def _point(point: float, begin_s: float) -> PointWindow:
    return PointWindow(
        point=point,
        begin_s=begin_s,
        end_s=begin_s + 3.0,
        duration_s=3.0,
        requests=9,
        tokens=0,
        under_way=1.0,
        metrics={"throughput": 3.0},
        parts=[],
        notes={},
    )
