"""Test that the synthetic data set consists of numbers that depend on its parameters."""

from __future__ import annotations

import pytest

from pytest_mlperf.builtin.synthetic import SyntheticDataset
from pytest_mlperf.core.errors import SuiteError


def test_sample_i_is_i_and_the_digest_tells_parameters_apart() -> None:
    dataset = SyntheticDataset(samples=3)
    assert len(dataset) == 3
    assert [dataset.input(i) for i in range(3)] == [0, 1, 2]
    assert [dataset.reference(i) for i in range(3)] == [0, 1, 2]
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"{index} of 3"):
            dataset.input(index)
    with pytest.raises(SuiteError, match="samples=0"):
        SyntheticDataset(samples=0)
    sets = [
        SyntheticDataset(samples=3),
        SyntheticDataset(samples=4),
        SyntheticDataset(samples=3, seed=1),
    ]
    assert len({dataset.digest for dataset in sets}) == 3
    assert SyntheticDataset(path="somewhere", samples=3).digest == sets[0].digest
    assert len(bytes.fromhex(sets[0].digest)) == 32
