"""The figures of a performance run: LoadGen's own, and by our stamps what it does not log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytest_mlperf.core.client import client_share
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.ranges import LEAST, MOST
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.run.logs import Detail
from pytest_mlperf.run.token_times import GOODPUT, with_token_rate
from pytest_mlperf.suite.plan import Planned

LATE_SHARE, LATE_S = 0.25, 1e-3
"""LoadGen times a request from its schedule, our stamps from when the engine was given it: so much
longer may its p99 be, as a share and seconds on top, before requests count as held up between."""


def figures(
    result: Mapping[str, Any], detail: Detail, scenario: str
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return a run's metrics by the names of the metric table, SI units, and notes on them.

    Args:
        result: What the worker measured itself, see `protocol.Finished`.
        detail: LoadGen's log; its figures count where it has them.
        scenario: LoadGen's scenario.

    Raises:
        RunError: One of our figures cannot be: it is not positive.
    """
    ours, told = dict(result["token_metrics"]), list(result["notes"])
    theirs = detail.metrics(scenario)
    goodput = ours.pop(GOODPUT, None)
    for name, value in ours.items():
        if not LEAST <= value <= MOST:
            raise _not_positive(name, value, detail.path)
    if goodput is not None:
        why = _unknown(ours, theirs) if goodput else "no request met its limits"
        if why:
            told.append(f"goodput is {'not known' if goodput else '0'}: {why}")
        else:
            ours[GOODPUT] = goodput
    found = with_token_rate(
        {**ours, **theirs},
        samples=int(result["completed"]),
        duration_s=float(result["duration_s"]),
    )
    return found, tuple(told)


def with_per_gpu(run: Run, accelerator: str) -> Run:
    """Add the tokens/s of each GPU of an accelerator; a CPU has no such figure."""
    count, kind = split(accelerator)
    rate = run.metrics.get("tokens_per_second")
    if kind == "cpu" or rate is None:
        return run
    metrics = {**run.metrics, "tokens_per_second_per_gpu": rate / count}
    return dataclasses.replace(run, metrics=metrics)


def with_client(run: Run, planned: Planned) -> Run:
    """Return a run that is INVALID, or says so, where its client was late by itself."""
    gated = {**planned.limits, **planned.latency_limits}
    reason, note = client_share(run.metrics, gated, run.client)
    if reason is not None:
        return dataclasses.replace(run, invalid=(*run.invalid, reason), limit_missed=False)
    return run if note is None else dataclasses.replace(run, notes=(*run.notes, note))


def _not_positive(name: str, value: float, log: str) -> RunError:
    why = "the engine says that it is done when it says that the first token is there"
    if name == "tokens_per_sample":
        why = "done() was given n_tokens of 0 for every sample"
    return RunError("engine", f"{name} is {value!r} by our stamps; it must be positive: {why}", log)


def _unknown(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    """Return why our stamps do not tell which requests met their limits; "" where they do."""
    name = next((n for n in ("ttft_p99", "latency_p99") if n in ours and n in theirs), None)
    if name is None or theirs[name] <= ours[name] * (1 + LATE_SHARE) + LATE_S:
        return ""
    late_s = theirs[name] - ours[name]
    return f"requests waited up to {late_s:.2g} s before the engine was given them"
