"""Format notes on the states and defects of runs as sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.notes import NoteKey
from pytest_mlperf.core.numbers import percent, quantity

_SLOWDOWNS = {
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal_slowdown": "heat (software slowdown)",
    "hw_thermal_slowdown": "heat (hardware slowdown)",
    "hw_power_brake_slowdown": "a power brake of the supply",
}
_CLOCK_LIMITS = {
    "application_clocks": "application clocks limit the clocks",
    "sw_power_cap": "the power limit reduces the clocks",
    "sync_boost": "another GPU of the sync boost group limits the clocks",
    "display_clocks": "a display setting limits the clocks",
    "board_limit": "the board limits the clocks",
    "reliability": "a reliability limit reduces the clocks",
}
_RESETS = {
    "ecc": "a changed ECC mode needs a reboot",
    "mig": "a changed MIG mode needs a reset of the GPU",
    "rows": "remapped memory rows need a reset of the GPU",
}
_SERVER_CAUSES = {
    "no page": "the server has no readable /metrics page. Measure a server that has one",
    "no count": "the server counted nothing between two readings. Make the run longer",
    "no counters": "the server's /metrics page lacks {counters}. Measure a server that has them",
}


def _time(seconds: float) -> str:
    return quantity("latency_p99", seconds)


def _clock_event(of: Mapping[str, Any]) -> str:
    event = of["event"]
    if event in _SLOWDOWNS:
        return f"{_SLOWDOWNS[event]} reduced the clocks for {{}}"
    if event == "gpu_idle":
        return "the GPU was idle for {}: the engine did not keep it busy"
    return f"{_CLOCK_LIMITS.get(event, f'clock event reason {event}')}: {{}}"


def _client_share(of: Mapping[str, Any]) -> str:
    metric, late_s = of["metric"], of["issue_s"] + of["loop_s"]
    return (
        f"{METRICS[metric].title} is {quantity(metric, of['value'])}; the client itself may have "
        f"added up to {_time(late_s)}: its requests began {_time(of['issue_s'])} late and its "
        f"event loop was {_time(of['loop_s'])} late ({metric.rpartition('_')[2]}). Give it CPU "
        "cores of its own, or run it on another machine"
    )


def _core_users(of: Mapping[str, Any]) -> str:
    names = f" ({of['names']})" if of["names"] else ""
    unseen = ", or a server here that was not found," if of["serves"] is False else ""
    users = {
        f"the {'server' if of['serves'] else 'engine'}'s processes": (
            of["own"],
            "start the client on cores of its own (taskset), or on another machine",
        ),
        "this client": (of["client"], "lower the requests in flight, or use a faster machine"),
        f"other processes{names}{unseen}": (
            of["others"],
            "close them, or measure on an idle machine",
        ),
    }
    figures = [f"{name} used {used:.2g}" for name, (used, _) in users.items() if used > 0.005]
    _, advice = max(users.values())
    if of["idle"]:
        advice = "cores were idle: the engine limits its concurrency, or answers late"
    return f"{', '.join(figures) or 'nothing used any'} of {of['cores']} cores: {advice}"


def held(of: Mapping[str, Any]) -> str:
    """Return text on the mean number of requests, or conversations, in flight."""
    waited = f"; {of['paused']:.3g} waited for their next turn" if of["paused"] else ""
    load = f"{of['of']:,.10g} requests were"
    if of["turns"]:
        load = f"{of['of']:,.10g} conversations had a request"
    return f"{of['seen']:.3g} of {load} in flight on average{waited}"


def _turns(of: Mapping[str, Any]) -> str:
    low, high = (f"{1e3 * of[name]:.3g}" for name in ("low_s", "high_s"))
    later = " and later" if of["more"] else ""
    waited = f"; {of['paused']:.3g} conversations waited on average" if of["paused"] else ""
    return (
        f"median {'TTFT' if of['ttft'] else 'latency'} {1e3 * of['first_s']:.3g} ms of first "
        f"turns, {low} to {high} ms of turns 2 to {of['last']}{later}{waited}"
    )


def _prefix_share(of: Mapping[str, Any]) -> str:
    cause = "prompts were sent again (use more samples), or share more than the data set states"
    if of["fewer"]:
        cause = "the cache is off or too small, or another server answered earlier requests"
    return (
        "{} of the prompts' tokens were in the server's prefix cache; the prompts share "
        f"{of['shared']:.0%} with earlier ones: {cause}"
    )


def _server_metric(of: Mapping[str, Any]) -> str:
    cause = _SERVER_CAUSES[of["cause"]].format(counters=of["counters"])
    return (
        f"{METRICS[of['metric']].title} has a limit, but was not measured: {cause}, or remove the "
        "limit"
    )


def _drift(of: Mapping[str, Any]) -> str:
    return f"{'rose' if of['moved'] > 0 else 'fell'} by {abs(of['moved']):.0%} during the window"


RUN_SENTENCES: Mapping[NoteKey, str | Callable[[Mapping[str, Any]], str]] = {
    "clock_event": _clock_event,
    "reset_waits": lambda of: _RESETS[of["setting"]],
    "gpu_hot": lambda of: (
        f"{of['heat']:.0f} °C at most"
        + (f"; the GPU slows down at {of['slows']} °C" if of["slows"] else "")
    ),
    "nvlinks_down": lambda of: (
        f"{of['up']} of {of['most']} NVLinks up" + (f"; down: {of['down']}" if of["down"] else "")
    ),
    "client_share": _client_share,
    "core_users": _core_users,
    "client_at_limit": lambda of: (
        f"the client was measured, not the server: {of['rate']:,.0f} requests/s"
        + (f" of {of['tokens']:,.0f} tokens" if of["tokens"] else "")
        + f", and it reaches only {of['reach']:,.0f} with a server that computes nothing. Lower "
        "the requests in flight or the rate, or use a faster or idle machine for the client"
    ),
    "requests_failed": lambda of: (
        f"{of['count']:,} of {of['of']:,} requests failed ({percent(of['count'] / of['of'])}; "
        f"max_failed allows {percent(of['allowed'])})"
    ),
    "latency_drifts": lambda of: (
        f"not steady: latency {_drift(of)}. Use a longer ramp or window, or a lower rate"
    ),
    "throughput_drifts": lambda of: (
        f"not steady: throughput {_drift(of)}. Raise min_duration, or find what heats up, fills up "
        "or grows"
    ),
    "turns": _turns,
    "server_metric_missing": _server_metric,
    "prefix_share": _prefix_share,
    "untimed_input": lambda of: (
        f"input() took {_time(of['input_s'])} per sample outside the timed part; the engine "
        f"{_time(of['sample_s'])}: docs/own-model.md explains how to time preprocessing"
    ),
    "invalid_by_loadgen": lambda of: (
        f"LoadGen reports INVALID: {of['reasons'] or 'its log does not say why'}"
    ),
    "drafts": lambda of: (
        f"speculative decoding gave {of['tokens']:.2f} tokens per step"
        + (
            ', but the entry does not declare it: techniques = ["speculative-decoding"]'
            if of["undeclared"]
            else ""
        )
    ),
    "answers_missing": lambda of: (
        f"answers to {of['dataset']} are not complete: {of['counts'] or 'scored in part'}"
    ),
}
"""Sentence of each key, see `reports.sentences`."""
