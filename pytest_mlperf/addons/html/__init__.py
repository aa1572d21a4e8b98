"""Write the results of a session as an HTML page, and a results database as a website."""

from pytest_mlperf.extension import Format

PAGE_LIBRARIES = {"jinja2": "'pytest-mlperf[html]'", "vl_convert": "'pytest-mlperf[html]'"}

HTML = Format(module=f"{__name__}.report", libraries=PAGE_LIBRARIES)
SITE = Format(module=f"{__name__}.site", libraries=PAGE_LIBRARIES, of_store=True)
