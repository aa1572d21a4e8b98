"""Results as one HTML page: verdicts first, then what they rest on, as plots and as tables."""

from pytest_mlperf.reports.html._beside import page_of
from pytest_mlperf.reports.html._page import render

__all__ = ["page_of", "render"]
