"""Read files next to a results file for the HTML page: baselines, logs and GPU samples."""

from __future__ import annotations

import datetime as dt
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from statistics import median
from typing import ParamSpec, TypeGuard, TypeVar

from pytest_mlperf import MlperfError, RunError
from pytest_mlperf.addons.html._page import render
from pytest_mlperf.addons.html.model import TIME_PARTS, Packed, Percentiles, RunFiles
from pytest_mlperf.bench.files import JudgedBaseline
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.history import CaseHistory
from pytest_mlperf.core.measurement import moment_of
from pytest_mlperf.core.results import Absent
from pytest_mlperf.extension import (
    CaseResult,
    Kind,
    ReportedSession,
    Results,
    Run,
    Scenario,
    parse_json,
)
from pytest_mlperf.run.logs import DETAIL, Detail, Timed, parse_detail
from pytest_mlperf.run.power.doubts import THROTTLING_REASONS
from pytest_mlperf.run.power.sampling import POWER_FILE, GpuLog, PowerLog
from pytest_mlperf.run.worker.clocks import LATENCIES_FILE as LATENCIES
from pytest_mlperf.stores.database import opened, store_of

MARGIN_SECONDS, MARGIN_SHARE = 5.0, 0.15
"""Time shown before and after the window: seconds, and share of the window's length."""

MAX_TIME_COLUMNS, MAX_REASON_BANDS = 150, 60
"""Number of parts of a line over time, two points each; maximum spans of a reason."""

SILENT = 5.0
"""Multiple of the usual interval between readings above which a line has a gap."""

THROTTLING_WORDS = {
    "hw_thermal_slowdown": "heat (hardware)",
    "sw_thermal_slowdown": "heat (software)",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_power_cap": "power cap",
    "sync_boost": "sync boost",
    "board_limit": "board limit",
    "reliability": "reliability limit",
    "display_clocks": "display's clocks",
    "application_clocks": "clocks set by hand",
    "gpu_idle": "idle",
}

CAP = "sw_power_cap"

Span = tuple[float, float]
"""Begin and end [s]."""


def power_of(folder: Path) -> Packed | None:
    """Return the plot data "power" of a run: GPU power, clock and temperature, decimated.

    Times are seconds since LoadGen's measurement began. Returns None if no GPU was sampled.
    `folder` has the logs of the performance run; the sampler's file is in its parent folder.
    """
    path = _file(folder.parent, POWER_FILE)
    if path is None or _file(folder, DETAIL) is None:
        return None
    log = PowerLog.read(path)
    gpus = [gpu for gpu in log.gpus if gpu.trace or gpu.states]
    if log.unavailable or not gpus:
        reason = log.unavailable or "the sampler read nothing"
        raise RunError("sampler", f"{path} has no readings: {reason}")
    if log.clock_stepped:
        reason = "the wall clock was set during the run, so LoadGen's window is unknown"
        raise RunError("sampler", f"{path}: {reason}")
    began, ended = parse_detail(folder / DETAIL).window_s
    window = log.monotonic(began), log.monotonic(ended)
    shown = _shown(path, gpus, window)
    held = _throttling_spans(gpus, shown, window)
    shaded = "LoadGen's window is shaded"
    if labels := [label for label, _, spans in held if spans]:
        shaded = f"{shaded}; so are times with reduced clocks: {', '.join(labels)}"
    return {
        "plot": "power",
        "says": f"{_subject(gpus, log.driver, began)}. {shaded}. By NVML, not MLPerf Power.",
        "window": round(window[1] - window[0], 2),
        "gpus": [_trace(gpu, f"GPU {n}", shown, window[0]) for n, gpu in _numbered(gpus)],
        "held": held,
    }


def _numbered(gpus: Sequence[GpuLog]) -> list[tuple[int, GpuLog]]:
    """Return (driver's GPU number, GPU), or (position, GPU) if numbers are missing or repeated."""
    numbers = [gpu.facts.get("identity", {}).get("index") for gpu in gpus]
    certain = None not in numbers and len(set(numbers)) == len(gpus)
    return list(zip(numbers if certain else range(len(gpus)), gpus, strict=True))


def _shown(path: Path, gpus: Sequence[GpuLog], window: Span) -> Span:
    begin_s, end_s = window
    times = [reading.time_s for gpu in gpus for reading in gpu.trace]
    times += [state["time"] for gpu in gpus for state in gpu.states]
    pad_s = max(MARGIN_SECONDS, MARGIN_SHARE * (end_s - begin_s))
    first_s, last_s = max(min(times), begin_s - pad_s), min(max(times), end_s + pad_s)
    if not (end_s > begin_s and first_s < end_s and last_s > begin_s):
        raise RunError("sampler", f"{path} has no GPU readings within LoadGen's window")
    return min(first_s, begin_s), max(last_s, end_s)


def _subject(gpus: Sequence[GpuLog], driver: str | None, began: float) -> str:
    names = dict.fromkeys(str(g.facts.get("identity", {}).get("name") or g.uuid) for g in gpus)
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    moment = dt.datetime.fromtimestamp(began, dt.UTC).isoformat(sep=" ", timespec="seconds")
    machine = f"{count}{', '.join(names)}, driver {driver or 'unknown'}"
    return f"{machine}; the window began {moment[:19]} UTC"


Point = tuple[float, float]
"""Time of a reading [s], and its value."""


def _trace(gpu: GpuLog, name: str, shown: Span, begin_s: float) -> Packed:
    lines = {
        "power": gpu.trace,
        "clock": gpu.series("sm_mhz", *shown),
        "temperature": gpu.series("temperature_c", *shown),
    }
    drawn = {}
    for quantity, readings in lines.items():
        points = [
            (reading.time_s - begin_s, reading.value)
            for reading in readings
            if shown[0] <= reading.time_s <= shown[1]
        ]
        line = with_gaps(decimate(points, MAX_TIME_COLUMNS), points)
        values = [None if value is None else round(value, 1) for _, value in line]
        drawn[quantity] = [[round(time_s, 2) for time_s, _ in line], values]
    return {"name": name, "limit": gpu.limit_w, **drawn}


def decimate(points: Sequence[Point], columns: int) -> list[Point]:
    """Return the lowest and the highest point in each of `columns` equal intervals of time."""
    if len(points) <= 2 * columns:
        return list(points)
    first_s = points[0][0]
    width_s = (points[-1][0] - first_s) / columns or 1.0
    parts: dict[int, list[Point]] = {}
    for point in points:
        place = min(int((point[0] - first_s) / width_s), columns - 1)
        parts.setdefault(place, []).append(point)
    ends = (
        {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        for part in parts.values()
    )
    return [point for part in ends for point in sorted(part)]


def with_gaps(drawn: Sequence[Point], points: Sequence[Point]) -> list[tuple[float, float | None]]:
    """Return the `drawn` points, with a None value inserted wherever `points` has a long gap.

    A gap is longer than `SILENT` median intervals; None interrupts the line in the plot.
    """
    times = [time_s for time_s, _ in points]
    intervals = [later - earlier for earlier, later in pairwise(times)]
    most_s = SILENT * median(intervals) if intervals else 0.0
    ends = [later for later, s in zip(times[1:], intervals, strict=True) if s > most_s]
    line: list[tuple[float, float | None]] = []
    for (earlier_s, _), later in pairwise([*drawn[:1], *drawn]):
        gap = bisect_left(ends, earlier_s + 1e-9)
        if gap < len(ends) and ends[gap] <= later[0]:
            line.append((earlier_s, None))
        line.append(later)
    return line


def _throttling_spans(
    gpus: Sequence[GpuLog], visible: Span, window: Span
) -> list[tuple[str, str, list[Span]]]:
    """Return (label, tone, spans [s]) of each throttling reason over all GPUs, the worst first.

    Tone is "fail", "open" or "note". Spans lie within `visible` and count from `window`'s start.
    """
    spans: dict[str, list[Span]] = {}
    shares: dict[str, dict[int, float]] = {}
    begin_s, end_s = window
    for place, gpu in _numbered(gpus):
        for span in gpu.clock_limits():
            first_s, last_s = max(span.begin_s, visible[0]), min(span.end_s, visible[1])
            if last_s > first_s:
                spans.setdefault(span.reason, []).append((first_s - begin_s, last_s - begin_s))
                shares.setdefault(span.reason, {}).setdefault(place, 0.0)
        for reason, seconds in gpu.limited_s(begin_s, end_s).items():
            shares.setdefault(reason, {})[place] = seconds / (end_s - begin_s)
    held = []
    for reason in [*THROTTLING_WORDS, *sorted(shares.keys() - THROTTLING_WORDS.keys())]:
        if reason in shares:
            joined = merged(spans.get(reason, []), (visible[1] - visible[0]) / MAX_REASON_BANDS)
            tone = "fail" if reason in THROTTLING_REASONS else "open" if reason == CAP else "note"
            ends = [(round(begin_s, 2), round(end_s, 2)) for begin_s, end_s in joined]
            held.append((_label(reason, shares[reason], len(gpus)), tone, ends))
    return held


def _label(reason: str, shares: Mapping[int, float], count: int) -> str:
    """Describe a throttling reason: its largest share of the time, and which GPUs have it.

    `shares` are by GPU number; `count` is the number of GPUs. If all GPUs have it, none is named.
    """
    share = max(shares.values())
    per_cent = "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"
    words = f"{THROTTLING_WORDS.get(reason, reason)} {per_cent}"
    if len(shares) == count:
        return words
    if len(shares) > 2:
        return f"{words}, {len(shares)} GPUs"
    return f"{words}, GPU{'s' * (len(shares) > 1)} {' and '.join(map(str, shares))}"


def merged(spans: Sequence[Span], apart_s: float) -> list[Span]:
    """Sort time spans, and join those that are less than `apart_s` apart."""
    joined: list[Span] = []
    for begin_s, end_s in sorted(spans):
        if joined and begin_s - joined[-1][1] < apart_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((begin_s, end_s))
    return joined


MAX_LOG_BYTES = 64 * 2**20
MAX_RUN_FOLDERS = 6
_PERCENTILES = (0.5, 0.9, 0.95, 0.97, 0.99, 0.999)

_TIMED: tuple[Timed, ...] = ("latency", "ttft", "tpot")


def folder_below(root: Path, named: str) -> Path | None:
    """Find a run's folder, named in a results file, below the folder of that file.

    The results file may come from another machine, so only the end of the path `named` is searched;
    links that lead out of the folder are not followed. Returns None if nothing is found.
    """
    parts = PurePath(named).parts
    for length in range(min(MAX_RUN_FOLDERS, len(parts)), 0, -1):
        tail = parts[-length:]
        if any(part in {"..", "/"} for part in tail):
            continue
        try:
            folder = root.joinpath(*tail)
            if folder.is_dir() and folder.resolve() == folder:
                return folder
        except (OSError, ValueError):  # a name that is too long, or holds a 0 byte
            continue
    return None


def _file(folder: Path, name: str) -> Path | None:
    path = folder / name
    if not path.is_file() or path.resolve().parent != folder.resolve():
        return None
    return path if path.stat().st_size <= MAX_LOG_BYTES else None


def _detail(folder: Path) -> Detail | None:
    path = _file(folder, DETAIL)
    return parse_detail(path) if path else None


def percentiles_of(folder: Path, scenario: Scenario) -> list[Percentiles]:
    """Return the latency percentiles in LoadGen's log, with LoadGen's latency limits."""
    detail = _detail(folder)
    if detail is None or scenario == Scenario.OFFLINE:
        return []
    settings = _numbers_in(folder, "settings")
    percentiles = []
    for timed in _TIMED:
        points = _logged(detail, "query_latency" if scenario == Scenario.MULTI_STREAM else timed)
        limit = settings.get(f"{timed}_limit_ns")
        if points:
            percentiles.append(
                Percentiles(
                    timed=timed,
                    points=points,
                    limit_s=limit / 1e9 if limit else None,
                    limit_share=settings.get("latency_percentile", 0.99) if limit else None,
                )
            )
    return percentiles


def _logged(detail: Detail, timed: Timed) -> list[tuple[float, float]]:
    points = [
        (share, nanoseconds / 1e9)
        for share in _PERCENTILES
        if (nanoseconds := detail.percentile_ns(timed, share))
    ]
    fastest = detail.values.get("result_min_latency_ns")
    if timed == "latency" and points and _positive(fastest):
        points.insert(0, (0.0, fastest / 1e9))
    return [point for point in points if point[1] > 0]


def _numbers_in(folder: Path, part: str) -> dict[str, float]:
    """Return the positive numbers in the section `part` of run.json; {} if the file is damaged."""
    path = _file(folder, "run.json")
    try:
        figures = parse_json(path.read_bytes())[part] if path else {}
        return {key: value for key, value in figures.items() if _positive(value)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _positive(value: object) -> TypeGuard[float]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf  # type: ignore[operator]


def moments_of(folder: Path) -> list[list[float]]:
    """Return rows (time [s], p50, p99 latency [s], queries in flight) of a run; [] if no file."""
    path = _file(folder, LATENCIES)
    if path is None:
        return []
    try:
        rows = parse_json(path.read_bytes())["moments"]
        return [
            [float(time_s), float(p50_s), float(p99_s), int(outstanding)]
            for time_s, p50_s, p99_s, outstanding in rows[:1000]
            if all(map(math.isfinite, (time_s, p50_s, p99_s, outstanding)))
        ]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise MlperfError(f"{path}: no latencies over time: {error}") from None


def spent_of(folder: Path, run: Run) -> dict[str, float]:
    """Return the seconds of a run by phase (`TIME_PARTS`); {} without LoadGen's detail log."""
    detail = _detail(folder)
    if detail is None:
        return {}
    begin_s, end_s = detail.window_s
    moment = moment_of(run.started)
    started_s = moment.timestamp() if moment else begin_s
    blocks = sorted((folder.parent / "accuracy").glob("block-*"))
    windows = [log.window_s for block in blocks if (log := _detail(block))]
    times = _numbers_in(folder, "spent")
    load_s, warm_s = (min(times.get(name, 0.0), 86_400.0) for name in ("load_s", "warmup_s"))
    seconds = (
        max(begin_s - started_s - load_s - warm_s, 0.0),
        load_s,
        warm_s,
        max(end_s - begin_s, 0.0),
        math.fsum(end - begin for begin, end in windows),
    )
    return dict(zip(TIME_PARTS, seconds, strict=True))


def sessions_of(results: Results, store: str) -> dict[str, list[CaseHistory]]:
    """Return by case id the histories in the database `store`, with this session's `results`."""
    with opened(store) as there:
        return there.histories_with(results)


MAX_GIT_CASES = 40
MAX_NOTES = 10
Found = TypeVar("Found")
Given = ParamSpec("Given")


def page_of(
    results: Results,
    file: Path,
    absent: Sequence[Absent] = (),
    *,
    root: Path = Path(),
    store: str = "",
) -> str:
    """Return the HTML page of a session; runs are searched only below the results file's folder.

    `store` is the URL of a database with earlier sessions; "" if there is none.
    """
    return render(results, _Search(file.resolve().parent, root).beside(results, store), absent)


def report(session: ReportedSession) -> str:
    """Return the HTML page of a session."""
    return page_of(
        session.results,
        session.file,
        session.absent,
        root=session.root,
        store=store_of(session.options),
    )


class _Search:
    """Find and read run files next to a results file, for plots; add notes on unreadable ones."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root = folder, root
        self._notes: dict[str, None] = {}

    def beside(self, results: Results, store: str = "") -> RunFiles:
        places = (self._root, self._folder, *self._folder.parents)
        baselines = {result.test: JudgedBaseline(result, places) for result in results.cases}
        records = {
            test: record
            for test, baseline in baselines.items()
            if (record := self._try(self._record, baseline))
        }
        folders = {result.test: self._folders(result) for result in results.cases}
        last = {test: pairs[-1][1] for test, pairs in folders.items() if pairs}
        speed = [r for r in results.cases if r.verdict.kind == Kind.PERFORMANCE and r.test in last]
        asked = [result for result in results.cases if result.test in records]
        # Each file takes several commands of git; failed cases come first.
        first = sorted(asked, key=lambda one: not one.failed)[:MAX_GIT_CASES]
        return RunFiles(
            records=records,
            versions={
                one.test: self._try(getattr, baselines[one.test], "versions") or [] for one in first
            },
            percentiles={
                one.test: logged
                for one in speed
                if (logged := self._try(percentiles_of, last[one.test], one.verdict.case.scenario))
            },
            moments={
                one.test: rows for one in speed if (rows := self._try(moments_of, last[one.test]))
            },
            power={test: t for test, at in last.items() if (t := self._try(power_of, at))},
            spent={
                test: [times for run, at in pairs if (times := self._try(spent_of, at, run))]
                for test, pairs in folders.items()
            },
            sessions=(self._try(sessions_of, results, store) if store else None) or {},
            folder=bool(last),
            notes=self._notes_shown(),
        )

    def _folders(self, result: CaseResult) -> list[tuple[Run, Path]]:
        runs = result.verdict.runs
        return [(run, at) for run in runs if (at := folder_below(self._folder, run.folder))]

    def _notes_shown(self) -> list[str]:
        notes = list(self._notes)
        more = [f"and {len(notes) - MAX_NOTES} more that could not be read"]
        return [*notes[:MAX_NOTES], *(more if len(notes) > MAX_NOTES else [])]

    def _try(
        self, read: Callable[Given, Found], *arguments: Given.args, **named: Given.kwargs
    ) -> Found | None:
        """Return the result of `read`; if a file is damaged, add a note and return None."""
        try:
            return read(*arguments, **named)
        except (MlperfError, OSError) as error:
            self._notes[f"not read: {error}"] = None
            return None

    def _record(self, baseline: JudgedBaseline) -> Record | None:
        record = baseline.record
        if baseline.was_replaced:
            # Beside a verdict on another one its runs would say something false.
            note = f"{baseline.file} was replaced after this session, so its runs are not shown"
            self._notes[note] = None
            return None
        return record
