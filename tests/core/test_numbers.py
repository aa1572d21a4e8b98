"""Numbers look the same in every table and message."""

from __future__ import annotations

from pytest_mlperf.core.numbers import MINUS, change, interval, limit, percent, quantity, rounded


def test_a_change_is_signed_and_its_mirror_differs_in_its_sign_only() -> None:
    """A minus is as wide as a plus; an interval names its unit once."""
    changes = {0.021: "+2.1 %", -0.021: "−2.1 %", 0.0: "+0.0 %", 0.0004: "+0.0 %"}
    changes |= {-0.0004: "−0.0 %", 0.9994: "+99.9 %", 0.9996: "+100 %", -0.5: "−50.0 %"}
    changes |= {12.345: "+1234 %"}
    ends = {(-0.069, -0.057): "−6.9 to −5.7 %", (-0.005, 0.006): "−0.5 to +0.6 %"}
    ends |= {(-0.5, 2.0): "−50.0 to +200 %"}

    assert {share: change(share) for share in changes} == changes
    assert {pair: interval(*pair) for pair in ends} == ends
    for share in filter(None, changes):
        assert change(share)[1:] == change(-share)[1:]
        assert {change(share)[0], change(-share)[0]} == {"+", MINUS}
    assert MINUS == "\u2212"


def test_a_limit_has_the_sign_of_what_is_worse_and_a_share_none() -> None:
    limits = {("throughput", 0.03): "−3 %", ("samples_per_joule", 0.05): "−5 %"}
    limits |= {("latency_p99", 0.1): "+10 %", ("ttft_p50", 0.025): "+2.5 %", ("top1", 0.01): "−1 %"}
    limits |= {("perplexity", -0.0101): "+1.01 %"}
    shares = {0.03: "3 %", 0.041: "4.1 %", 0.0412: "4.12 %", 1.5: "150 %", 0.5: "50 %"}

    assert {pair: limit(*pair) for pair in limits} == limits
    assert {share: percent(share) for share in shares} == shares


def test_quantities_and_derived_values_have_four_digits() -> None:
    rates = {24_118.4: "24,118", 1_234_567.0: "1,234,567", 1000.0: "1,000", 999.96: "1,000"}
    rates |= {13.0: "13", 0.123456: "0.1235"}
    times = {12.3456: "12.35 s", 1.0: "1 s", 0.99999: "1 s", 0.123456: "123.5 ms", 0.001: "1 ms"}
    times |= {0.0001234: "123.4 µs", 0.00000005: "0.05 µs"}
    texts = {118.4045: "118.4", 20138.6: "20,139", 0.00236858: "0.002369", 999.96: "1,000"}
    texts |= {1000.4: "1,000", 0.0: "0", 69.0: "69"}

    assert {value: quantity("throughput", value) for value in rates} == rates
    assert {value: quantity("latency_p99", value) for value in times} == times
    assert (quantity("ttft_p50", 2.0), quantity("top1", 76.456)) == ("2 s", "76.46")
    assert {value: rounded(value) for value in texts} == texts
