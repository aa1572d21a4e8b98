"""Results as one HTML page: verdicts first, then what they rest on, as plots and as tables."""

from pytest_mlperf.reports.html.page import render

__all__ = ["render"]
