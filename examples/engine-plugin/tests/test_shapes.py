"""The data set is the same everywhere: accepted scores are compared image by image."""

import pytest
from pytest_mlperf import SuiteError
from pytest_mlperf.testing import check_dataset

from mlperf_numpy.shapes import SHAPES, ShapesDataset


def test_images_are_the_same_on_every_machine() -> None:
    assert (
        ShapesDataset(count=64).digest
        == "1d22350a2cbdcbb8c45eb871b5e13b2c7773e87f67e5ab28aef97193599c786f"
    )


def test_the_contract_is_kept() -> None:
    assert len(check_dataset(ShapesDataset, options={"count": 64})) == 64


def test_a_seed_and_a_count_choose_images() -> None:
    one, other = ShapesDataset(count=64), ShapesDataset(count=64, seed=2)

    assert len(one) == 64
    assert one.digest != other.digest
    assert one.input(0).shape == (16, 16)
    assert one.input(0).max() <= 15
    assert {one.reference(index) for index in range(64)} == set(range(len(SHAPES)))


@pytest.mark.parametrize("options", [{"count": 0}, {"noise": 16}, {"seed": 0}])
def test_options_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(SuiteError, match=next(iter(options))):
        ShapesDataset(**options)
