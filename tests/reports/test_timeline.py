"""The timeline of a run: little enough for a small file, and nothing that matters is lost."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise
from math import isnan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.trace import Reading
from pytest_mlperf.reports import timeline as drawing
from pytest_mlperf.reports.timeline import draw
from pytest_mlperf.reports.timeline_model import (
    GpuLines,
    Lane,
    Timeline,
    broken,
    decimate,
    merged,
)


def readings(*values: float, every_s: float = 1.0) -> list[Reading]:
    return [Reading(time_s=i * every_s, value=v) for i, v in enumerate(values)]


VALUES = st.lists(st.floats(0, 700), min_size=1, max_size=400)

# --- what is left out --------------------------------------------------------------------------


@given(VALUES, st.integers(1, 60))
def test_a_decimated_line_has_its_extremes_and_few_points(
    values: list[float], columns: int
) -> None:
    given_ = readings(*values)

    kept = decimate(given_, columns)

    assert len(kept) <= max(2 * columns, 1)
    assert min(r.value for r in kept) == min(values)
    assert max(r.value for r in kept) == max(values)
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
    width_s = (given_[-1].time_s - given_[0].time_s) / columns

    for reading in given_:
        assert any(
            abs(k.time_s - reading.time_s) <= width_s + 1e-9 and k.value >= reading.value
            for k in kept
        )


SPANS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 5)).map(lambda s: (s[0], s[0] + s[1])), max_size=30
)


@given(SPANS, st.floats(0.01, 10))
def test_merged_spans_cover_all_and_stand_apart(
    spans: list[tuple[float, float]], apart_s: float
) -> None:
    found = merged(spans, apart_s)

    assert all(any(b <= s[0] and s[1] <= e for b, e in found) for s in spans)
    assert all(later[0] - earlier[1] >= apart_s for earlier, later in pairwise(found))
    assert all(any(b == s[0] for s in spans) and any(e == s[1] for s in spans) for b, e in found)


def test_a_line_is_broken_where_readings_are_missing() -> None:
    """A line drawn through a hole of the sampler would look like a measurement."""
    whole = readings(*[400.0] * 40, every_s=0.02)
    late = [replace(r, time_s=r.time_s + 3.0) for r in whole]

    times, values = broken([*whole, *late], [*whole, *late])

    assert [i for i, value in enumerate(values) if isnan(value)] == [40]
    assert times == sorted(times)
    assert not any(isnan(value) for value in broken(whole, whole)[1])
    assert broken([], []) == ([], [])


def test_a_hole_is_seen_in_a_decimated_line() -> None:
    whole = readings(*[400.0, 401.0] * 500, every_s=0.02)
    holed = [r for r in whole if not 5.0 < r.time_s < 8.0]

    times, values = broken(decimate(holed, 50), holed)

    (place,) = [i for i, value in enumerate(values) if isnan(value)]
    assert times[place] <= 5.0
    assert times[place + 1] >= 8.0


# --- the file ----------------------------------------------------------------------------------

CAP = Lane(label="power cap 31 %", kind="cap", spans=[(1.0, 2.0), (3.0, 4.5)])
HEAT = Lane(label="heat (hardware) 4 %", kind="fault", spans=[(6.0, 6.4)])
IDLE = Lane(label="idle 3 %", kind="plain", spans=[(8.0, 8.3)])


def gpu(name: str = "GPU 0", *, seconds: float = 12.0, seed: int = 0) -> GpuLines:
    rng = random.Random(seed)
    fast, slow = int(seconds * 50), int(seconds * 5)
    return GpuLines(
        name=name,
        power=[
            Reading(time_s=i / 50 - 1, value=rng.choice((180.0, 690.0)) + rng.random())
            for i in range(fast)
        ],
        clock=[Reading(time_s=i / 5 - 1, value=rng.randrange(900, 1980)) for i in range(slow)],
        temperature=[Reading(time_s=i / 5 - 1, value=40 + rng.randrange(9)) for i in range(slow)],
        limit_w=700.0,
    )


def timeline(**changes: Any) -> Timeline:
    usual = Timeline(
        title="first-Offline-null-fp32-H200.1",
        subtitle="NVIDIA H200, driver 595.45.04; the window began 2026-11-20 10:11:12 UTC",
        footer="Sampled through NVML.",
        shown=(-1.0, 11.0),
        window_s=10.0,
        gpus=[gpu()],
        lanes=[HEAT, CAP],
    )
    return replace(usual, **changes)


def texts(drawn: bytes) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn.decode())


def test_text_stays_text_and_equal_input_gives_equal_bytes() -> None:
    pytest.importorskip("matplotlib")
    drawn = draw(timeline())

    assert draw(timeline()) == drawn
    assert b"<dc:date>" not in drawn
    words = texts(drawn)
    for said in (
        "first-Offline-null-fp32-H200.1",
        "LoadGen's window, 10.0 s",
        "power cap 31 %",
        "heat (hardware) 4 %",
        "limit 700 W",
        "power, W",
        "SM clock, MHz",
        "temperature, °C",
    ):
        assert said in words
    assert "GPU 0" not in words  # there is nothing to tell it from


def test_several_gpus_have_a_legend() -> None:
    pytest.importorskip("matplotlib")
    names = [f"GPU {i}" for i in range(4)]

    words = texts(draw(timeline(gpus=[gpu(name, seed=i) for i, name in enumerate(names)])))

    assert [word for word in words if word.startswith("GPU ")] == names
    assert words.count("limit 700 W") == 1


def test_a_long_run_of_eight_gpus_that_never_rest_is_a_small_file() -> None:
    """Ten minutes at 50 Hz: 30,000 readings a GPU, and clocks held back twice a second."""
    pytest.importorskip("matplotlib")
    seconds = 600.0
    flicker = [(i / 2, i / 2 + 0.1) for i in range(int(2 * seconds))]
    lanes = [
        replace(lane, label=f"reason {i}", spans=[(b + i / 20, e + i / 20) for b, e in flicker])
        for i, lane in enumerate((HEAT, HEAT, CAP, IDLE, IDLE, IDLE))
    ]

    drawn = draw(
        timeline(
            shown=(-1.0, seconds - 1),
            window_s=seconds - 10,
            gpus=[gpu(f"GPU {i}", seconds=seconds, seed=i) for i in range(8)],
            lanes=lanes,
        )
    )

    print(f"{len(drawn):,} bytes")
    assert len(drawn) < 200_000


def test_what_was_not_read_is_said() -> None:
    pytest.importorskip("matplotlib")
    bare = replace(gpu(), clock=[], temperature=[], limit_w=None)

    words = texts(draw(timeline(gpus=[bare], lanes=[])))

    assert words.count("not read") == 2
    assert not any("limit" in word for word in words)


def test_a_users_style_changes_nothing_and_is_left_alone() -> None:
    mpl = pytest.importorskip("matplotlib")
    plain = draw(timeline(), "png")

    with mpl.rc_context({"font.size": 23.0, "axes.grid": True}):
        assert draw(timeline(), "png") == plain
        assert mpl.rcParams["font.size"] == 23.0


@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_no_word_leaves_the_picture_or_covers_another(gpus: int) -> None:
    """Also with a long name, sixteen GPUs and a lane for each of many reasons."""
    pytest.importorskip("matplotlib")
    lanes = [replace(HEAT, label=f"hardware slowdown 10{i} %, 8 GPUs") for i in range(8)]
    figure = drawing._figure(
        timeline(
            title="workload-" * 20 + "$x$",
            gpus=[gpu(f"GPU {i}", seconds=2.0, seed=i) for i in range(gpus)],
            lanes=lanes,
        )
    )
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()

    words = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    legend = figure.axes[1].get_legend()
    words += legend.get_texts() if legend else []
    boxes = [(w.get_text(), w.get_window_extent(renderer)) for w in words]
    assert len(boxes) >= 13
    for word, box in boxes:
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, word
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, word
    for place, (one, box) in enumerate(boxes):
        for other, its in boxes[:place]:
            width = min(box.x1, its.x1) - max(box.x0, its.x0)
            height = min(box.y1, its.y1) - max(box.y0, its.y0)
            assert width <= 0.5 or height <= 1.0, (one, other)


def test_letters_are_dark_enough_to_read() -> None:
    """At least 4.5 to 1 on white, which WCAG 2 asks of text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in drawing.WORDS.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5, colour
