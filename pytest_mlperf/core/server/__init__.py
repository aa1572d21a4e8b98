"""Read a server's metrics page during a run: queue, cache, speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from pytest_mlperf.core.metrics import DRAFT_LENGTH, STAGE, at_point, is_stage
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import MAX_RATE
from pytest_mlperf.core.prometheus import page_samples

STAGE_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "queue": (
        "vllm:request_queue_time_seconds",
        "sglang:queue_time_seconds",
        "trtllm_request_queue_time_seconds",
        "tgi_request_queue_duration",
    ),
    "prefill": ("vllm:request_prefill_time_seconds", "trtllm_request_prefill_time_seconds"),
    "decode": ("vllm:request_decode_time_seconds", "trtllm_request_decode_time_seconds"),
}
"""Histograms of the times of request stages, by stage, in the names of different servers."""

COUNTERS: Mapping[str, tuple[str, ...]] = {
    **{
        f"{stage}_{part}": tuple(f"{name}_{part}" for name in names)
        for stage, names in STAGE_HISTOGRAMS.items()
        for part in ("sum", "count")
    },
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
    ),
    "prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
        "llamacpp:prompt_tokens_total+llamacpp:prompt_tokens_cached_total",
    ),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "trtllm_spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
    ),
    "drafted": (
        "vllm:spec_decode_num_draft_tokens_total",
        "trtllm_spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
    ),
    "drafts": ("vllm:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_drafts_total"),
    "preemptions": (
        "vllm:num_preemptions_total",
        "sglang:num_retracted_reqs_total",
        "sglang:num_retracted_requests_total",
    ),
}
"""Counters by quantity, in the names of different servers, of which the first match counts. Joined
names are summed."""

GAUGES: Mapping[str, tuple[str, ...]] = {
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "trtllm_num_requests_waiting",
        "tgi_queue_size",
        "llamacpp:requests_deferred",
    ),
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "trtllm_num_requests_running",
        "tgi_batch_current_size",
        "llamacpp:requests_processing",
    ),
    "kv_cache_use": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
        "llamacpp:kv_cache_usage_ratio",
    ),
    "prefix_hit_share": ("sglang:cache_hit_rate", "trtllm_kv_cache_hit_rate"),
    "draft_acceptance": ("sglang:spec_accept_rate",),
    "draft_length": ("sglang:spec_accept_length", "trtllm_spec_decode_acceptance_length"),
}
"""Gauges by quantity, in the same way; a vLLM "perc" of 1 is a share of 1."""

OF_COPIES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "kv_cache_use": max,
    **dict.fromkeys(("prefix_hit_share", "draft_acceptance", "draft_length"), fmean),
}
"""How gauges of several copies of a model combine: requests add up, and the fullest cache
counts."""

RATIOS = {
    **{f"{STAGE}{stage}": (f"{stage}_sum", f"{stage}_count") for stage in STAGE_HISTOGRAMS},
    "prefix_hit_share": ("prefix_hits", "prefix_queries"),
    "draft_acceptance": ("accepted", "drafted"),
    DRAFT_LENGTH: ("accepted", "drafts"),
}
"""Ratios of two counters over a window, or a server's gauge without them. For a stage it is the
mean time of the finished requests [s].

`draft_length` is the mean acceptance length: tokens per step of speculative decoding, 1 + accepted
tokens / drafts, because the model itself adds one token. vLLM's log computes it in the same way
(vllm/v1/spec_decode/metrics.py), and so do the gauges of SGLang ("accepted drafts + bonus token per
forward") and TensorRT-LLM, and llama.cpp's log ("mean len")."""

PEAKS = ("waiting", "running", "kv_cache_use")
"""Gauges whose maximum is kept with their mean, as `waiting_max`."""

_NAMES = frozenset(
    part
    for table in (COUNTERS, GAUGES)
    for names in table.values()
    for name in names
    for part in name.split("+")
)


def read_server(page: bytes) -> dict[str, float]:
    """Parse a Prometheus page; return values by the names of `COUNTERS` and `GAUGES`, or {}."""
    by_name: dict[str, list[float]] = {}
    for sample in page_samples(page, _NAMES):
        if 0 <= sample.value <= MAX_RATE:
            by_name.setdefault(sample.name, []).append(sample.value)
    values = {}
    for table in (COUNTERS, GAUGES):
        for quantity, names in table.items():
            present = [parts for name in names if by_name.keys() >= {*(parts := name.split("+"))}]
            if present:
                numbers = [value for part in present[0] for value in by_name[part]]
                values[quantity] = OF_COPIES.get(quantity, sum)(numbers)
    return values


def merge_servers(pages: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge metrics of servers of one model: by the function in `OF_COPIES`, by default the sum."""
    names = dict.fromkeys(name for page in pages for name in page)
    return {
        name: OF_COPIES.get(name, sum)([page[name] for page in pages if name in page])
        for name in names
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerReading:
    """Hold the metrics of a server read at `time_s` [s since the epoch]."""

    time_s: float
    values: Mapping[str, float]


Windows = Mapping[float | None, tuple[float, float]]
"""Begin and end of each point's window, seconds since the epoch; None for a run with one window."""


def server_seen(
    readings: Sequence[ServerReading], windows: Windows
) -> tuple[dict[str, float], tuple[Note, ...]]:
    """Return a server's metrics from readings inside the windows of a run, and notes.

    The metrics are means of gauges, maxima (`waiting_max`), shares, `draft_length`, times of stages
    (`stage_queue`), and preemptions; for a curve at each point, "waiting@64".
    """
    values: dict[str, float] = {}
    notes: list[Note] = []
    for point, (begin_s, end_s) in windows.items():
        inside = [one.values for one in readings if begin_s <= one.time_s <= end_s]
        series = {name: [one[name] for one in inside if name in one] for name in GAUGES}
        seen = {name: fmean(numbers) for name, numbers in series.items() if numbers}
        seen |= {f"{name}_max": max(series[name]) for name in PEAKS if series[name]}
        seen |= _counts(inside)
        values |= {n if point is None else at_point(n, point): v for n, v in seen.items()}
        counts = ([one[name] for one in inside if name in one] for name in COUNTERS)
        if any(after < before for series in counts for before, after in pairwise(series)):
            note = Note.of("server_restarted")
            notes.append(note if point is None else Note.of("at", point=point, note=note))
    return values, tuple(notes)


def _counts(inside: Sequence[Mapping[str, float]]) -> dict[str, float]:
    grown = {name: sum(steps) for name in COUNTERS if (steps := list(_steps(inside, name)))}
    ratios = {
        name: grown[part] / grown[whole]
        for name, (part, whole) in RATIOS.items()
        if part in grown and grown.get(whole)
    }
    shares = {
        n: 1 + r if n == DRAFT_LENGTH else r if is_stage(n) else min(1.0, r)
        for n, r in ratios.items()
    }
    return {**shares, **{name: grown[name] for name in ("preemptions",) if name in grown}}


def _steps(inside: Sequence[Mapping[str, float]], name: str) -> Iterator[float]:
    for earlier, later in pairwise([one[name] for one in inside if name in one]):
        yield later - earlier if later >= earlier else later
