"""The picture of a run: made in a child process, and never a reason for a run to fail."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run.power import Sampling
from pytest_mlperf.run.timeline import draw_timeline, main, read_timeline
from tests.nvml.library import Fake

WALL_S = 1_763_640_000.0
"""2025-11-20 12:00:00 UTC, when the window of the made runs begins; monotonic 1000 s."""

CAP, HEAT, IDLE = 0x4, 0x40, 0x1


def detail(folder: Path, begin: str, end: str) -> None:
    folder.mkdir(exist_ok=True)
    entries = {"power_begin": begin, "power_end": end, "num_errors": 0}
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "value": value, "metadata": {"is_error": False}})
        for key, value in entries.items()
    ]
    (folder / "mlperf_log_detail.txt").write_text("\n".join([*lines, ""]))


def sampled(
    folder: Path,
    *,
    gpus: int = 1,
    reasons: Sequence[Mapping[float, int]] = ({},),
    wall_at_end: float = 0.0,
) -> Path:
    """Write a run's folder: 10 s of window with 12 s before and after, at 5 Hz.

    Args:
        folder: Where.
        gpus: How many.
        reasons: For each GPU, by seconds after the window began, the mask from then on.
        wall_at_end: By how much the wall clock was set meanwhile.
    """
    identity = {"name": "NVIDIA H200", "limit_w": 700.0}
    told = [{"index": i, "uuid": f"GPU-{i}", "identity": identity} for i in range(gpus)]
    offset = WALL_S - 1000.0
    clocks = {"time": 980.0, "wall": 980.0 + offset}
    records: list[Any] = [
        {
            "ready": {
                "version": 1,
                "driver": "595.45.04",
                "rates": {"trace_hz": 5.0},
                "gpus": told,
                **clocks,
            }
        }
    ]
    for step in range(34 * 5):
        after_s = step / 5 - 12.0
        for place in range(gpus):
            mine = reasons[place] if place < len(reasons) else {}
            mask = next((m for t, m in sorted(mine.items(), reverse=True) if t <= after_s), 0)
            records.append({"t": [1000.0 + after_s, place, 650.0 + place, mask]})
            state = {"time": 1000.0 + after_s, "gpu": place, "sm_mhz": 1980, "temperature_c": 50}
            records.append({"s": state})
    end = {"time": 1022.0, "wall": 1022.0 + offset + wall_at_end, "ticks": 170, "planned": 170}
    records.append({"end": {**end, "elapsed_s": 34.0, "cpu_s": 0.1, "gpus": []}})
    folder.mkdir(exist_ok=True)
    (folder / "power.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    detail(folder / "performance", "11-20-2025 12:00:00.000", "11-20-2025 12:00:10.000")
    return folder


def texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text("utf-8"))


def test_times_count_from_the_windows_begin(tmp_path: Path) -> None:
    """5 s stand before and after a short window; the loading before that would only squeeze it."""
    found = read_timeline(sampled(tmp_path / "first-Offline-null-fp32-H200.1"))

    assert found.title == "first-Offline-null-fp32-H200.1"
    assert found.subtitle == (
        "NVIDIA H200, driver 595.45.04; the window began 2025-11-20 12:00:00 UTC"
    )
    assert found.window_s == pytest.approx(10.0)
    assert found.shown == pytest.approx((-5.0, 15.0))
    (gpu,) = found.gpus
    assert gpu.limit_w == 700.0
    for series in (gpu.power, gpu.clock, gpu.temperature):
        assert series[0].time_s == pytest.approx(-5.0, abs=0.2)
        assert series[-1].time_s == pytest.approx(15.0, abs=0.2)
    assert found.lanes == []


def test_each_reason_has_its_lane_and_its_share_of_the_window(tmp_path: Path) -> None:
    """Heat is a fault, the power cap is not, and what was before the window shown is left out."""
    masks = {-9.1: HEAT, -8.1: IDLE, -0.1: 0, 1.9: CAP, 4.9: CAP | HEAT, 5.3: 0x800, 5.5: 0}

    found = read_timeline(sampled(tmp_path / "run", reasons=[masks]))

    told = [(lane.label, lane.kind) for lane in found.lanes]
    assert told == [
        ("heat (hardware) 4 %", "fault"),
        ("power cap 34 %", "cap"),
        ("idle 0 %", "plain"),
        ("unknown 0x800 2 %", "plain"),
    ]
    spans = [span for lane in found.lanes for span in lane.spans]
    for span, at_s in zip(spans, [(5.0, 5.4), (2.0, 5.4), (-5.0, 0.0), (5.4, 5.6)], strict=True):
        assert span == pytest.approx(at_s, abs=0.01)


@pytest.mark.parametrize(
    ("held", "label"),
    [
        ([1], "heat (hardware) 20 %, GPU 1"),
        ([0, 2], "heat (hardware) 20 %, GPU 0 2"),
        ([0, 1, 2], "heat (hardware) 20 %, 3 GPUs"),
        ([0, 1, 2, 3], "heat (hardware) 20 %"),
    ],
)
def test_a_lane_names_the_gpus_if_they_are_not_all(
    tmp_path: Path, held: Sequence[int], label: str
) -> None:
    masks = [{0.9: HEAT, 2.9: 0} if place in held else {} for place in range(4)]

    found = read_timeline(sampled(tmp_path / "run", gpus=4, reasons=masks))

    assert [lane.label for lane in found.lanes] == [label]
    assert [gpu.name for gpu in found.gpus] == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    assert found.subtitle.startswith("4 x NVIDIA H200, ")


@pytest.mark.parametrize("given", ["run", "run/performance"])
def test_a_child_draws_it_and_leaves_only_the_picture(tmp_path: Path, given: str) -> None:
    pytest.importorskip("matplotlib")
    folder = sampled(tmp_path / "run", reasons=[{1.9: CAP, 4.9: 0}])
    before = {path.name for path in folder.iterdir()}

    found = draw_timeline(tmp_path / given)

    assert found is not None
    assert found.resolve() == folder / "power.svg"
    assert {path.name for path in folder.iterdir()} - before == {"power.svg"}
    assert {"run", "LoadGen's window, 10.0 s", "power cap 30 %"} <= set(texts(found))


def test_redrawing_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    folder = sampled(tmp_path / "run", gpus=2)

    assert main([str(folder)]) == 0
    first = (folder / "power.svg").read_bytes()
    assert main([str(folder)]) == 0

    assert (folder / "power.svg").read_bytes() == first
    assert capsys.readouterr().out == f"wrote {folder / 'power.svg'}\n" * 2


def test_without_matplotlib_there_is_no_picture_and_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sampled(tmp_path / "run")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    before = sorted(folder.iterdir())

    assert draw_timeline(folder) is None
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "first",
    [
        None,
        {"ready": {"version": 1, "unavailable": "the driver is not loaded"}},
        {"ready": {"gpus": [{"index": 0, "uuid": "GPU-0", "unavailable": "not here"}]}},
    ],
    ids=["no file", "no NVML", "no GPU"],
)
def test_where_nothing_was_sampled_there_is_nothing_to_draw(tmp_path: Path, first: object) -> None:
    if first is not None:
        (tmp_path / "power.jsonl").write_text(json.dumps(first) + "\n")
    before = sorted(tmp_path.iterdir())

    assert draw_timeline(tmp_path) is None
    assert sorted(tmp_path.iterdir()) == before


def cut(folder: Path) -> None:
    path = folder / "performance" / "mlperf_log_detail.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))


def gone(folder: Path) -> None:
    (folder / "performance" / "mlperf_log_detail.txt").unlink()


def damaged(folder: Path) -> None:
    (folder / "power.jsonl").write_text('{"something": "else"}\n')


def elsewhere(folder: Path) -> None:
    detail(folder / "performance", "11-20-2025 13:00:00.000", "11-20-2025 13:00:10.000")


def blocked(folder: Path) -> None:
    (folder / "power.svg").mkdir()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (cut, "mlperf_log_detail.txt is cut: LoadGen ends it with 'num_errors'"),
        (gone, "mlperf_log_detail.txt: No such file"),
        (damaged, "its first line is not a sampler's"),
        (elsewhere, "power.jsonl has no readings of LoadGen's window"),
        (blocked, "power.svg cannot be written: Is a directory"),
    ],
)
def test_a_drawing_that_fails_leaves_its_reason(tmp_path: Path, harm: Any, why: str) -> None:
    pytest.importorskip("matplotlib")
    folder = sampled(tmp_path / "run")
    harm(folder)

    assert draw_timeline(folder) is None
    told = (folder / "timeline.log").read_text("utf-8")
    assert told.startswith("no timeline: ")
    assert why in told
    assert "Traceback" not in told


def test_a_clock_that_was_set_meanwhile_is_said(tmp_path: Path) -> None:
    folder = sampled(tmp_path / "run", wall_at_end=3.0)

    with pytest.raises(RunError, match="the wall clock was set during the run"):
        read_timeline(folder)


def test_a_drawing_that_hangs_is_ended(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = sampled(tmp_path / "run")

    assert draw_timeline(folder, limit_s=0.001) is None
    assert "drawing took longer than 0.001 s" in (folder / "timeline.log").read_text("utf-8")


def test_a_folder_without_a_samplers_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"no timeline: there is no {tmp_path / 'power.jsonl'}; name the folder of a run on a GPU\n"
    )


def test_pytests_process_loads_no_library_for_it() -> None:
    program = (
        "import sys, pytest_mlperf.run.timeline\n"
        "print(*(m for m in ('matplotlib', 'numpy', 'PIL') if m in sys.modules))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "\n"


def test_what_a_sampler_wrote_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real sampler's file, of two GPUs of which one is halted by heat."""
    pytest.importorskip("matplotlib")
    fake = Fake(tmp_path)
    lines = ["device", "wave const 500", "device", "event 0x40 after=0 sm=990"]
    fake.write(*lines)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"):
        monkeypatch.setenv(name, fake.environment[name])
    folder = tmp_path / "run"
    folder.mkdir()
    with Sampling(["GPU-0", "GPU-1"], folder, watch_s=0.02):
        begin_s = time.time()
        time.sleep(0.6)
        end_s = time.time()
    written = [
        time.strftime("%m-%d-%Y %H:%M:%S", time.gmtime(t)) + f".{int(t % 1 * 1000):03d}"
        for t in (begin_s, end_s)
    ]
    detail(folder / "performance", *written)

    found = draw_timeline(folder)

    assert found is not None
    shown = texts(found)
    assert {"GPU 0", "GPU 1", "limit 700 W"} <= set(shown)
    # All of the window but what was before the first reading.
    assert any(re.fullmatch(r"heat \(hardware\) (9\d|100) %, GPU 1", text) for text in shown)
