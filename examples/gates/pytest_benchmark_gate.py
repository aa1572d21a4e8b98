"""Gate pytest-benchmark: `python pytest_benchmark_gate.py OLD NEW`, folders of runs in turns."""

import json
import sys
from pathlib import Path

from pytest_mlperf.judge import Direction, RuleR, Value, judge_drop


def medians(file: Path) -> dict[str, Value]:
    """Return the median time of each benchmark."""
    benchmarks = json.loads(file.read_text("utf-8"))["benchmarks"]
    return {b["fullname"]: Value(value=b["stats"]["median"]) for b in benchmarks}


old, new = (list(map(medians, sorted(Path(folder).glob("*.json")))) for folder in sys.argv[1:3])
if not old or len(old) != len(new) or any(run.keys() != old[0].keys() for run in (*old, *new)):
    sys.exit("both sides need as many files, with the same benchmarks in each")
rule, failed = RuleR(max_runs=max(2, len(old))).shared(len(old[0])), False
for name in old[0]:
    a, b = ([run[name] for run in side] for side in (new, old))
    ruling = judge_drop(a, b, direction=Direction.LOWER, limit=0.05, rule=rule)
    print(f"{ruling.outcome:12} {1 / ruling.ratio - 1:+7.1%}  {name}")
    failed |= ruling.outcome == "fail"
sys.exit(failed)
