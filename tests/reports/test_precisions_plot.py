"""The plot of precisions: what its points mean, and that nothing covers anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.results import LABEL, Results
from pytest_mlperf.core.verdict import MetricVerdict, Outcome
from pytest_mlperf.reports import precisions_plot
from pytest_mlperf.reports.precisions import blocks_of
from pytest_mlperf.reports.precisions_labels import SIZE, Box, around, best, darker
from pytest_mlperf.reports.precisions_model import Block
from pytest_mlperf.reports.precisions_panels import Panel, deciding, panels_of, speed_ticks
from pytest_mlperf.reports.precisions_plot import draw
from tests.reports.test_precisions import (
    RESULTS,
    case,
    gated,
    measured,
    only,
    paired,
    scored,
)
from tests.reports.verdicts import session

# --- points ----------------------------------------------------------------------------------


def panel(*blocks: Block) -> Panel:
    (found,) = panels_of(blocks)
    return found


def test_a_point_is_speed_and_score_in_shares_of_the_reference() -> None:
    block = only(
        scored(case("fp32"), 76.0),
        measured(case("fp32"), 100.0),
        scored(case("int8"), 74.1, paired(-1.9, Outcome.ACC_DROP)),
        measured(case("int8"), 250.0),
    )

    found = panel(block)

    reference, int8 = found.points
    assert (reference.label, reference.x, reference.y, reference.low) == ("fp32", 1.0, 100.0, None)
    found_at = [int8.x, int8.y, int8.low, int8.high]
    assert found_at == pytest.approx([2.5, 97.5, 100 * 73.6 / 76, 100 * 74.6 / 76])
    assert (reference.failed, int8.failed) == (False, True)
    assert found.gate == pytest.approx(99.0)
    assert (found.title, found.subtitle) == ("resnet50", "Offline on H200: top1, against fp32")


def test_what_has_no_point_is_named_with_the_reason() -> None:
    found = panel(*blocks_of(RESULTS))

    assert [point.label for point in found.points] == ["fp32", "int8"]
    assert found.absent == ("bf16: no comparable speed", "int4: ERROR")


def test_a_panel_needs_two_points() -> None:
    alone = only(scored(case("fp32"), 76.0), measured(case("fp32"), 1.0))
    unscored = only(measured(case("fp32"), 1.0), measured(case("int8"), 2.0))

    assert panels_of([alone, unscored]) == []


def lower(value: float, metric: str = "fid") -> MetricVerdict:
    """Return a score that is better when lower, gated at 110 % of 20."""
    return MetricVerdict(metric=metric, outcome=Outcome.OK, now=value, baseline=20.0, limit=-0.1)


def test_better_is_up_also_where_lower_is_better() -> None:
    results = []
    for precision, value in (("fp32", 20.0), ("int8", 25.0)):
        own = scored(case(precision), 76.0, metrics=(lower(value),))
        assert own.verdict.accuracy is not None
        accuracy = replace(own.verdict.accuracy, scores={"fid": value}, lower=("fid",))
        results += [
            replace(own, verdict=replace(own.verdict, accuracy=accuracy)),
            measured(case(precision), 1.0),
        ]

    found = panel(only(*results))

    assert found.points[1].y == pytest.approx(80.0)
    assert found.gate == pytest.approx(100 / 1.1)


@pytest.mark.parametrize(
    ("scores", "metric"),
    [
        ({"top1": (76.0, 75.9), "f1": (90.0, 89.5)}, "f1"),
        ({"top1": (76.0, 75.0), "f1": (90.0, 89.9)}, "top1"),
        ({"top1": (76.0, 75.9), "tokens_per_sample": (40.0, 20.0)}, "top1"),
        ({"top1": (0.0, 0.0)}, None),
    ],
)
def test_the_score_that_decides_is_the_one_nearest_to_its_gate(
    scores: dict[str, tuple[float, float]], metric: str | None
) -> None:
    """Counts of output decide nothing, and of a score of 0 there are no shares."""
    results = [
        scored(
            case(precision),
            76.0,
            metrics=tuple(gated(v[i], name, reference=v[0]) for name, v in scores.items()),
            accuracy=None,
        )
        for i, precision in enumerate(("fp32", "int8"))
    ]

    assert deciding(only(*results)) == metric


@given(st.floats(0.01, 1.0), st.floats(1.0, 50.0))
def test_ticks_are_few_rising_and_inside(low: float, high: float) -> None:
    low, high = low / 1.2, high * 1.2  # axes span half an octave at least

    ticks = speed_ticks(low, high)

    assert 2 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)
    assert all(a < b for a, b in pairwise(ticks))
    assert 1.0 in ticks


# --- places of labels ------------------------------------------------------------------------

COORDINATE = st.floats(0, 300)
BOXES = st.lists(
    st.builds(
        lambda x, y, w, h: Box(x, y, x + w, y + h), COORDINATE, COORDINATE, *[st.just(9)] * 2
    ),
    max_size=8,
)


@given(COORDINATE, COORDINATE, BOXES)
def test_a_label_covers_something_only_where_every_place_does(
    x: float, y: float, taken: Sequence[Box]
) -> None:
    inside = Box(-10, -10, 310, 310)
    places = list(around((x, y), (25.0, 9.0)))

    def cost(box: Box) -> float:
        return sum(box.covers(other) for other in taken) + 2 * (box.area - box.covers(inside))

    _, box = best(places, taken, inside)

    assert cost(box) <= min(cost(each) for _, each in places) + 1e-6


@given(COORDINATE, COORDINATE)
def test_a_label_never_covers_its_own_point_and_stays_near(x: float, y: float) -> None:
    for distance, box in around((x, y), (25.0, 9.0)):
        assert distance <= box.distance(x, y) + 1e-9 <= 2 * distance
        assert box.area == pytest.approx(25.0 * 9.0)


def test_a_place_that_could_be_anothers_is_taken_last() -> None:
    places = [(6.0, Box(0, 0, 10, 10)), (6.0, Box(20, 0, 30, 10))]

    _, box = best(places, [], Box(-99, -99, 99, 99), lambda box: box.left == 0)

    assert box == Box(20, 0, 30, 10)


def test_letters_are_dark_enough_to_read() -> None:
    """At least 4.5 to 1 on white, which WCAG 2 asks of text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in (*precisions_plot.COLOURS.values(), precisions_plot.OTHER):
        assert 1.05 / (luminance(darker(colour)) + 0.05) >= 4.5, colour


# --- the file --------------------------------------------------------------------------------


def crowd(workloads: int) -> Results:
    """Return a session of so many workloads, some with points close to each other."""
    results = []
    for number in range(workloads):
        for index, precision in enumerate(("fp32", "bf16", "fp16", "fp8", "int8", "int4")):
            one = case(precision, workload=f"workload{number}")
            change = -0.15 * index * (1 + number % 3)
            speed = 100 * (1 + index * (0.08 if number % 2 else 0.6))
            pairs = [paired(change)] if index else []
            results += [scored(one, 76.0 + change, *pairs), measured(one, speed)]
    return session(*results)


def texts(drawn: bytes) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn.decode())


@pytest.mark.parametrize("workloads", [1, 4, 9])
def test_text_stays_text_and_equal_input_gives_equal_bytes(workloads: int) -> None:
    pytest.importorskip("matplotlib")
    results = crowd(workloads)
    sessions = [(results, blocks_of(results))]

    drawn = draw(sessions, ".svg")

    assert draw(sessions, ".svg") == drawn
    words = texts(drawn)
    assert [f"workload{n}" for n in range(workloads)] == [w for w in words if "workload" in w]
    assert words.count("int8") == workloads
    assert LABEL in words
    assert "2026-11-20 10:11 UTC, commit 9d0e77a1b2c3, NVIDIA H200" in words


def test_a_users_style_changes_nothing_and_is_left_alone() -> None:
    mpl = pytest.importorskip("matplotlib")
    results = crowd(1)
    sessions = [(results, blocks_of(results))]
    plain = draw(sessions, ".png")

    with mpl.rc_context({"font.size": 23.0, "axes.grid": True}):
        assert draw(sessions, ".png") == plain
        assert mpl.rcParams["font.size"] == 23.0


def boxes(figure: Any, axes: Any) -> tuple[list[Any], list[Any]]:
    """Return the boxes of a panel's labels and of all its words, in pixels, as they are drawn."""
    renderer = figure.canvas.get_renderer()
    labels = [t for t in axes.texts if t.get_fontsize() == SIZE]
    # Of an annotation with a line only the words count: the line may cross.
    words = [t for t in axes.texts if t.get_text()]

    def extent(text: Any) -> Any:
        from matplotlib.text import Text

        text.update_positions(renderer)
        return Text.get_window_extent(text, renderer)

    return [extent(t) for t in labels], [extent(t) for t in words]


@pytest.mark.parametrize("workloads", [1, 4, 9])
def test_no_label_covers_another_or_leaves_the_picture(workloads: int) -> None:
    pytest.importorskip("matplotlib")
    figure = precisions_plot._figure(panels_of(blocks_of(crowd(workloads))), ["somewhere"])
    figure.canvas.draw()

    assert len(figure.axes) == workloads
    for axes in figure.axes:
        labels, words = boxes(figure, axes)
        assert len(labels) == 6
        for one, other in combinations(words, 2):
            width = min(one.x1, other.x1) - max(one.x0, other.x0)
            height = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert width <= 0.5 or height <= 2.5, (one, other)
        for each in words:
            assert figure.bbox.x0 <= each.x0 <= each.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= each.y0 <= each.y1 <= figure.bbox.y1


def test_long_names_are_set_smaller() -> None:
    pytest.importorskip("matplotlib")
    results = [
        test
        for precision in ("fp32", "int8")
        for test in (
            scored(case(precision, workload="workload-" * 8), 76.0),
            measured(case(precision, workload="workload-" * 8), 1.0),
        )
    ]
    figure = precisions_plot._figure(panels_of([only(*results)]), ["NVIDIA H200 " * 25])
    renderer = figure.canvas.get_renderer()

    for text in (*figure.texts, *figure.axes[0].texts):
        assert text.get_window_extent(renderer).x1 <= figure.bbox.x1
