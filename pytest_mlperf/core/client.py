"""Whether a latency is the server's: the share of it that the measuring process took itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.core.reason import Key, Reason

INVALID_SHARE = 0.25
"""Above this share of a gated latency nobody can say what the server did: twice the largest change
of a latency that any default limit lets through, and some."""

NOTED_SHARE = 0.10
"""Above this it is told: it is the default limit of a 99th percentile."""

LEAST_S = 5e-3
"""Less is how an operating system schedules processes, and means nothing."""


def client_share(
    metrics: Mapping[str, float], gated: Iterable[str], client: Mapping[str, float]
) -> tuple[Reason | None, str | None]:
    """Return why a run of this client may not be judged, or else what is to be told of it.

    Args:
        metrics: Of the run, by name, SI units.
        gated: Names of those that decide something.
        client: How late the client was, seconds: "issue_p99", "loop_p99" and so on; {}: unknown.
    """
    shares = {name: _late(name, client) / metrics[name] for name in _latencies(metrics, gated)}
    name = max(shares, key=shares.__getitem__, default=None)
    if name is None or _late(name, client) < LEAST_S or shares[name] <= NOTED_SHARE:
        return None, None
    which = name.rpartition("_")[2]
    issue, loop = (_time(client[f"{part}_{which}"]) for part in ("issue", "loop"))
    parts = (
        f"{METRICS[name].title} is {quantity(name, metrics[name])}, of which this process took up "
        f"to {_time(_late(name, client))}: its requests began {issue} late and its event loop was "
        f"{loop} late ({which})"
    )
    advice = "give it processor cores that nobody else uses, or measure from another machine"
    if shares[name] <= INVALID_SHARE:
        return None, f"{parts}; {advice}"
    text = f"the client, not the server, was measured: {parts}; {advice}"
    return Reason(key=Key.CLIENT_LATE, text=text), None


def _latencies(metrics: Mapping[str, float], gated: Iterable[str]) -> Iterable[str]:
    """Yield the gated times that begin where LoadGen issues a sample."""
    for name in gated:
        if name.partition("_")[0] in ("ttft", "latency") and metrics.get(name, 0.0) > 0:
            yield name


def _late(name: str, client: Mapping[str, float]) -> float:
    """Return how late it was at both ends of a latency, each at the same percentile."""
    which = name.rpartition("_")[2]
    return client.get(f"issue_{which}", 0.0) + client.get(f"loop_{which}", 0.0)


def _time(seconds: float) -> str:
    return quantity("latency_p99", seconds)
