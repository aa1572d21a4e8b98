"""`pytest-mlperf init`: a first suite that runs anywhere, and the folder for its baselines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores import atomic

SUITE = """\
# A first suite: the null engine waits 2 ms per sample and computes nothing, so this runs anywhere.
# To measure a model of yours, edit the three lines marked "edit".
schema = 1
round = "v4.1"                                     # MLPerf round whose rules and seeds hold
profile = "quick"                                  # official: MLPerf's own durations and counts

[workload]
name = "demo"
dataset = { use = "synthetic", samples = 256 }     # edit, e.g. { use = "imagenet", path = "..." }

[[engines]]
use = "null"                                       # edit, e.g. "onnxruntime", with a model above
accelerators = ["cpu"]                             # edit, e.g. ["H200", "8xH100"]
options = { latency_s = 0.002 }

[[scenarios]]
name = "Offline"
min_duration = "2s"

[limits]                                           # the smallest change that matters
throughput = { max_drop = "20%" }                  # GPUs are quieter than shared CPUs: 3 % there
"""

BASELINES = """\
# Baselines

Accepted measurements, written by `pytest suites --mlperf-update=missing` and reviewed like code.
"""


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("init", help="write a first suite and a folder for baselines")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="default: here")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Write the files, none of which may exist.

    Raises:
        MlperfError: A file exists, or cannot be written.
    """
    folder: Path = parsed.folder
    files = {
        folder / "suites" / "demo.mlperf.toml": SUITE,
        folder / "baselines" / "README.md": BASELINES,
    }
    for path in files:
        if os.path.lexists(path):
            raise MlperfError(
                f"{path} exists; nothing was written. Another place: pytest-mlperf init FOLDER"
            )
    write_all(files)
    for path in files:
        print(f"wrote {path}")
    suites = folder / "suites"
    print(f"next: pytest {suites}                            measure; there is no baseline yet")
    print(f"      pytest {suites} --mlperf-update=missing    record one, then commit baselines/")
    print(f"      pytest {suites} --mlperf-handicap 50%      see what a failure looks like")
    return 0


def write_all(files: Mapping[Path, str]) -> None:
    """Write all files, or none.

    Raises:
        MlperfError: One cannot be written; those before it are taken away again.
    """
    written: list[Path] = []
    for path, text in files.items():
        try:
            atomic.write_text(path, text)
        except OSError as error:
            for other in written:
                other.unlink()
            raise MlperfError(
                f"{path} cannot be written: {error.strerror}; nothing was written"
            ) from None
        written.append(path)
