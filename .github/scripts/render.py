"""Write merged results for GitHub, with the planned tests that gave none.

They come from other machines, so they are read with limits of size and by their schema.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.merging import absent
from pytest_mlperf.reports import markdown
from pytest_mlperf.reports.annotations import commands
from pytest_mlperf.stores.manifest import read_manifest
from pytest_mlperf.stores.results import read_results

FORMATS = ("markdown", "comment", "annotations")

NOTHING = (
    "**mlperf: failed: no result**\n\nNo machine gave a result that can be read: see the log of the"
    " run.\n"
)


def render(parsed: argparse.Namespace) -> str:
    """Return the text; where there are no results, that there are none.

    Raises:
        MlperfError: A file is defective.
    """
    links = markdown.Links(run=parsed.run_url, report=parsed.report_url)
    if not parsed.results.exists():
        return {
            "markdown": NOTHING,
            "comment": f"{markdown.MARKER}\n{NOTHING}",
            "annotations": "::error::no machine gave a result\n",
        }[str(parsed.format)]
    results = read_results(parsed.results)
    planned = read_manifest(parsed.manifest).tests if parsed.manifest else ()
    missing = absent((one.test for one in planned), results)
    if parsed.format == "markdown":
        return markdown.summary(results, missing)
    if parsed.format == "annotations":
        return commands(results, missing)
    return markdown.comment(results, missing, links=links)


def main() -> int:
    """Print, and return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--run-url")
    parser.add_argument("--report-url")
    try:
        print(render(parser.parse_args()), end="")
    except MlperfError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
