"""The tiny GPT-J: trained, summing up by beam search, and found out when it is damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.cnn_dailymail import ALPACA
from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.adapters.scorers.rouge.scorer import RougeScorer
from pytest_mlperf.testing import RecordingSink
from tests.suites.tiny_twin import LANGUAGE, TINY, Twin, ids_of, packed, twin_marks

pytestmark = twin_marks(*LANGUAGE)
SUITE = "gptj"

ROUGES = ("rouge1", "rouge2", "rougeL")
END = 0
SOME = 32
"""How many samples are answered twice."""


@pytest.fixture(scope="module")
def articles() -> list[dict[str, Any]]:
    """What the committed file in the layout of MLPerf's holds."""
    file = TINY / "gptj" / "data" / "cnn-daily-mail" / "cnn_eval.json"
    article_list: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))
    return article_list


def score(twin: Twin, answers: Sequence[bytes]) -> dict[str, float]:
    """Return the scores of these answers, decoded with the twin's tokenizer."""
    scorer = RougeScorer(model=str(twin.model))
    return dict(scorer.score(answers, twin.references).aggregate)


def likelihood(model: Any, prompt: list[int], answer: list[int]) -> float:
    """Return the mean logarithm of the likelihood of an answer's tokens."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).mean())


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    """Each article gets its neighbour's answer; the trainer also took one of the same topic."""
    others = score(twin, [*answers[1:], answers[0]])
    reached, chance = twin.training["scores"], twin.training["chance"]

    for metric in ROUGES:
        assert others[metric] == pytest.approx(chance[metric], abs=8)
        assert others[metric] < reached[metric] - 40
        assert twin.training["chance_same_topic"][metric] < reached[metric] - 20
    ids = [ids_of(answer) for answer in answers]
    ended = sum(one[-1] == END for one in ids)
    assert ended == twin.training["scores"]["ended"] == len(answers)
    assert min(map(len, ids)) >= twin.engine.options["min_new_tokens"]


def test_the_beginning_of_an_article_is_no_summary(
    twin: Twin, articles: list[Any], tokenizer: Any
) -> None:
    leads = [". ".join(article["input"].split(". ")[:2]) for article in articles]

    lead_scores = score(twin, [packed(tokenizer.encode(lead).ids) for lead in leads])

    for metric in ROUGES:
        assert lead_scores[metric] == pytest.approx(twin.training["lead"][metric], abs=0.01)
        assert lead_scores[metric] < twin.gate(metric) - 20


def test_it_states_the_right_facts(twin: Twin, answers: list[bytes], tokenizer: Any) -> None:
    facts = re.compile(r"\d+|[A-Z]\w+")
    right = facts_asked = 0
    for answer, reference in zip(answers, twin.references, strict=True):
        expected = set(facts.findall(reference)) - {"After", "For", "In", "It", "On", "Over", "The"}
        right += len(expected & set(facts.findall(tokenizer.decode(ids_of(answer)))))
        facts_asked += len(expected)

    assert facts_asked > 2 * len(answers)
    assert right > 0.9 * facts_asked


def test_four_beams_find_likelier_answers_than_one(twin: Twin, answers: list[bytes]) -> None:
    transformers = pytest.importorskip("transformers")
    indices, sink = range(SOME), RecordingSink(SOME)
    options = {**twin.engine.options, "num_beams": 1, "batching": "static"}
    with TorchEngine(
        dataset=twin.dataset, model=str(twin.model), precision="fp32", **options
    ) as engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)
    differing = [index for index in indices if sink.outputs[index] != answers[index]]
    model = transformers.AutoModelForCausalLM.from_pretrained(twin.model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(twin.model)

    def mean_likelihood(index: int, answer: bytes) -> float:
        prompt = tokenizer(twin.dataset.input(index))["input_ids"]
        return likelihood(model, prompt, ids_of(answer))

    better = [
        mean_likelihood(index, answers[index]) > mean_likelihood(index, sink.outputs[index])
        for index in differing
    ]
    assert twin.engine.options["num_beams"] == 4
    assert twin.training["same_with_one_beam"] < 0.5 * len(answers)
    assert len(differing) > 0.4 * SOME
    assert sum(better) > 0.9 * len(better)


def test_it_is_a_gpt_j(twin: Twin) -> None:
    """A quarter to a half of each head is rotated; the output layer is its own, with a bias."""
    safetensors = pytest.importorskip("safetensors")
    config = twin.config()
    with safetensors.safe_open(twin.model / "model.safetensors", "np") as file:
        stored = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118

    assert config["architectures"] == ["GPTJForCausalLM"]
    assert 4 * config["rotary_dim"] >= config["n_embd"] // config["n_head"] > config["rotary_dim"]
    assert not config["tie_word_embeddings"]
    assert stored["lm_head.weight"] == stored["transformer.wte.weight"]
    assert "lm_head.bias" in stored
    # One norm for attention and feed-forward, which run side by side.
    assert {name.split(".")[3] for name in stored if ".h.0." in name} == {"attn", "ln_1", "mlp"}


def test_its_articles_are_laid_out_as_mlperfs(
    twin: Twin, articles: list[Any], tokenizer: Any
) -> None:
    """Prompts are Alpaca's, whose words before and after an article are one token each."""
    assert all(list(article) == ["instruction", "input", "output"] for article in articles)
    assert {article["instruction"] for article in articles} == {
        "Summarize the following news article:"
    }
    assert len({article["input"] for article in articles}) == len(articles)
    assert len(articles) == twin.training["held_out_samples"] == 160
    assert all(3 <= len(re.findall(r"\.", article["input"])) <= 6 for article in articles)
    head, after = ALPACA.replace("{instruction}", articles[0]["instruction"]).split("{input}")
    ends = [tokenizer.token_to_id(text) for text in (head, after)]
    lengths = []
    for index, article in enumerate(articles):
        text = twin.dataset.input(index)
        assert text == head + article["input"] + after
        ids = tokenizer.encode(text).ids
        assert ids == [ends[0], *tokenizer.encode(article["input"]).ids, ends[1]]
        lengths.append(len(ids))
    assert [min(lengths), max(lengths)] == twin.training["prompt_tokens"]
    assert max(lengths) <= 120
