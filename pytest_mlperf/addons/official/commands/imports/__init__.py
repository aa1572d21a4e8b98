"""Run `pytest-mlperf import`: turn results of another harness into a session to judge."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_mlperf.addons.official.commands.imports import endpoints, mlperf
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.judge.rule_r import GATING_RUNS

HELP = f"""\
import mlperf reads trees of MLPerf submissions (whole repositories of results
or parts of them) and folders with LoadGen's logs, of any release. Each result
gets the value and the unit of its round's table; --rows writes such rows, for
published --from and share --of. Logs alone do not name what was measured: add
--workload, --precision and --accelerator.

import endpoints reads folders that `inference-endpoint benchmark` wrote with
load pattern concurrency. A FOLDER is one process of the server: a folder of
run folders, one for each concurrency, or a single run folder. All sessions of a
command must be of one build and have the same points; sessions with another
model, configuration, data set or client are refused. A point is INVALID if it
was not complete, had failed requests or did not hold its concurrency.

Writes a results file that compare, update and report take; a baseline needs
{GATING_RUNS} sessions. The folders stay where they are; do not commit them to git.

Exit 1 when one is INVALID or refused, 2 when nothing can be read.

needs: the folders as they were written; for those of the endpoints client
  pip install 'pytest-mlperf[endpoints]'

examples:
  $ pytest-mlperf import mlperf inference_results_v5.1 --rows v5.1.json
      a table of a round for: pytest-mlperf published --from v5.1.json
  $ pytest-mlperf import mlperf logs --workload resnet50 --precision int8 \\
        --accelerator H200
      what your own LoadGen wrote, to compare
  $ pytest-mlperf import endpoints day* --precision fp8 --accelerator 8xH100
      five sessions; then: pytest-mlperf update --baselines baselines --no-runs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("harness", choices=["endpoints", "mlperf"], help="kind of results")
    parser.add_argument(
        "sessions",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="mlperf: a tree of submissions, or LoadGen's logs; endpoints: one session",
    )
    for name, meaning in (
        ("precision", "precision of the weights: fp8"),
        ("accelerator", "class and count: H200, 8xH100, cpu"),
    ):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"{meaning} (submissions have it)")
    parser.add_argument("--engine", metavar="NAME", help="engine (default: as in the files)")
    parser.add_argument("--workload", metavar="NAME", help="workload (default: as in the files)")
    parser.add_argument(
        "--system",
        default="",
        metavar="NAME",
        help="name of the server's hardware; results of different systems are never compared",
    )
    parser.add_argument(
        "--started",
        action="append",
        default=[],
        metavar="TIME",
        help="endpoints: start time of a session, ISO 8601; repeat it for each session (default: "
        "from its files)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="results file (default: in the runs dir)"
    )
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="mlperf: write rows like a round's table"
    )
    add(parser, "--runs-dir")


def run(parsed: argparse.Namespace) -> int:
    """Import results; return 1 if a result is INVALID or refused."""
    return mlperf.run(parsed) if parsed.harness == "mlperf" else endpoints.run(parsed)
