"""Gate asv: `python asv_gate.py OLD NEW`, folders of runs in turns."""

import json
import math
import sys
from pathlib import Path

from pytest_mlperf.judge import Direction, RuleR, Value, judge_drop


def times(file: Path) -> dict[str, Value]:
    """Return the time of each benchmark and parameter that neither failed nor was skipped."""
    results = json.loads(file.read_text("utf-8"))["results"]
    timed = {name: row[0] for name, row in results.items() if ".time_" in name}
    cells = [(f"{name} {n}", v) for name, row in timed.items() for n, v in enumerate(row)]
    return {name: Value(value=v) for name, v in cells if v and not math.isnan(v)}


old, new = (list(map(times, sorted(Path(folder).glob("*.json")))) for folder in sys.argv[1:3])
if not old or len(old) != len(new) or any(run.keys() != old[0].keys() for run in (*old, *new)):
    sys.exit("both sides need as many files, with the same benchmarks in each")
rule, failed = RuleR(max_runs=max(2, len(old))).shared(len(old[0])), False
for name in old[0]:
    a, b = ([run[name] for run in side] for side in (new, old))
    ruling = judge_drop(a, b, direction=Direction.LOWER, limit=0.05, rule=rule)
    print(f"{ruling.outcome:12} {1 / ruling.ratio - 1:+7.1%}  {name}")
    failed |= ruling.outcome == "fail"
sys.exit(failed)
