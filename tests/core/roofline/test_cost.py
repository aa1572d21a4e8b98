"""Cost: what a dollar buys, on every GPU that the model needs."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.roofline.gpu import GpuPrice, fewest_gpus, per_dollar

DAY = date(2026, 11, 1)

prices = st.floats(0.01, 1000)
rates = st.floats(0, 1e9)
counts = st.integers(1, 64)


@pytest.mark.parametrize(
    ("rate", "usd", "printed"),
    [(155, 3.29, 169_600), (110, 2.99, 132_400), (110, 3.93, 100_800), (35, 1.79, 70_400)],
)
def test_a_page_s_arithmetic_holds_for_one_gpu(rate: float, usd: float, printed: int) -> None:
    """Tokens a second x 3600 / dollars an hour."""
    found = per_dollar(rate, GpuPrice(usd_per_gpu_hour=usd, as_of=DAY), gpus=1)

    assert found.value == pytest.approx(printed, abs=60)
    assert (found.gpus, found.price.as_of) == (1, DAY)


def test_the_gpus_that_hold_the_model_and_all_of_a_result_are_paid_for() -> None:
    """138 GB do not fit 80: the page's 132,400 tokens for a dollar are half of that.

    8 copies on 8 GPUs cost 8, though one holds the model.
    """
    needed = fewest_gpus(2 * 68_976_648_192, 80e9)
    found = per_dollar(110, GpuPrice(usd_per_gpu_hour=2.99, as_of=DAY), gpus=1, holding=needed)
    copies = per_dollar(800, GpuPrice(usd_per_gpu_hour=3.6, as_of=DAY), gpus=8, holding=1)

    assert (needed, found.gpus) == (2, 2)
    assert found.value == pytest.approx(132_441 / 2, abs=1)
    assert copies.value == pytest.approx(100_000)
    fewest = [fewest_gpus(weights, 80e9) for weights in (80e9, 80e9 + 1, 1)]
    assert [*fewest, fewest_gpus(7e11, 1.41e11)] == [1, 2, 1, 5]


@given(rates, prices, counts, counts)
def test_more_gpus_for_the_same_rate_buy_less(
    rate: float, usd: float, gpus: int, holding: int
) -> None:
    price = GpuPrice(usd_per_gpu_hour=usd, as_of=DAY)
    one, many = per_dollar(rate, price, gpus=1), per_dollar(rate, price, gpus=gpus, holding=holding)

    assert many.value * max(gpus, holding) == pytest.approx(one.value)


@given(rates, prices, counts)
def test_what_is_bought_costs_what_was_paid(rate: float, usd: float, gpus: int) -> None:
    found = per_dollar(rate, GpuPrice(usd_per_gpu_hour=usd, as_of=DAY), gpus=gpus)

    assert found.value * usd * gpus == pytest.approx(rate * 3600)


@pytest.mark.parametrize("usd", [0, -1, float("nan"), float("inf")])
def test_a_price_is_positive(usd: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        GpuPrice(usd_per_gpu_hour=usd, as_of=DAY)


def test_figures_that_cannot_be() -> None:
    price = GpuPrice(usd_per_gpu_hour=1, as_of=DAY)
    for rate, gpus, holding in ((-1, 1, 1), (float("nan"), 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="must be"):
            per_dollar(rate, price, gpus=gpus, holding=holding)
    for weights, memory in ((0, 1), (1, 0), (-1, 1), (1, float("inf"))):
        with pytest.raises(ValueError, match="must be positive"):
            fewest_gpus(weights, memory)
