"""The sentences of energy, load, baselines, machines and compliance tests, asserted here alone."""

from __future__ import annotations

from typing import Any

from pytest_mlperf.core.control import COPY
from pytest_mlperf.core.notes import Note
from pytest_mlperf.reports.sentences import sentence

N = Note.of

NOT_JUDGED = "energy not judged:"
COUNTED: dict[str, Any] = {"joules": 900.0, "other": "trace", "other_j": 700.0}
APART: dict[str, Any] = {**COUNTED, "gain": None, "sensor": ""}
LOAD: dict[str, Any] = {
    "used": 1.34,
    "cores": 2,
    "names": "cc1plus 0.9, python 0.4",
    "waited_s": 1234.4,
    "window_s": 10.0,
    "stolen_s": 0.3,
    "throttled_s": 2.0,
    "memory_some_s": 0.4,
    "faults": 1200,
}
NO_LOAD: dict[str, Any] = {**dict.fromkeys(LOAD), "cores": 2, "names": "", "window_s": 10.0}
MOVED: dict[str, Any] = {"score": 80.0, "reference": 100.0, "change": -0.2, "allowed": 0.1}
MOVED_TEXTS = ("SM clock −2.1 %", "time at the power cap 31 % → 58 %", "temperature +11 °C")
STEP = N("step", metric="throughput", old=1000.0, new=990.0)
LEAST = N("detectable", share=0.041, metric="throughput", limit=None)
CHANGED = N("changed", name="content", old="6b57", new="27ee")
MOVES = (
    N("clock_change", change=-0.021),
    N("cap_change", old=0.31, new=0.58),
    N("heat_change", rise_c=11.0),
)
ENERGY_METRIC = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"

SENTENCES: tuple[tuple[Note, str], ...] = (
    (N("no_trace"), "no power trace: the GPU's power was read less than twice"),
    (N("trace_in_part"), "the power trace does not cover the whole run"),
    (
        N("trace_gap", gap_s=1.04, most_s=0.5),
        "the power trace has a gap of 1.0 s; at most 0.5 s is allowed",
    ),
    (N("trace_thin", share=0.67), "the power trace has only 67% of the expected samples"),
    (
        N("trace_alone"),
        "energy from the power trace alone is reported, not gated: this sensor may measure only a "
        "part of the time, so the uncertainty is unknown",
    ),
    (N("no_counter", reader="gpu", metric=""), "the GPU reports no energy counter"),
    (N("no_counter", reader="probe", metric=""), "the probe reports no energy counter"),
    (
        N("no_counter", reader="exporter", metric=ENERGY_METRIC),
        f"the DCGM exporter reports no energy counter above 0 ({ENERGY_METRIC})",
    ),
    (N("counter_constant"), "the energy counter does not change"),
    (
        N("counter_misread", count=1),
        "the energy counter was misread 1 time; misread values are left out",
    ),
    (
        N("counter_jumped"),
        "the energy counter jumped by more than any GPU can use in that time: the energy is "
        "unknown",
    ),
    (
        N("counter_too_fast", metric=""),
        "the energy counter rose faster than this board can draw power: the energy is unknown",
    ),
    (
        N("counter_too_fast", metric=ENERGY_METRIC),
        "the energy counter rose faster than this board can draw power: the energy is unknown. "
        f"{ENERGY_METRIC} must be in mJ",
    ),
    (
        N("counter_reset", before_j=None, after_j=None),
        "the energy counter was reset during the run",
    ),
    (
        N("counter_reset", before_j=5678.9, after_j=0.0),
        "the energy counter was reset during the run: it went back from 5,679 J to 0 J, as when "
        "the driver is reloaded. Keep it loaded: sudo nvidia-smi -pm 1",
    ),
    (N("counter_in_part"), "the energy counter was not read both before and after the run"),
    (
        N("counter_unread", seconds=0.45, end="the begin"),
        "the energy counter was not read for 0.45 s at the begin of the run",
    ),
    (
        N("counter_no_update"),
        "the energy counter was not updated before the run, or not after it",
    ),
    (
        N("counter_still", seconds=1.5),
        "the energy counter did not change for 1.5 s at one end of the run",
    ),
    (
        N("counter_stale"),
        "the energy counter is constant while those of other GPUs change: its value is old. Name "
        "the GPUs of the case in mlperf_dcgm_gpus",
    ),
    (
        N("counter_seldom", window_s=60.0, cause="exporter_seldom"),
        "the energy counter changed less than twice in 60 s: the DCGM exporter updates less often "
        "(every 30 s by default). Start it with --collect-interval=1000",
    ),
    (
        N("counter_seldom", window_s=60.0, cause="probe_seldom"),
        "the energy counter changed less than twice in 60 s: the GPU's driver does not update it",
    ),
    (
        N("counter_paused", seconds=40.0, interval_s=1.0),
        f"{NOT_JUDGED} the energy counter did not change for 40.0 s; usually it changes every 1 s",
    ),
    (
        N("counter_used", **COUNTED, reason="mean_agrees"),
        "the energy counter gives 900 J, the power trace 700 J. The counter is used: the driver's "
        "mean power agrees with it",
    ),
    (
        N("counter_used", **COUNTED, reason="constant_agrees"),
        "the energy counter gives 900 J, the power trace 700 J. The counter is used: both agree "
        "while the power is constant",
    ),
    (
        N("energies_differ", **APART),
        f"{NOT_JUDGED} the energy counter gives 900 J, the power trace 700 J",
    ),
    (
        N("energies_differ", **{**APART, "other": "mean_power", "sensor": "partial_sensor"}),
        f"{NOT_JUDGED} the energy counter gives 900 J, the driver's mean power 700 J; which is "
        "right is unknown: this sensor may measure only a part of the time",
    ),
    (
        N("energies_differ", **{**APART, "other_j": None, "gain": 1.2}),
        f"{NOT_JUDGED} the energy counter gives 900 J, 120 % of the power trace while the power is "
        "constant",
    ),
    (
        N(
            "powers_differ",
            counter_w=500.0,
            mean_w=0.5,
            power_metric="DCGM_FI_DEV_POWER_USAGE",
            energy_metric=ENERGY_METRIC,
        ),
        f"{NOT_JUDGED} the energy counters give a mean of 500 W, DCGM_FI_DEV_POWER_USAGE gives "
        f"0.5 W. {ENERGY_METRIC} must be in mJ, and both metrics must be of the same GPUs",
    ),
    (
        N("power_too_low", mean_w=3.0),
        f"{NOT_JUDGED} a mean power of 3.0 W is less than any board draws",
    ),
    (
        N("power_above_limit", mean_w=900.0, limit_w=700.0, most=1.2),
        f"{NOT_JUDGED} a mean power of 900 W is above 1.2 times the enforced limit of 700 W",
    ),
    (
        N("power_alone"),
        "energy from single power readings has an unknown uncertainty and is not judged",
    ),
    (
        N("energy_short", noun="wall energy", window_s=18.9, needed_s=19.0),
        "wall energy measured for only 18.9 s is reported, not gated: at least 19 s are needed. "
        "Raise min_duration",
    ),
    (
        N("energy_unsure", share=0.11, most=0.1),
        "energy with an uncertainty of 11% is reported, not gated: at most 10% is allowed",
    ),
    (
        N("reader_unsure", share=0.11, reader="exporter", interval_s=6.0, advice="exporter_slow"),
        "energy with an uncertainty of 11% is reported, not gated: the DCGM exporter updates every "
        "6 s. Start the DCGM exporter with --collect-interval=1000, or make the run longer",
    ),
    (
        N("reader_unsure", share=0.11, reader="probe", interval_s=6.0, advice="run_short"),
        "energy with an uncertainty of 11% is reported, not gated: the probe updates every 6 s. "
        "Make the run longer",
    ),
    (N("reader_no_gpu", reader="exporter", failure=""), "the DCGM exporter reported no GPU"),
    (
        N("reader_no_gpu", reader="exporter", failure="it answers 503"),
        "the DCGM exporter reported no GPU: it answers 503",
    ),
    (N("reader_no_power", reader="probe"), "the probe reported no power during the run"),
    (
        N("reader_stopped", reader="exporter", failure="it answers 503"),
        "the DCGM exporter was not read to the end of the run: it answers 503",
    ),
    (
        N("gpu_divided"),
        f"{NOT_JUDGED} a GPU is divided by MIG, and its counter is that of the whole board",
    ),
    (
        N("gpus_miscounted", expected=1, count=2, reader="exporter"),
        f"{NOT_JUDGED} the case has 1 GPUs, the DCGM exporter reports 2. Name those of the case in "
        "mlperf_dcgm_gpus",
    ),
    (
        N("few_counted", count=8, needed=10, interval_s=8.0, advice="run_short"),
        "8 values of the energy counter in the run, one every 8 s; 10 are needed. Make the run "
        "longer",
    ),
    (
        N("meter_failed", count=2, of=59),
        "2 of 59 readings of the meter failed and are left out",
    ),
    (
        N("meter_unsure", share=0.08, period_s=4.0),
        "the wall energy has an uncertainty of 8%: the meter reads every 4 s. Make the run longer",
    ),
    (N("meter_empty", failed=0), "the meter's file has no reading above 0 W"),
    (
        N("meter_empty", failed=2),
        "the meter's file has no reading above 0 W: 2 readings failed",
    ),
    (
        N("meter_clock_back", back_s=9.0, at_s=34.0),
        "the meter's clock was set back by 9.0 s at 1970-01-01 00:00:34 UTC",
    ),
    (
        N("meter_elsewhere", first_s=3595.0, last_s=3665.0, begin_s=0.0, end_s=60.0),
        "the meter's log is from 1970-01-01 00:59:55 to 1970-01-01 01:01:05 UTC, the run from "
        "1970-01-01 00:00:00 to 1970-01-01 00:01:00 UTC. Let the meter log during the run; if its "
        "times are not UTC, set mlperf_meter_offset (seconds) in pytest.ini",
    ),
    (
        N("meter_late", late_s=4.0),
        "the meter's log begins 4.0 s after the run began. Start the meter earlier",
    ),
    (
        N("meter_ended", early_s=11.0),
        "the meter's log ends 11.0 s before the run ended. Let the meter log on, and write each "
        "reading at once",
    ),
    (
        N("meter_gap", gap_s=7.0, most_s=5.0),
        "the meter's log has a gap of 7.0 s; 5 s are allowed",
    ),
    (
        N("meter_few", count=9, needed=10),
        "9 readings of the meter in the run; 10 are needed. Make the run longer",
    ),
    (
        N("host_energy", note=N("host_shared")),
        "the host's energy: other processes used this host at the same time",
    ),
    (
        N("host_unread", counter="package-1"),
        "package-1: its counter was not read at both ends of the run, or did not change",
    ),
    (
        N("host_constant", counter="package-0 dram"),
        "package-0 dram is not in the sum: its counter does not change",
    ),
    (N("host_shared"), "other processes used this host at the same time"),
    (
        N("energy_unknown", of="cpu", reasons=(N("meter_empty", failed=0), "no meter")),
        "cpu: energy unknown: the meter's file has no reading above 0 W; no meter",
    ),
    (
        N("energy_lacking", folder="a/b.2", reasons=(N("meter_gap", gap_s=7.0, most_s=5.0),)),
        "a/b.2: the meter's log has a gap of 7.0 s; 5 s are allowed",
    ),
    (
        N("run_unfit", run=1, of=2, reasons=(N("trace_in_part"),)),
        "run 1 of 2: the power trace does not cover the whole run",
    ),
    (
        N("run_unfit", run=None, of=1, reasons=("its energy is too uncertain",)),
        "its energy is too uncertain",
    ),
    (
        N("unjudged", metric="samples_per_joule", reasons=(N("gpu_divided"),)),
        f"samples/J is not judged: {NOT_JUDGED} a GPU is divided by MIG, and its counter is that "
        "of the whole board",
    ),
    (
        N("load_seen", **LOAD),
        "other processes used 1.3 of 2 cores (cc1plus 0.9, python 0.4); the run's threads waited "
        "1,234 s of 10 s for a core; the hypervisor took 0.3 s of CPU time; a CPU quota "
        "throttled the run for 2 s; memory was short for 0.4 s, and 1,200 pages were read from "
        "disk",
    ),
    (N("load_seen", **{**NO_LOAD, "used": 0.0}), "other processes used 0 of 2 cores"),
    (
        N("load_seen", **{**NO_LOAD, "waited_s": 3.4}),
        "the run's threads waited 3.4 s of 10 s for a core",
    ),
    (N("change_in", change=0.074, metric="latency_p50"), "+7.4 % in p50 latency"),
    (
        N("smaller_days", needed=4),
        "smaller changes need a baseline of 4 days, or --mlperf-against",
    ),
    (
        N("metric_lost", metric="throughput"),
        "throughput would be lost: this session did not measure it",
    ),
    (
        N("provable", shares=(LEAST, LEAST)),
        "smallest detectable regression 4.1 % in samples/s, 4.1 % in samples/s",
    ),
    (LEAST, "4.1 % in samples/s"),
    (CHANGED, "content 6b57 → 27ee"),
    (N("was", name="gpu", old="H200", new=None), "gpu was H200, is None"),
    (
        N("same_day", day="2026-10-26"),
        "not counted as a new day: the baseline already has a session of 2026-10-26",
    ),
    (
        N("days_missing", days=1, needed=4, more=3),
        "1 of 4 days: run the same build with --mlperf-update=missing on 3 more days",
    ),
    (
        N("days_uncommitted", days=1, needed=4, commit="0123456789ab+"),
        "1 of 4 days; the baseline is of uncommitted changes (0123456789ab+), so no further "
        "session can be added: commit them, then record again",
    ),
    (
        N(
            "fails_today",
            drops=(
                N("change_in", change=-0.105, metric="throughput"),
                N("change_in", change=0.074, metric="latency_p50"),
            ),
            note=N("smaller_days", needed=4),
        ),
        "a change of −10.5 % in samples/s or +7.4 % in p50 latency already fails; smaller changes "
        "need a baseline of 4 days, or --mlperf-against",
    ),
    (
        N("smaller_interleaved", needed=4),
        "smaller changes are measured again, interleaved with the baseline's build",
    ),
    (
        N("record_worse", steps=(N("metric_lost", metric="throughput"), STEP)),
        "nothing recorded, worse than the baseline: throughput would be lost: this session did not "
        "measure it; throughput 1,000 -> 990 (−1.0 %)",
    ),
    (
        N("step", metric="throughput", old=None, new=990.0),
        "throughput new 990",
    ),
    (
        N("record_made", runs="8 runs in a.json", note=N("provable", shares=(LEAST,))),
        "8 runs in a.json; smallest detectable regression 4.1 % in samples/s; commit it",
    ),
    (
        N("nothing_provable"),
        "no regression can be detected: every gated metric has too few queries per run. Raise "
        "min_query_count",
    ),
    (
        N("not_provable", shares=(N("detectable", **{**LEAST.values, "limit": 0.03}), LEAST)),
        "the smallest detectable regression is above the limit: 4.1 % in samples/s (limit 3 %), "
        "4.1 % in samples/s: add runs (--mlperf-update=append) or widen the limit",
    ),
    (
        N("data_differ", changes=(CHANGED,)),
        "data or prompts differ from the baseline's: content 6b57 → 27ee",
    ),
    (
        N("settings_differ", changes=(CHANGED, CHANGED)),
        "generation settings differ from the baseline's: content 6b57 → 27ee, content 6b57 → 27ee",
    ),
    (
        N("scorers_differ", old="rouge:1", new="rouge:2"),
        "the scorer differs from the baseline's: rouge:1 → rouge:2",
    ),
    (
        N("beside_record", note=N("clocks_moved", moves=MOVES)),
        "compared with the baseline: SM clock −2.1 %, time at the power cap 31 % → 58 %, "
        "temperature +11 °C",
    ),
    (N("clocks_moved", moves=MOVES[1:2]), "time at the power cap 31 % → 58 %"),
    *zip(MOVES, MOVED_TEXTS, strict=True),
    (
        N("machine_moved", quantity=COPY, now=1.25e10, baseline=2e10, change=-0.375, sd=0.07),
        "the machine is slow: copy 12.5 GB/s now, 20.0 GB/s when the baseline was recorded "
        "(−37.5 %; normal variation 7 %)",
    ),
    (
        N(
            "replica_behind",
            name="replica 3 (GPU 3)",
            lag=0.114,
            of=8,
            hotter_c=12.0,
            slower_mhz=400.0,
            less_w=100.0,
            capped=0.34,
        ),
        "replica 3 (GPU 3): 11.4 % behind the median of 8 replicas, 12 °C hotter, 400 MHz slower, "
        "100 W less, power capped 34 % of the window",
    ),
    (
        N("roofline_share", share=0.413, binds="compute", limit="roofline", near=None),
        "41.3 % of the roofline (compute)",
    ),
    (
        N("roofline_share", share=0.909, binds="compute", limit="roofline", near=0.9),
        "90.9 % of the roofline (compute): above 90 %, check the assumed work and peaks",
    ),
    (
        N("roofline_exceeded", share=1.24, binds="compute"),
        "124 % of the roofline, which is physically impossible (compute)",
    ),
    (N("no_limit_asked"), "no limit was requested"),
    (N("no_limit", metric="itl_p50"), "no limit known for itl_p50 of this workload"),
    (
        N("no_formula", metric="samples_per_joule"),
        "no limit known for samples_per_joule: only rates and times have a formula",
    ),
    (
        N("gpu_unknown", gpu="RTX_4090", example="fp16 = 989e12"),
        "no limit known for RTX_4090: set its dense peaks (FLOP/s), memory bandwidth (B/s) and "
        "memory (B), e.g. fp16 = 989e12",
    ),
    (
        N("work_unknown"),
        "no limit known for this workload: its work per sample is not defined",
    ),
    (
        N("format_unknown", part="format of weights", name="fp7", known=("fp8", "fp4")),
        "no limit known for the format of weights 'fp7'; known: fp8, fp4",
    ),
    (
        N("peak_unknown", precision="fp8", gpu="X1", peaks=("fp16", "tf32"), needed="fp8"),
        "no limit known for fp8 on X1, which has peaks for fp16, tf32; set its dense peak, e.g. "
        "fp8 = 989e12 (FLOP/s)",
    ),
    (
        N("work_varies", metric="latency_p90", technique="early-exit"),
        "no limit known for latency_p90: early-exit makes the work differ from sample to sample",
    ),
    (
        N("no_tokens", kind="encoder"),
        "no limit known: a model of this kind (encoder) generates no tokens",
    ),
    (
        N("output_tokens_unknown"),
        "no limit known for samples/s: set output_tokens, the mean tokens of an answer",
    ),
    (
        N("tokens_unknown"),
        "no estimate: set input_tokens and output_tokens to the means of the run",
    ),
    (
        N("sizes_unknown", needed="tokens"),
        "no estimate: set tokens to the mean of the run's samples",
    ),
    (
        N("technique_unknown", technique="magic"),
        "unknown technique 'magic': its effect on the limit is not defined",
    ),
    (
        N("technique_unfit", technique="deepcache", kind="decode"),
        "deepcache cannot be applied to this kind of model: decode",
    ),
    (
        N("technique_needs", technique="deepcache", figure="network_share"),
        "deepcache: set network_share, the mean share of the network that a call computes"
        " (work.network_share in the engine's describe(), or limits --set)",
    ),
    (
        N("technique_needs", technique="pruning", figure="work_share"),
        "pruning: set work_share, the share of the work that is left"
        " (work.work_share in the engine's describe(), or limits --set)",
    ),
    (
        N("technique_needs", technique="fewer-steps", figure="steps"),
        "fewer-steps: set steps (denoising steps per image) and calls (per step): work.steps and "
        "work.calls in the engine's describe(), or limits --set",
    ),
    (
        N("technique_needs", technique="speculative-decoding", figure="accepted_tokens"),
        "speculative-decoding: set accepted_tokens, the tokens that a step gives on average"
        " (work.accepted_tokens in the engine's describe(), or limits --set)",
    ),
    (
        N("technique_needs", technique="prefix-caching", figure="cached_tokens"),
        "prefix-caching: set cached_tokens, the tokens of a prompt that needed no work",
    ),
    (
        N(
            "above_ceiling",
            metric="throughput",
            share=N("roofline_exceeded", share=1.24, binds="compute"),
            limit=N("value", metric="throughput", value=1000.0),
        ),
        "samples/s is 124 % of the roofline, which is physically impossible (compute): the limit "
        "at the highest clock is 1,000 samples/s. The unit, the number of GPUs, the precision, a "
        "technique, or a figure of the suite ([accelerators], [workload.work]) is wrong",
    ),
    (
        N("hardware_declared", hardware="8xH200"),
        "server hardware: declared (8xH200), not verified: a change of hardware would look like a "
        "change of the code",
    ),
    (
        N("hardware_unknown", hardware=None),
        "server hardware: unknown: a change of hardware would look like a change of the code. Name "
        "it in accelerators, or let a probe in [engines.server] report it",
    ),
    (
        N("server_hardware_changed", changes=(N("was", name="gpu", old="H200", new=None),)),
        "the server runs on other hardware than before the run: gpu was H200, is None",
    ),
    (
        N("exporter_stale", seconds=61.0),
        "the exporter is stale: no energy counter on its page changed in 61 s. Restart the "
        "exporter, because the hardware that it names may be gone",
    ),
    (
        N("stage_takes", stage="unet", ratio=1.31, old=0.779, new=1.02),
        "unet takes 1.31x as long (779 ms → 1.02 s)",
    ),
    (
        N("server_restarted"),
        "the server restarted during the measurement: its counters fell",
    ),
    (
        N("audit", test="TEST01", reasons=(N("no_score"), N("no_answer"))),
        "TEST01: LoadGen logged no score; no answer was logged",
    ),
    (
        N("audit_failed", shows="other seeds give the same speed", files="verify_performance.txt"),
        "MLPerf checks that other seeds give the same speed; this run fails the check, see its "
        "verify_performance.txt",
    ),
    (
        N("speed_differs", **MOVED),
        "the score is 80 (−20.0 % from 100); at most ±10 % is allowed",
    ),
    (
        N("repeated_faster", **{**MOVED, "score": 1200.0, "change": 11.0}),
        "1,200 samples/s if one sample is repeated (+1100 % from 100/s with all samples); at most "
        "+10 % is allowed: the engine may cache answers",
    ),
    (
        N("seeds_slower", **MOVED),
        "with other seeds the score is 80 (−20.0 % from 100); at most 10 % worse is allowed",
    ),
    (N("reference_invalid"), "the performance run is INVALID"),
    (N("test_invalid"), "LoadGen reports that the test run is INVALID"),
    (
        N("scenarios_differ", test="Server", reference="Offline"),
        "the test run is of scenario Server, the performance run of Offline",
    ),
    (N("no_score"), "LoadGen logged no score"),
    (
        N("latency_limits_differ"),
        "the test run and the performance run have different latency limits",
    ),
    (
        N("answers_differ", count=2, of=1000),
        "2 of 1,000 answers differ from the accuracy run's",
    ),
    (N("no_common_sample"), "no logged answer belongs to a sample of the accuracy run"),
    (
        N("ends_differ", count=2, of=1000),
        "2 of 1,000 answers differ after their first element; the reference script compares only "
        "the first",
    ),
    (
        N("first_tokens_differ", count=1, of=2),
        "1 of 2 answers do not begin with the token that was reported as the first",
    ),
    (N("answers_continue", count=1, of=2), "1 of 2 answers continue after their end token"),
    (
        N("lengths_differ", count=1, of=2),
        "1 of 2 answers have a length other than the reported number of tokens",
    ),
    (N("no_first_token"), "the engine reports no first token, so nothing is compared"),
    (N("no_answer"), "no answer was logged"),
    (
        N("mean_length", mean=10.0, low=10.8, high=13.2),
        "answers have 10.00 tokens on average; 10.8 to 13.2 are required",
    ),
    (
        N("entropies_differ", count=1, of=2, most=0.001),
        "entropies of 1 of 2 samples differ by over 0.1 %",
    ),
    (
        N("predictions_missing", count=1, of=2, most=0.001),
        "1 of 2 samples have more or fewer predictions than labels",
    ),
    (
        N("samples_unknown", count=1, of=2, most=0.001),
        "1 answer of samples that are not in the accuracy run",
    ),
    (
        N("score_differs", metric="top1", score=99.5, reference=0.0, allowed=0.01),
        "top1 is 99.5 in the test run and 0 in the accuracy run; at most 1 % apart is allowed",
    ),
    (
        N("score_too_low", score=89.0, least=89.1),
        "the score is 89; at least 89.1 is required",
    ),
    (
        N("scores_agree"),
        "the answers differ but their scores agree, which is what the checker requires",
    ),
)


def test_each_note_of_energy_load_and_compliance_has_its_sentence() -> None:
    assert [sentence(note) for note, _ in SENTENCES] == [text for _, text in SENTENCES]
