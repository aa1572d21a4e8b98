"""Student's t without scipy, against scipy's figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.judge.formulas import t_isf, t_sf


def test_quantile_and_tail_equal_scipy() -> None:
    from scipy.stats import t

    for df in (1.0, 1.5, 2.0, 3.0, 4.5, 5.0, 11.0, 14.0, 60.0, 250.0, 1023.0, 24575.0):
        for p in (0.4, 0.05, 0.01, 0.0025, 0.0005, 1e-8):
            expected = float(t.isf(p, df))
            assert t_isf(p, df) == pytest.approx(expected, rel=1e-9, abs=0)
            assert t_sf(expected, df) == pytest.approx(p, rel=1e-9, abs=0)


@given(
    p=st.floats(1e-12, 0.999),
    t=st.floats(allow_nan=False),
    near=st.floats(-6, 6),
    df=st.floats(1, 1e4),
)
def test_tails_are_symmetric_probabilities_that_get_smaller_outwards(
    p: float, t: float, near: float, df: float
) -> None:
    assert t_sf(t_isf(p, df), df) == pytest.approx(p, rel=1e-8)
    assert 0 <= t_sf(t, df) <= 1
    assert t_sf(t, df) + t_sf(-t, df) == pytest.approx(1)
    assert t_sf(near + 0.01, df) < t_sf(near, df)


def test_the_median_is_zero_and_values_outside_the_domain_are_refused() -> None:
    outside = [(0.0, 5.0), (1.0, 5.0), (math.nan, 5.0), (0.1, 0.5), (0.1, math.inf)]

    assert (t_isf(0.5, 7.0), t_sf(0.0, 7.0)) == (0.0, 0.5)
    for p, df in outside:
        with pytest.raises(ValueError, match="p must lie in"):
            t_isf(p, df)
    for t, df in ((math.nan, 5.0), (1.0, 0.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="df positive"):
            t_sf(t, df)
