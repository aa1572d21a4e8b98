"""How fast SQuAD's answers are scored beside the way of MLPerf's accuracy-squad.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.datasets.squad import SquadDataset
from pytest_mlperf.adapters.scorers.squad import SquadScorer
from tests.adapters.datasets.squad_made_here import logits, squad, write
from tests.adapters.datasets.squad_plain import features
from tests.adapters.scorers.squad_plain import evaluate

PARAGRAPHS, QUESTIONS = 2114, 5
"""10,570 questions as in dev-v1.1.json, here of 11,687 features."""

EVERY = 20
"""The plain way remembers nothing, so the questions of every twentieth feature stand for all."""

ARTICLES = 5
"""Of 53; a plain pass over all would take long."""

ROUNDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a data set of the official size."""
    content, lines = squad(21, paragraphs=PARAGRAPHS, questions=QUESTIONS, odd=0.02)
    return write(tmp_path_factory.mktemp("squad"), content, lines)


def best(work: Callable[[], object]) -> float:
    """Return the shortest processor time of a few: what else runs only adds to it."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.benchmark(group="squad")
def test_answers_are_scored_many_times_as_fast_as_in_the_plain_way(
    benchmark: Any, folder: Path
) -> None:
    """Target: 8 x; processor time."""
    dataset = SquadDataset(path=str(folder))
    references = [dataset.reference(index) for index in range(len(dataset))]
    arrays = [logits(index, 384) for index in range(len(dataset))]
    outputs = [array.tobytes() for array in arrays]
    some = sorted({each["id"] for each in references[::EVERY]})
    chosen = [index for index, each in enumerate(references) if each["id"] in set(some)]
    some_arrays = [arrays[index] for index in chosen]
    some_references = [references[index] for index in chosen]

    plain = best(lambda: evaluate(some_arrays, some_references))
    theirs = plain * len(references) / len(chosen)
    ours = best(lambda: SquadScorer().score(outputs, references))
    benchmark.pedantic(lambda: SquadScorer().score(outputs, references), rounds=1)

    ratio = theirs / ours
    print(
        f"\nSQuAD, {len(references):,} features: {ours:.2f} s, the plain way {theirs:.1f} s, "
        f"{ratio:.0f} x"
    )
    benchmark.extra_info.update({"ours_s": ours, "plain_s": theirs, "ratio": ratio})
    found = SquadScorer().score([outputs[index] for index in chosen], some_references)
    assert found.aggregate == evaluate(some_arrays, some_references)[0]
    assert ratio >= 8


@pytest.mark.benchmark(group="squad")
def test_features_are_made_many_times_as_fast_as_in_the_plain_way(
    benchmark: Any, folder: Path
) -> None:
    """Target: 2 x; processor time; reading and checking the file is in ours only."""
    content = json.loads((folder / "dev-v1.1.json").read_text("utf-8"))
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    some = {**content, "data": content["data"][:ARTICLES]}

    share = len(features(some, lines)) / len(SquadDataset(path=str(folder)))
    theirs = best(lambda: features(some, lines)) / share
    ours = best(lambda: SquadDataset(path=str(folder)))
    benchmark.pedantic(lambda: SquadDataset(path=str(folder)), rounds=1)

    ratio = theirs / ours
    print(f"\nSQuAD, making features: {ours:.2f} s, the plain way {theirs:.1f} s, {ratio:.0f} x")
    benchmark.extra_info.update({"ours_s": ours, "plain_s": theirs, "ratio": ratio})
    assert ratio >= 2
