"""Vega-Lite's descriptions of what a single case shows over time, and of its latencies."""

from __future__ import annotations

from pytest_mlperf.reports.html.specs import Spec, tips, x

_TIME = {
    "field": "at",
    "type": "temporal",
    "title": None,
    "scale": {"type": "utc"},
    "axis": {"tickCount": 7},
}

_VALUE = {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}}

LEVELS = 3
"""Lines of text above a history: names of versions that are near each other stand in several."""


def _version(side: str, level: int) -> Spec:
    """Return the name of an engine version above the line of its date."""
    where = f"datum.side == '{side}' && datum.level == {level}"
    return {
        "transform": [{"filter": f"datum.what == 'version' && {where}"}],
        "mark": {
            "type": "text",
            "align": side,
            "baseline": "bottom",
            "dx": 4 if side == "left" else -4,
            "color": "$grey",
            "limit": 300,
        },
        "encoding": {"y": {"value": -3 - 14 * level}, "text": {"field": "text"}},
    }


HISTORY: Spec = {
    "width": "container",
    "height": 220,
    "encoding": {"x": _TIME, "y": _VALUE},
    "layer": [
        {
            "transform": [{"filter": "datum.what == 'accepted'"}],
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "color": "$base",
                "strokeWidth": 2,
            },
        },
        {
            "transform": [{"filter": "datum.what == 'accepted' && datum.mark"}],
            "mark": {"type": "point", "filled": True, "color": "$base", "size": 42, "opacity": 1},
            "encoding": {"tooltip": tips(date="accepted", text="value", runs="runs", why="why")},
        },
        {
            "transform": [{"filter": "datum.what == 'version'"}],
            "mark": {"type": "rule", "strokeDash": [3, 3], "color": "$grey"},
            "encoding": {"y": None, "tooltip": tips(date="since", text="version")},
        },
        *(_version(side, level) for side in ("left", "right") for level in range(LEVELS)),
        {
            "transform": [{"filter": "datum.what == 'baseline run'"}],
            "mark": {"type": "point", "color": "$base", "size": 40},
            "encoding": {"tooltip": tips(date="baseline run", text="value")},
        },
        {
            "transform": [{"filter": "datum.what == 'run now'"}],
            "mark": {"type": "point", "filled": True, "color": "$now", "size": 60, "opacity": 1},
            "encoding": {"tooltip": tips(date="run now", text="value")},
        },
    ],
}

_WHEN = {
    "field": "when",
    "title": None,
    "scale": {"domain": ["baseline", "now"], "range": ["$base", "$now"]},
    "legend": {"orient": "top"},
}

LATENCY: Spec = {
    "width": "container",
    "height": 220,
    "encoding": {
        "x": x("ms", title="milliseconds", scale={"type": "log", "nice": False}),
        "y": {
            "field": "rank",
            "type": "quantitative",
            "title": "share of queries",
            "scale": {"zero": False},
            "axis": {
                "values": [0, 0.301, 1, 1.301, 2, 3],
                "labelExpr": (
                    "datum.value == 0 ? 'fastest' : datum.value < 1 ? '50 %' : "
                    "datum.value == 1 ? '90 %' : datum.value < 1.5 ? '95 %' : "
                    "datum.value == 2 ? '99 %' : '99.9 %'"
                ),
            },
        },
    },
    "layer": [
        {
            "transform": [{"filter": "datum.when != 'limit'"}],
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"color": _WHEN},
        },
        {
            "transform": [{"filter": "datum.when != 'limit'"}],
            "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
            "encoding": {
                "color": _WHEN,
                "shape": {
                    "field": "when",
                    "title": None,
                    "scale": {"domain": ["baseline", "now"], "range": ["circle", "diamond"]},
                    "legend": {"orient": "top"},
                },
                "tooltip": tips(when="run of", share="share of queries", text="within"),
            },
        },
        {
            "transform": [{"filter": "datum.when == 'limit'"}],
            "mark": {
                "type": "point",
                "shape": "triangle-left",
                "size": 110,
                "filled": True,
                "color": "$limit",
                "opacity": 1,
            },
            "encoding": {"tooltip": tips(why="limit", share="of the queries", text="within")},
        },
    ],
}

MOMENTS: Spec = {
    "vconcat": [
        {
            "width": "container",
            "height": 150,
            "transform": [{"filter": "datum.what != 'outstanding'"}],
            "encoding": {
                "x": x("seconds", title=None, axis={"tickCount": 8, "labels": False}),
                "y": {"field": "value", "type": "quantitative", "title": "latency, ms"},
                "color": {
                    "field": "what",
                    "title": None,
                    "scale": {"domain": ["p50", "p99"], "range": ["$now", "$fail"]},
                    "legend": {"orient": "top"},
                },
                "strokeDash": {
                    "field": "what",
                    "title": None,
                    "scale": {"domain": ["p50", "p99"], "range": [[1, 0], [5, 2]]},
                    "legend": {"orient": "top"},
                },
            },
            "mark": {"type": "line", "strokeWidth": 1.8},
        },
        {
            "width": "container",
            "height": 80,
            "transform": [{"filter": "datum.what == 'outstanding'"}],
            "encoding": {
                "x": x("seconds", title="seconds after the run began", axis={"tickCount": 8}),
                "y": {"field": "value", "type": "quantitative", "title": "waiting"},
            },
            "mark": {"type": "area", "color": "$base", "opacity": 0.6},
        },
    ],
}


_WINDOW: Spec = {
    "transform": [{"filter": "datum.what == 'window'"}],
    "mark": {"type": "rect", "color": "$band", "opacity": 0.55},
    "encoding": {"x2": {"field": "until"}},
}

_HELD_BACK: Spec = {
    "transform": [{"filter": "datum.what == 'held back'"}],
    "mark": {"type": "rect", "opacity": 0.24},
    "encoding": {
        "x2": {"field": "until"},
        "color": {
            "field": "tone",
            "scale": {"domain": ["fail", "open", "note"], "range": ["$fail", "$open", "$note"]},
            "legend": None,
        },
        "tooltip": tips(name="held back by", seconds="from, s", until="to, s"),
    },
}

_LIMIT: Spec = {
    "transform": [{"filter": "datum.what == 'power limit'"}],
    "mark": {"type": "rule", "color": "$limit", "strokeDash": [5, 3]},
    "encoding": {
        "x": None,
        "y": {"field": "value", "type": "quantitative"},
        "tooltip": tips(name="GPU", value="power limit, W"),
    },
}


def _line(what: str, title: str) -> Spec:
    """Return a line for each GPU."""
    power = what == "power"
    place = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": power}}
    return {
        "transform": [{"filter": f"datum.what == '{what}'"}],
        "mark": {
            "type": "line",
            "strokeWidth": 1.4,
            "interpolate": "linear" if power else "step-after",
        },
        "encoding": {
            "y": {**place, "axis": {"tickCount": 4}},
            "strokeDash": {"field": "name", "title": None, "legend": None},
            "color": {"value": "$now"},
        },
    }


def _panel(what: str, title: str, *, last: bool = False) -> Spec:
    """Return a panel of the GPUs' timeline."""
    power = what == "power"
    words = "seconds after LoadGen's window began" if last else None
    return {
        "width": "container",
        "height": 120 if power else 80,
        "encoding": {"x": x("seconds", title=words, axis={"tickCount": 8, "labels": last})},
        "layer": [_WINDOW, _HELD_BACK, _line(what, title), *([_LIMIT] if power else [])],
    }


POWER: Spec = {
    "vconcat": [
        _panel("power", "power, W"),
        _panel("clock", "SM clock, MHz"),
        _panel("temperature", "°C", last=True),
    ],
    "spacing": 8,
}
