"""`pytest-mlperf report` for GitHub, also where no machine gave a result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_mlperf.addons.github.comment import MARKER
from pytest_mlperf.cli import main as pytest_mlperf

FORMATS = ("markdown", "comment", "annotations")

NOTHING = (
    "**mlperf: failed: no result**\n\nNo machine gave a result that can be read: see the log of the"
    " run.\n"
)


def main(arguments: Sequence[str]) -> int:
    """Print, and return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parsed, _ = parser.parse_known_args(arguments)
    if parsed.results.exists():
        return pytest_mlperf(["report", *arguments])
    print(
        {
            "markdown": NOTHING,
            "comment": f"{MARKER}\n{NOTHING}",
            "annotations": "::error::no machine gave a result\n",
        }[parsed.format],
        end="",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
