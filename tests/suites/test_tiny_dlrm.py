"""Test the tiny DLRM.

Trained, below the score of the true probabilities, and worse when damaged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.suites.tiny_twin import TINY, Twin, load_tool, twin_marks

pytestmark = [*twin_marks("torch", "safetensors"), pytest.mark.torch]
SUITE = "dlrm-v2"

MODEL = TINY / "dlrm-v2" / "model"


@pytest.fixture(scope="module")
def clicks(twin: Twin) -> Any:
    """The logistic model that the data were drawn from."""
    return load_tool("tiny_clicks").Clicks(twin.training["seed"])


def auc(twin: Twin, predictions: list[bytes]) -> float:
    return twin.score(predictions).aggregate["auc"]


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    """Scored again no sample changes."""
    other = answers[1:] + answers[:1]
    same = [np.full(len(each) // 4, 0.5, "<f4").tobytes() for each in answers]
    assert auc(twin, other) == pytest.approx(50, abs=4)
    assert auc(twin, same) == 50
    assert auc(twin, answers) > 50 + 30
    again = twin.answers()
    scores = twin.score(again)
    assert again == answers
    assert np.mean(np.array(scores.per_sample["auc"], float)) == pytest.approx(
        scores.aggregate["auc"], abs=1e-9
    )


def test_the_true_probabilities_are_a_little_better(
    twin: Twin, answers: list[bytes], clicks: Any
) -> None:
    """The AUC that nothing can be expected to exceed, from the committed features themselves."""
    samples = [twin.dataset.input(index) for index in range(len(twin.dataset))]
    true = [
        clicks.log_odds(each["dense"], tuple(each["sparse"])).astype("<f4").tobytes()
        for each in samples
    ]

    bound = auc(twin, true)

    assert bound == pytest.approx(twin.training["bayes_auc"], abs=1e-3)
    assert 0 < bound - auc(twin, answers) < 2


def test_the_data_come_from_the_model_of_clicks(twin: Twin, clicks: Any) -> None:
    drawn = clicks.draw(twin.training["held_out_pairs"], 0)
    labels = np.concatenate(twin.references)
    samples = [twin.dataset.input(index) for index in range(len(twin.dataset))]

    assert len(twin.dataset) == twin.training["samples"] == 400
    assert np.array_equal(labels, drawn.clicked)
    assert labels.sum() == twin.training["clicked"]
    for feature, rows in enumerate(drawn.sparse):
        rows_drawn = np.concatenate([each["sparse"][feature] for each in samples])
        assert np.array_equal(rows_drawn, rows)


def test_its_layers_are_those_of_the_real_one_but_smaller() -> None:
    from pytest_mlperf.adapters.engines.torch.module.dlrm import LayerSizes, read_sizes

    sizes, official = read_sizes(MODEL), LayerSizes()

    assert sizes.dense_features == official.dense_features
    assert sizes.dcn_num_layers == official.dcn_num_layers
    assert sizes.dcn_low_rank_dim < official.dcn_low_rank_dim
    for name in ("num_embeddings_per_feature", "hotness"):
        tiny_tables, theirs = getattr(sizes, name), getattr(official, name)
        assert len(tiny_tables) == len(theirs) == 26
        assert all(few <= many for few, many in zip(tiny_tables, theirs, strict=True))
