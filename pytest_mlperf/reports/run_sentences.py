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
    """Return how many requests were in flight."""
    waited = f"; {of['paused']:.3g} waited for their next turn" if of["paused"] else ""
    what = f"{of['of']:,} requests were"
    if of["turns"]:
        what = f"{of['of']:,} conversations had a request"
    return f"{of['seen']:.3g} of {what} in flight on average{waited}"


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
    "invalid": "INVALID: {note}",
    "in_runs": "in {count} of {of} runs: {note}",
    "at": "at {point:,.10g}: {note}",
    "last_invalid": "the last run is INVALID and proves nothing more: {reason}",
    "sessions_invalid": "{count} of {of:plural session}, {note}",
    "clock_event": _clock_event,
    "gpu_errors": "{count} {errors} during the run",
    "reset_waits": lambda of: _RESETS[of["setting"]],
    "pcie_link": "the PCIe link ran at {seen}, not {most}",
    "pcie_link_fell": "the PCIe link fell from x{most:g} to x{least:g} during the run",
    "gpu_in_use": "in use before the engine was loaded: {processes}. End them",
    "gpu_used": "used by others during the run: {processes}. End them",
    "gpu_busy": "{busy} % busy before the engine was loaded",
    "gpu_memory_in_use": (
        "{gib:.1f} GiB were in use before the engine was loaded, but no process is listed"
    ),
    "gpu_unused": "the GPU did not do the work: {evidence}",
    "power_limit_changed": (
        "the power limit changed from {first:.0f} to {last:.0f} W in this session, and a baseline "
        "has one limit: restore it"
    ),
    "gpu_hot": lambda of: (
        f"{of['heat']:.0f} °C at most"
        + (f"; the GPU slows down at {of['slows']} °C" if of["slows"] else "")
    ),
    "xids": "the driver reported XID {xids} during the run: see dmesg",
    "nvlink_fell": "NVLink {links} went down during the run",
    "nvlink_retrained": "NVLink was retrained and carried no data meanwhile: {times}",
    "nvlinks_down": lambda of: (
        f"{of['up']} of {of['most']} NVLinks up" + (f"; down: {of['down']}" if of["down"] else "")
    ),
    "nvlink_errors": "NVLink errors during the run, which were corrected: {errors}",
    "nvswitch_failed": "NVSwitch failed during the run: {problems}",
    "nvswitch_unhealthy": "NVSwitch is unhealthy: {problems}",
    "seldom_read": "GPUs were read at {hz:.1f} Hz, not {wanted:g} Hz: short events may be missed",
    "not_watched": (
        "GPUs were not watched from {after_s:.1f} s on: {cause}; later throttling or use by others "
        "is unknown"
    ),
    "gpus_differ": "the GPUs of this case differ: {differences}",
    "no_goodput": "goodput is 0: no request met its limits",
    "goodput_unknown": (
        "goodput is unknown: requests waited up to {late_s:.2g} s before they reached the engine"
    ),
    "clock_moved": (
        "the wall clock was set by {moved_s:+,.4g} s during the run, and LoadGen measures by it: "
        "run it again"
    ),
    "slow_start": (
        "queries took {times:.3g} × as long in the first 10 % of the run as in its second half, "
        "which changes {metric:title} by {change:change} (limit {limit:percent}). Make the run "
        "longer"
    ),
    "too_short": (
        "the run lasted {lasted_s:.2g} s instead of {planned_s:g} s: the engine was slower while "
        "its rate was probed"
    ),
    "too_long": (
        "the run lasted {lasted_s:duration} instead of {planned_s:duration}: the engine was slower "
        "than the rate that the run was planned for"
    ),
    "client_share": _client_share,
    "cores_unknown": "the engine limits its concurrency, or the client could not keep up",
    "core_users": _core_users,
    "client_at_limit": lambda of: (
        f"the client was measured, not the server: {of['rate']:,.0f} requests/s"
        + (f" of {of['tokens']:,.0f} tokens" if of["tokens"] else "")
        + f", and it reaches only {of['reach']:,.0f} with a server that computes nothing. Lower "
        "the requests in flight or the rate, or use a faster or idle machine for the client"
    ),
    "client_queues": (
        "the client was measured, not the server: {most:,} requests were in flight, but the engine "
        "sends {sent:,} at a time. Raise its option concurrency"
    ),
    "requests_failed": lambda of: (
        f"{of['count']:,} of {of['of']:,} requests failed ({percent(of['count'] / of['of'])}; "
        f"max_failed allows {percent(of['allowed'])})"
    ),
    "some_requests_failed": (
        "{count:,} of {of:,} requests failed and are not counted; max_failed allows some"
    ),
    "few_requests": (
        "{count:,} requests in {duration_s:.3g} s, {needed:,} are needed: measure for longer "
        "(min_duration)"
    ),
    "overloaded": (
        "overloaded: requests in flight grew from {before:,} to {after:,}, and {unanswered:,} of "
        "{of:,} were not answered at the end. Use a lower rate, or a longer window if single "
        "answers take as long as it"
    ),
    "latency_drifts": lambda of: (
        f"not steady: latency {_drift(of)}. Use a longer ramp or window, or a lower rate"
    ),
    "throughput_drifts": lambda of: (
        f"not steady: throughput {_drift(of)}. Raise min_duration, or find what heats up, fills up "
        "or grows"
    ),
    "not_held_by_rate": (
        "{seen:.3g} of {of:,} requests were in flight on average, by rate and mean latency: the "
        "run is too short for its start and end, or client or server held requests back"
    ),
    "turns": _turns,
    "cut_in_part": (
        "answers were cut at their token limit ({shares}); the others ended by themselves"
    ),
    "stalled": "{count} of {of} parts of the window have less than half of the usual work",
    "prompts_longer": (
        "the server counts {counted:,} tokens in prompts of {sent:,}: it adds some, such as a "
        "begin token that the prompts have already"
    ),
    "first_unsized": (
        "answers arrive in messages of several tokens, and the size of the first is unknown: TPOT "
        "counts it as one token, and may be too short by up to {most:.0%}. Let the server send "
        "token ids, or usage in each event (continuous_usage_stats)"
    ),
    "builds_differ": "several builds of the server answered, by system_fingerprint: {builds}",
    "cache_unknown": (
        "each run sends the same prompts, and the share that the server had in its cache is "
        "unknown: start the server so that usage or /metrics reports it"
    ),
    "server_metric_missing": _server_metric,
    "server_shared": (
        "the server had {count:.3g} requests on average, {own:.3g} of them from this run: another "
        "client uses it"
    ),
    "prefix_share": _prefix_share,
    "server_unread": "the server's metrics were read only {count} times in {time_s:.0f} s: {cause}",
    "untimed_input": lambda of: (
        f"input() took {_time(of['input_s'])} per sample outside the timed part; the engine "
        f"{_time(of['sample_s'])}: docs/own-model.md explains how to time preprocessing"
    ),
    "of_loadgen": "LoadGen: {reason}",
    "run_too_short": "the run was too short",
    "too_few_queries": "too few queries",
    "stopped_early": ("too few queries for its percentile (early stopping): raise min_query_count"),
    "invalid_by_loadgen": lambda of: (
        f"LoadGen reports INVALID: {of['reasons'] or 'its log does not say why'}"
    ),
    "loadgen_errors": "LoadGen logged {count:plural error}",
    "drafts": lambda of: (
        f"speculative decoding gave {of['tokens']:.2f} tokens per step"
        + (
            ', but the entry does not declare it: techniques = ["speculative-decoding"]'
            if of["undeclared"]
            else ""
        )
    ),
    "not_complete": "the run was not complete (state {state}): its figures cover only a part of it",
    "ended_early": "the run was ended after {count:,} of {of:,} requests",
    "requests_lost": "{count:,} of {of:,} requests {how}",
    "answers_missing": lambda of: (
        f"answers to {of['dataset']} are not complete: {of['counts'] or 'scored in part'}"
    ),
    "miscounted": (
        "timed runs have {timed} tokens per sample, but the answers of the accuracy pass {answers}"
    ),
    "ab_decided": "decided by A/B: {turns} {how}",
    "ab_not_confirmed": "not confirmed by A/B: {turns} {how}{also}",
    "ab_not_decided": "not decided by A/B: {turns} {how}",
    "ab_open": "not confirmed by A/B, not refuted either: {turns} {how}",
    "ab_no_drop": "not confirmed by A/B: {turns}: {finding}; {how}",
}
"""Sentence of each key, see `reports.sentences`."""
