"""Test that an engine's facts about its work move the limit that its speed is compared with."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.roofline.gpu import PRECISIONS
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.rounds.work import find_work
from pytest_mlperf.run.figures import Figures, Findings
from pytest_mlperf.run.reading import has_roofline
from pytest_mlperf.run.roofline_share import roofline_findings
from tests.reports.verdicts import run
from tests.run.sentences import notes_of
from tests.run.test_figures import job

SUITE = """
schema = 1
round = "v4.1"
division = "open"

[workload]
name = "stable-diffusion-xl"
scorer = {{ use = "clip_fid", clip = "c", inception = "i", statistics = "s" }}

[[engines]]
use = "null"
precision = "fp16"
accelerators = ["{accelerator}"]
techniques = {techniques}

[[scenarios]]
name = "Offline"
"""

H200 = {"gpu": "NVIDIA H200", "memory_gib": 141}


def planned(folder: Path, *techniques: str, accelerator: str = "H200") -> Job:
    return job(folder, SUITE.format(accelerator=accelerator, techniques=[*techniques]))


def share(measured: Findings) -> float:
    share_of_roofline = measured.light[0].share
    assert share_of_roofline is not None
    return share_of_roofline


def figures(**metrics: Any) -> Figures:
    made = run(**metrics)
    return Figures(
        metrics=made.metrics,
        samples=made.samples,
        queries=made.queries,
        duration_s=made.duration_s,
    )


def lit(case: Job, engine: dict[str, str], throughput: float = 1.0) -> Findings:
    return roofline_findings(figures(throughput=throughput), case, H200, engine=engine, sizes={})


def test_declared_techniques_are_less_work_and_a_speed_beyond_the_limit_is_none(
    tmp_path: Path,
) -> None:
    """Images of 10 steps at the same speed use about half as much of the GPU's limit."""
    fewer = planned(tmp_path, "fewer-steps")
    for key in ("generation.steps", "work.steps"):
        assert share(lit(fewer, {key: "10"})) < 0.6 * share(lit(fewer, {key: "20"}))
    cached = planned(tmp_path, "deepcache")
    half, whole = (share(lit(cached, {"work.network_share": part})) for part in ("0.5", "1.0"))
    assert half < 0.7 * whole
    undeclared = planned(tmp_path)
    assert share(lit(undeclared, {"generation.steps": "1"})) == share(lit(undeclared, {}))

    figures_too_fast = lit(planned(tmp_path), {}, throughput=1e6)
    assert figures_too_fast.light[0].impossible
    assert len(figures_too_fast.invalid) == 1
    assert has_roofline(planned(tmp_path), H200)
    assert not has_roofline(planned(tmp_path), {**H200, "pretended": True})
    assert not has_roofline(planned(tmp_path, accelerator="cpu"), {})


LLAMA = """
schema = 1
round = "v4.1"
division = "open"

[workload]
name = "my-llama2-70b"

[workload.work]
kind = "decode"
{dimensions}

[[engines]]
use = "null"
precision = "{precision}"
accelerators = ["{accelerator}"]
techniques = {techniques}

[[scenarios]]
name = "{scenario}"
"""

PRODUCTS = {
    "H200-SXM": ("H200", {"gpu": "NVIDIA H200", "memory_gib": 140}),
    "H100-SXM": ("H100", {"gpu": "NVIDIA H100 80GB HBM3", "memory_gib": 80}),
    "A100-SXM-80": ("A100", {"gpu": "NVIDIA A100-SXM4-80GB", "memory_gib": 80}),
}
"""What NVML calls the GPUs of the claims."""

ANSWER = 294.45


@dataclasses.dataclass(frozen=True)
class Claim:
    """A printed speed of Llama 2 70B on one GPU at batch 1, in tokens/s; see docs/limits.md."""

    value: float
    accelerator: str
    precision: str


DECODING = [
    *(Claim(value, "H200-SXM", "fp16") for value in (155, 120)),
    *(Claim(value, "H100-SXM", "fp16") for value in (110, 85)),
    Claim(35, "A100-SXM-80", "fp16"),
    Claim(155, "H100-SXM", "fp8"),
    Claim(140, "H100-SXM", "int8"),
    *(Claim(value, "H100-SXM", "int4-g128") for value in (190, 195)),
]


def decoded(
    folder: Path,
    claim: Claim,
    scenario: str,
    engine: dict[str, str],
    *techniques: str,
    precision: str | None = None,
) -> Findings:
    """Return a run of a claim as the plugin would have judged it."""
    accelerator, identity = PRODUCTS[claim.accelerator]
    about = find_work("llama2-70b")
    assert about is not None
    sizes = {k: v for k, v in dataclasses.asdict(about.work).items() if v and k != "share"}
    text = LLAMA.format(
        dimensions="\n".join(f"{name} = {size}" for name, size in sizes.items()),
        precision=precision or claim.precision,
        accelerator=accelerator,
        scenario=scenario,
        techniques=[*techniques],
    )
    text += 'latency_limit = "20s"\n' if scenario == "Server" else ""
    measured = figures(
        tokens_per_second=claim.value,
        throughput=claim.value / ANSWER,
        tokens_per_sample=ANSWER,
        latency_p90=ANSWER / claim.value,
        latency_p99=ANSWER / claim.value,
    )
    input_sizes = {"input_tokens": 290.0}
    return roofline_findings(
        measured, job(folder, text), identity, engine=engine, sizes=input_sizes
    )


def invalid(measured: Findings) -> str:
    return "; ".join(sentence(reason.text) for reason in measured.invalid)


def test_impossible_speeds_are_refused(tmp_path: Path) -> None:
    """One sequence at a time, as the scenario has it or as the engine says."""
    cases: list[tuple[str, dict[str, str]]] = [
        ("SingleStream", {}),
        ("SingleStream", {"work.batch": "256"}),
        ("Offline", {"work.batch": "1"}),
        ("Server", {"work.batch": "1"}),
    ]
    words = ("tokens/s is", "physically impossible (memory)")
    possible = [
        (scenario, engine, claim)
        for (scenario, engine), claim in itertools.product(cases, DECODING)
        if any(w not in invalid(decoded(tmp_path, claim, scenario, engine)) for w in words)
    ]

    assert possible == []


def test_an_engines_own_word_for_a_precision_is_known(tmp_path: Path) -> None:
    for claim in (DECODING[6], DECODING[-1]):
        for word in ("int4-awq", "w4a8-awq", "mixed"):
            assert invalid(decoded(tmp_path, claim, "SingleStream", {}, precision=word)), word

    from pytest_mlperf.adapters.engines import tensorrt_llm, vllm
    from pytest_mlperf.adapters.engines.torch import _base as torch

    words = {*vllm.PRECISIONS, *tensorrt_llm.PRECISIONS, *torch.PRECISIONS}
    assert words <= set(PRECISIONS)


def test_possible_speeds_pass_and_impossible_ones_are_an_error(
    tmp_path: Path,
) -> None:
    """A step gives a token of every sequence, and of a technique as many as are accepted."""
    cases: list[tuple[str, dict[str, str], tuple[str, ...]]] = [
        ("Offline", {}, ()),
        ("Offline", {"work.batch": "64"}, ()),
        ("Server", {}, ()),
        ("MultiStream", {}, ()),  # a query has 8 samples, which is enough for 155 tokens/s
        ("SingleStream", {}, ("speculative-decoding",)),
        ("SingleStream", {"work.accepted_tokens": "5"}, ("speculative-decoding",)),
        ("Offline", {"work.batch": "1"}, ("speculative-decoding",)),
    ]
    messages = [
        invalid(decoded(tmp_path, DECODING[0], scenario, engine, *techniques))
        for scenario, engine, techniques in cases
    ]
    assert messages == [""] * len(cases)

    for engine, message in (
        ({"work.batch": "many"}, "returns work.batch = 'many', which is not a number"),
        ({"work.batch": "0"}, "states impossible work: batch is 0.0"),
        ({"work.accepted_tokens": "nan"}, "impossible work: accepted_tokens is nan"),
    ):
        with pytest.raises(RunError, match=message):
            decoded(tmp_path, DECODING[0], "Offline", engine)


def drafted(
    folder: Path, *techniques: str, accepted: int | None, key: str = "work.drafts"
) -> Findings:
    """Return the findings on 100 answers of 101 tokens, with batches of 4."""
    case = job(folder, DRAFTING.format(techniques=[*techniques]))
    rates = {"tokens_per_second": FAST, "throughput": FAST / 101, "tokens_per_sample": 101}
    rate_figures = Figures(metrics=rates, samples=100, queries=1, duration_s=100 * 101 / FAST)
    engine = {"work.batch": "4", key: "true"}
    sizes = {"input_tokens": 290.0}
    return roofline_findings(rate_figures, case, H200, engine=engine, sizes=sizes, drafts=accepted)


DRAFTING = (
    SUITE.replace("stable-diffusion-xl", "llama2-70b")
    .replace('scorer = {{ use = "clip_fid", clip = "c", inception = "i", statistics = "s" }}', "")
    .replace("{accelerator}", "H200")
)

FAST = 250.0
"""Tokens/s: by 4 samples a step, more than readings of 70 billion fp16 weights leave room for."""


def test_accepted_drafts_raise_the_limit_where_they_are_declared_and_are_else_noted(
    tmp_path: Path,
) -> None:
    """Uncounted drafts leave no limit by memory; a server's settings are unknown."""
    none, half, uncounted, too_many = (
        drafted(tmp_path, "speculative-decoding", accepted=accepted)
        for accepted in (0, 5000, None, 20_000)
    )
    assert none.light[0].impossible
    assert not half.light[0].impossible
    assert half.light[0].certain == pytest.approx(2 * (none.light[0].certain or 0))
    assert notes_of(half) == ("speculative decoding gave 2.00 tokens per step",)
    for figures in (uncounted, too_many):
        assert (figures.light[0].binds, notes_of(figures)) == ("compute", ())

    for key in ("work.drafts", "server"):
        figures = drafted(tmp_path, accepted=5000, key=key)
        assert not figures.light[0].impossible
        assert notes_of(figures) == (
            "speculative decoding gave 2.00 tokens per step, which the engine entry must declare: "
            'techniques = ["speculative-decoding"]',
        )
