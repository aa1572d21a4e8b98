"""Test the tiny Qwen3-VL: it recognises pictures, and its score falls when it is damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.shopify import ShopifyDataset
from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.adapters.scorers.category_f1 import CategoryF1Scorer
from pytest_mlperf.core.errors import SuiteError
from tests.suites.tiny_twin import TINY, Twin, ask, load_tool, twin_marks

pytestmark = [*twin_marks("torch", "transformers", "pyarrow"), pytest.mark.torch]
SUITE = "qwen3-vl"


def f1(twin: Twin, answers: Sequence[bytes], references: Sequence[str] | None = None) -> float:
    scorer = CategoryF1Scorer(model=str(twin.model))
    return scorer.score(answers, references or twin.references).aggregate["f1"]


def test_answers_to_other_products_are_far_worse(twin: Twin, answers: list[bytes]) -> None:
    others = answers[1:] + answers[:1]

    assert f1(twin, others) == pytest.approx(twin.training["chance"]["f1"], abs=0.08)
    assert twin.training["chance"]["f1"] < twin.training["chance"]["listed"] < 0.5


def test_its_answers_are_the_json_that_is_asked_for(twin: Twin, answers: list[bytes]) -> None:
    """Nearly each names a category that its prompt lists, and all the brand of its title."""
    fields = [json.loads(text) for text in twin.texts(answers)]
    instructions = [
        twin.dataset.input(index)["messages"][1]["content"][0]["text"]
        for index in range(len(fields))
    ]

    assert all(list(each) == ["category", "brand", "is_secondhand"] for each in fields)
    pairs = list(zip(fields, instructions, strict=True))
    assert sum(json.dumps(each["category"]) in text for each, text in pairs) > 0.97 * len(pairs)
    assert all(each["brand"] in text for each, text in pairs)


class Swapped:
    """Products with the texts of their own and the pictures of the next ones."""

    def __init__(self, dataset: ShopifyDataset, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __len__(self) -> int:
        return self._count

    def input(self, index: int) -> dict[str, Any]:
        request = self._dataset.input(index)
        other = self._dataset.input((index + 1) % self._count)
        text, picture = request["messages"][1]["content"][0], other["messages"][1]["content"][1]
        return {"messages": [request["messages"][0], {"role": "user", "content": [text, picture]}]}


@pytest.mark.nightly
def test_the_picture_decides_and_not_the_text(twin: Twin) -> None:
    """With another product's picture the right category, which is listed, is hardly chosen."""
    count = 64

    answers = ask(TorchEngine(**twin.engine_options(Swapped(twin.dataset, count))), count)

    assert f1(twin, answers, twin.references[:count]) < 0.6


def test_continuous_batching_takes_no_pictures(twin: Twin) -> None:
    engine = TorchEngine(**twin.engine_options(twin.dataset, batching="continuous"))

    with pytest.raises(SuiteError, match='batching = "continuous" supports no pictures'), engine:
        pass


def test_it_is_of_qwen3_vls_class(twin: Twin) -> None:
    config = twin.config()

    assert config["architectures"] == ["Qwen3VLMoeForConditionalGeneration"]
    assert config["text_config"]["num_experts_per_tok"] < config["text_config"]["num_local_experts"]
    assert config["vision_config"]["deepstack_visual_indexes"]


def test_its_tables_are_those_that_it_was_scored_on(twin: Twin) -> None:
    rows = [("data", "scores"), ("data-interactive", "interactive")]
    for folder, scores in rows:
        dataset = ShopifyDataset(path=str(TINY / twin.name / folder))
        assert dataset.digest == twin.training[scores]["digest"]


def test_its_pictures_are_drawn_by_its_script(twin: Twin) -> None:
    tool = load_tool("tiny_catalogue")
    random = tool.Random(f"{twin.training['seed']} held out")
    drawn = [tool.draw(random) for _ in range(len(twin.references))]

    assert [product.category for product in drawn] == twin.references
    assert {product.category for product in drawn} <= set(tool.leaves())
    titles = [product.title for product in drawn]
    for index in (0, len(titles) - 1):
        assert titles[index] in twin.dataset.input(index)["messages"][1]["content"][0]["text"]
