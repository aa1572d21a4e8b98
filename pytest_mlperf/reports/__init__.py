"""Format a session's results as table rows, texts and report files."""

from pytest_mlperf.core.addons import Format

TEXT = Format(module=f"{__name__}.terminal.text")
JSON = Format(module=f"{__name__}.json_results")
