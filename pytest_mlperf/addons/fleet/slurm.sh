#!/bin/bash
# Made by `pytest-mlperf slurm`. Run it in the folder where pytest runs:
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
  suite=${suites[$SLURM_ARRAY_TASK_ID]} part=$3/parts/$2.$SLURM_ARRAY_TASK_ID.json
  # An MPI that an engine starts its ranks with would take this job's one task for all that it may.
  for name in "${!SLURM_@}" "${!PMI_@}" "${!PMIX_@}" "${!OMPI_@}"; do
    [ "$name" = SLURM_TMPDIR ] || unset "$name" # where a site has data
  done
  # With "=": of words that are files pytest makes its rootdir, where node ids start.
  exec "$python" -m pytest "$suite" --mlperf-accelerator="$2"@OPTIONS@ \
    --mlperf-manifest="$3/plan.json" --mlperf-json="$part"
fi

# The last job: --merge FOLDER
if [ "${1:-}" = --merge ]; then
  exec "$python" -m pytest_mlperf merge "$2/parts" --manifest "$2/plan.json" \
    -o "$2/results.json" --junit "$2/junit.xml"
fi

script=$(realpath "$0")
folder=${MLPERF_RESULTS:-mlperf-$(date -u +%Y%m%d-%H%M%S)}
mkdir -p "$folder/parts"
cat > "$folder/plan.json" << 'END OF THE PLAN'
@PLAN@
END OF THE PLAN

arrays=""
give_up() { # what is submitted already would have nobody to join it
  for job in ${arrays//:/ }; do scancel "$job"; done
  exit 1
}
submit() { # ACCELERATOR LAST MINUTES [options of sbatch]
  local job
  # Interrupted before its time is over, pytest writes what is decided.
  job=$(sbatch --parsable --job-name="mlperf-$1" --array="0-$2" --time="$3" --exclusive \
    --signal=B:INT@120 \
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
