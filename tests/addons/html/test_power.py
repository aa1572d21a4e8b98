"""Power, clock and temperature of a run: little for a page, and nothing that matters is lost."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.addons.html.report import (
    MAX_REASON_BANDS,
    MAX_TIME_COLUMNS,
    decimate,
    merged,
    power_of,
    with_gaps,
)
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.power.sampling import PowerSampling
from tests.nvml.library import Fake

WALL_S = 1_763_640_000.0
"""2025-11-20 12:00:00 UTC, when the window of the made runs begins; monotonic 1000 s."""

CAP, HEAT, IDLE = 0x4, 0x40, 0x1


def log_line(key: str, value: object) -> str:
    entry = {"key": key, "value": value, "metadata": {"is_error": False}}
    return f":::MLLOG {json.dumps(entry)}\n"


BEGIN_ALONE = log_line("power_begin", "11-20-2025 12:00:00.000")


def detail(folder: Path, begin: str, end: str) -> None:
    folder.mkdir(exist_ok=True)
    entries = {"power_begin": begin, "power_end": end, "num_errors": 0}
    lines = [log_line(key, value) for key, value in entries.items()]
    (folder / "mlperf_log_detail.txt").write_text("".join(lines))


def sampled(
    folder: Path,
    *,
    gpus: int = 1,
    reasons: Sequence[Mapping[float, int]] = ({},),
    wall_at_end: float = 0.0,
) -> Path:
    """Write a run's folder: 10 s of window with 12 s before and after, at 5 Hz.

    Args:
        folder: Folder of the run.
        gpus: Number of GPUs.
        reasons: For each GPU, by seconds after the window began, the mask from then on.
        wall_at_end: Seconds by which the wall clock was set during the run.
    """
    identity = {"name": "NVIDIA H200", "limit_w": 700.0}
    gpu_facts = [{"index": i, "uuid": f"GPU-{i}", "identity": identity} for i in range(gpus)]
    offset = WALL_S - 1000.0
    clocks = {"time": 980.0, "wall": 980.0 + offset}
    records: list[Any] = [
        {
            "ready": {
                "version": 1,
                "driver": "595.45.04",
                "rates": {"trace_hz": 5.0},
                "gpus": gpu_facts,
                **clocks,
            }
        }
    ]
    for step in range(34 * 5):
        after_s = step / 5 - 12.0
        for gpu in range(gpus):
            mine = reasons[gpu] if gpu < len(reasons) else {}
            mask = next((m for t, m in sorted(mine.items(), reverse=True) if t <= after_s), 0)
            records.append({"t": [1000.0 + after_s, gpu, 650.0 + gpu, mask]})
            state = {"time": 1000.0 + after_s, "gpu": gpu, "sm_mhz": 1980, "temperature_c": 50}
            records.append({"s": state})
    end = {"time": 1022.0, "wall": 1022.0 + offset + wall_at_end, "ticks": 170, "planned": 170}
    records.append({"end": {**end, "elapsed_s": 34.0, "cpu_s": 0.1, "gpus": []}})
    folder.mkdir(exist_ok=True)
    (folder / "power.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    detail(folder / "performance", "11-20-2025 12:00:00.000", "11-20-2025 12:00:10.000")
    return folder


def read_power(folder: Path) -> dict[str, Any]:
    power = power_of(folder / "performance")
    assert power is not None
    return power


def test_times_count_from_the_windows_begin(tmp_path: Path) -> None:
    """5 s stand before and after a short window; the loading before that would only squeeze it."""
    power = read_power(sampled(tmp_path / "first-Offline-null-fp32-H200.1"))

    assert power["says"] == (
        "NVIDIA H200, driver 595.45.04; the window began 2025-11-20 12:00:00 UTC. LoadGen's window "
        "is shaded. By NVML, not MLPerf Power."
    )
    assert power["window"] == pytest.approx(10.0)
    (gpu,) = power["gpus"]
    assert gpu["limit"] == 700.0
    for series in ("power", "clock", "temperature"):
        times, values = gpu[series]
        assert len(times) == len(values)
        assert times[0] == pytest.approx(-5.0, abs=0.2)
        assert times[-1] == pytest.approx(15.0, abs=0.2)
    assert power["held"] == []


def test_each_reason_has_its_lane_and_its_share_of_the_window(tmp_path: Path) -> None:
    masks = {-9.1: HEAT, -8.1: IDLE, -0.1: 0, 1.9: CAP, 4.9: CAP | HEAT, 5.3: 0x800, 5.5: 0}

    power = read_power(sampled(tmp_path / "run", reasons=[masks]))

    assert [(label, tone) for label, tone, _ in power["held"]] == [
        ("heat (hardware) 4 %", "fail"),
        ("power cap 34 %", "open"),
        ("idle 0 %", "note"),
        ("unknown 0x800 2 %", "note"),
    ]
    spans = [span for _, _, spans in power["held"] for span in spans]
    for span, at_s in zip(spans, [(5.0, 5.4), (2.0, 5.4), (-5.0, 0.0), (5.4, 5.6)], strict=True):
        assert span == pytest.approx(at_s, abs=0.01)


def test_a_lane_names_the_gpus_if_they_are_not_all(tmp_path: Path) -> None:
    rows = [
        ([1], "heat (hardware) 20 %, GPU 1"),
        ([0, 2], "heat (hardware) 20 %, GPUs 0 and 2"),
        ([0, 1, 2], "heat (hardware) 20 %, 3 GPUs"),
        ([0, 1, 2, 3], "heat (hardware) 20 %"),
    ]
    for number, (held, label) in enumerate(rows):
        masks = [{0.9: HEAT, 2.9: 0} if place in held else {} for place in range(4)]
        power = read_power(sampled(tmp_path / str(number), gpus=4, reasons=masks))
        assert [lane[0] for lane in power["held"]] == [label]
        assert [gpu["name"] for gpu in power["gpus"]] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
        assert power["says"].startswith("4 x NVIDIA H200, ")
        assert f"so are times with reduced clocks: {label}. By NVML" in power["says"]


READINGS, LOG = "power.jsonl", "performance/mlperf_log_detail.txt"
SILENT = json.dumps({"ready": {"version": 1, "unavailable": "the driver is not loaded"}}) + "\n"


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    rows = [
        (LOG, BEGIN_ALONE, "mlperf_log_detail.txt is truncated: LoadGen ends it with 'num_errors'"),
        (READINGS, '{"something": "else"}\n', "its first line is not from the sampler"),
        (READINGS, SILENT, "power.jsonl has no readings: the driver is not loaded"),
    ]
    for number, (file, content, message) in enumerate(rows):
        folder = sampled(tmp_path / str(number))
        (folder / file).write_text(content)
        with pytest.raises(RunError, match=message):
            read_power(folder)
    folder = sampled(tmp_path / "run")
    detail(folder / "performance", "11-20-2025 13:00:00.000", "11-20-2025 13:00:10.000")
    with pytest.raises(RunError, match=r"power\.jsonl has no GPU readings within LoadGen's window"):
        read_power(folder)
    with pytest.raises(RunError, match="the wall clock was set during the run"):
        read_power(sampled(tmp_path / "set", wall_at_end=3.0))
    for file in (LOG, READINGS):
        folder = sampled(tmp_path / "without")
        (folder / file).unlink()
        assert power_of(folder / "performance") is None


@pytest.mark.process
def test_a_sampler_log_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real sampler's file, of two GPUs of which one is halted by heat."""
    fake = Fake(tmp_path)
    lines = ["device", "wave const 500", "device", "event 0x40 after=0 sm=990"]
    fake.write(*lines)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"):
        monkeypatch.setenv(name, fake.environment[name])
    folder = tmp_path / "run"
    folder.mkdir()
    with PowerSampling(["GPU-0", "GPU-1"], folder, watch_s=0.02):
        begin_s = time.time()
        time.sleep(0.6)
        end_s = time.time()
    written = [
        time.strftime("%m-%d-%Y %H:%M:%S", time.gmtime(t)) + f".{int(t % 1 * 1000):03d}"
        for t in (begin_s, end_s)
    ]
    detail(folder / "performance", *written)

    trace = read_power(folder)

    limits = [(gpu["name"], gpu["limit"]) for gpu in trace["gpus"]]
    assert limits == [("GPU 0", 700.0), ("GPU 1", 700.0)]
    # All of the window but what was before the first reading.
    labels = [label for label, _, _ in trace["held"]]
    assert any(re.fullmatch(r"heat \(hardware\) (9\d|100) %, GPU 1", label) for label in labels)


def readings(*values: float, every_s: float = 1.0) -> list[tuple[float, float]]:
    return [(i * every_s, value) for i, value in enumerate(values)]


VALUES = st.lists(st.floats(0, 700), min_size=1, max_size=400)


@given(VALUES, st.integers(1, 60))
def test_a_decimated_line_has_its_extremes_and_few_points(
    values: list[float], columns: int
) -> None:
    given_ = readings(*values)

    kept = decimate(given_, columns)

    assert len(kept) <= max(2 * columns, 1)
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)
    places = [given_.index(reading) for reading in kept]
    assert places == sorted(set(places))
    if len(given_) <= 2 * columns:
        assert kept == given_


@given(VALUES)
def test_no_spike_is_lost_in_its_column(values: list[float]) -> None:
    """Wherever a reading stands out, something as high is kept within a column of it."""
    columns = 20
    given_ = readings(*values)
    kept = decimate(given_, columns)
    width_s = (given_[-1][0] - given_[0][0]) / columns

    for time_s, value in given_:
        assert any(abs(kept_s - time_s) <= width_s + 1e-9 and top >= value for kept_s, top in kept)


SPANS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 5)).map(lambda s: (s[0], s[0] + s[1])), max_size=30
)


@given(SPANS, st.floats(0.01, 10))
def test_merged_spans_cover_all_and_stand_apart(
    spans: list[tuple[float, float]], apart_s: float
) -> None:
    spans_merged = merged(spans, apart_s)

    assert all(any(b <= s[0] and s[1] <= e for b, e in spans_merged) for s in spans)
    assert all(later[0] - earlier[1] >= apart_s for earlier, later in pairwise(spans_merged))
    assert all(
        any(b == s[0] for s in spans) and any(e == s[1] for s in spans) for b, e in spans_merged
    )


def test_a_line_is_broken_where_readings_are_missing() -> None:
    """A line drawn through a hole of the sampler would look like a measurement."""
    whole = readings(*[400.0] * 40, every_s=0.02)
    late = [(time_s + 3.0, value) for time_s, value in whole]
    points = with_gaps([*whole, *late], [*whole, *late])

    assert [i for i, (_, value) in enumerate(points) if value is None] == [40]
    times = [time_s for time_s, _ in points]
    assert times == sorted(times)
    assert None not in [value for _, value in with_gaps(whole, whole)]
    assert with_gaps([], []) == []
    holed = [r for r in readings(*[400.0, 401.0] * 500, every_s=0.02) if not 5.0 < r[0] < 8.0]
    points = with_gaps(decimate(holed, 50), holed)
    (gap,) = [i for i, (_, value) in enumerate(points) if value is None]
    assert points[gap][0] <= 5.0
    assert points[gap + 1][0] >= 8.0


def test_a_long_run_of_eight_gpus_that_never_rest_is_small(tmp_path: Path) -> None:
    flicker = {n / 5: IDLE * (n % 2) for n in range(-60, 110)}

    trace = read_power(sampled(tmp_path / "run", gpus=8, reasons=[flicker] * 8))

    assert all(len(gpu["power"][0]) <= 2 * MAX_TIME_COLUMNS + 1 for gpu in trace["gpus"])
    assert all(len(spans) <= MAX_REASON_BANDS + 1 for _, _, spans in trace["held"])
