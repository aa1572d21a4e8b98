"""Run `pytest-mlperf slurm`: convert a plan to a script that submits job arrays to Slurm."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.resources import files

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.fleet.plans import add_plan, read_plan
from pytest_mlperf.hardware.machine import split

ARRAY_LIMIT = 1001
"""Maximum jobs of an array by Slurm's default MaxArraySize.

Source: https://slurm.schedmd.com/slurm.conf.html#OPT_MaxArraySize
"""

HELP = """\
Prints a script that submits a job array for each accelerator, with one job per
suite file, and a last job that merges and judges their results. Run it in the
folder where the plan was made; it passes its arguments on to sbatch.

needs: a plan; where the script runs, Slurm

examples:
  $ pytest-mlperf slurm plan.json > mlperf.sh
      the script of a plan, for `bash mlperf.sh --partition=gpu`
  $ pytest-mlperf slurm - > mlperf.sh
      the script of a plan that comes on stdin
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_plan(parser)


def run(parsed: argparse.Namespace) -> int:
    """Print the script, which contains the plan as a here-document."""
    plan, text = read_plan(parsed.plan)
    suites = [
        f"  {shlex.quote(name)})\n    suites=(\n"
        + "".join(f"      {shlex.quote(suite)}\n" for suite in minutes)
        + "    ) ;;"
        for name, minutes in plan.jobs.items()
    ]
    replaced = {
        "@PYTHON@": shlex.quote(sys.executable),
        "@SUITES@": "\n".join(suites),
        "@OPTIONS@": "".join(f" {shlex.quote(word)}" for word in plan.options),
        "@PLAN@": text,
        "@SUBMIT@": "\n".join(_submit(name, minutes) for name, minutes in plan.jobs.items()),
    }
    template = files(__package__).joinpath("slurm.sh").read_text("utf-8")
    print(re.sub("|".join(replaced), lambda match: replaced[match[0]], template), end="")
    return 0


def _submit(accelerator: str, minutes: Mapping[str, int]) -> str:
    if len(minutes) > ARRAY_LIMIT:
        raise MlperfError(
            f"the plan has {len(minutes)} suite files on {accelerator}; a Slurm job array has at "
            f"most {ARRAY_LIMIT} jobs: plan fewer suites"
        )
    count, name = split(accelerator)
    needed = "" if name == "cpu" else f" --gres=gpu:{name.lower()}:{count}"
    most = max(minutes.values())
    return f'submit {shlex.quote(accelerator)} {len(minutes) - 1} {most}{needed} "$@"'
