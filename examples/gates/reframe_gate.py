"""Gate run reports of ReFrame: `python reframe_gate.py OLD NEW`, folders of runs in turns."""

import json
import sys
from pathlib import Path

from pytest_mlperf.judge import Direction, RuleR, Value, judge_drop


def figures(file: Path) -> dict[str, Value]:
    """Return the performance variables of each test, by their names and units."""
    (run,) = json.loads(file.read_text("utf-8"))["runs"]
    rows = ((case["name"], *row) for case in run["testcases"] for row in case["perfvalues"].items())
    return {f"{test} {name} [{row[4]}]": Value(value=row[0]) for test, name, row in rows}


old, new = (list(map(figures, sorted(Path(folder).glob("*.json")))) for folder in sys.argv[1:3])
if not old or len(old) != len(new) or any(run.keys() != old[0].keys() for run in (*old, *new)):
    sys.exit("both sides need as many files, with the same figures in each")
rule, failed = RuleR(max_runs=max(2, len(old))).shared(len(old[0])), False
for name in old[0]:
    is_time = name.endswith(("[s]", "[ms]", "[us]", "[ns]"))
    direction = Direction.LOWER if is_time else Direction.HIGHER
    a, b = ([run[name] for run in side] for side in (new, old))
    ruling = judge_drop(a, b, direction=direction, limit=0.05, rule=rule)
    change = (1 / ruling.ratio if is_time else ruling.ratio) - 1
    print(f"{ruling.outcome:12} {change:+7.1%}  {name}")
    failed |= ruling.outcome == "fail"
sys.exit(failed)
