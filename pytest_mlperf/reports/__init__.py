"""Rows, texts and formats of a session's results; two of the formats are the kernel's own."""

from pytest_mlperf.core.addons import Format

TEXT = Format(module=f"{__name__}.terminal.text")
JSON = Format(module=f"{__name__}.json_results")
