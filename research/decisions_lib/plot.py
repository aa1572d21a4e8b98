"""The plot: how often a drop is called one, ours beside each other tool's rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from decisions_lib.everything import Found
from decisions_lib.performance import SWEEP, first
from decisions_lib.tables import percent

OURS, OTHER, INK, GREY = "#000000", "#D55E00", "#222222", "#666666"
TYPICAL, NOISY = "typical", "noisy"
ACROSS = 3
SEEN = 12
"""Largest drop shown, per cent."""

HEAD = "How often a drop in speed is called a regression"
ABOUT = (
    "Simulated, typical noise: a run varies by 0.9 %. Black: pytest-mlperf with a limit of "
    "3 % (grey line), 1 to 5 runs. Orange: the tool. Left dot: false alarms."
)

STYLE = {
    "background": "white",
    "font": "DejaVu Sans, Verdana, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "grid": False,
        "domainColor": "#888888",
        "tickColor": "#888888",
        "labelColor": "#333333",
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelExpr": "datum.value ? datum.value + ' %' : '0'",
    },
    "title": {"anchor": "start", "subtitleColor": GREY, "subtitlePadding": 3},
}


def draw(simulated: Found) -> bytes:
    """Return the plot as an SVG file's content; equal input gives equal bytes."""
    import vl_convert

    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {"text": HEAD, "subtitle": ABOUT, "fontSize": 16, "color": INK, "offset": 14},
        "columns": ACROSS,
        "concat": [_panel(simulated, name, n) for n, name in enumerate(simulated.compares)],
        "config": STYLE,
    }
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg.encode()


def _panel(simulated: Found, name: str, number: int) -> dict[str, Any]:
    typical, noisy = (simulated.others[noise][name] for noise in (TYPICAL, NOISY))
    reached = first(typical)
    reach = f"95 % of {100 * reached:g} % drops" if reached else "never 95 % of drops"
    below = f"false {percent(typical[0])} %, noisy {percent(noisy[0])} %; finds {reach}"
    curves = {
        ("ours", NOISY): simulated.ours[NOISY].curve,
        ("tool", NOISY): noisy,
        ("ours", TYPICAL): simulated.ours[TYPICAL].curve,
        ("tool", TYPICAL): typical,
    }
    rows = [row for (rule, noise), curve in curves.items() for row in _rows(rule, noise, curve)]
    return {
        "title": {"text": name, "subtitle": below, "color": OTHER},
        "width": 250,
        "height": 130,
        "data": {"values": rows},
        "layer": [
            {
                "data": {"values": [{}]},
                "mark": {"type": "rule", "color": "#BBBBBB"},
                "encoding": {"x": {"datum": 3}},
            },
            _marks(f"datum.noise == '{NOISY}'", type="line", strokeDash=[3, 2], strokeWidth=1),
            _marks(f"datum.noise == '{TYPICAL}'", type="line", strokeWidth=2),
            _marks(
                f"datum.drop == 0 && datum.noise == '{TYPICAL}'",
                type="circle",
                size=30,
                opacity=1,
                stroke="white",
            ),
            *(_names() if number == 0 else ()),
        ],
    }


def _rows(rule: str, noise: str, curve: Sequence[float]) -> Iterator[dict[str, Any]]:
    for drop, share in zip(SWEEP, curve, strict=True):
        if 100 * drop <= SEEN:
            yield {"rule": rule, "noise": noise, "drop": 100 * drop, "share": 100 * share}


def _marks(only: str, **mark: Any) -> dict[str, Any]:
    """Return a layer of the rows that fit a condition."""
    x: dict[str, Any] = {"field": "drop", "type": "quantitative", "title": "true drop"}
    y: dict[str, Any] = {"field": "share", "type": "quantitative", "title": "called a regression"}
    x |= {"scale": {"domain": [0, SEEN]}, "axis": {"values": list(range(0, SEEN + 1, 3))}}
    y |= {"scale": {"domain": [0, 100]}, "axis": {"values": [0, 50, 100]}}
    colours = {"domain": ["ours", "tool"], "range": [OURS, OTHER]}
    colour = {"field": "rule", "scale": colours, "legend": None}
    encoding = {"x": x, "y": y, "color": colour}
    return {"transform": [{"filter": only}], "mark": mark, "encoding": encoding}


def _names() -> Iterator[dict[str, Any]]:
    """Yield the names of the curves, where there is most room."""
    for text, drop, share, colour, align in (
        ("ours", 1.9, 72, OURS, "right"),
        ("this tool", 5.3, 30, OTHER, "left"),
        ("dashed: noisy machine", 11.9, 12, GREY, "right"),
    ):
        place = {"x": {"datum": drop}, "y": {"datum": share}}
        yield {
            "data": {"values": [{}]},
            "mark": {"type": "text", "text": text, "align": align, "fontSize": 11, "color": colour},
            "encoding": place,
        }
