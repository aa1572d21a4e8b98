"""Results as one HTML page: verdicts first, then what they rest on; and a store as a site."""

from pytest_mlperf.reports.html._beside import page_of
from pytest_mlperf.reports.html._page import render
from pytest_mlperf.reports.html._site import site_cases, write_site

__all__ = ["page_of", "render", "site_cases", "write_site"]
