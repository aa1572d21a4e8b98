"""Test techniques of the open division: how each changes the limit, and what it must declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.case import TECHNIQUES
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.roofline import EFFECTS, Limit, share_of_limit
from pytest_mlperf.core.roofline.work import Circumstances
from pytest_mlperf.hardware.specs import known_gpus
from pytest_mlperf.rounds.work import known_work
from tests.core.made import present

H200, WORK = known_gpus()["H200-SXM"], known_work()

LLAMA: dict[str, Any] = {"precision": "fp8", "input_tokens": 290, "output_tokens": 290}


def limit(workload: str, metric: str = "", **figures: Any) -> Limit:
    return share_of_limit(
        metric or ("tokens_per_second" if workload == "llama2-70b" else "throughput"),
        1.0,
        accelerator="H200",
        gpu=H200,
        work=WORK[workload].work,
        seen=Circumstances(**figures),
    )


def ratio(workload: str, techniques: tuple[str, ...], **figures: Any) -> tuple[float, float]:
    plain, changed = limit(workload, **figures), limit(workload, techniques=techniques, **figures)
    return (
        (changed.certain or 0.0) / (plain.certain or 0.0),
        (changed.estimated or 0.0) / (plain.estimated or 0.0),
    )


def test_every_declared_technique_has_an_effect_and_is_on_the_page_on_limits() -> None:
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text("utf-8")
    needed = {name for effect in EFFECTS.values() for name in effect.needs}

    assert set(EFFECTS) == set(TECHNIQUES)
    assert needed <= set(Circumstances.__dataclass_fields__)
    assert {name for name in {*EFFECTS, *needed} if f"`{name}`" not in page} == set()


def test_sparsity_doubles_the_peak_and_a_share_of_the_work_is_left() -> None:
    """By memory sparse weights are read sooner: 0.625 bytes a weight in place of 1.

    32 of 80 layers: 2.5 times the limit, in compute and in memory; unknown: no limit. Pruned and
    distilled: the share is that of the model that ran. Retraining changes nothing.
    """
    memory, _ = ratio("llama2-70b", ("2:4-sparsity",), **LLAMA, batch=1)

    assert ratio("llama2-70b", ("2:4-sparsity",), **LLAMA) == pytest.approx((2.0, 2.0))
    assert memory == pytest.approx(1 / 0.625)
    assert ratio("llama2-70b", ("retraining",), **LLAMA) == (1.0, 1.0)

    for name in ("pruning", "distillation", "early-exit"):
        certain, _ = ratio("llama2-70b", (name,), **LLAMA, work_share=0.4)
        memory, _ = ratio("llama2-70b", (name,), **LLAMA, work_share=0.4, batch=1)
        unknown = limit("llama2-70b", techniques=(name,), **LLAMA)
        assert (certain, memory) == pytest.approx((2.5, 2.5))
        assert unknown.certain is None
        assert unknown.why_unknown == needs(name, "work_share")
    both, _ = ratio("llama2-70b", ("pruning", "distillation"), **LLAMA, work_share=0.4)
    assert both == pytest.approx(2.5)


def needs(technique: str, figure: str) -> Note:
    return Note.of("technique_needs", technique=technique, figure=figure)


def test_deepcache_and_fewer_steps_compute_a_part_of_the_network() -> None:
    """Half of each call: 1.93 times, because the decoder stays; the published 1.74 lies below.

    An unknown share is one whole step at least. 10 of 20 steps have two calls each; more steps than
    the reference's lower nothing, and steps alone leave open whether guidance is part of the model.
    """
    certain, estimated = ratio("stable-diffusion-xl", ("deepcache",), network_share=0.5)
    unknown = limit("stable-diffusion-xl", techniques=("deepcache",))

    assert certain == estimated == pytest.approx(281.14 / (135.22 + 10.69), rel=1e-4)
    assert certain > 1.737
    assert unknown.certain == pytest.approx(1978.9e12 / (2 * 6.7612e12 + 10.69e12), rel=1e-4)
    assert unknown.estimated is None
    assert unknown.why_no_estimate == needs("deepcache", "network_share")

    name = "stable-diffusion-xl"
    four: dict[str, Any] = {"techniques": ("latent-consistency",), "steps": 4}
    bound = limit(name, techniques=("fewer-steps",), steps=10)
    more = limit(name, techniques=("fewer-steps",), steps=50)
    consistent, exact = limit(name, **four), limit(name, **four, calls=2)

    assert bound.certain == pytest.approx(1978.9e12 / (20 * 6.7612e12 + 10.69e12), rel=1e-4)
    assert bound.estimated == bound.certain
    assert more.certain == limit(name).certain
    assert consistent.certain == pytest.approx(1978.9e12 / (4 * 6.7612e12 + 10.58e12), rel=1e-4)
    assert consistent.estimated is None
    assert exact.estimated == pytest.approx(1978.9e12 / (8 * 6.7612e12 + 10.69e12), rel=1e-4)


def test_drafts_save_readings_of_the_weights_and_cached_prefixes_are_not_computed() -> None:
    """3 tokens a step: three times by memory at batch 1, nothing where compute binds.

    A request of easy tokens may be faster than the mean: its time has no limit by memory. Where the
    whole prompt is cached it is nearly twice, for answers as long as prompts.
    """
    name, arguments = "speculative-decoding", {**LLAMA, "batch": 1, "accepted_tokens": 3}
    certain, _ = ratio("llama2-70b", (name,), **arguments)
    compute, _ = ratio("llama2-70b", (name,), **LLAMA, accepted_tokens=3)
    unknown = limit("llama2-70b", techniques=(name,), **LLAMA, batch=1)
    time = limit("llama2-70b", "tpot_p50", **arguments, techniques=(name,))
    plain = limit("llama2-70b", "tpot_p50", **LLAMA, batch=1)

    assert (certain, compute) == pytest.approx((3.0, 1.0))
    assert (unknown.binds, unknown.estimated) == ("compute", None)
    assert unknown.certain == pytest.approx(1978.9e12 / 137.426e9, rel=1e-4)
    assert (time.term and time.term.resource) == "compute"
    assert time.estimated == pytest.approx((plain.estimated or 0.0) / 3)

    plain = limit("llama2-70b", **LLAMA)
    bound = limit("llama2-70b", techniques=("prefix-caching",), **LLAMA, cached_tokens=290)
    unknown = limit("llama2-70b", techniques=("prefix-caching",), **LLAMA)

    assert bound.certain == plain.certain == unknown.certain
    growth = present(bound.estimated) / present(plain.estimated)
    assert growth == pytest.approx(2, abs=0.02)
    assert unknown.why_no_estimate == needs("prefix-caching", "cached_tokens")


def test_a_technique_of_another_kind_of_model_leaves_no_limit() -> None:
    """Neither do early exits for times: the mean share of work says nothing of a single sample."""
    for workload, name in (
        ("llama2-70b", "deepcache"),
        ("bert", "speculative-decoding"),
        ("resnet50", "fewer-steps"),
    ):
        bound = limit(workload, techniques=(name,), **LLAMA)
        kind = WORK[workload].work.kind
        note = Note.of("technique_unfit", technique=name, kind=kind)
        assert (bound.certain, bound.why_unknown) == (None, note)
    unknown = limit("bert", techniques=("magic",), tokens=177)
    exits: dict[str, Any] = {"techniques": ("early-exit",), "work_share": 0.5, "tokens": 177}
    assert unknown.why_unknown == Note.of("technique_unknown", technique="magic")
    varies = Note.of("work_varies", metric="latency_p90", technique="early-exit")
    assert limit("bert", "latency_p90", **exits).why_unknown == varies
    assert limit("bert", **exits).certain
