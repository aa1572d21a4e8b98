"""The plot: how often a drop is called one, ours beside each other tool's rule."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from decisions_lib.performance import SWEEP, first
from decisions_lib.report import Found, percent

OURS, OTHER, INK, GREY = "#000000", "#D55E00", "#222222", "#666666"
NOISY = "noisy"
ACROSS = 3
SEEN = 12.0
"""Largest drop shown, per cent."""

STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 8.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "pytest-mlperf",
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#888888",
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
}


def draw(found: Found) -> bytes:
    """Return the plot as an SVG file's content; equal input gives equal bytes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # what a matplotlibrc says would change the bytes
        mpl.rcParams.update(STYLE)
        names = list(found.compares)
        down = -(-len(names) // ACROSS)
        figure = Figure(figsize=(9.6, 2.55 * down + 1.35), facecolor="white")
        FigureCanvasAgg(figure)
        grid = figure.subplots(down, ACROSS, sharex=True, sharey=True, squeeze=False)
        top = 1 - 1.15 / (2.55 * down + 1.35)
        figure.subplots_adjust(0.075, 0.07, 0.985, top, wspace=0.1, hspace=0.42)
        for axes in grid.ravel()[len(names) :]:
            axes.set_visible(False)
        for axes, name in zip(grid.ravel(), names, strict=False):
            _panel(axes, found, name)
        _first(grid[0, 0])
        _around(figure)
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()


def _panel(axes: Any, found: Found, name: str) -> None:
    typical, noisy = found.others["typical"][name], found.others[NOISY][name]
    axes.axvline(3, color="#DDDDDD", lw=0.8, zorder=0)
    for curve, colour, dashed in (
        (found.ours[NOISY].curve, OURS, True),
        (noisy, OTHER, True),
        (found.ours["typical"].curve, OURS, False),
        (typical, OTHER, False),
    ):
        _curve(axes, curve, colour, dashed=dashed)
    axes.set_xlim(-0.25, SEEN)
    axes.set_ylim(-3, 103)
    axes.set_xticks([0, 3, 6, 9, 12], ["0", "3 %", "6 %", "9 %", "12 %"])
    axes.set_yticks([0, 50, 100], ["0", "50 %", "100 %"])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelbottom=True)
    reached = first(typical)
    reach = f"95 % of {100 * reached:g} % drops" if reached else "never 95 % of drops"
    below = f"false {percent(typical[0])} %, noisy {percent(noisy[0])} %; finds {reach}"
    write = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(name, (0, 1), xytext=(0, 15), size=9, weight="bold", color=OTHER, **write)
    axes.annotate(below, (0, 1), xytext=(0, 5), size=6.8, color=GREY, **write)


def _curve(axes: Any, curve: Sequence[float], colour: str, *, dashed: bool) -> None:
    drops, shares = [100 * drop for drop in SWEEP], [100 * share for share in curve]
    style: dict[str, Any] = {"ls": (0, (3, 2)), "lw": 0.9} if dashed else {"ls": "-", "lw": 1.7}
    axes.plot(drops, shares, color=colour, zorder=2 if dashed else 3, **style)
    if not dashed:
        axes.plot(0, shares[0], "o", ms=4, color=colour, mec="white", mew=0.6, zorder=4)


def _first(axes: Any) -> None:
    """Name the curves where there is most room."""
    axes.text(2.35, 72, "ours", color=OURS, ha="right", size=8)
    axes.text(5.3, 30, "this tool", color=OTHER, ha="left", size=8)
    axes.text(11.9, 12, "dashed: noisy machine", color=GREY, ha="right", size=7)


def _around(figure: Any) -> None:
    height = figure.get_figheight()
    head = {"va": "top", "ha": "left"}
    figure.text(
        0.02,
        1 - 0.12 / height,
        "How often a drop in speed is called a regression",
        size=13,
        weight="bold",
        color=INK,
        **head,
    )
    figure.text(
        0.02,
        1 - 0.42 / height,
        "Simulated, typical noise: a run varies by 0.9 %. Black: pytest-mlperf with a limit of "
        "3 % (grey line), 1 to 5 runs. Orange: the tool. Left dot: false alarms.",
        color=GREY,
        **head,
    )
    figure.text(0.53, 0.012, "true drop", ha="center", va="bottom", color=INK)
    figure.text(0.012, 0.47, "called a regression", rotation=90, va="center", color=INK)
