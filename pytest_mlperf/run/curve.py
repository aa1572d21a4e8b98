"""Read and check curves of Concurrency, OpenLoop and MLCommons' endpoints client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import correlation, fmean, geometric_mean, linear_regression, median
from types import MappingProxyType
from typing import Any

from pytest_mlperf.core.contention import Contention, client_note, core_users
from pytest_mlperf.core.errors import MlperfError, RunError, text_of
from pytest_mlperf.core.measurement import RunServing
from pytest_mlperf.core.metrics import ARRIVAL_METRICS, COUNTS, METRICS, RATES, at_point
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Key, Reason, Sign, SignKey
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.judge.formulas import t_sf
from pytest_mlperf.run.figures import Figures, Findings, merged_fields, per_gpu
from pytest_mlperf.run.worker.closed_loop import MIN_REQUESTS, MIN_SLOT_REQUESTS
from pytest_mlperf.run.worker.point_window import (
    MAX_TURNS,
    SCHEMA_VERSION,
    WINDOW_PARTS,
    OpenWindow,
    PointWindow,
)
from pytest_mlperf.stores import endpoints
from pytest_mlperf.stores.foreign import MAX_FILE_BYTES, read_regular

LOAD_SLACK_SHARE = 0.02
"""Concurrency is requests/s times mean latency by Little's law. If it is this share below the
target, the client did not keep it, and something else was measured."""

DRIFT_SHARE, DRIFT_RISK = 0.05, 0.01
"""A window is unsteady if its throughput drifts by this share from end to end, and at most this
share of steady windows would show such a slope."""

STALL = 0.5
"""Share of the median part's work below which a part counts as stalled."""

GROWTH_SHARE, GROWTH_DEVIATIONS = 0.05, 3.0
"""A queue grows by more than this share of a window's arrivals, and by more than these standard
deviations of the difference in requests in flight."""

MIXED = 0.01
"""Share of cut answers from which, up to one minus it, they are reported."""

MAX_CLIENT_SHARE = 0.5
"""Share of the client's rate against a null server that a run may use."""

UNANSWERED = 0.5
"""Share of a window's arrivals that may be unanswered at its end."""

SLOWED_LATENCY_SHARE = 0.25
"""Drift limit of the latency in an open loop, which varies more by chance."""


@dataclass(frozen=True, kw_only=True)
class CurveLog:
    """Hold the log of a Concurrency or OpenLoop run.

    Attributes:
        samples: Completions from the first window's begin to the last one's end, including
            warm-ups.
        points: Measured window of each concurrency or rate, in ascending order.
        arrivals, burstiness: Arrival process of an open loop, see `LoadGenSettings`.
        scored: Whether answers to other prompts were scored between the windows.
    """

    path: str
    samples: int
    points: tuple[PointWindow, ...]
    arrivals: str = ""
    burstiness: float | None = None
    scored: bool = False

    @property
    def window_s(self) -> tuple[float, float]:
        """Begin of the first window and end of the last one, seconds since the epoch."""
        return min(one.begin_s for one in self.points), max(one.end_s for one in self.points)


def read_curve(path: Path) -> CurveLog:
    """Read the log of a Concurrency or OpenLoop run."""
    try:
        content = parse_json(read_regular(path, MAX_FILE_BYTES))
        if content["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {content['schema']!r}, not {SCHEMA_VERSION}")
        points = tuple(
            PointWindow(
                **{**point, "open": OpenWindow(**point["open"]) if point.get("open") else None}
            )
            for point in content["points"]
        )
        if not points:
            raise ValueError("it has no points")
        for point in points:
            for name, value in {"duration_s": point.duration_s, **point.metrics}.items():
                if name != "duration_s" and name not in METRICS:
                    raise ValueError(f"unknown metric {name!r}")
                if not 0 < value < math.inf:
                    raise ValueError(f"{name} at {point.point} is {value!r}; it must be positive")
        return CurveLog(
            path=str(path),
            samples=int(content["samples"]),
            points=points,
            arrivals=content["arrivals"],
            burstiness=content["burstiness"],
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RunError:
    text = f"{path} cannot be read as the log of a curve: {text_of(error)}; run the test again"
    return RunError("worker", text, str(path))


def curve_figures(log: CurveLog, accelerator: str) -> Figures:
    """Return the metrics of each point, and those of the whole curve, which are judged.

    A curve's rate, or an open loop's time, is the geometric mean over its points: its relative
    change is the mean relative change of the points.
    """
    metrics = {
        at_point(name, point.point): value
        for point in log.points
        for name, value in point.metrics.items()
    }
    for name in (*RATES, *sorted(COUNTS), *(sorted(ARRIVAL_METRICS) if log.arrivals else ())):
        values = [point.metrics[name] for point in log.points if name in point.metrics]
        if len(values) == len(log.points):
            metrics[name] = geometric_mean(values)
    begin_s, end_s = log.window_s
    return Figures(
        signs=tuple(_signs(log)),
        metrics={**metrics, **per_gpu(metrics, accelerator)},
        samples=log.samples,
        queries=sum(point.requests for point in log.points),
        requests={str(point.point): point.requests for point in log.points},
        lengths={str(point.point): point.lengths for point in log.points if point.lengths},
        duration_s=end_s - begin_s,
    )


def answer_length_errors(log: CurveLog) -> dict[str, float]:
    """Return the relative standard error of tokens per sample, by metric name with its point."""
    return {
        at_point("tokens_per_sample", point.point): point.length_se
        for point in log.points
        if point.length_se
    }


def curve_finishes(log: CurveLog) -> dict[str, int]:
    """Return counts by finish reason and point: {"length@64": 12}."""
    return {
        at_point(reason, point.point): count
        for point in log.points
        for reason, count in point.finishes.items()
    }


def curve_validity(
    log: CurveLog,
    gated: Iterable[str] = (),
    client: Mapping[str, float] = MappingProxyType({}),
    at_a_time: int | None = None,
    may_fail: float = 0.0,
    load: Contention | None = None,
) -> Findings:
    """Return the reasons why a curve's points (concurrencies or rates) must not be judged.

    Requests of an open loop must not be late for its `gated` metrics; for `client` see
    `Engine.client_lateness`. The engine sends at most `at_a_time` requests at once; None is no
    limit. `may_fail` is the share of a point's requests that may fail. `load` is None if unknown.
    """
    seen: list[Findings] = []
    users = core_users(load, fmean(point.client_busy for point in log.points))
    for point in log.points:
        window, signs, reasons = point.open, tuple[Sign, ...](), list(_at_limit(point, may_fail))
        least = MIN_REQUESTS if window else max(MIN_REQUESTS, MIN_SLOT_REQUESTS * point.point)
        if window and at_a_time is not None and window.most > at_a_time:
            counts = {"most": window.most, "sent": at_a_time}
            reasons.append(Reason.of(Key.CLIENT_LATE, "client_queues", **counts))
        elif window:
            signs = tuple(_late(point, window, gated, client))
        if point.requests < least:
            figures = {"count": point.requests, "duration_s": point.duration_s, "needed": least}
            reasons.append(Reason.of(Key.TOO_FEW_REQUESTS, "few_requests", **figures))
        else:
            reasons += _open_reasons(point, window, log) if window else _reasons(point, users)
        seen.append(Findings(signs=signs, invalid=tuple(_at(point, r) for r in reasons)))
    return Findings(**merged_fields(*seen))


def _at_limit(point: PointWindow, may_fail: float) -> Iterator[Reason]:
    rate, reach = point.metrics.get("throughput", 0.0), point.client_reach
    if reach is not None and rate > MAX_CLIENT_SHARE * reach:
        tokens = point.tokens / point.requests if point.tokens else None
        yield Reason.of(Key.CLIENT_LATE, "client_at_limit", rate=rate, reach=reach, tokens=tokens)
    every = point.failed + point.requests
    if point.failed > may_fail * every:
        figures = {"count": point.failed, "of": every, "allowed": may_fail}
        yield Reason.of(Key.REQUESTS_FAILED, "requests_failed", **figures)


def _late(
    point: PointWindow, window: OpenWindow, gated: Iterable[str], client: Mapping[str, float]
) -> Iterator[Sign]:
    names = dict.fromkeys(("latency_p50", *(name.partition("@")[0] for name in gated)))
    if note := client_note(point.metrics, names, {**client, **_lateness(window, client)}):
        yield Sign(key=SignKey.CLIENT_LATE, text=note, point=point.point)


def _lateness(window: OpenWindow, client: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds + client.get(name, 0.0) for name, seconds in window.late.items()}


def curve_lateness(log: CurveLog, client: Mapping[str, float]) -> dict[str, float]:
    """Return the client's delays by name [s]; for an open loop, those of each rate: "issue@64"."""
    late = {
        at_point(name, point.point): seconds
        for point in log.points
        if point.open
        for name, seconds in _lateness(point.open, client).items()
    }
    return {**client, **late}


def _open_reasons(point: PointWindow, window: OpenWindow, log: CurveLog) -> Iterator[Reason]:
    """Yield reasons why an open loop's point must not be judged; a trace need not be steady."""
    grown, shape = window.after - window.before, min(1.0, log.burstiness or 1.0)
    by_chance = GROWTH_DEVIATIONS * math.sqrt((window.after + window.before) / shape)
    grows = log.arrivals != "trace" and grown > max(GROWTH_SHARE * point.requests, by_chance)
    if grows or window.unanswered > UNANSWERED * point.requests:
        counts = {"before": window.before, "after": window.after, "of": point.requests}
        yield Reason.of(Key.OVERLOADED, "overloaded", unanswered=window.unanswered, **counts)
        return
    latencies = [took_s for requests, _, took_s in point.parts if requests]
    moved, p_value = drift(latencies if len(latencies) == len(point.parts) else [])
    if log.arrivals != "trace" and abs(moved) > SLOWED_LATENCY_SHARE and p_value < DRIFT_RISK:
        yield Reason.of(Key.NOT_STEADY, "latency_drifts", moved=moved)


def _at(point: PointWindow, reason: Reason) -> Reason:
    return replace(reason, text=Note.of("at", point=point.point, note=reason.text))


def _reasons(point: PointWindow, users: Note) -> Iterator[Reason]:
    if point.under_way + point.paused < (1 - LOAD_SLACK_SHARE) * point.point:
        figures = {"seen": point.under_way, "of": point.point, "paused": point.paused}
        turns, key = bool(point.turns), Key.CONCURRENCY_NOT_HELD
        yield Reason.of(key, "not_held", **figures, turns=turns, users=users)
    yield from throughput_drift(point)


def throughput_drift(point: PointWindow) -> Iterator[Reason]:
    """Yield a reason if a closed loop's throughput drifted within a point, by linear regression."""
    moved, p_value = drift(_work(point))
    if abs(moved) > DRIFT_SHARE and p_value < DRIFT_RISK:
        yield Reason.of(Key.NOT_STEADY, "throughput_drifts", moved=moved)


def _work(point: PointWindow) -> list[int]:
    return [tokens if point.tokens else requests for requests, tokens, _ in point.parts]


def drift(values: Sequence[float]) -> tuple[float, float]:
    """Return a fitted line's total change, relative to the mean, and its two-sided p (t test)."""
    count, mean = len(values), fmean(values) if values else 0.0
    if count < 3 or not mean:
        return 0.0, 1.0
    slope, df = linear_regression(range(count), values).slope, count - 2
    unexplained = 1 - correlation(range(count), values) ** 2 if max(values) > min(values) else 1.0
    t = math.sqrt(df * (1 / unexplained - 1)) if unexplained > 0 else math.inf
    return slope * (count - 1) / mean, 2 * t_sf(t, df)


def _turn_times(point: PointWindow) -> Iterator[Sign]:
    """Yield a note that compares the median times of first and later turns (prefix cache)."""
    medians = {
        turn: (latency_s, ttft_s)[all(row[3] for row in point.turns)]
        for turn, _, latency_s, ttft_s in point.turns
    }
    first_s, later_s = medians.pop(1, None), list(medians.values())
    if first_s is None or not later_s:
        return
    yield Sign.of(
        SignKey.TURNS,
        "turns",
        point=point.point,
        first_s=first_s,
        low_s=min(later_s),
        high_s=max(later_s),
        last=max(medians),
        more=max(medians) == MAX_TURNS,
        ttft=all(row[3] for row in point.turns),
        paused=point.paused,
    )


def _signs(log: CurveLog) -> Iterator[Sign]:
    shares = []
    for point in log.points:
        cut, ended = point.finishes.get("length", 0), sum(point.finishes.values())
        if MIXED * ended < cut < (1 - MIXED) * ended:
            shares.append(f"{cut / ended:.0%} at {point.point:,}")
        if point.failed:
            counts = {"count": point.failed, "of": point.failed + point.requests}
            failed = SignKey.REQUESTS_FAILED
            yield Sign.of(failed, "some_requests_failed", point=point.point, **counts)
        yield from _turn_times(point)
        work = _work(point)
        fits = not point.open and not point.paused  # paused conversations do no work
        stalled = sum(value < STALL * median(work) for value in work) if fits else 0
        if stalled:
            counts = {"count": stalled, "of": len(work)}
            yield Sign.of(SignKey.STALLED, "stalled", point=point.point, **counts)
        for key, text in point.notes.items():
            yield Sign(key=SignKey(key), text=text, point=point.point)
    if shares:
        yield Sign.of(SignKey.ANSWERS_CUT, "cut_in_part", shares=", ".join(shares))


def read_recorded(path: Path, harness: str) -> tuple[CurveLog, Findings]:
    """Read the points that MLCommons' client recorded in a run; return them with findings.

    `harness` is the client's version before the run. Each point has a folder next to the worker's
    log. Raises RunError if a point is incomplete or was recorded by another version.
    """
    try:
        content = parse_json(read_regular(path, MAX_FILE_BYTES))
        if content["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {content['schema']!r}, not {SCHEMA_VERSION}")
        clocks = {str(name): float(clock_s) for name, clock_s in content["recorded"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(path, error) from error
    try:
        points = sorted(
            (
                (endpoints.read_point(path.parent / name), clock_s)
                for name, clock_s in clocks.items()
            ),
            key=lambda pair: pair[0].concurrency,
        )
        windows = tuple(_curve_window(point, clock_s) for point, clock_s in points)
    except MlperfError as error:
        raise RunError("engine", str(error), str(path.parent)) from error
    for point, _ in points:
        if (measured_by := endpoints.version_of(point.facts)) != harness:
            text = f"measured by {measured_by}, not {harness}: the client was replaced in mid-run"
            raise RunError("engine", text, str(point.folder))
    log = CurveLog(
        path=str(path),
        samples=sum(point.requests for point, _ in points),
        points=windows,
        scored=any(endpoints.file_of(point.folder, endpoints.ACCURACY_FILE) for point, _ in points),
    )
    reasons = [reason for point, _ in points for reason in point.invalid]
    return log, Findings(
        invalid=(*reasons, *(_at(w, reason) for w in windows for reason in throughput_drift(w))),
        notes=tuple(note for point, _ in points for note in point.notes),
    )


def _curve_window(point: endpoints.RecordedPoint, clock_offset_s: float) -> PointWindow:
    """Return a point's window, shifted by `clock_offset_s`, with the completions per equal part."""
    events = endpoints.read_events(point.folder)
    begin_s, end_s = events.begin_ns / 1e9, events.end_ns / 1e9
    parts = [0] * WINDOW_PARTS
    for ended_ns in events.completed_ns:
        part = int((ended_ns / 1e9 - begin_s) / (end_s - begin_s) * WINDOW_PARTS)
        parts[min(WINDOW_PARTS - 1, part)] += 1
    window = recorded_window(point, begin_s + clock_offset_s, end_s + clock_offset_s)
    return replace(window, parts=tuple((count, 0, 0.0) for count in parts))


def recorded_figures(points: Sequence[endpoints.RecordedPoint], accelerator: str) -> dict[str, Any]:
    """Return fields of `Run`, by name, for curve points that MLCommons' client measured."""
    windows = (recorded_window(one, one.ended_s - one.duration_s, one.ended_s) for one in points)
    samples = sum(one.requests for one in points)
    log = CurveLog(path="", samples=samples, points=tuple(windows))
    figures = curve_figures(log, accelerator)
    return {
        "metrics": figures.metrics,
        "within_se": answer_length_errors(log),
        "samples": samples,
        "queries": samples,
        "serving": RunServing(requests=figures.requests),
    }


def recorded_window(point: endpoints.RecordedPoint, begin_s: float, end_s: float) -> PointWindow:
    """Convert a point that MLCommons' client recorded to a `PointWindow`."""
    return PointWindow(
        point=point.concurrency,
        begin_s=begin_s,
        end_s=end_s,
        duration_s=point.duration_s,
        requests=point.requests,
        tokens=0,
        under_way=float(point.concurrency),
        metrics=point.metrics,
        parts=(),
        length_se=point.length_se,
    )
