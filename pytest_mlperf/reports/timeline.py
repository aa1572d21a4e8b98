"""Draw power, SM clock and temperature of GPUs over a run, and what held the clocks back."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.core.trace import Reading
from pytest_mlperf.reports.precisions_plot import GREY, INK, STYLE
from pytest_mlperf.reports.timeline_model import (
    GpuLines,
    Span,
    Timeline,
    broken,
    decimate,
    merged,
)

KINDS = {"fault": "#C0392B", "cap": "#3B8BC4", "plain": "#9A9A9A"}
"""Colours of what held the clocks back: heat and a failing supply, the power cap, other things."""

WORDS = {"fault": "#A93226", "cap": "#23618F", "plain": "#5F5F5F"}
"""Of their names, dark enough for small letters on white."""

SHADES = {"fault": 0.16, "cap": 0.10}
"""How strongly a kind is also shaded through the panels."""

LINES = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F")
"""Of GPUs, in turn; told apart with every kind of colour vision, as in the plot of precisions."""

WINDOW, EDGE = "#F4F0E2", "#B9AE8A"

DPI = 96
WIDTH, LEFT, RIGHT = 9.375, 0.72, 1.9
"""Inches: 900 px at the 96 that browsers take; axes between the margins."""

TOP, LANE, BETWEEN, BOTTOM = 0.92, 0.17, 0.17, 0.86
PANELS = (2.0, 1.2, 1.2)
"""Inches: above the lanes, of a lane, between panels, below them; heights of the panels."""

COLUMNS = 640
"""Pixels that a line has: more than the lowest and the highest reading of each is not seen."""

POINTS, BANDS = 4000, 240
"""So many points of lines and bands at most, that the file stays below 200 kB."""


def draw(timeline: Timeline, kind: str = "svg") -> bytes:
    """Return the picture as a file's content; equal input gives equal bytes.

    Args:
        timeline: What to draw.
        kind: "svg" or "png".

    Raises:
        EnvironmentFault: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise EnvironmentFault(
            f"a timeline needs matplotlib ({error}): pip install 'pytest-mlperf[plots]'"
        ) from None
    with mpl.rc_context():
        mpl.rcdefaults()  # what a matplotlibrc says would change the bytes
        mpl.rcParams.update(STYLE)
        mpl.rcParams["text.parse_math"] = False  # a folder may be called a$b$
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        _figure(timeline).savefig(content, format=kind, dpi=DPI, metadata=metadata)
    return content.getvalue()


def _figure(timeline: Timeline) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = LANE * len(timeline.lanes) + (0.1 if timeline.lanes else 0.0)
    inner = lanes + sum(PANELS) + BETWEEN * (len(PANELS) - 1)
    height = TOP + inner + BOTTOM
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    across = WIDTH - LEFT - RIGHT

    def axes(bottom: float, high: float) -> Any:
        made = figure.add_axes((LEFT / WIDTH, bottom / height, across / WIDTH, high / height))
        made.set_xlim(*timeline.shown)
        made.patch.set_visible(False)
        return made

    _draw_behind(axes(BOTTOM, inner), timeline, inner)
    below = height - TOP - lanes
    for draws, high in zip((_draw_power, _draw_clock, _draw_temperature), PANELS, strict=True):
        below -= high
        panel = axes(below, high)
        draws(panel, timeline.gpus)
        _finish(panel, last=draws is _draw_temperature)
        below -= BETWEEN
    left = 0.2 / WIDTH
    for text, down, style in (
        (timeline.title, 0.16, {"size": 13, "weight": "bold", "color": INK}),
        (timeline.subtitle, 0.43, {"size": 8, "color": GREY}),
    ):
        figure.text(left, 1 - down / height, text, va="top", **_fitting(text, style))
    middle = (LEFT + across / 2) / WIDTH
    words = "seconds after LoadGen's window began"
    figure.text(middle, 0.56 / height, words, ha="center", va="top", color=INK)
    figure.text(left, 0.12 / height, timeline.footer, va="bottom", color=GREY, size=6.5)
    return figure


def _fitting(text: str, style: dict[str, Any]) -> dict[str, Any]:
    """Return a style with letters small enough for a line; one is about 0.7 of its size wide."""
    most = (WIDTH - 0.4) * 72 / (0.7 * max(len(text), 1))
    return {**style, "size": min(style["size"], most)}


def _draw_behind(axes: Any, timeline: Timeline, inner: float) -> None:
    """Draw the window and what held the clocks back; heights are inches."""
    axes.set_ylim(0, inner)
    axes.set_axis_off()
    axes.set_zorder(-1)
    axes.axvspan(0, timeline.window_s, color=WINDOW, lw=0, zorder=0)
    for edge_s in (0, timeline.window_s):
        axes.axvline(edge_s, color=EDGE, lw=0.8, zorder=1)
    begin_s, end_s = timeline.shown
    said = f"LoadGen's window, {timeline.window_s:.1f} s"
    _note(axes, said, (0, inner), (2, 3), va="bottom", color="#7A6F4A")
    bands = BANDS // max(len(timeline.lanes), 1)
    pixel_s = (end_s - begin_s) / COLUMNS
    for place, lane in enumerate(timeline.lanes):
        spans = merged(lane.spans, (end_s - begin_s) / bands)
        # What is shorter than a pixel would not be seen.
        spans = [(b, max(e, b + pixel_s)) for b, e in spans]
        top = inner - LANE * place
        _bars(axes, spans, (top - LANE + 0.03, top - 0.02), color=KINDS[lane.kind], zorder=3)
        if shade := SHADES.get(lane.kind):
            _bars(axes, spans, (0, inner), color=KINDS[lane.kind], alpha=shade, zorder=2)
        where = (end_s, top - LANE / 2 + 0.005)
        _note(axes, lane.label, where, (5, 0), va="center", color=WORDS[lane.kind])


def _bars(axes: Any, spans: Sequence[Span], heights: Span, **style: Any) -> None:
    """Draw rectangles as one path: a file with an element for each would be ten times as large."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    low, high = heights
    corners = [
        corner
        for begin, end in spans
        for corner in ((begin, low), (begin, high), (end, high), (end, low), (begin, low))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(spans)
    if corners:
        axes.add_patch(PathPatch(Path(corners, codes), lw=0, **style))


def _draw_power(axes: Any, gpus: Sequence[GpuLines]) -> None:
    axes.set_ylabel("power, W", color=INK)
    highest = _lines(axes, [gpu.power for gpu in gpus], len(gpus))[1]
    limits = sorted({gpu.limit_w for gpu in gpus if gpu.limit_w})
    for limit_w in limits:
        axes.axhline(limit_w, color=GREY, lw=0.9, ls=(0, (5, 3)), zorder=2)
        where = (axes.get_xlim()[1], limit_w)
        _note(axes, f"limit {limit_w:g} W", where, (5, 0), va="center", color=GREY)
    axes.set_ylim(0, 1.08 * max([highest or 1.0, *limits]))
    if len(gpus) > 1:
        axes.legend(
            axes.lines[: len(gpus)],
            [gpu.name for gpu in gpus],
            loc="lower left",
            bbox_to_anchor=(1.01, -0.04),
            borderaxespad=0,
            frameon=False,
            fontsize=7.5,
            handlelength=1.2,
            ncols=1 + (len(gpus) > 8),
            columnspacing=0.8,
        )


def _draw_clock(axes: Any, gpus: Sequence[GpuLines]) -> None:
    axes.set_ylabel("SM clock, MHz", color=INK)
    low, high = _lines(axes, [gpu.clock for gpu in gpus], len(gpus), steps=True)
    _widen(axes, low, high, least=200.0)


def _draw_temperature(axes: Any, gpus: Sequence[GpuLines]) -> None:
    axes.set_ylabel("temperature, °C", color=INK)
    low, high = _lines(axes, [gpu.temperature for gpu in gpus], len(gpus), steps=True)
    _widen(axes, low, high, least=10.0)


def _lines(
    axes: Any, series: Sequence[Sequence[Reading]], count: int, *, steps: bool = False
) -> tuple[float | None, float | None]:
    """Draw a line per GPU; return the lowest and the highest value, None where there is none."""
    columns = min(COLUMNS, POINTS // (6 * count))
    values = [reading.value for readings in series for reading in readings]
    if not values:
        style = {"ha": "center", "va": "center", "color": GREY}
        axes.text(0.5, 0.5, "not read", transform=axes.transAxes, **style)
    for place, readings in enumerate(series):
        times, heights = broken(decimate(readings, columns), readings)
        axes.plot(
            times,
            heights,
            color=LINES[place % len(LINES)],
            lw=1.0 if count == 1 else 0.8,
            ls="-" if place < len(LINES) else (0, (3, 1)),
            drawstyle="steps-post" if steps else "default",
            zorder=3,
        )
    return min(values, default=None), max(values, default=None)


def _widen(axes: Any, low: float | None, high: float | None, *, least: float) -> None:
    """Let an axis span its values and no less than `least`: small changes must look small."""
    if low is None or high is None:
        axes.set_yticks([])
        return
    room = max(0.08 * (high - low), (least - (high - low)) / 2)
    axes.set_ylim(max(low - room, 0.0), high + room)


def _finish(axes: Any, *, last: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_yticks()):
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\u2212"))
    axes.grid(axis="y", color="#DDDDDD", lw=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.yaxis.set_label_coords(-0.075, 0.5)
    if not last:
        axes.tick_params(labelbottom=False)


def _note(axes: Any, text: str, where: Span, offset: tuple[int, int], **style: Any) -> None:
    """Write a few words beside a point; the offset is in points."""
    axes.annotate(
        text,
        where,
        xytext=offset,
        textcoords="offset points",
        ha="left",
        size=7.2,
        annotation_clip=False,
        **style,
    )
