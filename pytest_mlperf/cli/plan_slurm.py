"""A plan for Slurm: a script that submits an array of jobs per accelerator, and one that joins."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.hardware.machine import split

ARRAY_LIMIT = 1001
"""Jobs of an array at most, as Slurm is set up unless a site changed it (MaxArraySize).

Source: https://slurm.schedmd.com/slurm.conf.html#OPT_MaxArraySize
"""

SCRIPT = r"""#!/bin/bash
# Made by `pytest-mlperf plan --format slurm`. Run it in the folder where pytest runs:
#
#   bash FILE [options of sbatch: --partition=..., --account=..., --gres=...]
#
# It submits an array of jobs for each accelerator, one job for each suite file, and a last job
# that joins what they measured: that one fails when a test failed or a planned test has no result.
set -euo pipefail
python=${MLPERF_PYTHON:-@PYTHON@}

suites_on() {
  case $1 in
@SUITES@
  esac
}

# A job of an array: --measure ACCELERATOR FOLDER
if [ "${1:-}" = --measure ]; then
  suites_on "$2"
  exec "$python" -m pytest "${suites[$SLURM_ARRAY_TASK_ID]}" --mlperf-accelerator "$2"@PROFILE@ \
    --mlperf-manifest "$3/plan.json" --mlperf-json "$3/parts/$2.$SLURM_ARRAY_TASK_ID.json"
fi

# The last job: --merge FOLDER
if [ "${1:-}" = --merge ]; then
  exec "$python" -m pytest_mlperf merge "$2/parts" --manifest "$2/plan.json" \
    -o "$2/results.json" --junit "$2/junit.xml"
fi

script=$(realpath "$0")
folder=${MLPERF_RESULTS:-mlperf-$(date -u +%Y%m%d-%H%M%S)}
mkdir -p "$folder/parts"
"$python" -m pytest_mlperf plan@PLAN@ --format json > "$folder/plan.json"

arrays=""
give_up() { # what is submitted already would have nobody to join it
  for job in ${arrays//:/ }; do scancel "$job"; done
  exit 1
}
submit() { # ACCELERATOR LAST MINUTES [options of sbatch]
  local job
  job=$(sbatch --parsable --job-name="mlperf-$1" --array="0-$2" --time="$3" --exclusive \
    --output="$folder/$1.%a.log" "${@:4}" "$script" --measure "$1" "$folder") || give_up
  arrays="$arrays:${job%%;*}"
}
@SUBMIT@

# Nothing of what the arrays need is needed to join them.
job=$(sbatch --parsable "$@" --job-name=mlperf-merge --time=30 --gres=none \
  --dependency="afterany$arrays" --output="$folder/merge.log" \
  "$script" --merge "$folder") || give_up
echo "submitted arrays ${arrays#:} and job ${job%%;*}, which joins them"
echo "verdict: $folder/merge.log, results: $folder/results.json"
"""


def script(
    jobs: Mapping[str, Mapping[str, int]],
    *,
    suites: Sequence[str],
    accelerators: Sequence[str],
    profile: str | None,
) -> str:
    """Return the script.

    Args:
        jobs: By accelerator and suite file, the minutes that a job may take.
        suites: The suites as they were named; none: those below suites/.
        accelerators: Those asked for; none: all.
        profile: The one asked for; None: each suite's own.

    Raises:
        MlperfError: An array has more jobs than Slurm makes.
    """
    plan = [*suites, *(word for name in accelerators for word in ("--accelerator", name))]
    chosen = ["--profile", profile] if profile else []
    replaced = {
        "@PYTHON@": shlex.quote(sys.executable),
        "@SUITES@": "\n".join(_case(name, jobs[name]) for name in jobs),
        "@PROFILE@": f" --mlperf-profile {profile}" if profile else "",
        "@PLAN@": "".join(f" {shlex.quote(word)}" for word in [*plan, *chosen]),
        "@SUBMIT@": "\n".join(_submit(name, jobs[name]) for name in jobs),
    }
    return re.sub("|".join(replaced), lambda found: replaced[found[0]], SCRIPT)


def _case(accelerator: str, suites: Iterable[str]) -> str:
    words = "".join(f"      {shlex.quote(suite)}\n" for suite in suites)
    return f"  {shlex.quote(accelerator)})\n    suites=(\n{words}    ) ;;"


def _submit(accelerator: str, minutes: Mapping[str, int]) -> str:
    if len(minutes) > ARRAY_LIMIT:
        raise MlperfError(
            f"{len(minutes)} suite files on {accelerator}, and Slurm makes {ARRAY_LIMIT} jobs of "
            "an array at most; name fewer suites"
        )
    count, name = split(accelerator)
    needed = "" if name == "cpu" else f" --gres=gpu:{name.lower()}:{count}"
    most = max(minutes.values())
    return f'submit {shlex.quote(accelerator)} {len(minutes) - 1} {most}{needed} "$@"'
