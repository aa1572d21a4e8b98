"""The sentences of states and defects of runs; each is asserted here alone."""

from __future__ import annotations

from pytest_mlperf.core.notes import Note
from pytest_mlperf.reports.sentences import sentence

N = Note.of

SENTENCES: tuple[tuple[Note, str], ...] = (
    (N("reasons", reasons=(N("run_too_short"), "lost")), "the run was too short; lost"),
    (N("invalid", note=N("run_too_short")), "INVALID: the run was too short"),
    (N("in_runs", count=2, of=3, note=N("run_too_short")), "in 2 of 3 runs: the run was too short"),
    (
        N("at", point=64.0, note=N("stalled", count=1, of=10)),
        "at 64: in 1 of 10 parts of the window, less than half of the usual work was done",
    ),
    (
        N("measured_again", count=2, reasons=(N("run_too_short"), "lost")),
        "2 runs INVALID, measured again: the run was too short; lost",
    ),
    (
        N("last_invalid", reason=N("reasons", reasons=(N("run_too_short"),))),
        "the drop is proven, although the last run is INVALID: the run was too short",
    ),
    (
        N("sessions_invalid", count=1, of=2, note=N("of_case", case="a/1", note="lost")),
        "1 of 2 sessions, a/1: lost",
    ),
    (
        N(
            "sign",
            text=N("clock_event", event="hw_slowdown"),
            name="GPU 3",
            seconds=2.0,
            share=0.02,
            point=None,
        ),
        "GPU 3: a hardware slowdown reduced the clocks for 2.00 s, 2.0% of the run",
    ),
    (
        N(
            "sign",
            text=N("clock_event", event="gpu_idle"),
            name="",
            seconds=None,
            share=0.51,
            point=None,
        ),
        "the GPU was idle for 51%: the engine did not keep it busy",
    ),
    (
        N("sign", text=N("stalled", count=1, of=10), name="", seconds=None, share=None, point=64.0),
        "at 64: in 1 of 10 parts of the window, less than half of the usual work was done",
    ),
    (
        N(
            "signs",
            gpus=8,
            signs=tuple(
                N(
                    "sign",
                    text=N("gpu_hot", heat=80.0 + n, slows=87),
                    name=f"GPU {n}",
                    seconds=None,
                    share=None,
                    point=None,
                )
                for n in (4, 5, 6)
            ),
        ),
        "3 of 8 GPUs (4 to 6): reached 84 to 86 °C; the GPU slows down at 87 °C",
    ),
    (
        N(
            "signs",
            gpus=0,
            signs=tuple(
                N(
                    "sign",
                    text=N("prefix_share", shared=0.25, fewer=True),
                    name="",
                    seconds=None,
                    share=n / 100,
                    point=float(n),
                )
                for n in (1, 4)
            ),
        ),
        (
            "at 1, 4: 1% to 4% of the prompts' tokens were in the server's prefix cache; the "
            "prompts "
            "share 25% with earlier ones: the cache is off or too small, or another server "
            "answered "
            "earlier requests"
        ),
    ),
    (
        N(
            "of_gpus",
            gpus=("GPU 0", "GPU 1"),
            notes=(N("gpu_busy", busy=12), N("gpu_busy", busy=30)),
            of=2,
        ),
        "each of 2 GPUs: 12 to 30 % busy before the engine was loaded",
    ),
    (N("clock_event", event="sw_power_cap"), "the power limit reduces the clocks: {}"),
    (N("clock_event", event="0x800"), "the driver limits the clocks (reason 0x800): {}"),
    (
        N("gpu_errors", count=3, errors="corrected memory errors (ECC)"),
        "3 corrected memory errors (ECC) during the run",
    ),
    (N("reset_waits", setting="ecc"), "a changed ECC mode needs a reboot"),
    (N("reset_waits", setting="mig"), "a changed MIG mode needs a reset of the GPU"),
    (N("reset_waits", setting="rows"), "remapped memory rows need a reset of the GPU"),
    (N("pcie_link", seen="x8", most="x16"), "the PCIe link ran at x8, not x16"),
    (N("pcie_link_fell", most=16, least=8), "the PCIe link fell from x16 to x8 during the run"),
    (
        N("gpu_in_use", processes="process 5 (1.9 GiB)"),
        ("in use before the engine was loaded: process 5 (1.9 GiB). End them"),
    ),
    (N("gpu_used", processes="process 5"), "used by others during the run: process 5. End them"),
    (N("gpu_busy", busy=12), "12 % busy before the engine was loaded"),
    (
        N("gpu_memory_in_use", gib=3.2),
        ("3.2 GiB were in use before the engine was loaded, but no process is listed"),
    ),
    (
        N("gpu_unused", evidence="no utilisation, no memory taken"),
        "the GPU did not do the work: no utilisation, no memory taken",
    ),
    (
        N("power_limit_changed", first=700.0, last=500.0),
        (
            "the power limit changed from 700 to 500 "
            "W in this session, and a baseline has "
            "one limit: restore it"
        ),
    ),
    (N("gpu_hot", heat=91.0, slows=None), "reached 91 °C"),
    (N("xids", xids="94"), "the driver reported XID 94 during the run: see dmesg"),
    (N("nvlink_fell", links="3, 4"), "NVLink 3, 4 went down during the run"),
    (
        N("nvlink_retrained", times="1 on link 3"),
        ("NVLink was retrained and carried no data meanwhile: 1 on link 3"),
    ),
    (N("nvlinks_down", up=16, most=18, down="3, 4"), "16 of 18 NVLinks up; down: 3, 4"),
    (N("nvlinks_down", up=0, most=18, down=""), "0 of 18 NVLinks up"),
    (
        N("nvlink_errors", errors="replays 2 on link 3"),
        ("NVLink errors during the run, which were corrected: replays 2 on link 3"),
    ),
    (
        N("nvswitch_failed", problems="a route is unhealthy"),
        ("NVSwitch failed during the run: a route is unhealthy"),
    ),
    (
        N("nvswitch_unhealthy", problems="its bandwidth is degraded"),
        "NVSwitch is unhealthy: its bandwidth is degraded",
    ),
    (
        N("seldom_read", hz=2.1, wanted=10.0),
        ("GPUs were read at 2.1 Hz, not 10 Hz: short events may be missed"),
    ),
    (
        N("not_watched", after_s=1.0, cause="the sampler stopped (signal 9)"),
        (
            "GPUs were not watched from 1.0 s on: the sampler stopped (signal 9); later "
            "throttling or "
            "use by others is unknown"
        ),
    ),
    (
        N("gpus_differ", differences="a is 1, 2 on GPU 3"),
        ("the GPUs of this case differ: a is 1, 2 on GPU 3"),
    ),
    (N("no_goodput"), "goodput is 0: no request met its limits"),
    (
        N("goodput_unknown", late_s=1.25),
        ("goodput is unknown: requests waited up to 1.2 s before they reached the engine"),
    ),
    (
        N("clock_moved", moved_s=-3600.0),
        (
            "the wall clock was set by -3,600 s during the run, and "
            "LoadGen measures by it: run it again"
        ),
    ),
    (
        N("slow_start", times=3.0, metric="latency_p90", change=0.062, limit=0.1),
        (
            "queries took 3 × as long in the first 10 % of the run as in its second half, which "
            "changes p90 latency by +6.2 % (limit 10 %). Make the run longer"
        ),
    ),
    (
        N("too_short", lasted_s=2.0, planned_s=10.0),
        ("the run lasted 2 s instead of 10 s: the engine was slower while its rate was probed"),
    ),
    (
        N("too_long", lasted_s=300.0, planned_s=60.0),
        (
            "the run lasted 5 min instead of 1 min: the "
            "engine was slower than the rate that the "
            "run was planned for"
        ),
    ),
    (
        N("client_share", metric="ttft_p99", value=0.02, issue_s=0.004, loop_s=0.001),
        (
            "p99 TTFT is 20 ms; the client itself may have added up to 5 ms: its requests "
            "began 4 ms "
            "late and its event loop was 1 ms late (p99). Give it CPU cores of its own, or "
            "run it on "
            "another machine"
        ),
    ),
    (N("cores_unknown"), "the engine limits its concurrency, or the client could not keep up"),
    (
        N(
            "core_users",
            own=0.03,
            client=0.98,
            others=0.0,
            cores=2,
            names="",
            serves=True,
            idle=False,
        ),
        (
            "the server's processes used 0.03, this client used 0.98 of 2 cores: lower the "
            "requests in "
            "flight, or use a faster machine"
        ),
    ),
    (
        N(
            "core_users",
            own=0.2,
            client=0.1,
            others=1.7,
            cores=2,
            names="pip 1.7",
            serves=False,
            idle=False,
        ),
        (
            "the engine's processes used 0.2, this client used 0.1, other processes (pip "
            "1.7), or the "
            "server, if it runs here, used 1.7 of 2 cores: close them, or measure on "
            "an idle "
            "machine"
        ),
    ),
    (
        N("core_users", own=0.2, client=0.1, others=0.0, cores=8, names="", serves=None, idle=True),
        (
            "the engine's processes used 0.2, this client used 0.1 of 8 cores: cores were "
            "idle: raise the engine's own limit of concurrent requests"
        ),
    ),
    (
        N("client_at_limit", rate=950.0, reach=1000.0, tokens=128.0),
        (
            "the client was measured, not the server: 950 requests/s of 128 tokens, and it reaches "
            "only 1,000 with a server that computes nothing. Lower the requests in flight or "
            "the rate, "
            "or use a faster or idle machine for the client"
        ),
    ),
    (
        N("client_queues", most=600, sent=512),
        (
            "the client was measured, not the server: 600 "
            "requests were in flight, but the engine sends 512 "
            "at a time. Raise its option concurrency"
        ),
    ),
    (
        N("requests_failed", count=3, of=100, allowed=0.01),
        ("3 of 100 requests failed (3 %; max_failed allows 1 %)"),
    ),
    (
        N("some_requests_failed", count=3, of=100),
        ("3 of 100 requests failed and are not counted; max_failed allows some"),
    ),
    (
        N("few_requests", count=9, duration_s=2.0, needed=100),
        "9 requests in 2 s, 100 are needed: measure for longer (min_duration)",
    ),
    (
        N("overloaded", before=8, after=80, unanswered=70, of=400),
        (
            "overloaded: requests in flight grew from 8 to 80, and 70 of 400 were not "
            "answered at the "
            "end. Use a lower rate, or a longer window (min_duration) if one answer can "
            "take as long as the window"
        ),
    ),
    (
        N("latency_drifts", moved=0.3),
        (
            "not steady: latency rose by 30% during the window. Use a "
            "longer ramp or window, or a lower rate"
        ),
    ),
    (
        N("throughput_drifts", moved=-0.2),
        (
            "not steady: throughput fell by 20% during the window. "
            "Raise min_duration, or find what heats up, fills up or "
            "grows"
        ),
    ),
    (
        N("not_held", seen=3.2, of=4.0, paused=0.0, turns=False, users=N("cores_unknown")),
        (
            "3.2 of 4 requests were in flight on average: the engine limits its concurrency, "
            "or the "
            "client could not keep up"
        ),
    ),
    (
        N("not_held", seen=1.0, of=4.0, paused=2.5, turns=True, users=N("cores_unknown")),
        (
            "1 of 4 conversations had a request in flight on average; 2.5 waited for their "
            "next turn: "
            "the engine limits its concurrency, or the client could not keep up"
        ),
    ),
    (
        N("not_held_by_rate", seen=3.2, of=4),
        (
            "3.2 of 4 requests were in flight on average (computed "
            "from rate and mean latency): the run is too short for its "
            "start and end, or client or server held requests "
            "back"
        ),
    ),
    (
        N("turns", first_s=0.4, low_s=0.1, high_s=0.2, last=8, more=True, ttft=True, paused=0.5),
        (
            "median TTFT 400 ms of first turns, 100 to 200 ms of turns 2 to 8 and later; 0.5 "
            "conversations paused on average"
        ),
    ),
    (
        N("cut_in_part", shares="50% at 4"),
        ("answers were cut at their token limit (50% at 4); the others ended by themselves"),
    ),
    (
        N("stalled", count=1, of=10),
        ("in 1 of 10 parts of the window, less than half of the usual work was done"),
    ),
    (
        N("prompts_longer", counted=1001, sent=1000),
        (
            "the server counts 1,001 tokens in prompts of "
            "1,000: it adds tokens, such as a begin token "
            "that the prompts already contain"
        ),
    ),
    (
        N("first_unsized", most=0.2),
        (
            "answers arrive in messages of several tokens, and the size "
            "of the first is unknown: TPOT counts it as one token, and "
            "may be too short by up to 20%. Let the server send token "
            "ids, or usage in each event (continuous_usage_stats)"
        ),
    ),
    (
        N("builds_differ", builds="a (3), b (1)"),
        ("answers came from several builds of the server (system_fingerprint): a (3), b (1)"),
    ),
    (
        N("cache_unknown"),
        (
            "each run sends the same prompts, and the share that the server had in "
            "its cache is unknown: start the server so that usage or /metrics "
            "reports it"
        ),
    ),
    (
        N("server_metric_missing", metric="prefix_hit_share", cause="no page", counters="a and b"),
        (
            "prefix cache hits has a limit, but was not measured: the server has no readable "
            "/metrics "
            "page. Measure a server that has one, or remove the limit"
        ),
    ),
    (
        N("server_metric_missing", metric="prefix_hit_share", cause="no count", counters="a and b"),
        (
            "prefix cache hits has a limit, but was not measured: the server counted nothing "
            "between "
            "two readings. Make the run longer, or remove the limit"
        ),
    ),
    (
        N(
            "server_metric_missing",
            metric="prefix_hit_share",
            cause="no counters",
            counters="a and b",
        ),
        (
            "prefix cache hits has a limit, but was not measured: the server's /metrics page "
            "lacks a "
            "and b. Measure a server that has them, or remove the limit"
        ),
    ),
    (
        N("server_shared", count=25.0, own=8.0),
        ("the server had 25 requests on average, 8 of them from this run: another client uses it"),
    ),
    (
        N("prefix_share", shared=0.25, fewer=False),
        (
            "{} of the prompts' tokens were in the "
            "server's prefix cache; the prompts share 25% "
            "with earlier ones: prompts were sent again "
            "(use more samples), or share more than the "
            "data set states"
        ),
    ),
    (
        N("server_unread", count=2, time_s=30.0, cause="http://h:1/metrics does not answer"),
        "the server's metrics were read only 2 times in 30 s: http://h:1/metrics does not answer",
    ),
    (
        N("untimed_input", input_s=0.001, sample_s=0.002),
        (
            "input() took 1 ms per sample outside "
            "the timed part; the engine 2 ms: "
            "docs/own-model.md explains how to time "
            "preprocessing"
        ),
    ),
    (
        N("of_loadgen", reason=N("stopped_early")),
        ("LoadGen: too few queries for its percentile (early stopping): raise min_query_count"),
    ),
    (N("run_too_short"), "the run was too short"),
    (N("too_few_queries"), "too few queries"),
    (
        N("stopped_early"),
        ("too few queries for its percentile (early stopping): raise min_query_count"),
    ),
    (N("invalid_by_loadgen", reasons=""), "LoadGen reports INVALID: its log does not say why"),
    (N("loadgen_errors", count=2), "LoadGen logged 2 errors"),
    (
        N("drafts", tokens=2.0, undeclared=True),
        (
            "speculative decoding gave 2.00 tokens per step, "
            "which the engine entry must declare: techniques = "
            '["speculative-decoding"]'
        ),
    ),
    (N("drafts", tokens=2.0, undeclared=False), "speculative decoding gave 2.00 tokens per step"),
    (
        N("not_complete", state="'interrupted'"),
        ("the run was not complete (state 'interrupted'): its figures cover only a part of it"),
    ),
    (N("ended_early", count=5, of=10), "the run was ended after 5 of 10 requests"),
    (N("requests_lost", count=5, of=10, how="did not end"), "5 of 10 requests did not end"),
    (
        N("answers_missing", dataset="gsm8k", counts="3 empty"),
        "answers to gsm8k are not complete: 3 empty",
    ),
    (
        N("miscounted", timed="12.3", answers="14"),
        (
            "timed runs have 12.3 tokens per sample, but answers of the accuracy pass have 14: the "
            "engine counts tokens wrongly, or answers differently when it is timed"
        ),
    ),
    (
        N(
            "interleaved",
            build="tag v1",
            again=N("measured_again", count=1, reasons=("lost",)),
            left_out="",
            folder="runs/1",
        ),
        "interleaved with tag v1; 1 run INVALID, measured again: lost; runs in runs/1",
    ),
    (
        N("ab_decided", turns="4 pairs, −6.1 %", how="interleaved with tag v1"),
        "decided by A/B: 4 pairs, −6.1 % interleaved with tag v1",
    ),
    (
        N(
            "ab_not_confirmed",
            turns="4 pairs, −6.1 %",
            how="interleaved with tag v1",
            also="; other changes",
        ),
        "not confirmed by A/B: 4 pairs, −6.1 % interleaved with tag v1; other changes",
    ),
    (
        N("ab_not_decided", turns="4 pairs, −6.1 %", how="interleaved with tag v1"),
        "not decided by A/B: 4 pairs, −6.1 % interleaved with tag v1",
    ),
    (
        N("ab_open", turns="4 pairs, −6.1 %", how="interleaved with tag v1"),
        "not confirmed by A/B, not refuted either: 4 pairs, −6.1 % interleaved with tag v1",
    ),
    (
        N(
            "ab_no_drop",
            turns="4 pairs, −6.1 %",
            how="interleaved with tag v1",
            finding="the baseline's own build is as slow today",
        ),
        (
            "not confirmed by A/B: 4 pairs, −6.1 %: the baseline's own build is as slow today; "
            "interleaved with tag v1"
        ),
    ),
    (
        N("ab_not_compared", reason="git cannot be started", more="set baseline_engine"),
        "not confirmed by A/B: git cannot be started; set baseline_engine",
    ),
    (
        N("replaced", steps=("throughput 100 -> 110 (+10.0 %)",)),
        "replaced: throughput 100 -> 110 (+10.0 %)",
    ),
)


def test_each_note_of_a_run_has_its_sentence() -> None:
    assert [sentence(note) for note, _ in SENTENCES] == [text for _, text in SENTENCES]
