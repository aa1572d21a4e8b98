"""Numbers look the same in every table and message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.numbers import MINUS, change, interval, limit, percent, quantity, rounded


def test_a_change_is_signed() -> None:
    """A minus is as wide as a plus."""
    changes = {0.021: "+2.1 %", -0.021: "−2.1 %", 0.0: "+0.0 %", 0.0004: "+0.0 %"}
    changes |= {-0.0004: "−0.0 %", 0.9994: "+99.9 %", 0.9996: "+100 %", -0.5: "−50.0 %"}
    changes |= {12.345: "+1234 %"}

    assert {share: change(share) for share in changes} == changes
    assert MINUS == "\u2212"


@given(st.floats(-0.99, 100))
def test_a_change_and_its_mirror_differ_in_their_sign_only(share: float) -> None:
    if share:
        assert change(share)[1:] == change(-share)[1:]
        assert {change(share)[0], change(-share)[0]} == {"+", MINUS}


def test_an_interval_names_its_unit_once() -> None:
    assert interval(-0.069, -0.057) == "−6.9 to −5.7 %"
    assert interval(-0.005, 0.006) == "−0.5 to +0.6 %"
    assert interval(-0.5, 2.0) == "−50.0 to +200 %"


def test_a_limit_has_the_sign_of_what_is_worse() -> None:
    assert limit("throughput", 0.03) == "−3 %"
    assert limit("samples_per_joule", 0.05) == "−5 %"
    assert limit("latency_p99", 0.1) == "+10 %"
    assert limit("ttft_p50", 0.025) == "+2.5 %"
    assert limit("top1", 0.01) == "−1 %"


def test_a_share_has_no_sign_and_no_empty_digits() -> None:
    shares = {0.03: "3 %", 0.041: "4.1 %", 0.0412: "4.12 %", 1.5: "150 %", 0.5: "50 %"}

    assert {share: percent(share) for share in shares} == shares


def test_a_quantity_has_four_digits_and_its_unit() -> None:
    rates = {24_118.4: "24 118", 1_234_567.0: "1 234 567", 1000.0: "1 000", 999.96: "1 000"}
    rates |= {13.0: "13", 0.123456: "0.1235"}
    times = {12.3456: "12.35 s", 1.0: "1 s", 0.99999: "1 s", 0.123456: "123.5 ms", 0.001: "1 ms"}
    times |= {0.0001234: "123.4 µs", 0.00000005: "0.05 µs"}

    assert {value: quantity("throughput", value) for value in rates} == rates
    assert {value: quantity("latency_p99", value) for value in times} == times
    assert (quantity("ttft_p50", 2.0), quantity("top1", 76.456)) == ("2 s", "76.46")


def test_derived_values_have_four_digits() -> None:
    texts = {118.4045: "118.4", 20138.6: "20,139", 0.00236858: "0.002369", 999.96: "1,000"}
    texts |= {1000.4: "1,000", 0.0: "0", 69.0: "69"}

    assert {value: rounded(value) for value in texts} == texts
