"""Numbers look the same in every table and message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.numbers import MINUS, change, interval, limit, percent, quantity, rounded


def test_a_minus_is_as_wide_as_a_plus() -> None:
    assert MINUS == "\u2212"


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.021, "+2.1 %"),
        (-0.021, "−2.1 %"),
        (0.0, "+0.0 %"),
        (0.0004, "+0.0 %"),
        (-0.0004, "−0.0 %"),
        (0.9994, "+99.9 %"),
        (0.9996, "+100 %"),
        (-0.5, "−50.0 %"),
        (12.345, "+1234 %"),
    ],
)
def test_a_change_is_signed(share: float, expected: str) -> None:
    assert change(share) == expected


@given(st.floats(-0.99, 100))
def test_a_change_and_its_mirror_differ_in_their_sign_only(share: float) -> None:
    if share:
        assert change(share)[1:] == change(-share)[1:]
        assert {change(share)[0], change(-share)[0]} == {"+", MINUS}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.069, -0.057, "−6.9 to −5.7 %"),
        (-0.005, 0.006, "−0.5 to +0.6 %"),
        (-0.5, 2.0, "−50.0 to +200 %"),
    ],
)
def test_an_interval_names_its_unit_once(low: float, high: float, expected: str) -> None:
    assert interval(low, high) == expected


@pytest.mark.parametrize(
    ("metric", "share", "expected"),
    [
        ("throughput", 0.03, "−3 %"),
        ("samples_per_joule", 0.05, "−5 %"),
        ("latency_p99", 0.1, "+10 %"),
        ("ttft_p50", 0.025, "+2.5 %"),
        ("top1", 0.01, "−1 %"),
    ],
)
def test_a_limit_has_the_sign_of_what_is_worse(metric: str, share: float, expected: str) -> None:
    assert limit(metric, share) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.03, "3 %"), (0.041, "4.1 %"), (0.0412, "4.12 %"), (1.5, "150 %"), (0.5, "50 %")],
)
def test_a_share_has_no_sign_and_no_empty_digits(share: float, expected: str) -> None:
    assert percent(share) == expected


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("throughput", 24_118.4, "24 118"),
        ("throughput", 1_234_567.0, "1 234 567"),
        ("throughput", 1000.0, "1 000"),
        ("throughput", 999.96, "1 000"),
        ("throughput", 13.0, "13"),
        ("throughput", 0.123456, "0.1235"),
        ("latency_p99", 12.3456, "12.35 s"),
        ("latency_p99", 1.0, "1 s"),
        ("latency_p99", 0.99999, "1 s"),
        ("latency_p99", 0.123456, "123.5 ms"),
        ("latency_p99", 0.001, "1 ms"),
        ("latency_p99", 0.0001234, "123.4 µs"),
        ("latency_p99", 0.00000005, "0.05 µs"),
        ("ttft_p50", 2.0, "2 s"),
        ("top1", 76.456, "76.46"),
    ],
)
def test_a_quantity_has_four_digits_and_its_unit(metric: str, value: float, expected: str) -> None:
    assert quantity(metric, value) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (118.4045, "118.4"),
        (20138.6, "20,139"),
        (0.00236858, "0.002369"),
        (999.96, "1,000"),
        (1000.4, "1,000"),
        (0.0, "0"),
        (69.0, "69"),
    ],
)
def test_derived_values_have_four_digits(value: float, text: str) -> None:
    assert rounded(value) == text
