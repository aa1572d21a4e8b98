"""Results as one HTML page, and a store as a site."""

from pytest_mlperf.core.addons import Format

LIBRARIES = {"jinja2": "'pytest-mlperf[html]'", "vl_convert": "'pytest-mlperf[html]'"}

HTML = Format(module=f"{__name__}.report", libraries=LIBRARIES)
SITE = Format(module=f"{__name__}.site", libraries=LIBRARIES, of_store=True)
