"""Report results to GitHub: a job's summary, a pull request's comment, annotations."""

from pytest_mlperf.extension import Format

MARKDOWN = Format(module=f"{__name__}.markdown")
COMMENT = Format(module=f"{__name__}.comment")
WORKFLOW_COMMANDS = Format(module=f"{__name__}.annotations")
