"""Test that HSTU ranks by its equations in any batching, and names inputs that do not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_mlperf.adapters.engines.torch.module.hstu import Hstu, HstuSizes
from pytest_mlperf.core.errors import RunError
from tests.adapters.engines.torch import modules
from tests.adapters.engines.torch.models import Change, broken_but_accepted, config_with
from tests.refusals import unrefused

SIZES = HstuSizes(
    num_items=40,
    num_users=10,
    num_categories=4,
    embedding_dim=8,
    num_layers=2,
    num_heads=2,
    attention_dim=4,
    linear_dim=4,
    hidden_dim=8,
)


def request(seed: int, actions: int = 5, candidates: int = 3) -> dict[str, Any]:
    drawing = np.random.RandomState(seed)
    return {
        "step": seed,
        "query": 100_000 + seed,
        "user": drawing.randint(10),
        "history": drawing.randint(0, 40, actions),
        "ratings": drawing.uniform(1, 5, actions),
        "candidates": drawing.randint(0, 40, candidates),
        "labels": drawing.randint(0, 2, candidates),
    }


REQUESTS = [request(seed, 2 + seed, 1 + seed % 4) for seed in range(8)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    return modules.write_model(tmp_path, "dlrm-v3", SIZES, Hstu(SIZES))


def answers(model: Path, requests: list[dict[str, Any]], **options: Any) -> list[Any]:
    """Return the rows that the engine logs."""
    return modules.answer(requests, "dlrm-v3", model=str(model), **options)


def test_a_row_has_the_form_of_mlperfs_log(model: Path) -> None:
    for sent, row in zip(REQUESTS, answers(model, REQUESTS), strict=True):
        count = len(sent["candidates"])
        assert len(row) == 3 + 3 * count
        assert (row[0], row[1], row[-1]) == (sent["step"], sent["query"], count)
        assert row[2 + count : 2 + 2 * count].tolist() == sent["labels"].tolist()
        assert (row[2 + 2 * count : -1] == 1).all()
        assert ((row[2 : 2 + count] > 0) & (row[2 : 2 + count] < 1)).all()


def test_answers_are_those_of_a_request_alone(model: Path) -> None:
    together, alone = answers(model, REQUESTS, batch_size=8), answers(model, REQUESTS, batch_size=1)

    for row, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(row, other, rtol=1e-5)


def test_a_candidate_sees_the_past_and_no_other_candidate(model: Path) -> None:
    sent = request(3, 4, 3)
    fewer = {**sent, "candidates": sent["candidates"][:1], "labels": sent["labels"][:1]}
    other = {**sent, "ratings": 6 - sent["ratings"]}

    whole, first, changed = answers(model, [sent, fewer, other], batch_size=1)

    assert first[2] == pytest.approx(whole[2], rel=1e-5)
    assert abs(changed[2] - whole[2]) > 1e-6


def test_a_layer_follows_the_equations_of_the_paper() -> None:
    torch.manual_seed(2)
    sizes = dataclasses.replace(SIZES, num_heads=1)
    module = Hstu(sizes).eval()
    layer, hidden = module.layers[0], torch.randn(1, 4, 8)
    past, candidates = torch.tensor([[1, 1, 1, 0]]).bool(), torch.tensor([[0, 0, 0, 1]]).bool()
    with torch.no_grad():
        computed = layer(hidden, module._sees(past, candidates).float())[0]
        normed = torch.nn.functional.layer_norm(hidden[0], [8])
        gate, values, queries, keys = torch.nn.functional.silu(layer.inward(normed)).split(4, -1)
        for part in range(4):
            seen = range(part + 1)  # of the candidate: the past and itself
            weights = [torch.nn.functional.silu(queries[part] @ keys[n] / 2) / 3 for n in seen]
            attended = sum(weight * values[n] for weight, n in zip(weights, seen, strict=True))
            result = torch.nn.functional.layer_norm(attended, [4]) * gate[part]
            expected = hidden[0, part] + layer.outward(result)
            torch.testing.assert_close(computed[part], expected)


def test_the_same_dummy_weights_every_time(model: Path) -> None:
    first, again = (answers(model, REQUESTS, weights="dummy") for _ in range(2))

    assert all(map(np.array_equal, first, again))


def test_a_narrower_type_changes_predictions_alone(model: Path) -> None:
    requests = [{**each, "query": 16_777_215} for each in REQUESTS]
    narrow_rows = answers(model, requests, precision="bf16")
    for wide, narrow in zip(answers(model, requests), narrow_rows, strict=True):
        count = int(wide[-1])
        assert narrow[1] == 16_777_215
        assert np.array_equal(wide[2 + count :], narrow[2 + count :])
        np.testing.assert_allclose(wide[2 : 2 + count], narrow[2 : 2 + count], atol=0.02)


def test_a_sample_or_a_model_that_does_not_fit_is_named(model: Path, tmp_path: Path) -> None:
    table: list[tuple[Any, str]] = [
        ({**request(1), "user": 10}, "has users up to number 10, but the model's table has"),
        ({**request(1), "candidates": np.array([40, 1, 2])}, "the model's table has 40 items"),
        ({"dense": np.zeros(3)}, "is not a request; use the data set streaming"),
    ]
    rows = [(sample, f"sample 1 of the data set .*{text}") for sample, text in table]
    assert unrefused(lambda sample: answers(model, [request(0), sample]), RunError, rows) == []
    models: list[tuple[Change, str]] = [
        (config_with(**change), problem)
        for change, problem in (
            ({"model_type": "dlrm-v2"}, "has model_type 'dlrm-v2', but this factory"),
            ({"num_layers": 3}, "the checkpoint lacks layers.2"),
            ({"num_items": 41}, "items.weight is .* and should be"),
            ({"num_items": 3}, "is above num_items = 3; correct"),
        )
    ]
    scratch = tmp_path.parent
    assert broken_but_accepted(model, scratch, lambda at: answers(at, REQUESTS), models) == []
