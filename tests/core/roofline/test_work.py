"""Work: parameters, FLOP and bytes of every round's workloads, by hand and as published."""

from __future__ import annotations

import itertools
import math

import pytest

from pytest_mlperf.core.roofline.bounds import decode_rate, hardware, prefill_rate
from pytest_mlperf.core.roofline.work import Circumstances, Decode, Diffusion, Encoder, Fixed, Parts
from pytest_mlperf.hardware.specs import known_gpus
from pytest_mlperf.rounds import ROUNDS, load_round
from pytest_mlperf.rounds.work import find_work, known_work

KNOWN = known_work()
H200 = known_gpus()["H200-SXM"]


def decode(name: str) -> Decode:
    work = KNOWN[name].work
    assert isinstance(work, Decode)
    return work


def test_every_workload_of_every_round_is_counted_under_any_of_its_names() -> None:
    """The edge's Llama is the datacenter's; a RAG's answer is gpt-oss's, of another length."""
    assert set(KNOWN) == {name for each in ROUNDS for name in load_round(each).workloads}
    assert all(own.source for own in KNOWN.values())
    assert KNOWN["llama3_1-8b-edge"].work == KNOWN["llama3_1-8b"].work
    assert KNOWN["e2e-rag-qna"].work == KNOWN["gpt-oss-120b"].work
    assert KNOWN["e2e-rag-qna"].typical == {"output_tokens": 273.81}

    names = {
        "llama2-70b": ["llama2-70b-99", "llama2-70b-99.9"],
        "resnet50": ["resnet", "resnet50"],
        "bert": ["bert-99"],
        "3d-unet": ["3d-unet-99.9"],
        "gptj": ["gptj-99"],
        "llama3_1-8b": ["llama3.1-8b"],
        "llama3_1-8b-edge": ["llama3_1-8b-edge"],
        "qwen3.6-27b": ["qwen3.6-27b"],
        "yolo": ["yolo-95"],
    }
    names_of_work = {
        own: [work and work.name for work in map(find_work, names[own])] for own in names
    }

    assert names_of_work == {own: [own] * len(names[own]) for own in names}
    assert find_work("tiny-bert") is None


def test_the_dimensions_give_the_published_parameters() -> None:
    """All but normalisation and biases, which are less than 0.04 %.

    Every second layer of gpt-oss looks back, and one of four of Qwen3.6: what grows is their cache.
    """
    llama = ("llama2-70b", "llama3_1-405b", "llama3_1-8b")
    for name in (*llama, "mixtral-8x7b", "gptj", "gpt-oss-120b", "qwen3-vl-235b-a22b"):
        published = KNOWN[name].parameters
        assert 0 < published - parameters(decode(name)) < 4e-4 * published, name

    billions = {"gpt-oss-120b": 5.1, "qwen3-vl-235b-a22b": 22, "deepseek-r1": 37, "qwen3.6-27b": 27}

    used = {name: decode(name).weights() / 1e9 for name in billions}

    assert used == pytest.approx(billions, rel=0.06)
    assert decode("gpt-oss-120b").kv_bytes(2) == 18 * 2 * 8 * 64 * 2
    assert decode("qwen3.6-27b").kv_bytes(2) == 16 * 2 * 4 * 256 * 2


def parameters(work: Decode) -> float:
    return work.shared + work.experts * work.expert + work.width * work.vocabulary


def test_latent_attention_shared_experts_and_dense_layers_by_hand() -> None:
    """DeepSeek-R1: 671 billion parameters, and a token takes 70 kB of cache.

    Qwen3.6 has one layer of gated attention in four, else the gated delta rule.
    """
    work, qwen = decode("deepseek-r1"), decode("qwen3.6-27b")
    latent = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    dense, shared = 3 * 3 * 7168 * 18432, 58 * (3 * 7168 * 2048 + 256 * 7168)
    gated = 5120 * (2 * 6144 + 2 * 1024) + 6144 * 5120
    delta = 5120 * 16384 + 5120 * 96 + 6144 * 5120

    assert work.shared == 61 * latent + dense + shared + 7168 * 129280
    assert parameters(work) == KNOWN["deepseek-r1"].parameters == pytest.approx(671e9, rel=1e-3)
    assert work.kv_bytes(2) == 61 * 576 * 2
    assert qwen.shared == 16 * gated + 48 * delta + 5120 * 248320


def test_thirty_seconds_of_sound_by_hand() -> None:
    """Whisper: encoder, convolutions, keys and values for the decoder, before the first token."""
    work, width, positions = decode("whisper"), 1280, 1500
    encoder = 32 * (24 * width**2 * positions + 4 * width * positions**2)
    convolutions = 2 * 3 * (3000 * 128 * width + positions * width**2)
    keys_and_values = 32 * 2 * 2 * width**2 * positions

    assert work.sample_flop == encoder + convolutions + keys_and_values
    assert work.sample_flop / 30 == pytest.approx(86.3e9, rel=1e-3)
    assert work.shared == 32 * 6 * width**2 + width * 51866
    short, long = (work.least_token(Circumstances(output_tokens=n)) for n in (1, 100))
    assert short - work.token_flop == pytest.approx(100 * (long - work.token_flop))
    assert work.smallest == work.token_flop + work.sample_flop


def test_a_generated_token_and_a_batch_that_hits_more_experts() -> None:
    """Twice the weights that it uses, attention over each earlier one, keys and values.

    Mixtral in fp16: the reads of a step with even routing. Skewed routing reads less than
    even routing; the certain limit relies on neither.
    """
    for name, flop, context, kv in (
        ("llama2-70b", 137.43e9, 2.62e6, 327_680),
        ("mixtral-8x7b", 25.50e9, 0.52e6, 131_072),
        ("gptj", 11.69e9, 0.46e6, 458_752),
    ):
        work = decode(name)
        assert work.token_flop == pytest.approx(flop, rel=3e-4)
        assert work.context_flop == pytest.approx(context, rel=1e-2)
        assert work.kv_bytes(2) == kv

    work = decode("mixtral-8x7b")
    gigabytes = {1: 25.5, 2: 42.4, 4: 64.6, 8: 84.1, 16: 92.2}

    weights_gb = {batch: work.weights(batch) * 2 / 1e9 for batch in gigabytes}

    assert weights_gb == pytest.approx(gigabytes, abs=0.05)
    assert work.weights() == pytest.approx(work.weights(1))
    assert work.weights() < work.weights(64) <= work.shared + 8 * work.expert


def test_decoding_llama_on_one_h200_in_fp8() -> None:
    """Bound by memory up to about 256 sequences of 436 tokens, then by compute.

    A prompt is about the peak over twice the parameters.
    """
    has, work = hardware(H200, Circumstances(precision="fp8", kv="fp8")), decode("llama2-70b")
    rates = {1: 69.8, 8: 554, 64: 4192, 256: 14_124, 806: 14_281}
    by_hand = 1978.9e12 / (137_426_370_560 - 524_288_000 + 2_621_440 * 291 / 2)

    rates_found = {batch: decode_rate(work, has, batch=batch, context=436) for batch in rates}
    prompt = prefill_rate(work, has, length=290)

    assert rates_found == pytest.approx(rates, rel=1e-3)
    assert prompt == pytest.approx(by_hand, rel=1e-9)
    assert prompt == pytest.approx(1978.9e12 / (2 * 68.7e9), rel=2e-2)


def test_an_encoder_and_the_cross_layers_of_a_recommender_by_hand() -> None:
    """BERT: 24 d^2 s + 4 d s^2 in each of 24 layers; 384 would be padding.

    The products of one pair of DLRM v2: two MLPs and three cross layers of low rank.
    """
    work = KNOWN["bert"].work
    assert isinstance(work, Encoder)
    gigaflop = {384: 246.4, 177: 110, 128: 78.9}
    lengths = (100, 250)
    mean_flop = sum(work.flop(length) for length in lengths) / 2

    assert {n: work.flop(n) / 1e9 for n in gigaflop} == pytest.approx(gigaflop, abs=0.06)
    assert work.flop(175.0, (100**2 + 250**2) / 2) == pytest.approx(mean_flop)
    assert work.flop(175.0) < mean_flop

    def mlp(*sizes: int) -> int:
        return sum(a * b for a, b in itertools.pairwise(sizes))

    values = 27 * 128
    products = mlp(13, 512, 256, 128) + 3 * 2 * values * 512 + mlp(values, 1024, 1024, 512, 256, 1)
    work = KNOWN["dlrm-v2"].work
    assert isinstance(work, Parts)
    assert work.part_flop == 2 * products


def test_a_sample_needs_at_least() -> None:
    """FLOP of the mean sample as the reference prints them; a single one may be smaller."""
    for name, flop, smallest in (
        ("resnet50", 8.178e9, 8.178e9),
        ("retinanet", 402.4e9, 402.4e9),
        ("3d-unet", 15.7 * 954.6e9, 954.6e9),
        ("stable-diffusion-xl", 281.1e12, 281.1e12),
        ("dlrm-v2", 8.66e9, 32.06e6),
        ("bert", 78.9e9, 0.604e9),
        ("yolo", 52.14e9, 217.25e6),
        ("rgat", 3.579e6, 1024),
        ("e2e-rag-db", 741.7e9, 17.36e9),
        ("wan-2.2-t2v-a14b", 261.6e15, 261.6e15),
    ):
        work, typical = KNOWN[name].work, Circumstances(**KNOWN[name].typical)  # type: ignore[arg-type]
        least = work.least(Circumstances())
        assert work.least(typical) == pytest.approx(flop, rel=1e-3), name
        assert work.smallest == least == pytest.approx(smallest, rel=1e-3), name


def test_calls_for_a_video_and_an_image_by_hand() -> None:
    """Wan: 40 layers over 75,600 tokens of it and 512 of text, and less than 1e-4 around them.

    SDXL: 20 steps, two calls each for guidance, the VAE, and two prompts.
    """
    video, image = (KNOWN[name].work for name in ("wan-2.2-t2v-a14b", "stable-diffusion-xl"))
    assert isinstance(video, Diffusion)
    assert isinstance(image, Diffusion)
    width, hidden, tokens, text = 5120, 13824, 21 * 45 * 80, 512
    products = 2 * tokens * (6 * width**2 + 2 * width * hidden) + 4 * text * width**2
    attention = 4 * width * tokens * (tokens + text)

    assert video.call_flop == pytest.approx(40 * (products + attention), rel=1e-4)
    assert image.call_flop == pytest.approx(6.761e12, rel=1e-4)
    assert image.least(Circumstances()) == pytest.approx(40 * 6.761e12 + 10.69e12, rel=1e-4)


def test_observed_sizes_below_the_data_set_s_lower_the_certain_work() -> None:
    """A part of the data set may have shorter samples than the whole: nothing is certain then.

    A fixed network knows its estimate, and others need the run's sizes."""
    bert, unet, llama = (KNOWN[name].work for name in ("bert", "3d-unet", "llama2-70b"))
    assert isinstance(bert, Encoder)

    assert bert.least(Circumstances(tokens=60)) == bert.flop(60)
    assert bert.least(Circumstances(tokens=300)) == bert.flop(128)
    assert unet.least(Circumstances(parts=8)) == 8 * 954.6e9
    assert KNOWN["resnet50"].work.estimate(Circumstances()) == 8178368512
    assert bert.estimate(Circumstances()) is unet.estimate(Circumstances()) is None
    assert llama.estimate(Circumstances(input_tokens=290)) is None
    assert llama.estimate(Circumstances(output_tokens=290)) is None
    assert Fixed(sample_flop=8e9, share=0.25).least(Circumstances()) == 2e9

    for figures, message in (
        ({"gpus": 0}, "gpus is 0; must be at least 1"),
        ({"batch": 0.5}, "batch is 0.5; must be at least 1"),
        ({"work_share": 1.5}, "work_share is 1.5; must be above 0 and at most 1"),
        ({"work_share": 0}, "work_share is 0; must be above 0 and at most 1"),
        ({"input_tokens": -1}, "input_tokens is -1; must be finite, at least 0"),
        ({"output_tokens": math.nan}, "output_tokens is nan; must be finite, at least 0"),
        ({"gpus": 2, "replica_gpus": 4}, "replica_gpus is 4; must be at most gpus, 2"),
    ):
        with pytest.raises(ValueError, match=message):
            Circumstances(**figures)


def test_beams_share_the_prompt_and_cached_beginnings_of_prompts_need_no_work() -> None:
    gptj, llama = decode("gptj"), decode("llama2-70b")
    prompt = 780 / 69 * gptj.prompt_flop(780)
    tokens = 4 * (gptj.token_flop + gptj.context_flop * (780 + 34.5))
    beams = gptj.estimate_token(Circumstances(input_tokens=780, output_tokens=69))
    whole, half, cached = (
        llama.estimate_token(Circumstances(input_tokens=1000, output_tokens=1, cached_tokens=count))
        or 0.0
        for count in (0, 500, 1000)
    )

    assert beams == pytest.approx(prompt + tokens)
    assert cached == pytest.approx(llama.token_flop + llama.context_flop * 1000.5)
    assert half - cached > (whole - cached) / 2
