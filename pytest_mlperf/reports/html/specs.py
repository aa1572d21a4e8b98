"""Vega-Lite's descriptions of the plots, without their data.

Colours are names of the page's own, such as "$fail": the page puts in what light and dark need.
Rows come from the page under the names that each figure gives; "row" is a row's label, which the
page may write above its marks where the screen is narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Spec = dict[str, Any]

TONES = {
    "field": "tone",
    "type": "nominal",
    "scale": {
        "domain": ["fail", "open", "good", "note"],
        "range": ["$fail", "$open", "$good", "$note"],
    },
    "legend": None,
}

SHAPES = {
    "field": "tone",
    "type": "nominal",
    "scale": {
        "domain": ["fail", "open", "good", "note"],
        "range": ["diamond", "triangle-up", "circle", "square"],
    },
    "legend": None,
}

ROW = {
    "field": "row",
    "type": "nominal",
    "sort": None,
    "axis": {"title": None, "labelLimit": 380, "labelPadding": 8, "domain": False, "ticks": False},
}


def by_row(title: str, layer: Sequence[Spec], *, zero: bool = True) -> Spec:
    """Return a plot with one line per row of data.

    Args:
        title: Of the horizontal axis.
        layer: Marks; each has its place in `x`.
        zero: The axis begins at 0.
    """
    for mark in layer:
        place = mark["encoding"]["x"]
        place |= {"title": title, "axis": {"tickCount": 8}, "scale": {"zero": zero}}
    return {
        "width": "container",
        "encoding": {"y": ROW},
        "layer": [*layer],
        "usermeta": {"rows": True},
    }


def x(field: str, **more: Any) -> Spec:
    """Return the horizontal place of a mark."""
    return {"field": field, "type": "quantitative", **more}


def tips(**fields: str) -> list[Spec]:
    """Return what a pointer over a mark shows: field and heading."""
    return [{"field": field, "title": heading} for field, heading in fields.items()]


def _interval(value: str, **told: str) -> list[Spec]:
    """Return the marks of a value with its interval, from "low" to "high"."""
    return [
        {
            "mark": {"type": "rule", "size": 2.5},
            "encoding": {"x": x("low"), "x2": {"field": "high"}, "color": TONES},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {"x": x(value), "color": TONES, "shape": SHAPES, "tooltip": tips(**told)},
        },
    ]


FOREST = by_row(
    "worse  ←  change in %  →  better",
    [
        {
            "mark": {"type": "bar", "color": "$band", "height": {"band": 0.86}},
            "encoding": {
                "x": x("limit"),
                "x2": {"datum": 0},
            },
        },
        {
            "mark": {"type": "rule", "color": "$grey"},
            "encoding": {"x": {"datum": 0}, "y": None},
        },
        {
            "mark": {"type": "tick", "color": "$limit", "thickness": 2, "height": {"band": 0.86}},
            "encoding": {"x": x("limit")},
        },
        *_interval(
            "better",
            row="case",
            outcome="verdict",
            change="change",
            interval="interval",
            allowed="limit",
        ),
    ],
)
FOREST["usermeta"]["clamp"] = [["better", "limit"], ["low", "high"]]

_CELL = {
    "x": {
        "field": "accelerator",
        "type": "nominal",
        "axis": {"title": None, "orient": "top", "labelAngle": 0, "labelLimit": 150},
    },
    "y": {**ROW, "field": "workload"},
}


def heat(value: str, text: str, color: Mapping[str, Any], told: Mapping[str, str]) -> Spec:
    """Return a table of coloured cells, each with its text.

    Args:
        value: Field of the colour.
        text: Field of the words.
        color: Scale of the colour.
        told: What a pointer over a cell shows.
    """
    return {
        "width": {"step": 156},
        "height": {"step": 34},
        "encoding": _CELL,
        "layer": [
            {
                "mark": {"type": "rect", "stroke": "$line", "strokeWidth": 1, "color": "$paper"},
                "encoding": {},
            },
            {
                "transform": [{"filter": f"isValid(datum.{value})"}],
                "mark": {"type": "rect", "stroke": "$line", "strokeWidth": 1},
                "encoding": {"color": {**color, "field": value}},
            },
            {
                "mark": {"type": "text", "color": "$ink", "limit": 150},
                "encoding": {"text": {"field": text}, "tooltip": tips(**told)},
            },
        ],
    }


CHANGES = heat(
    "used",
    "text",
    {
        "type": "quantitative",
        "scale": {
            "domain": [-1, 0, 1],
            "range": ["$worse", "$paper", "$better"],
            "clamp": True,
            "interpolate": "rgb",
        },
        "legend": None,
    },
    {
        "workload": "workload",
        "accelerator": "accelerator",
        "outcome": "verdict",
        "worst": "worst change",
        "allowed": "limit",
        "case": "case",
    },
)

RELATIVE = heat(
    "share",
    "text",
    {
        "type": "quantitative",
        "scale": {"domain": [0, 100], "range": ["$paper", "$better"], "interpolate": "rgb"},
        "legend": None,
    },
    {
        "workload": "workload",
        "accelerator": "accelerator",
        "value": "throughput",
        "text": "of the fastest",
        "case": "case",
    },
)

ACCURACY = by_row(
    "score in % of MLPerf's reference",
    [
        {
            "mark": {"type": "rule", "color": "$grey"},
            "encoding": {"x": {"datum": 100}, "y": None},
        },
        {
            "mark": {"type": "tick", "color": "$limit", "thickness": 2, "height": {"band": 0.7}},
            "encoding": {"x": x("gate")},
        },
        *_interval(
            "share",
            row="case",
            outcome="verdict",
            now="score",
            reference="reference",
            needed="needed",
        ),
    ],
    zero=False,
)
