"""Read a server's own metrics during a run, and evaluate them for the run's windows."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pytest_mlperf.core.baseline import may_be_cached
from pytest_mlperf.core.metrics import (
    PREFIX_HIT_SHARE,
    SERVER_METRICS,
    at_point,
    is_stage,
    point_of,
)
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Sign, SignKey
from pytest_mlperf.core.server import (
    COUNTERS,
    RATIOS,
    ServerReading,
    Windows,
    merge_servers,
    read_server,
    server_seen,
)
from pytest_mlperf.run.curve import CurveLog
from pytest_mlperf.run.figures import Findings
from pytest_mlperf.run.logs import TimedLog
from pytest_mlperf.run.scraping import POLL_SECONDS, Scraper
from pytest_mlperf.run.worker.point_window import PointWindow
from pytest_mlperf.stores import atomic

SERVER_FILE = "server.json"
SCHEMA_VERSION = 1

ABSENT = "the server shows no metrics at /metrics: its queue and its caches are not known"
IF_USAGE_TELLS = ("queue and its caches are", "queue is")

STEPPED = (
    "the server's metrics are not known: the wall clock was set during the run, so that its window "
    "cannot be found"
)

Answers = Mapping[float | None, Mapping[str, int]]
"""Answer counts of each window, see `Engine.answer_counts`; None for a run's only window."""

UNSIZED = 0.05
"""Share of TPOT from which a first message of unknown size is reported."""

BUILD = "build "

MIN_HIT_DIFFERENCE = 0.1
"""Minimum difference between the cache's hit share and the prompts' shared part to report."""

FOREIGN = 1.2
"""A server with this many times a run's requests, and one more, has others'. Readings are a second
apart, and may show ended requests for a moment."""

MIN_READ_SHARE, MIN_WINDOW_READINGS = 0.5, 4
"""Fewer readings of a window than this share are reported, if at least as many were due."""


@dataclass(kw_only=True)
class ServerLog:
    """Hold the readings of a server's metrics during a run.

    Attributes:
        readings: Readings, oldest first; empty without a metrics page.
        failures: Errors of failed readings.
        lack: Why there are no metrics, as text for the report; else "".
    """

    readings: list[ServerReading] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lack: str = ""


@contextlib.contextmanager
def watched_server(pages: Sequence[str], folder: Path) -> Iterator[ServerLog]:
    """Read a server's metrics pages inside the `with` block; write them to the run's folder."""
    log = ServerLog(lack="" if pages else ABSENT)

    def take(time_s: float, texts: Sequence[bytes]) -> None:
        values = merge_servers([read_server(text) for text in texts])
        log.readings.append(ServerReading(time_s=time_s, values=values))

    with Scraper(pages, take) as scraper:
        log.failures = scraper.failures
        yield log
    if scraper.clock_stepped and pages:
        log.lack = STEPPED
    if pages:
        content = {
            "schema": SCHEMA_VERSION,
            "cpu_s": scraper.cpu_s,
            "failures": len(log.failures),
            "readings": [[round(one.time_s, 3), one.values] for one in log.readings],
        }
        with contextlib.suppress(OSError):  # the run matters more
            atomic.write_text(folder / SERVER_FILE, json.dumps(content) + "\n")


def server_findings(
    log: ServerLog,
    timed: TimedLog,
    shared: float | None = None,
    limits: Collection[str] = (),
    answers: Answers = MappingProxyType({}),
) -> Findings:
    """Return a server's metrics in the time windows of a run, with notes on what is missing.

    `shared` is the share of the data set's prompt tokens that are a prefix of an earlier prompt;
    None if unknown. Stage times, and server metrics in `limits`, become metrics of the run.
    """
    by_usage = {
        _share_at(point): min(1.0, counts["cached_tokens"] / whole)
        for point, counts in answers.items()
        if (whole := counts.get("cacheable_tokens"))
    }
    is_read = not log.lack and (log.readings or log.failures)
    windows: Windows = {}
    points = timed.points if isinstance(timed, CurveLog) else ()
    if points:
        windows = {one.point: (one.begin_s, one.end_s) for one in points}
    elif is_read:
        windows = {None: timed.window_s}
    values, notes = server_seen(log.readings if is_read else (), windows)
    stages = {name: value for name, value in values.items() if is_stage(name) and value}
    values = {**by_usage, **{n: value for n, value in values.items() if not is_stage(n)}}
    signs = _signs(log, windows if is_read else {}, values, points, shared)
    lack = [log.lack.replace(*IF_USAGE_TELLS) if by_usage else log.lack] if log.lack else []
    absent = _absent(log, values, limits)
    gated = {name: values[name] for name in limits if name in values}
    return Findings(
        server=values,
        metrics={**stages, **{name: value for name, value in gated.items() if value}},
        zero=tuple(name for name, value in gated.items() if not value),
        notes=(*lack, *notes, *absent),
        signs=tuple(signs),
    )


def _share_at(point: float | None) -> str:
    return PREFIX_HIT_SHARE if point is None else at_point(PREFIX_HIT_SHARE, point)


def answer_signs(
    answers: Answers, fingerprint: Mapping[str, str], server: Mapping[str, float]
) -> Iterator[Sign]:
    """Yield warnings on a server's answers, e.g. that it counted more prompt tokens than sent."""
    for point, counts in answers.items():
        sent, counted = counts.get("expected_tokens", 0), counts.get("prompt_tokens", 0)
        if sent < counted:
            key = SignKey.PROMPTS_LONGER
            yield Sign.of(key, "prompts_longer", point=point, counted=counted, sent=sent)
        parts = ("answers", "messages", "tokens")
        count, messages, tokens = (counts.get(f"unsized_{name}", 0) for name in parts)
        # TPOT excludes the time of the first message, so its tokens must not count.
        share = (tokens / messages - 1) / (tokens / count - 1) if messages < tokens > count else 0.0
        if share > UNSIZED and messages > count:
            yield Sign.of(SignKey.FIRST_UNSIZED, "first_unsized", point=point, most=share)
    builds = sum((Counter(counts) for counts in answers.values()), Counter[str]())
    names = [name for name in builds if name.startswith(BUILD)]
    if len(names) > 1:
        build_counts = ", ".join(f"{name.removeprefix(BUILD)} ({builds[name]:,})" for name in names)
        yield Sign.of(SignKey.BUILDS_DIFFER, "builds_differ", builds=build_counts)
    has_share = any(name.partition("@")[0] == PREFIX_HIT_SHARE for name in server)
    if may_be_cached(fingerprint) and not has_share and answers:
        yield Sign.of(SignKey.CACHE_UNKNOWN, "cache_unknown")


def _absent(log: ServerLog, seen: Mapping[str, float], limits: Collection[str]) -> Iterator[Note]:
    """Yield a note on each server metric in `limits` that `seen` lacks, with the cause."""
    for name in limits:
        base = name.partition("@")[0]
        if base not in SERVER_METRICS or name in seen:
            continue
        counters = " and ".join(COUNTERS[part][0] for part in RATIOS[base])
        if log.lack or not log.readings:
            cause = "no page"
        elif any(
            {*RATIOS[base]} <= one.values.keys() or base in one.values for one in log.readings
        ):
            cause = "no count"
        else:
            cause = "no counters"
        yield Note.of("server_metric_missing", metric=name, cause=cause, counters=counters)


def _signs(
    log: ServerLog,
    windows: Windows,
    seen: Mapping[str, float],
    points: Sequence[PointWindow],
    shared: float | None,
) -> Iterator[Sign]:
    spans = windows.values()
    due_s = sum(end_s - begin_s for begin_s, end_s in spans)
    looks = sum(begin_s <= r.time_s <= end_s for r in log.readings for begin_s, end_s in spans)
    due = due_s / POLL_SECONDS
    if log.failures and due >= MIN_WINDOW_READINGS and looks < MIN_READ_SHARE * due:
        key, cause = SignKey.SERVER_UNREAD, log.failures[-1]
        yield Sign.of(key, "server_unread", count=looks, time_s=due_s, cause=cause)
    for point in points:
        requests = sum(seen.get(at_point(n, point.point), 0.0) for n in ("waiting", "running"))
        if point.open is None and requests > FOREIGN * point.under_way + 1:
            counts = {"count": requests, "own": point.under_way}
            yield Sign.of(SignKey.SERVER_SHARED, "server_shared", point=point.point, **counts)
    for name, share in seen.items():
        at = point_of(name)
        if shared is None or name != _share_at(at) or abs(share - shared) <= MIN_HIT_DIFFERENCE:
            continue
        shares = {"share": min(1.0, share), "shared": shared, "fewer": share < shared}
        yield Sign.of(SignKey.PREFIX_SHARE, "prefix_share", point=at, **shares)
