"""Test that pytest rewrites only those modules of the plugin that the hooks import at once."""

from __future__ import annotations

import sys

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from pytest_mlperf.plugin import session  # noqa: F401

BEFORE_THE_HOOKS = {
    *("pytest_mlperf.core", "pytest_mlperf.core.addons", "pytest_mlperf.core.errors"),
    *("pytest_mlperf.hookspecs", "pytest_mlperf.plugin", "pytest_mlperf.plugin._unchanged"),
    *(f"pytest_mlperf.plugin.{name}" for name in ("addons", "hooks", "options")),
}


def rewritten() -> set[str]:
    """Return the modules of this package that pytest has rewritten."""
    loaded = {
        name: module for name, module in sys.modules.items() if name.startswith("pytest_mlperf.")
    }
    return {n for n, m in loaded.items() if isinstance(m.__loader__, AssertionRewritingHook)}


def test_the_package_is_imported_as_it_is_written() -> None:
    assert rewritten() <= BEFORE_THE_HOOKS


def test_so_it_is_in_a_session_within_a_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        from pytest_mlperf.cli import calibrate

        def test_a():
            assert type(calibrate.__loader__).__name__ == "SourceFileLoader"
        """
    )
    sys.modules.pop("pytest_mlperf.cli.calibrate", None)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
