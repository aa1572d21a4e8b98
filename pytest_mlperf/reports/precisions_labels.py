"""Labels of points beside them, where they cover neither a point nor each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_mlperf.reports.precisions_panels import Panel

SIZE = 7.5
GATE_SIZE = 6.5
DOUBT = 8.0
"""A place where it is not clear whose label it is counts as if so much were covered."""

NEAR = 3.0
"""Where another point is hardly further from a label, a line tells whose it is, too."""

POINT = 4.5
"""Half the side of a marker."""

DISTANCES = (6.0, 10.0, 16.0, 23.0, 31.0, 40.0, 52.0)
DIRECTIONS = (
    *((1.0, 0.7), (1.0, -0.7), (-1.0, 0.7), (-1.0, -0.7), (1.0, 0.0), (-1.0, 0.0)),
    *((0.0, 1.0), (0.0, -1.0), (1.0, 1.4), (1.0, -1.4), (-1.0, 1.4), (-1.0, -1.4)),
)
"""Slanting first, because the lines of the reference run straight through its point."""

FAR = 11.0
"""From so many points on a thin line leads to the label."""


@dataclass(frozen=True)
class Box:
    """A rectangle in points of 1/72 inch."""

    left: float
    bottom: float
    right: float
    top: float

    def covers(self, other: Box) -> float:
        """Return the area that two boxes share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def distance(self, x: float, y: float) -> float:
        """Return how far a point lies from the box; 0 inside."""
        dx = max(self.left - x, 0.0, x - self.right)
        return math.hypot(dx, max(self.bottom - y, 0.0, y - self.top))

    @property
    def area(self) -> float:
        """Width by height."""
        return max(self.right - self.left, 0.0) * max(self.top - self.bottom, 0.0)


def around(anchor: tuple[float, float], size: tuple[float, float]) -> Iterator[tuple[float, Box]]:
    """Yield distance and box of each place of a label about a point, the best place first."""
    width, height = size
    for distance in DISTANCES:
        for x, y in DIRECTIONS:
            # The label's nearest edge or corner lies in that direction, not its middle.
            left = anchor[0] + x * distance - width * _before(x)
            bottom = anchor[1] + y * distance - height * _before(y)
            yield distance, Box(left, bottom, left + width, bottom + height)


def _before(direction: float) -> float:
    """Return the share of a label's side that lies before its anchor: none, half, or all."""
    return 0.0 if direction > 0 else 1.0 if direction < 0 else 0.5


def best(
    places: Iterable[tuple[float, Box]],
    taken: Sequence[Box],
    inside: Box,
    doubtful: Callable[[Box], bool] = lambda _: False,
) -> tuple[float, Box]:
    """Return the first place that covers nothing, else the one that covers least.

    Args:
        places: Distance and box of each, the best first.
        taken: What the box must not cover.
        inside: What it must not leave.
        doubtful: Whether a reader could take it for another point's.
    """
    found: list[tuple[float, float, Box]] = []
    for distance, box in places:
        cost = sum(box.covers(other) for other in taken) + 2 * (box.area - box.covers(inside))
        cost += DOUBT if doubtful(box) else 0.0
        if cost <= 1e-6:
            return distance, box
        found.append((cost, distance, box))
    _, distance, box = min(found, key=lambda each: each[0])
    return distance, box


def place(axes: Any, panel: Panel, colours: Sequence[str], gate_colour: str) -> None:
    """Write the labels of a panel that is otherwise drawn; lengths are points of 1/72 inch.

    Args:
        axes: The panel's axes.
        panel: What they show.
        colours: Of the points, in their order; labels are darker.
        gate_colour: Of the words at the gate.
    """
    unit = axes.figure.dpi / 72
    pixels = [axes.transData.transform((point.x, point.y)) for point in panel.points]
    spots = [(float(x) / unit, float(y) / unit) for x, y in pixels]
    taken = [Box(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in spots]
    for (x, _), point in zip(spots, panel.points, strict=True):
        ends = [end for end in (point.low, point.high) if end is not None]
        heights = [float(axes.transData.transform((1, end))[1]) / unit for end in ends]
        taken += [Box(x - 1, min(heights), x + 1, max(heights))] if heights else []
    frame = Box(*(float(v) / unit for v in axes.bbox.extents))
    # Titles stand above; to the right there is the gap to the next panel.
    inside = Box(frame.left + 1, frame.bottom + 1, frame.right + 12, frame.top)
    if panel.gate is not None:
        taken.append(_write_gate(axes, panel.gate, taken, frame, gate_colour))
        line = float(axes.transData.transform((1, panel.gate))[1]) / unit
        taken.append(Box(frame.left, line - 1, frame.right, line + 1))
    for index, (point, colour) in enumerate(zip(panel.points, colours, strict=True)):
        x, y = spots[index]
        others = spots[:index] + spots[index + 1 :]
        doubtful = partial(_doubtful, own=(x, y), others=others)
        places = around((x, y), _size(point.label, SIZE))
        distance, box = best(places, taken, inside, doubtful)
        taken.append(box)
        led = distance >= FAR or doubtful(box)
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.7, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            point.label,
            (point.x, point.y),
            xytext=(box.left + 2.0 - x, box.bottom - y),
            textcoords="offset points",
            size=SIZE,
            color=darker(colour),
            va="bottom",
            arrowprops={**leader, "relpos": _nearest(box, x, y)} if led else None,
            zorder=4,
        )


def _doubtful(box: Box, own: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Whether another point is hardly further from a label than its own."""
    return any(box.distance(*other) < box.distance(*own) + NEAR for other in others)


def _nearest(box: Box, x: float, y: float) -> tuple[float, float]:
    """Return the place in a box that is nearest to a point, as shares of its sides."""
    across = (x - box.left) / (box.right - box.left)
    return min(max(across, 0.0), 1.0), min(max((y - box.bottom) / (box.top - box.bottom), 0.0), 1.0)


def darker(colour: str) -> str:
    """Return a colour "#rrggbb" that is dark enough for small letters on white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part * 0.6):02x}" for part in parts)


def _write_gate(axes: Any, gate: float, taken: Sequence[Box], frame: Box, colour: str) -> Box:
    """Write what the band means at the end of its line where nothing stands; return the box."""
    text = f"below the gate ({gate:.4g} %)"
    unit = axes.figure.dpi / 72
    line = float(axes.transData.transform((1, gate))[1]) / unit
    width, height = _size(text, GATE_SIZE)
    under, over = line - height - 2, line + 2
    ends = (frame.left + 3, frame.right - width - 3)
    corners = [
        (0.0, Box(left, bottom, left + width, bottom + height))
        for bottom in (under, over)
        for left in ends
    ]
    middle = float(axes.transData.transform((1, gate))[0]) / unit
    upright = Box(middle - 0.3, frame.bottom, middle + 0.3, frame.top)
    _, box = best(corners, [*taken, upright], frame)
    axes.annotate(
        text,
        (0, 0),
        xycoords="axes points",
        xytext=(box.left - frame.left, box.bottom - frame.bottom),
        textcoords="axes points",
        size=GATE_SIZE,
        color=colour,
        va="bottom",
    )
    return box


def _size(text: str, size: float) -> tuple[float, float]:
    """Return width and height of a text in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    extent = TextPath((0, 0), text or " ", prop=FontProperties(size=size)).get_extents()
    return float(extent.width) + 4.0, size * 1.2
