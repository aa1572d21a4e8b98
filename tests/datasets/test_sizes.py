"""The means that decide a run's physical limit, beside what the samples themselves show."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pytest_mlperf.run.worker.samples import sizes
from pytest_mlperf.run.worker.worker import build
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import dataset_of

TINY = Path(__file__).resolve().parents[2] / "suites" / "tiny"


def _tokens(sample: Any) -> int:
    return int(sample["input_mask"].sum())


def _windows(sample: Any) -> int:
    return math.prod(max(math.ceil(side / 64) - 1, 1) for side in sample.shape[1:])


@pytest.mark.parametrize(
    ("suite", "name", "of"),
    [
        ("llama2-70b", "input_tokens", len),
        ("mixtral-8x7b", "input_tokens", len),
        ("bert", "tokens", _tokens),
        ("bert", "tokens_squared", lambda sample: _tokens(sample) ** 2),
        ("3d-unet", "parts", _windows),
        ("dlrm-v2", "parts", lambda sample: len(sample["dense"])),
    ],
)
def test_sizes_are_the_means_over_the_samples_that_are_used(
    suite: str, name: str, of: Callable[[Any], float]
) -> None:
    """LoadGen draws from the first ones only."""
    path = TINY / f"{suite}.mlperf.toml"
    factory = dataset_of(plan_suite(path)[0])
    dataset = build("dataset", factory)
    used = range(min(5, len(dataset)))

    found = sizes(dataset, len(used))[name]

    assert found == pytest.approx(fmean(of(dataset.input(index)) for index in used))


def test_a_data_set_need_not_tell() -> None:
    (path,) = TINY.glob("resnet50*.mlperf.toml")
    factory = dataset_of(plan_suite(path)[0])

    assert sizes(build("dataset", factory), 5) == {}
