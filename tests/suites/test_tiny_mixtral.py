"""The tiny Mixtral: trained on all three parts of the mix, and found out when it is damaged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.scorers.mixtral import MixtralScorer
from pytest_mlperf.adapters.scorers.text import answer as number_of
from pytest_mlperf.suite.plan import plan_suite
from tests.adapters.scorers.test_sandbox import isolation
from tests.suites.tiny_twin import LANGUAGE, TINY, Twin, ids_of, packed, twin_marks

__all__ = ["isolation"]

pytestmark = twin_marks(*LANGUAGE)
SUITE = "mixtral-8x7b"

isolated = pytest.mark.usefixtures("isolation")

ROUGES = ("rouge1", "rouge2", "rougeL")
PARTS = ("OpenOrca", "GSM8K", "MBXP")
END = 2
PROGRAMS = 24
"""How many are run where not all are needed: each takes a process in a sandbox."""


def score(
    twin: Twin, answers: Sequence[bytes], samples: Sequence[int], *, runs: bool = False
) -> dict[str, float]:
    """Return the scores of some samples, each answered with the answer of its place."""
    scorer = MixtralScorer(model=str(twin.model), run_generated_code=runs)
    return dict(scorer.score(answers, [twin.references[sample] for sample in samples]).aggregate)


def of_part(twin: Twin, part: str) -> list[int]:
    """Return the samples of a part."""
    return [
        sample for sample, reference in enumerate(twin.references) if reference["dataset"] == part
    ]


def test_nothing_is_run_unless_asked_for(twin: Twin, answers: list[bytes]) -> None:
    assert twin.planned.scorer is not None
    assert not twin.planned.scorer.options.get("run_generated_code", False)
    assert set(score(twin, answers, range(len(answers)))) == {
        *(*ROUGES, "gsm8k", "tokens_per_sample")
    }


def test_other_answers_of_the_same_kind_are_far_worse(twin: Twin, answers: list[bytes]) -> None:
    chance = twin.training["chance"]
    wrong_scores: dict[str, float] = {}
    for part in ("OpenOrca", "GSM8K"):
        samples = of_part(twin, part)
        others = [answers[sample] for sample in samples[1:] + samples[:1]]
        wrong_scores |= score(twin, others, samples)
    reached = score(twin, answers, range(len(answers)))

    for metric in ROUGES:
        assert wrong_scores[metric] == pytest.approx(chance[metric], abs=8)
        assert wrong_scores[metric] + 25 < reached[metric]
    assert wrong_scores["gsm8k"] < 20
    assert chance["gsm8k"] < 10
    assert reached["gsm8k"] > 80


def test_sums_are_worked_out_and_answers_end(twin: Twin, answers: list[bytes]) -> None:
    written = [twin.texts(answers)[sample] for sample in of_part(twin, "GSM8K")]
    steps = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    sums_by_text = [re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)\.", text) for text in written]
    right = [
        steps[sign](int(a), int(b)) == int(c) for each in sums_by_text for a, sign, b, c in each
    ]
    assert len(right) > len(written)
    assert sum(right) > 0.9 * len(right)
    for text, sums_of_text in zip(written, sums_by_text, strict=True):
        assert number_of(text) == sums_of_text[-1][-1]
    ids = [ids_of(answer) for answer in answers]
    assert sum(one[-1] == END for one in ids) == twin.training["scores"]["ended"] == len(ids)
    for sample in of_part(twin, "MBXP"):
        fence = twin.dataset.stop(sample)
        assert ids[sample][-len(fence) - 1 : -1] == fence


def test_its_suite_says_how_programs_are_scored_too(twin: Twin, tmp_path: Path) -> None:
    text = twin.file.read_text("utf-8")
    comment = " ".join(line.strip("# ") for line in text.splitlines() if line.startswith("#"))
    match = re.search(r"add (run_\S+ = true) here, and (mbxp = [\d.]+) to the reference", comment)
    assert match is not None
    (tmp_path / twin.name).symlink_to(TINY / twin.name)
    changed = tmp_path / twin.file.name
    changed.write_text(
        text.replace('use = "mixtral" }\nref', f'use = "mixtral", {match[1]} }}\nref').replace(
            "reference = { ", f"reference = {{ {match[2]}, "
        ),
        "utf-8",
    )

    (planned, *_) = plan_suite(changed)
    bounds = planned.bounds(())

    assert planned.scorer is not None
    assert planned.scorer.options["run_generated_code"] is True
    assert bounds is not None
    assert bounds["mbxp"].reference == twin.training["scores"]["mbxp"]


@isolated
def test_most_of_its_programs_pass(twin: Twin, answers: list[bytes]) -> None:
    samples = of_part(twin, "MBXP")

    program_scores = score(twin, [answers[sample] for sample in samples], samples, runs=True)

    assert program_scores["mbxp"] == pytest.approx(twin.training["scores"]["mbxp"], abs=2)
    assert program_scores["mbxp"] > 80


@isolated
def test_other_programs_fail_even_under_the_right_name(twin: Twin, answers: list[bytes]) -> None:
    samples = of_part(twin, "MBXP")[:PROGRAMS]
    written = twin.texts(answers)
    others = [
        re.sub(r"^def \w+", f"def {twin.references[sample]['entry_point']}", written[other])
        for sample, other in zip(samples, samples[1:] + samples[:1], strict=True)
    ]
    ids = [twin.tokenizer().encode(other, add_special_tokens=False).ids for other in others]

    program_scores = score(twin, [packed(one) for one in ids], samples, runs=True)

    assert program_scores["mbxp"] < 25
    assert twin.training["chance"]["mbxp"] < 15


def test_it_is_a_mixture_of_experts_as_mixtral(twin: Twin) -> None:
    safetensors = pytest.importorskip("safetensors")
    config = twin.config()
    with safetensors.safe_open(twin.model / "model.safetensors", "np") as file:
        stored = set(file.keys())

    assert config["architectures"] == ["MixtralForCausalLM"]
    assert (config["num_local_experts"], config["num_experts_per_tok"]) == (8, 2)
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}.block_sparse_moe"
        assert {
            f"{block}.experts.{expert}.{name}.weight"
            for expert in range(8)
            for name in ("w1", "w2", "w3")
        } < stored
    assert len(twin.training["expert_use"]) == config["num_hidden_layers"]
    assert min(least for least, _ in twin.training["expert_use"]) > 1


def test_its_table_is_laid_out_as_mlperfs(twin: Twin) -> None:
    """Its prompts are the tokens of their text."""
    pd = pytest.importorskip("pandas")
    table = pd.read_pickle(TINY / "mixtral-8x7b" / "data" / "mixtral" / "mixtral_tiny.pkl")
    assert list(table.columns) == [
        *("dataset", "id", "question", "input", "ref_output", "gt_output", "tok_input"),
        *("tok_ref_output", "stop_sequence", "tok_stop_sequence"),
        *("tok_input_len", "tok_ref_output_len"),
    ]
    parts = Counter(table["dataset"])
    read = Counter(reference["dataset"] for reference in twin.references)
    assert parts == read == twin.training["parts"]
    assert set(parts) == set(PARTS)
    assert len(set(parts.values())) == 1
    assert table["question"].is_unique
    assert (table["tok_input"].map(len) == table["tok_input_len"]).all()
    assert (table["tok_ref_output"].map(len) == table["tok_ref_output_len"]).all()
    stops = table.groupby("dataset")["stop_sequence"].unique().map(list).to_dict()
    assert stops == {"OpenOrca": ["</s>"], "GSM8K": ["</s>"], "MBXP": ["\n```\n"]}
    pd = pytest.importorskip("pandas")
    table = pd.read_pickle(TINY / "mixtral-8x7b" / "data" / "mixtral" / "mixtral_tiny.pkl")
    tokenizer = twin.tokenizer()

    for sample, text in enumerate(table["input"]):
        prompt: list[Any] = tokenizer.encode(text, add_special_tokens=False).ids
        assert twin.dataset.input(sample) == prompt
