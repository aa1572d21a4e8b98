"""Compare a server's metrics with those in a baseline's runs, and format them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mlperf.core.metrics import at_point, point_of
from pytest_mlperf.core.numbers import percent

HIDDEN_SHARE = "hidden_share"
"""Share of hidden tokens, such as reasoning, among the counted tokens of the answers."""

QUANTITIES: Mapping[str, str] = {
    "waiting": "waiting queue",
    "running": "running",
    "kv_cache_use": "KV cache in use",
    "prefix_hit_share": "prefix cache hits",
    "draft_acceptance": "drafts accepted",
    "draft_length": "acceptance length",
    "preemptions": "preemptions",
    HIDDEN_SHARE: "hidden tokens",
}

_WORSE = {
    "waiting": 1,
    "prefix_hit_share": -1,
    "draft_acceptance": -1,
    "draft_length": -1,
    "preemptions": 1,
}
"""Sign of a change that makes a server slower. Running requests and cache use have none: a server
may take fewer at a time, or each may stay longer."""

_SHARES = {
    "kv_cache_use": 0.05,
    "prefix_hit_share": 0.02,
    "draft_acceptance": 0.02,
    HIDDEN_SHARE: 0.02,
}
_SLACK = {**_SHARES, "draft_length": 0.1}
_MIN_COUNT, _MIN_SHARE = 1.0, 0.1
"""Reported changes: of a share or a length as above, of a count by one and by a tenth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerChange:
    """Hold a server metric outside the range of the baseline's runs; `before`, `now`: medians."""

    quantity: str
    point: float | None
    before: float
    now: float

    @property
    def sign(self) -> int:
        """Effect on speed: 1 if the change makes a server slower, -1 if faster, 0 if unknown."""
        return _WORSE.get(self.quantity, 0) * (1 if self.now > self.before else -1)

    @property
    def says(self) -> str:
        """The change as text: "waiting queue 0 → 38.2"."""
        old, new = (server_value(self.quantity, value) for value in (self.before, self.now))
        return f"{QUANTITIES[self.quantity]} {old} → {new}"


def server_value(quantity: str, value: float) -> str:
    """Format the value of a server metric."""
    if quantity in _SHARES:
        return percent(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def server_figures(
    server: Mapping[str, float], point: float | None
) -> Iterator[tuple[str, str, str]]:
    """Yield (title, value, largest value or "") of each server metric; `point`: concurrency."""
    for quantity, title in QUANTITIES.items():
        names = [quantity, f"{quantity}_max"]
        if point is not None:
            names = [at_point(name, point) for name in names]
        value, most = (server.get(name) for name in names)
        if value is not None and (value or quantity != HIDDEN_SHARE):
            largest = "" if most is None else f"{server_value(quantity, most)} at most"
            yield title, server_value(quantity, value), largest


def server_in_words(server: Mapping[str, float]) -> str:
    """Return a server's metrics in one line (of a curve: at the highest load); "" if none."""
    point = max(points_of([server]), key=lambda point: point or 0.0, default=None)
    figures = [
        f"{title} {value}" + (f" ({most})" if most else "")
        for title, value, most in server_figures(server, point)
    ]
    where = "the server" if point is None else f"the server at {point:,}"
    return f"{where}: {', '.join(figures)}" if figures else ""


def server_changes(
    current: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]
) -> list[ServerChange]:
    """Return server metrics whose median is outside the baseline's range, sorted by concurrency."""
    changes = []
    for point in points_of(current):
        for quantity in QUANTITIES:
            name = quantity if point is None else at_point(quantity, point)
            sides = [[run[name] for run in side if name in run] for side in (current, baseline)]
            if not all(sides):
                continue
            before, after = median(sides[1]), median(sides[0])
            slack = _SLACK.get(quantity) or max(_MIN_COUNT, _MIN_SHARE * before)
            if after > max(sides[1]) + slack or after < min(sides[1]) - slack:
                change = ServerChange(quantity=quantity, point=point, before=before, now=after)
                changes.append(change)
    return changes


def points_of(servers: Sequence[Mapping[str, float]]) -> list[float | None]:
    """Return the concurrencies or rates in names of metrics, ascending; [None] without a curve."""
    points = {point_of(name) for server in servers for name in server}
    return sorted(points, key=lambda point: point or 0.0)
