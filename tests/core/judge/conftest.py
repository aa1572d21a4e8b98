"""Before any rule is tested: every metric that gets twice as bad must fail."""

from __future__ import annotations

import pytest

from tests.core.judge.directions import faults


@pytest.fixture(scope="session", autouse=True)
def every_metric_fails_when_it_is_twice_as_bad() -> None:
    """Stop here when a direction is wrong: every other result would be about another tool."""
    found = list(faults())
    if found:
        pytest.fail("a worsening is not seen: " + "; ".join(found), pytrace=False)
