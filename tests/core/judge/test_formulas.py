"""Student's t without scipy, against scipy 1.17's figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.judge.formulas import t_isf, t_sf


def test_quantile_and_tail_equal_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for df in (1.0, 1.5, 2.0, 3.0, 4.5, 5.0, 11.0, 14.0, 60.0, 250.0, 1023.0, 24575.0):
        for p in (0.4, 0.05, 0.01, 0.0025, 0.0005, 1e-8):
            expected = float(stats.t.isf(p, df))
            assert t_isf(p, df) == pytest.approx(expected, rel=1e-9, abs=0)
            assert t_sf(expected, df) == pytest.approx(p, rel=1e-9, abs=0)


def test_quantiles_are_those_of_scipy_as_it_printed_them() -> None:
    """scipy 1.17's figures, for where it is not installed."""
    printed = {
        (0.4, 1.0): 0.32491969623290634,
        (0.0005, 1.5): 82.84744670365761,
        (0.01, 2.0): 6.964556734283274,
        (1e-08, 4.5): 86.63397656799835,
        (0.0025, 11.0): 3.496614173253672,
        (0.05, 14.0): 1.7613101357748915,
        (0.0005, 60.0): 3.4602004691963555,
        (1e-08, 24575.0): 5.613856905664491,
    }

    for (p, df), expected in printed.items():
        assert t_isf(p, df) == pytest.approx(expected, rel=1e-9, abs=0)
        assert t_sf(expected, df) == pytest.approx(p, rel=1e-9, abs=0)


@given(p=st.floats(1e-12, 0.999), df=st.floats(1, 1e5))
def test_tail_of_the_quantile_is_the_probability(p: float, df: float) -> None:
    assert t_sf(t_isf(p, df), df) == pytest.approx(p, rel=1e-8)


@given(t=st.floats(allow_nan=False), df=st.floats(0.1, 1e5))
def test_tails_are_probabilities_and_symmetric(t: float, df: float) -> None:
    assert 0 <= t_sf(t, df) <= 1
    assert t_sf(t, df) + t_sf(-t, df) == pytest.approx(1)


@given(t=st.floats(-6, 6), df=st.floats(1, 1e4))
def test_the_tail_gets_smaller_outwards(t: float, df: float) -> None:
    assert t_sf(t + 0.01, df) < t_sf(t, df)


def test_the_median_is_zero_and_what_is_outside_the_domain_is_refused() -> None:
    outside = [(0.0, 5.0), (1.0, 5.0), (math.nan, 5.0), (0.1, 0.5), (0.1, math.inf)]

    assert (t_isf(0.5, 7.0), t_sf(0.0, 7.0)) == (0.0, 0.5)
    for p, df in outside:
        with pytest.raises(ValueError, match="p must lie in"):
            t_isf(p, df)
    for t, df in ((math.nan, 5.0), (1.0, 0.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="df positive"):
            t_sf(t, df)
