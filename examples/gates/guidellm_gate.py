"""Gate GuideLLM: `python guidellm_gate.py OLD NEW`, folders of runs in turns."""

import json
import sys
from pathlib import Path

from pytest_mlperf.judge import Direction, RuleR, Value, judge_drop


def rates(file: Path) -> dict[str, Value]:
    """Return the throughput of each benchmark, by its concurrency."""
    runs = {}
    for benchmark in json.loads(file.read_text("utf-8"))["benchmarks"]:
        rate = benchmark["metrics"]["output_tokens_per_second"]["successful"]["mean"]
        runs[f"{benchmark['config']['strategy']['streams']} streams"] = Value(value=rate)
    return runs


old, new = (list(map(rates, sorted(Path(folder).glob("*.json")))) for folder in sys.argv[1:3])
if not old or len(old) != len(new) or any(run.keys() != old[0].keys() for run in (*old, *new)):
    sys.exit("both sides need as many files, with the same loads in each")
rule, failed = RuleR(max_runs=max(2, len(old))).shared(len(old[0])), False
for name in old[0]:
    a, b = ([run[name] for run in side] for side in (new, old))
    ruling = judge_drop(a, b, direction=Direction.HIGHER, limit=0.03, rule=rule)
    print(f"{ruling.outcome:12} {ruling.ratio - 1:+7.1%}  {name}")
    failed |= ruling.outcome == "fail"
sys.exit(failed)
