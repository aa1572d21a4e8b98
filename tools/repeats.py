"""`make repeats`: count false alarms and misses of the whole path on this machine.

Records one baseline of the tiny ResNet's Offline case, then compares with it N times unchanged and
N times at half speed (--mlperf-handicap 50%), in turn, each in a fresh pytest process.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".mlperf" / "repeats"
SUITE = "suites/tiny/resnet50.mlperf.toml"


def main() -> int:
    """Run the repeats and print the counts; return 1 on a false alarm or a miss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=20, help="repeats of each kind (default 20)")
    parser.add_argument("--baseline-runs", type=int, default=8)
    count = parser.parse_args().n
    runs = parser.parse_args().baseline_runs
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = FOLDER / stamp
    started = time.monotonic()
    outcome = compare(folder, "--mlperf-update=missing", f"-omlperf_baseline_runs={runs}")[0]
    print(f"baseline of {runs} runs: {outcome}", flush=True)
    if outcome != "recorded":
        print("nothing to compare with; see", folder)
        return 1
    unchanged: Counter[str] = Counter()
    slowed: Counter[str] = Counter()
    used: list[int] = []
    for number in range(1, count + 1):
        plain, runs_used = compare(folder)
        used.append(runs_used)
        handicapped, _ = compare(folder, "--mlperf-handicap=50%")
        unchanged[plain] += 1
        slowed[handicapped] += 1
        print(f"{number:3d} unchanged: {plain:14s} handicap 50 %: {handicapped}", flush=True)
    minutes = (time.monotonic() - started) / 60
    false_alarms, misses = unchanged["PERF DROP"], count - slowed["PERF DROP"]
    print(f"\nunchanged      {words(unchanged)}; {sum(used) / count:.2f} runs each")
    print(f"handicap 50 %  {words(slowed)}")
    print(f"false alarms {false_alarms} of {count}, misses {misses} of {count}, {minutes:.0f} min")
    print(proof(count))
    return 1 if false_alarms or misses else 0


def compare(folder: Path, *more: str) -> tuple[str, int]:
    """Run pytest once; return the outcome of the performance test and the runs it used."""
    results = folder / "last.json"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", SUITE, "-m", "mlperf(scenario='Offline')", "-q"]
    command += [f"--mlperf-runs-dir={folder}", f"--mlperf-baselines={folder / 'baselines'}"]
    command += [f"--mlperf-json={results}", "-p", "no:cacheprovider", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not results.exists():
        print(done.stdout, done.stderr)
        return "no results", 0
    cases = json.loads(results.read_text("utf-8"))["cases"]
    verdict = next(c["verdict"] for c in cases if c["verdict"]["kind"] == "performance")
    return str(verdict["outcome"]), len(verdict["runs"])


def words(counts: Counter[str]) -> str:
    """Return counts as "18 ok, 2 INCONCLUSIVE"."""
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def proof(count: int) -> str:
    """Return what so many repeats can and cannot prove.

    Source: with no event in n independent trials, the one-sided 95 % upper bound of its rate is
    1 - 0.05^(1/n) (Clopper and Pearson 1934).
    """
    bound = 1 - 0.05 ** (1 / count)
    needed = math.ceil(math.log(0.05) / math.log(1 - 0.01))
    return (
        f"{count} repeats without a false alarm show (95 %) a rate below {bound:.0%}, not the 1 % "
        f"that is promised: that takes {needed} repeats, and is shown by simulation instead. They "
        "share one baseline and one machine, so they are not fully independent."
    )


if __name__ == "__main__":
    sys.exit(main())
