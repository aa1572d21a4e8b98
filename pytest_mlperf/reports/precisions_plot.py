"""The plot of precisions: a small panel for each workload, speed to the right, score upwards."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.results import LABEL, Results
from pytest_mlperf.reports.layout import fold
from pytest_mlperf.reports.precisions_labels import place
from pytest_mlperf.reports.precisions_model import Block
from pytest_mlperf.reports.precisions_panels import Panel, panels_of, speed_ticks
from pytest_mlperf.reports.precisions_text import origin

KINDS = (".svg", ".png")
"""How the name of a plot's file may end."""

STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],  # the first comes with it
    "font.size": 8.0,
    "svg.fonttype": "none",  # text stays text, to be searched and restyled
    "svg.hashsalt": "pytest-mlperf",
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#888888",
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
}

COLOURS = {
    "fp32": "#000000",
    "bf16": "#0072B2",
    "fp16": "#56B4E9",
    "fp8": "#009E73",
    "int8": "#D55E00",
    "int4": "#CC79A7",
    "fp4": "#E69F00",
}
"""By M. Okabe and K. Ito: told apart with every kind of colour vision."""

OTHER = "#666666"
INK, GREY, GATE = "#222222", "#666666", "#B5473C"

DPI = 150
PANEL, ALONE = (3.1, 2.3), (4.8, 3.2)
"""Inches of a panel's axes: beside others, and of the only one."""
LEFT, RIGHT, TOP, BOTTOM = 0.75, 0.25, 1.15, 1.2
ACROSS, DOWN = 0.62, 0.92
"""Inches around the panels, and between them."""

LEAST_OCTAVES = 0.5
"""The speed axis spans at least so much: noise of a few per cent must look small."""

LEAST_POINTS = 2.0
"""The score axis spans at least so many per cent."""

FOOTER = (
    "To the right is faster, upwards is better. Bars: interval of the paired rule. "
    "Hollow: the accuracy test failed. Ratios are shown, not judged."
)


def draw(sessions: Sequence[tuple[Results, Sequence[Block]]], kind: str) -> bytes:
    """Return the plot as a file's content; equal input gives equal bytes.

    Args:
        sessions: Each session with its blocks.
        kind: One of `KINDS`.

    Raises:
        MlperfError: No block has two entries with a score and a speed.
        EnvironmentFault: matplotlib is not installed.
    """
    panels = panels_of([block for _, blocks in sessions for block in blocks])
    if not panels:
        raise MlperfError(
            "nothing to plot: no workload has score and speed in two precisions; run both tests "
            "of each (pytest SUITE --mlperf-json FILE)"
        )
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise EnvironmentFault(
            f"--plot needs matplotlib ({error}): pip install 'pytest-mlperf[plots]'"
        ) from None
    with mpl.rc_context():
        mpl.rcdefaults()  # what a matplotlibrc says would change the bytes
        mpl.rcParams.update(STYLE)
        figure = _figure(panels, [origin(results) for results, _ in sessions])
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == ".svg" else {"Software": None}
        figure.savefig(content, format=kind[1:], dpi=DPI, metadata=metadata)
    return content.getvalue()


def _figure(panels: Sequence[Panel], origins: Sequence[str]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(math.ceil(math.sqrt(len(panels))), 4)
    down = math.ceil(len(panels) / across)
    wide, high = PANEL if len(panels) > 1 else ALONE
    width = LEFT + across * wide + (across - 1) * ACROSS + RIGHT
    above = [line for text in origins for line in fold(text, int((width - 0.4) / 0.066))]
    extra = 0.16 * (len(above) - 1)
    height = TOP + extra + down * high + (down - 1) * DOWN + BOTTOM
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    limits = _speed_limits(panels)
    drawn = []
    for index, panel in enumerate(panels):
        row, column = divmod(index, across)
        x = LEFT + column * (wide + ACROSS)
        y = height - TOP - extra - row * (high + DOWN) - high
        axes = figure.add_axes((x / width, y / height, wide / width, high / height))
        _draw_panel(axes, panel, limits, wide)
        drawn.append((axes, panel))
    _around(figure, above, width, height)
    for axes, panel in drawn:  # when everything has its size
        place(axes, panel, [_colour(point.precision) for point in panel.points], GATE)
    return figure


def _around(figure: Any, above: Sequence[str], width: float, height: float) -> None:
    """Write title and footer."""
    left = 0.2 / width

    def write(text: str, inches_down: float, **style: Any) -> None:
        figure.text(left, 1 - inches_down / height, text, va="top", **style)

    write("What each precision costs and gives", 0.16, size=13, weight="bold", color=INK)
    for index, text in enumerate(above):
        write(text, 0.45 + 0.16 * index, size=8, color=GREY)
    middle = (LEFT + (width - LEFT - RIGHT) / 2) / width
    figure.text(
        middle, 0.7 / height, "speed, times the reference's", ha="center", va="top", color=INK
    )
    centre = (BOTTOM + (height - BOTTOM - TOP) / 2) / height
    figure.text(
        0.13 / width,
        centre,
        "score, % of the reference's",
        rotation=90,
        ha="left",
        va="center",
        color=INK,
    )
    footer = "\n".join([*fold(FOOTER, int((width - 0.4) / 0.052)), LABEL])
    figure.text(left, 0.1 / height, footer, va="bottom", color=GREY, size=6.5, linespacing=1.35)


def _draw_panel(axes: Any, panel: Panel, limits: tuple[float, float], wide: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xscale("log", base=2)
    axes.set_xlim(*limits)
    ticks = speed_ticks(*limits)
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    low, high = _score_limits(panel)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(1, color="#DDDDDD", lw=0.8, zorder=0)
    axes.axhline(100, color="#DDDDDD", lw=0.8, zorder=0)
    if panel.gate is not None:
        axes.axhspan(low, panel.gate, color=GATE, alpha=0.10, lw=0, zorder=0)
        axes.axhline(panel.gate, color=GATE, lw=0.8, ls=(0, (4, 2)), zorder=1)
    _write(axes, panel.title, (1, 17), 9.0, wide, weight="bold", color=INK)
    _write(axes, panel.subtitle, (1, 5), 7.0, wide, color=GREY)
    if panel.absent:
        _write(axes, f"not shown: {'; '.join(panel.absent)}", (0, -26), 6.5, wide, color=GREY)
    for point in panel.points:
        colour = _colour(point.precision)
        if point.low is not None and point.high is not None:
            axes.plot([point.x] * 2, [point.low, point.high], color=colour, lw=1.2, alpha=0.6)
        axes.plot(
            point.x,
            point.y,
            marker="s" if point.precision.startswith("int") else "o",
            ms=6.5 if point.failed else 7.5,
            mfc="white" if point.failed else colour,
            mec=colour if point.failed else "white",
            mew=1.4 if point.failed else 0.7,
            zorder=3,
        )


def _write(
    axes: Any, text: str, place: tuple[int, int], size: float, wide: float, **style: Any
) -> None:
    """Write a line flush with the axes' left end, in smaller letters where it is too long.

    Args:
        axes: The axes.
        text: The line.
        place: 1 for the top of the axes or 0 for their bottom, and points above that.
        size: Points of the letters at most; one is about 0.7 of that wide.
        wide: Inches of the axes.
        style: More about the letters.
    """
    fitting = min(size, wide * 72 / (0.7 * len(text)))
    axes.annotate(
        text,
        (0, place[0]),
        xycoords="axes fraction",
        xytext=(0, place[1]),
        textcoords="offset points",
        size=fitting,
        va="bottom",
        annotation_clip=False,
        **style,
    )


def _colour(precision: str) -> str:
    return COLOURS.get(precision, OTHER)


def _speed_limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the speeds that all panels share, with room for labels."""
    logs = [math.log2(point.x) for panel in panels for point in panel.points]
    low, high = min(logs), max(logs)
    room = max(0.12 * (high - low), (LEAST_OCTAVES - (high - low)) / 2, 0.1)
    return 2 ** (low - room), 2 ** (high + room)


def _score_limits(panel: Panel) -> tuple[float, float]:
    ends = [100.0, *([panel.gate] if panel.gate is not None else [])]
    for point in panel.points:
        ends += [point.y, point.low or point.y, point.high or point.y]
    low, high = min(ends), max(ends)
    room = max(0.15 * (high - low), (LEAST_POINTS - (high - low)) / 2)
    return low - room, high + room
