"""Test limits: properties for any GPU, model and run, and the message if no limit is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.case import TECHNIQUES
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.roofline import Limit, share_note, share_of_limit
from pytest_mlperf.core.roofline.gpu import EXAMPLE, KV_BYTES, PRECISIONS, GpuSpec
from pytest_mlperf.core.roofline.work import AnyWork, Circumstances, Decode
from pytest_mlperf.hardware.specs import known_gpus
from pytest_mlperf.rounds.work import known_work
from tests.core.made import present

GPUS, WORK = known_gpus(), known_work()
TIMES = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "latency_p50", "latency_p90")
RATES = ("throughput", "tokens_per_second")

gpus = st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__)
works = st.sampled_from(sorted(WORK)).map(lambda name: WORK[name].work)
decoders = st.sampled_from([own.work for own in WORK.values() if isinstance(own.work, Decode)])
metrics = st.sampled_from([*RATES, *TIMES])


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high)


@st.composite
def runs(draw: st.DrawFn, *, lengths: bool = True) -> Circumstances:
    """Draw any run of the closed division, with or without its observed figures."""

    def maybe(strategy: st.SearchStrategy[Any]) -> Any:
        return draw(strategy if lengths else st.none() | strategy)

    count = draw(st.integers(1, 64))
    return Circumstances(
        gpus=count,
        replica_gpus=draw(st.none() | st.integers(1, count)),
        precision=draw(st.sampled_from(["fp16", "bf16", "fp8", "int8", "int4", "nvfp4"])),
        kv=draw(st.none() | st.sampled_from(sorted(KV_BYTES))),
        batch=draw(st.none() | number(1, 2000)),
        input_tokens=maybe(number(1, 4000)),
        output_tokens=maybe(number(1, 2000)),
        tokens=maybe(number(1, 384)),
        tokens_squared=draw(st.none() | number(1, 384**2)),
        parts=maybe(number(1, 700)),
    )


def limit(
    metric: str, gpu: GpuSpec, work: AnyWork, seen: Circumstances, value: float | None = None
) -> Limit:
    return share_of_limit(metric, value, accelerator=gpu.name, gpu=gpu, work=work, seen=seen)


def allows_more(metric: str, a: float | None, b: float | None) -> bool:
    """Tell whether limit a lets through all that b does; rounding aside."""
    a, b = present(a), present(b)
    return a <= b * (1 + 1e-9) if metric in TIMES else a >= b * (1 - 1e-9)


def check_allows(metric: str, more: Limit, less: Limit) -> None:
    """Check that no known level of one limit lies below the other's."""
    for a, b in ((more.certain, less.certain), (more.estimated, less.estimated)):
        assert (a is b is None) or allows_more(metric, a, b)


@settings(max_examples=60)
@given(
    metrics,
    gpus,
    works,
    runs(lengths=False),
    st.integers(1, 64),
    number(1, 10),
    number(1, 10),
    number(1e-9, 1e12),
)
def test_levels_are_in_order_and_more_or_faster_gpus_never_lower_them(
    metric: str,
    gpu: GpuSpec,
    work: AnyWork,
    seen: Circumstances,
    more: int,
    flops: float,
    bandwidth: float,
    value: float,
) -> None:
    """A share is above one exactly beyond the limit."""
    bound = limit(metric, gpu, work, seen, value)
    many = limit(metric, gpu, work, replace(seen, gpus=seen.gpus + more))
    peaks = {name: peak * flops for name, peak in gpu.peaks.items()}
    faster = replace(gpu, peaks=peaks, bandwidth=(gpu.bandwidth or 0.0) * bandwidth)

    assert (many.certain is None) == (bound.certain is None)
    check_allows(metric, many, bound)
    check_allows(metric, limit(metric, faster, work, seen), bound)
    if bound.certain is None:
        assert bound.why_unknown
        assert (bound.share, bound.impossible) == (None, False)
        return
    assert allows_more(metric, bound.ceiling, bound.certain)
    assert bound.estimated is None or allows_more(metric, bound.certain, bound.estimated)
    beyond = value < bound.certain if metric in TIMES else value > bound.certain
    assert (present(bound.certain_share) > 1) == beyond
    assert not bound.impossible or beyond


@settings(max_examples=40)
@given(
    st.sampled_from(["tokens_per_second", "throughput", "tpot_p50", "ttft_p50"]),
    gpus,
    decoders,
    runs(),
    st.sampled_from(sorted(PRECISIONS)),
    st.sampled_from(sorted(PRECISIONS)),
)
def test_narrower_weights_never_lower_a_limit(
    metric: str, gpu: GpuSpec, work: Decode, seen: Circumstances, first: str, other: str
) -> None:
    """At the same precision of the multiplications, fewer bytes are read sooner.

    What does not fit into the memory has no batch, and so no estimate of its reads: here all fits.
    """
    wide, narrow = sorted((first, other), key=lambda name: -PRECISIONS[name].weight)
    largest = (work.shared + work.experts * work.expert) * PRECISIONS[wide].weight
    gpu = replace(gpu, memory=largest + (gpu.memory or 0.0))
    a = limit(metric, gpu, work, replace(seen, weights=narrow))
    b = limit(metric, gpu, work, replace(seen, weights=wide))

    assert allows_more(metric, a.certain, b.certain)
    assert allows_more(metric, a.estimated, b.estimated)


@settings(max_examples=60)
@given(
    metrics,
    gpus,
    works,
    runs(),
    st.lists(st.sampled_from(sorted(TECHNIQUES)), min_size=1, max_size=3, unique=True),
    st.fixed_dictionaries(
        {
            "cached_tokens": st.none() | number(0, 4000),
            "accepted_tokens": st.none() | number(1, 8),
            "steps": st.none() | number(1, 50),
            "calls": st.none() | st.integers(1, 2),
            "network_share": st.none() | number(0.01, 1),
            "work_share": st.none() | number(0.01, 1),
        }
    ),
)
def test_a_technique_never_lowers_a_limit(
    metric: str,
    gpu: GpuSpec,
    work: AnyWork,
    seen: Circumstances,
    techniques: list[str],
    figures: dict[str, Any],
) -> None:
    """It can only save work: its limit lies above the plain one, or is not known and says why."""
    plain = limit(metric, gpu, work, seen)
    open_run = replace(seen, techniques=tuple(techniques), **figures)
    bound = limit(metric, gpu, work, open_run)

    if bound.certain is None or plain.certain is None:
        assert bound.why_unknown
        return
    assert allows_more(metric, bound.certain, plain.certain)
    if bound.estimated is None:
        assert bound.why_no_estimate
        return
    assert allows_more(metric, bound.estimated, plain.estimated)
    assert allows_more(metric, bound.certain, bound.estimated)


@settings(max_examples=60)
@given(gpus, decoders, runs(), number(1, 1e9), number(1, 2000))
def test_a_larger_batch_never_lowers_the_certain_limit_and_the_largest_is_compute(
    gpu: GpuSpec, work: Decode, seen: Circumstances, batch: float, more: float
) -> None:
    """No batch is estimated to be larger than stated."""
    rate = "tokens_per_second"
    small, large, unlimited = (
        limit(rate, gpu, work, replace(seen, batch=size)) for size in (batch, batch + more, None)
    )

    assert allows_more(rate, large.certain, small.certain)
    check_allows(rate, unlimited, small)
    assert present(unlimited.term).resource == "compute"


def test_llama_one_sequence_at_a_time() -> None:
    """Weights in FP16 leave 13 GB of one H200, so that few sequences share each reading of them."""
    gpu, about = GPUS["H200-SXM"], WORK["llama2-70b"]
    seen = Circumstances(precision="fp16", kv="fp16", input_tokens=290.0, output_tokens=294.45)
    bound = limit("tokens_per_second", gpu, about.work, seen)
    more = limit("tokens_per_second", gpu, about.work, replace(seen, gpus=8))

    assert bound.binds == "memory"
    assert more.binds == "compute"

    for name, precision, rate in (
        ("H200-SXM", "fp16", 34.9),
        ("H100-SXM", "fp16", 24.4),
        ("A100-SXM-80", "fp16", 14.8),
        ("H100-SXM", "fp8", 48.8),
        ("H100-SXM", "int8", 48.8),
        ("H100-SXM", "int4-g128", 93.8),
    ):
        seen = Circumstances(precision=precision, batch=1)
        bound = limit("tokens_per_second", GPUS[name], about.work, seen)
        assert bound.certain == pytest.approx(rate, abs=0.05)
        assert bound.binds == "memory"
        assert bound.ceiling == pytest.approx(bound.certain, rel=3e-3)
        assert (bound.ceiling or 0.0) > (bound.certain or 0.0)


def test_times_are_a_reading_of_the_weights_or_the_prompt() -> None:
    """TPOT of Llama 2 70B in FP8 on two H200: 68.7 GB over 9.6 TB/s.

    2000 tokens take longer than reading the weights; the certain limit counts no prompt. BERT at
    384 tokens a sample would call an official result impossible: real lengths do not.
    """
    work, gpu, weights = WORK["llama2-70b"].work, GPUS["H200-SXM"], 68_713_185_280
    two = Circumstances(gpus=8, replica_gpus=2, precision="fp8")
    seen = Circumstances(precision="fp8", input_tokens=2000, output_tokens=100)
    tpot, ttft = limit("tpot_p50", gpu, work, two, 0.0143), limit("ttft_p50", gpu, work, seen)

    assert tpot.certain == pytest.approx(weights / 9.6e12)
    assert tpot.certain_share == pytest.approx(0.5, abs=0.002)
    assert ttft.binds == "compute"
    assert ttft.estimated == pytest.approx(2000 * 139.5e9 / 1978.9e12, rel=1e-2)
    assert ttft.certain == pytest.approx(weights / 4.8e12)

    padded, real = (
        limit(
            *("throughput", GPUS["H200-SXM"], WORK["bert"].work),
            Circumstances(gpus=8, precision="int8", tokens=tokens),
            73_791,
        )
        for tokens in (384, 177)
    )

    assert padded.estimated_share == pytest.approx(1.15, abs=0.005)
    assert not padded.impossible
    assert real.estimated_share == pytest.approx(0.513, abs=0.001)


def test_a_sample_is_computed_by_one_copy_of_the_model_and_may_be_smaller_than_the_mean() -> None:
    """A latency on 8 GPUs with a copy each is limited by one of them.

    Certain for a time is the smallest sample: one window, whatever the mean volume has.
    """
    gpu, together = GPUS["L4"], Circumstances(gpus=8, precision="int8")
    parts = Circumstances(precision="int8", parts=62)
    single, eight = (
        limit("latency_p90", gpu, WORK["resnet50"].work, seen).certain
        for seen in (replace(together, replica_gpus=1), together)
    )
    volume = limit("latency_p90", gpu, WORK["3d-unet"].work, parts)

    assert single == pytest.approx(8_178_368_512 / 242.5e12)
    assert single == pytest.approx(8 * (eight or 0.0))
    assert volume.certain == pytest.approx(954.6e9 / 242.5e12)
    assert volume.estimated == pytest.approx(62 * 954.6e9 / 242.5e12)


def test_beyond_the_stated_peak_there_is_headroom_for_the_clock() -> None:
    """4 % above the limit is possible on Hopper, 9 % is not; A100's peak is at its top clock.

    GPT-J on 8 GPUs: of 5.8 GB 400 MB stay in the caches, for the limit beyond which nothing is
    possible.
    """
    work, seen = WORK["resnet50"].work, Circumstances(precision="int8")
    rate = 1978.9e12 / 8_178_368_512

    assert not limit("throughput", GPUS["H200-SXM"], work, seen, rate * 1.04).impossible
    assert limit("throughput", GPUS["H200-SXM"], work, seen, rate * 1.09).impossible
    slower = 624e12 / 8_178_368_512
    assert limit("throughput", GPUS["A100-SXM-80"], work, seen, slower * 1.01).impossible

    seen = Circumstances(gpus=8, replica_gpus=8, precision="fp8", batch=1)
    bound = limit("tokens_per_second", GPUS["H100-SXM"], WORK["gptj"].work, seen)

    ratio = present(bound.ceiling) / present(bound.certain)
    assert ratio == pytest.approx(5.8436e9 / (5.8436e9 - 400e6), rel=1e-4)


DRAFTS = {"techniques": ("speculative-decoding",), "accepted_tokens": 3}


def test_without_a_limit_the_message_names_the_missing_facts() -> None:
    h200, bert, llama = GPUS["H200-SXM"], WORK["bert"].work, WORK["llama2-70b"].work
    half = GpuSpec(name="X1", accelerator="X1", peaks={"fp16": 1e14})
    formats, keys = tuple(PRECISIONS), tuple(KV_BYTES)
    no_peak = {"precision": "fp8", "gpu": "X1", "peaks": ("fp16",), "needed": "fp8"}
    cases: list[tuple[str, GpuSpec | None, AnyWork | None, dict[str, Any], Note]] = [
        ("throughput", h200, bert, {"precision": "fp6"},
         Note.of("format_unknown", part="precision", name="fp6", known=formats)),
        ("throughput", h200, bert, {"precision": "fp8", "weights": "fp7"},
         Note.of("format_unknown", part="format of weights", name="fp7", known=formats)),
        ("throughput", h200, llama, {"kv": "fp7"},
         Note.of("format_unknown", part="format of the key-value cache", name="fp7", known=keys)),
        ("throughput", h200, None, {}, Note.of("work_unknown")),
        ("samples_per_joule", h200, bert, {}, Note.of("no_formula", metric="samples_per_joule")),
        ("tokens_per_second", h200, bert, {}, Note.of("no_tokens", kind="encoder")),
        ("throughput", h200, llama, {}, Note.of("output_tokens_unknown")),
        ("itl_p50", h200, llama, DRAFTS, Note.of("no_limit", metric="itl_p50")),
        ("throughput", half, bert, {"precision": "fp8"}, Note.of("peak_unknown", **no_peak)),
        ("throughput", None, bert, {"precision": "fp16"},
         Note.of("gpu_unknown", gpu="RTX_4090", example=EXAMPLE)),
    ]  # fmt: skip
    for metric, gpu, work, figures, note in cases:
        seen, name = Circumstances(**figures), gpu.name if gpu else "RTX_4090"
        bound = share_of_limit(metric, 1.0, accelerator=name, gpu=gpu, work=work, seen=seen)
        assert bound.why_unknown == share_note(bound) == note
        assert (bound.certain, bound.share, bound.impossible) == (None, None, False)
    for work, metric, note in (
        (llama, RATES[1], Note.of("tokens_unknown")),
        (bert, RATES[0], Note.of("sizes_unknown", needed="tokens")),
        (WORK["3d-unet"].work, RATES[0], Note.of("sizes_unknown", needed="parts")),
    ):
        bound = limit(metric, h200, work, Circumstances(precision="fp8"), 1.0)
        assert bound.why_no_estimate == note
        assert bound.certain is not None
        assert bound.share == bound.certain_share


def test_a_share_is_noted_with_the_limit_that_it_is_of() -> None:
    """ResNet-50 in int8 on one H200."""
    work, gpu = WORK["resnet50"].work, GPUS["H200-SXM"]
    nothing = limit("throughput", gpu, work, Circumstances())
    certain = limit(RATES[1], gpu, WORK["mixtral-8x7b"].work, Circumstances(), 8021)

    reached = {"limit": "roofline", "near": None}
    near = {"limit": "roofline", "near": 0.9}
    for value, share, key, others in (
        (100_000, 0.413, "roofline_share", reached),
        (220_000, 0.909, "roofline_share", near),
        (250_000, 1.03, "roofline_share", near),
        (300_000, 1.24, "roofline_exceeded", {}),
    ):
        note = share_note(limit("throughput", gpu, work, Circumstances(precision="int8"), value))
        about = {"share": pytest.approx(share, rel=5e-3), "binds": "compute"}
        assert (note.key, note.values) == (key, {**about, **others})
    assert share_note(certain).values["limit"] == "certain limit"
    assert nothing.certain is not None
    assert nothing.share is None
    assert share_note(nothing) == Note.of("no_limit_asked")
