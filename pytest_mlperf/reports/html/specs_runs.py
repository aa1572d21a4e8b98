"""Vega-Lite's descriptions of the plots of single runs: spread, energy, price and time."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from pytest_mlperf.reports.html.specs import Spec, by_row, tips, x

SPREAD = by_row(
    "% of the mean",
    [
        {
            "mark": {"type": "tick", "color": "$limit", "thickness": 2, "height": {"band": 0.7}},
            "encoding": {"x": x("limit")},
        },
        {
            "mark": {"type": "point", "shape": "square", "size": 70, "color": "$base"},
            "encoding": {"x": x("detectable"), "tooltip": tips(row="case", detectable="provable")},
        },
        {
            "mark": {"type": "point", "size": 80, "color": "$base"},
            "encoding": {"x": x("before"), "tooltip": tips(row="case", before="baseline, %")},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 80, "color": "$now", "opacity": 1},
            "encoding": {"x": x("now"), "tooltip": tips(row="case", now="now, %")},
        },
    ],
)

STRIP = by_row(
    "difference from the mean of the baseline, else of the runs, in %",
    [
        {
            "mark": {"type": "rule", "color": "$grey"},
            "encoding": {"x": {"datum": 0}, "y": None},
        },
        {
            "transform": [{"filter": "datum.when == 'baseline'"}],
            "mark": {"type": "point", "size": 60, "color": "$base", "opacity": 0.9},
            "encoding": {
                "x": x("off"),
                "tooltip": tips(row="case", when="run of", text="value", date="started"),
            },
        },
        {
            "transform": [{"filter": "datum.when == 'now'"}],
            "mark": {"type": "point", "size": 60, "filled": True, "color": "$now", "opacity": 1},
            "encoding": {
                "x": x("off"),
                "tooltip": tips(row="case", when="run of", text="value", date="started"),
            },
        },
    ],
)

COST = by_row(
    "USD per million",
    [
        {
            "mark": {"type": "bar", "color": "$now", "height": {"band": 0.6}},
            "encoding": {
                "x": x("usd"),
                "tooltip": tips(row="case", text="USD per million", of="of", price="price"),
            },
        }
    ],
)


def energy(units: Sequence[str]) -> Spec:
    """Return speed over energy.

    Args:
        units: What is counted: "tokens", "samples" or both.
    """
    each = " or ".join(unit.removesuffix("s") for unit in units)
    spec = copy.deepcopy(_ENERGY)
    spec["encoding"]["x"]["title"] = f"J per {each}, less is better"
    spec["encoding"]["y"]["title"] = f"{' or '.join(units)} per second"
    if len(units) < 2:
        del spec["layer"][1]["encoding"]["shape"]
    return spec


_ENERGY: Spec = {
    "width": "container",
    "height": 320,
    "encoding": {
        "x": x("joules", scale={"zero": False}, axis={"tickCount": 8}),
        "y": {
            "field": "rate",
            "type": "quantitative",
            "scale": {"zero": False},
        },
    },
    "layer": [
        {
            "mark": {"type": "line", "color": "$base", "strokeDash": [4, 3]},
            "encoding": {"detail": {"field": "row"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {
                "color": {
                    "field": "when",
                    "scale": {"domain": ["baseline", "now"], "range": ["$base", "$now"]},
                    "title": None,
                    "legend": {"orient": "top"},
                },
                "shape": {"field": "unit", "title": None, "legend": {"orient": "top"}},
                "tooltip": tips(
                    row="case", when="run of", rate_text="per second", joules_text="J each"
                ),
            },
        },
        {
            "transform": [{"filter": "datum.when == 'now'"}],
            "mark": {
                "type": "text",
                "align": "left",
                "dx": 9,
                "dy": -7,
                "color": "$ink",
                "limit": 240,
            },
            "encoding": {"text": {"field": "row"}},
        },
    ],
}

SPENT = by_row(
    "seconds",
    [
        {
            "mark": {"type": "bar", "height": {"band": 0.66}},
            "encoding": {
                "x": x("seconds", stack="zero"),
                "order": {"field": "order"},
                "color": {
                    "field": "part",
                    "title": None,
                    "scale": {
                        "domain": ["before", "load", "warm-up", "measured", "accuracy pass"],
                        "range": ["$note", "$limit", "$open", "$now", "$good"],
                    },
                    "legend": {"orient": "top"},
                },
                "tooltip": tips(row="case", part="part", text="time"),
            },
        }
    ],
)
