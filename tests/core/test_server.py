"""Test a server's metrics page.

Its values in the windows of a run, and compared with a baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines.openai._capabilities import is_page
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.prometheus import page_samples
from pytest_mlperf.core.server import (
    ServerReading,
    Windows,
    merge_servers,
    read_server,
    server_seen,
)
from pytest_mlperf.core.server.changes import server_changes, server_in_words

VLLM = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 30.0
vllm:num_requests_running{engine="1"} 34.0
vllm:num_requests_waiting{engine="0"} 5.0
vllm:num_requests_waiting{engine="1"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:prefix_cache_queries_total{engine="0"} 1e4
vllm:prefix_cache_hits_total{engine="0"} 4e3
vllm:prefix_cache_hits_created{engine="0"} 1.7e9
vllm:num_preemptions_total{engine="0"} 2
vllm:spec_decode_num_draft_tokens_total{engine="0"} 100
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 60
vllm:spec_decode_num_drafts_total{engine="0"} 25
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 40
"""


def test_each_servers_names_mean_the_same() -> None:
    """Copies add up, and of caches the fullest counts; of vLLM's older and newer name the newer."""
    copies = [{"waiting": 3.0, "kv_cache_use": 0.2}, {"waiting": 4.0, "kv_cache_use": 0.9}]

    assert merge_servers(copies) == {"waiting": 7.0, "kv_cache_use": 0.9}
    assert read_server(VLLM) == {
        "running": 64.0,
        "waiting": 5.0,
        "kv_cache_use": 0.75,
        "prefix_queries": 1e4,
        "prefix_hits": 4e3,
        "preemptions": 2.0,
        "drafted": 100.0,
        "accepted": 60.0,
        "drafts": 25.0,
    }

    pages: dict[str, dict[str, float]] = {
        'sglang:num_running_reqs{tp_rank="0"} 8\nsglang:num_queue_reqs 2\n'
        "sglang:token_usage 0.28\nsglang:cache_hit_rate 0.1\n": {
            "running": 8, "waiting": 2, "kv_cache_use": 0.28, "prefix_hit_share": 0.1,
        },
        'trtllm_kv_cache_utilization{model_name="m"} 0.5\ntrtllm_num_requests_waiting 3\n'
        "trtllm_kv_cache_hit_rate 0.2\ntrtllm_spec_decode_acceptance_length 2.5\n": {
            "kv_cache_use": 0.5, "waiting": 3, "prefix_hit_share": 0.2, "draft_length": 2.5,
        },
        "sglang:spec_accept_length 3.5\nsglang:spec_accept_rate 0.6\n": {
            "draft_length": 3.5, "draft_acceptance": 0.6,
        },
        "llamacpp:spec_decode_num_drafts_total 7\n": {"drafts": 7},
        "tgi_queue_size 4\ntgi_batch_current_size 16\n": {"waiting": 4, "running": 16},
        "llamacpp:prompt_tokens_total 60\nllamacpp:prompt_tokens_cached_total 40\n"
        "llamacpp:requests_processing 8\nllamacpp:requests_deferred 1\n": {
            "prefix_queries": 100, "prefix_hits": 40, "running": 8, "waiting": 1,
        },
        "llamacpp:prompt_tokens_total 60\n": {},  # older, without its cache
        "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.4\n": {"kv_cache_use": 0.4},
        "vllm:gpu_cache_usage_perc 0.9\n": {"kv_cache_use": 0.9},
        "vllm:num_requests_waiting -1\nvllm:num_requests_running 1e200\n": {},
        '[{"numActiveRequests": 3}]': {},
    }  # fmt: skip

    assert {page: read_server(page.encode()) for page in pages} == pages


def seen_in(readings: Sequence[ServerReading], windows: Windows) -> SimpleNamespace:
    values, notes = server_seen(readings, windows)
    return SimpleNamespace(values=values, notes=notes)


def looks(**series: list[float]) -> list[ServerReading]:
    """Return a look a second, from 100.5 s on."""
    return [
        ServerReading(time_s=100.5 + n, values=dict(zip(series, values, strict=True)))
        for n, values in enumerate(zip(*series.values(), strict=True))
    ]


def test_gauges_are_mean_and_maximum_of_a_window_and_counters_their_growth() -> None:
    """Looks outside of it have no part: the counters of its first look are its zero."""
    seen = seen_in(
        looks(
            waiting=[99, 0, 38, 4, 99],
            kv_cache_use=[1, 0.5, 0.25, 0.75, 1],
            prefix_hits=[0, 1000, 1100, 1300, 9000],
            prefix_queries=[0, 5000, 5500, 6000, 9000],
            preemptions=[0, 3, 3, 5, 50],
        ),
        {None: (101.0, 104.0)},
    )

    assert seen.notes == ()
    assert seen.values == {
        "waiting": 14.0,
        "waiting_max": 38.0,
        "kv_cache_use": 0.5,
        "kv_cache_use_max": 0.75,
        "prefix_hit_share": 0.3,
        "preemptions": 2.0,
    }

    seen = seen_in(
        looks(waiting=[0, 0, 6, 10]), {1: (100.0, 102.0), 64: (102.0, 104.0), 0.5: (200.0, 210.0)}
    )

    assert seen.values == {
        "waiting@1": 0.0, "waiting_max@1": 0.0, "waiting@64": 8.0, "waiting_max@64": 10.0,
    }  # fmt: skip


def test_a_restarted_server_is_noted_and_its_counts_go_on() -> None:
    """One look shows no counts; a gauge stands in for a share that a server does not count."""
    seen = seen_in(
        looks(drafted=[900, 1000, 10, 60], accepted=[400, 450, 5, 30], preemptions=[1, 1, 0, 2]),
        {64: (100.0, 105.0)},
    )

    assert seen.values == {"draft_acceptance@64": 80 / 160, "preemptions@64": 2.0}
    assert seen.notes == (Note.of("at", point=64, note=Note.of("server_restarted")),)

    once = seen_in(looks(waiting=[1], preemptions=[4]), {None: (100.0, 102.0)})
    idle = seen_in(looks(drafted=[7, 7], accepted=[3, 3]), {None: (100.0, 105.0)})
    gauge = seen_in(looks(prefix_hit_share=[0.25, 0.75]), {None: (100.0, 105.0)})

    drafts = seen_in(looks(drafted=[7, 19], accepted=[3, 9], drafts=[2, 6]), {None: (100.0, 105.0)})
    refused = seen_in(
        looks(drafted=[7, 19], accepted=[3, 3], drafts=[2, 6]), {None: (100.0, 105.0)}
    )
    length = seen_in(looks(draft_length=[2.5, 3.5]), {None: (100.0, 105.0)})

    assert drafts.values == {"draft_acceptance": 6 / 12, "draft_length": 1 + 6 / 4}
    assert refused.values == {"draft_acceptance": 0.0, "draft_length": 1.0}
    assert length.values == {"draft_length": 3.0}
    assert once.values == {"waiting": 1.0, "waiting_max": 1.0}
    assert idle.values == {}
    assert gauge.values == {"prefix_hit_share": 0.5}


QUEUED = """vllm:request_queue_time_seconds_sum{{engine="0"}} {0}
vllm:request_queue_time_seconds_count{{engine="0"}} {1}
vllm:request_queue_time_seconds_sum{{engine="1"}} {0}
vllm:request_queue_time_seconds_count{{engine="1"}} {1}
vllm:request_queue_time_seconds_bucket{{engine="0",le="0.3"}} 7
vllm:request_prefill_time_seconds_sum 40
vllm:request_prefill_time_seconds_count 80
"""


def test_stages_are_mean_times_of_the_requests_that_ended_in_a_window() -> None:
    """Over all copies together; a stage in which none ended is unknown."""
    pages = [QUEUED.format(*each).encode() for each in ((900, 30), (910, 40), (925, 60), (999, 99))]
    readings = [
        ServerReading(time_s=100.5 + n, values=read_server(page)) for n, page in enumerate(pages)
    ]

    assert seen_in(readings, {None: (100.0, 103.0)}).values == {"stage_queue": 25 / 30}
    at = seen_in(readings, {64: (101.0, 103.0)}).values
    assert at == {"stage_queue@64": 15 / 20}
    for page in (
        "sglang:queue_time_seconds_sum 3\nsglang:queue_time_seconds_count 4\n",
        "trtllm_request_queue_time_seconds_sum 3\ntrtllm_request_queue_time_seconds_count 4\n",
        "tgi_request_queue_duration_sum 3\ntgi_request_queue_duration_count 4\n",
    ):
        assert read_server(page.encode()) == {"queue_sum": 3, "queue_count": 4}


BEFORE = [{"waiting": w, "running": 64.0, "prefix_hit_share": 0.5} for w in (0.0, 0.4, 0.1)]


def changes_of(*server_states: dict[str, float]) -> list[str]:
    return [change.says for change in server_changes(server_states, BEFORE)]


def test_values_beyond_all_runs_of_the_baseline_are_changes() -> None:
    """More of a queue makes a server slower; in a line a server is that of the highest point."""
    changes = server_changes([{"waiting": 38.0, "running": 32.0, "prefix_hit_share": 0.9}], BEFORE)
    moved = changes_of({"waiting": 38.2, "running": 32.0, "prefix_hit_share": 0.51})

    assert moved == ["waiting queue 0.1 → 38.2", "running 64 → 32"]
    assert changes_of({"waiting": 0.9, "running": 60.0}) == []
    assert changes_of({"prefix_hit_share": 0.12}) == ["prefix cache hits 50 % → 12 %"]
    fell = server_changes([{"draft_length": 2.5}], [{"draft_length": 3.1}])
    assert [(change.says, change.sign) for change in fell] == [("acceptance length 3.1 → 2.5", 1)]
    assert server_changes([{"draft_length": 3.02}], [{"draft_length": 3.1}]) == []
    assert changes_of({"preemptions": 12.0}) == []  # the baseline does not know them
    signs = {change.quantity: change.sign for change in changes}
    assert signs == {"waiting": 1, "running": 0, "prefix_hit_share": -1}

    assert server_in_words({}) == ""
    assert server_in_words({"waiting": 0.25, "waiting_max": 7.0, "preemptions": 1234.0}) == (
        "the server: waiting queue 0.25 (7 at most), preemptions 1,234"
    )
    assert server_in_words({"waiting@8": 1.0, "kv_cache_use@256": 0.5, "waiting@256": 9.0}) == (
        "the server at 256: waiting queue 9, KV cache in use 50 %"
    )


PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\" {c}, d\\\\e\\nf"} 3.0
vllm:num_requests_running_total 5
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.2e+03 1700000000250\r
"""


def samples(page: bytes, *names: str) -> list[tuple[str, dict[str, str], float]]:
    return [(s.name, dict(s.labels), s.value) for s in page_samples(page, {*names})]


def test_samples_of_the_names_that_were_asked_for() -> None:
    """The description lists the names of the page."""
    labels = {"engine": "0", "model_name": 'a "b" {c}, d\\e\nf'}
    pages = (PAGE, b"x 1\n# TYPE x counter\n", b"", b'[{"a": 1}]')

    assert samples(PAGE, "vllm:num_requests_running", "process_cpu_seconds_total") == [
        ("vllm:num_requests_running", labels, 3.0),
        ("process_cpu_seconds_total", {}, 1200.0),
    ]
    assert [is_page(text) for text in pages] == [True, True, False, False]


def test_lines_without_a_sample_are_skipped() -> None:
    for line in (
        "a", "a ", "a x", "a NaN", "a +Inf", "a 1 2 3", "a{ 1", 'a{b="c} 1', "a{}1", "a 1e999",
        f"a {'9' * 5000}", "a 1_000", "a ٣", "ab 1", "a{b='c'} x", "\x00a 1", "a 0x10",
    ):  # fmt: skip
        assert samples(f"{line}\na 7\n".encode(), "a") == [("a", {}, 7.0)], line


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(noise: bytes) -> None:
    assert all(s.name == "a" for s in page_samples(b"a" + noise + b"\na{" + noise, {"a"}))
