"""Drawn tokens: as often as their shares say, and by numbers of their sample alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.torch._sampling import sample_tokens
from pytest_mlperf.core.errors import SuiteError
from tests.adapters.engines.torch.models import MIXED, answers, describe

STEPS = 4000
EVENLY = (torch.arange(STEPS, dtype=torch.float64) + 0.5) / STEPS
"""Numbers that lie evenly between 0 and 1: each token comes as often as its share says."""

SHARES = [0.5, 0.3, 0.15, 0.05]

WARM: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_new_tokens": 12, "ignore_eos": True}


def shares_of(**options: Any) -> list[float]:
    """Return how often each of four tokens is drawn."""
    scores = torch.tensor([SHARES]).log().expand(STEPS, -1)
    tokens = Counter(sample_tokens(scores, EVENLY, Generation(**options)).tolist())
    return [tokens[token] / STEPS for token in range(len(SHARES))]


def test_tokens_are_drawn_as_often_as_their_shares_say() -> None:
    """top_p keeps the fewest of the likeliest that reach it, the others' shares grow alike."""
    rows: list[tuple[dict[str, Any], list[float]]] = [
        ({"temperature": 1.0}, SHARES),
        ({"temperature": 0.5}, [0.6849, 0.2466, 0.0616, 0.0068]),
        ({"temperature": 2.0}, [0.3790, 0.2936, 0.2076, 0.1199]),
        ({"temperature": 1.0, "top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.5}, [1, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.51}, [0.625, 0.375, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.9, "top_k": 1}, [1, 0, 0, 0]),
        ({"temperature": 1e-3}, [1, 0, 0, 0]),
    ]
    for options, expected in rows:
        assert shares_of(**options) == pytest.approx(expected, abs=1 / STEPS + 1e-4), options


def test_a_seed_gives_the_same_answers_in_any_batch(random: Path) -> None:
    first = answers(random, MIXED, batch_size=4, **WARM)

    assert answers(random, MIXED, batch_size=12, **WARM) == first
    assert answers(random, MIXED, one_by_one=True, **WARM) == first
    unseeded = {**WARM, "seed": None}
    others = [answers(random, MIXED, **options) for options in ({**WARM, "seed": 12}, unseeded)]
    assert len({str(found) for found in (first, *others, answers(random, MIXED, **unseeded))}) == 4


def test_repeats_of_a_question_are_answered_otherwise(random: Path) -> None:
    assert len(set(map(tuple, answers(random, [MIXED[0]] * 8, **WARM)))) == 8


def test_the_likeliest_token_alone_is_the_greedy_answer(random: Path) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    greedy = answers(random, MIXED, batching="static", **options)

    assert answers(random, MIXED, temperature=1.0, top_k=1, **options) == greedy


def test_no_answer_ends_before_its_fewest_tokens(random: Path) -> None:
    lengths: dict[str, Any] = {"min_new_tokens": 6, "max_new_tokens": 9, "batch_size": 5}
    rows = answers(random, MIXED, temperature=2.0, seed=3, **lengths)

    assert {len(row) for row in rows} <= {6, 7, 8, 9}


def test_how_tokens_are_drawn_is_a_fact_of_the_engine(random: Path) -> None:
    names = ("temperature", "top_p", "top_k", "seed")
    facts = describe(random, temperature=1.0, top_p=0.9, seed=7)

    assert [facts[f"generation.{name}"] for name in names] == ["1", "0.9", "none", "7"]
    assert not {f"generation.{name}" for name in names} & set(describe(random, batching="static"))
    with pytest.raises(
        SuiteError, match='batching = "continuous" does not sample tokens, but temp'
    ):
        describe(random, temperature=1.0, batching="continuous")
