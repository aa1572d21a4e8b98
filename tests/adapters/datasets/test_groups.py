"""Which samples of a data set belong together, and the means that decide a run's limit."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.run.worker.samples import Samples, groups_of, sizes
from pytest_mlperf.run.worker.worker import build
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of
from tests.adapters.datasets.refusals import not_refused

TINY = Path(__file__).resolve().parents[3] / "suites" / "tiny"


class Labelled(Samples):
    """A list whose samples name their groups."""

    def group(self, index: int) -> Any:
        return self._samples[index]


@cache
def tiny(suite: str) -> Any:
    path = min(TINY.glob(f"{suite}*.mlperf.toml"), key=lambda file: len(file.name))
    return build("dataset", dataset_of(plan_suite(path)[0]))


def test_questions_of_squad_belong_to_their_article() -> None:
    """Images and prompts are independent."""
    dataset = tiny("bert")
    groups = groups_of(dataset, range(len(dataset)))

    assert groups is not None
    assert set(groups) == {0, 1, 2, 3}
    assert sum(old != new for old, new in pairwise(groups)) == 3, "in the order of the file"
    for dataset in (tiny("resnet50"), tiny("llama2-70b")):
        assert groups_of(dataset, range(len(dataset))) is None


def test_programs_of_one_problem_belong_together_and_other_answers_to_none() -> None:
    dataset = tiny("mixtral-8x7b")
    parts = [dataset.reference(index) for index in range(len(dataset))]

    for index, part in enumerate(parts):
        expected = part.get("entry_point")
        assert dataset.group(index) == (expected and expected.replace("_", "").casefold())


def test_groups_are_numbered_and_samples_of_no_group_are_alone() -> None:
    rows: list[Any] = [
        (["a", "b", "a", None, None], [0, 1, 0, 8, 9]),
        ([7, 7], [0, 0]),
        (["a", "b", None], None),
        ([None, None], None),
    ]
    for labels, groups in rows:
        assert groups_of(Labelled(labels), range(len(labels))) == groups
    refused = [(label, "group of sample 0 is") for label in (True, 1.5, ["a"])]
    assert not_refused(SuiteError, refused, lambda label: groups_of(Labelled([label]), [0])) == []


def tokens(sample: Any) -> int:
    return int(sample["input_mask"].sum())


def windows(sample: Any) -> int:
    return math.prod(max(math.ceil(side / 64) - 1, 1) for side in sample.shape[1:])


def test_sizes_are_the_means_over_the_samples_that_are_used() -> None:
    """LoadGen draws from the first ones only."""
    rows: list[Any] = [
        ("llama2-70b", "input_tokens", len),
        ("mixtral-8x7b", "input_tokens", len),
        ("bert", "tokens", tokens),
        ("bert", "tokens_squared", lambda sample: tokens(sample) ** 2),
        ("3d-unet", "parts", windows),
        ("dlrm-v2", "parts", lambda sample: len(sample["dense"])),
    ]
    for suite, name, size_of in rows:
        dataset = tiny(suite)
        used = range(min(5, len(dataset)))
        expected = fmean(size_of(dataset.input(index)) for index in used)
        assert sizes(dataset, len(used))[name] == pytest.approx(expected), (suite, name)
    assert sizes(tiny("resnet50"), 5) == {}
