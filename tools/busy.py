"""`make busy`: what verdicts are worth beside neighbours that compute, on this machine.

An engine whose speed is known computes half a millisecond for each sample, on one core. Its
baseline is that speed, as on a quiet machine. It is compared N times unchanged while one, two or
four other processes compute: none may be a drop. Beside the same neighbours an engine that mostly
sleeps is compared N times at half its speed: all must be drops. So is the first one where nobody
else computes either.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_mlperf.bench.case import baseline_file
from pytest_mlperf.core.baseline import Baseline, BaselineRun, HistoryEntry, Record
from pytest_mlperf.core.case import Case
from pytest_mlperf.hardware import host as cpu
from pytest_mlperf.stores import baselines

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".mlperf" / "busy"

RATES = {"computes": 2000.0, "sleeps": 100.0}
"""Samples per second of the two engines when nobody disturbs them."""

SUITE = """
schema = 1
round = "v4.1"
profile = "quick"

[workload]
name = "busy"
dataset = { use = "synthetic", samples = 64 }

[[engines]]
name = "computes"
use = "null"
accelerators = ["cpu"]
options = { latency_s = 0.0005 }

[[engines]]
name = "sleeps"
use = "null"
accelerators = ["cpu"]
options = { latency_s = 0.01, batch_size = 20, threads = 1 }

[[scenarios]]
name = "Offline"
min_duration = "2s"

[limits]
throughput = { max_drop = "20%" }
"""

NEIGHBOURS = (1, 2, 4)

BURN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    sum(range(10_000))
"""
"""Computes as long as whoever started it lives."""


def main() -> int:
    """Compare and print what came out; return 1 on a false alarm or a miss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=20, help="comparisons of each kind (default 20)")
    count = parser.parse_args().n
    folder = FOLDER / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    write(folder)
    words: dict[str, Counter[str]] = {kind: Counter() for kind in ("unchanged", "half", "quiet")}
    for number in range(count):
        many = NEIGHBOURS[number % len(NEIGHBOURS)]
        with neighbours(many):
            for kind, engine, more in (
                ("unchanged", "computes", ()),
                ("half", "sleeps", ("--mlperf-handicap=50%",)),
            ):
                told = compare(folder, engine, *more)
                words[kind][told.split()[0]] += 1
                print(
                    f"{number + 1:3d}  {many} neighbours  {engine:8s}  {kind:9s}  {told}",
                    flush=True,
                )
        if not number or number == count - 1:
            told = compare(folder, "computes", "--mlperf-handicap=50%")
            words["quiet"][told.split()[0]] += 1
            print(f"{number + 1:3d}  no neighbours of ours  computes  half  {told}", flush=True)
    for kind, found in words.items():
        print(f"{kind:9s}  {', '.join(f'{n} {word}' for word, n in found.most_common())}")
    false_alarms, misses = words["unchanged"]["PERF_DROP"], count - words["half"]["PERF_DROP"]
    # A drop that nobody else explains is red; where others compute here as well, it is INVALID.
    print(f"false alarms {false_alarms} of {count}, misses {misses} of {count}")
    return 1 if false_alarms or misses else 0


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep some processes that compute, wherever the kernel puts them."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE)
            started.append(process)
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def compare(folder: Path, engine: str, *more: str) -> str:
    """Run pytest once and return the outcome with what each run gave and lost."""
    results = folder / "last.json"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "suites", "-q", "-p", "no:cacheprovider"]
    command += ["-k", f"performance and {engine}", f"--mlperf-json={results}", *more]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    if not results.exists():
        print(done.stdout, done.stderr)
        return "no_results"
    verdict = json.loads(results.read_text("utf-8"))["cases"][0]["verdict"]
    runs = [_run(run) for run in (*verdict["runs"], *verdict["invalid_runs"])]
    return f"{verdict['outcome'].replace(' ', '_')}  {', '.join(runs)}"


def _run(run: dict[str, Any]) -> str:
    seen = run["contention"] or {}
    share = seen.get("share")
    lost = "unknown" if share is None else f"{share:.0%}"
    return f"{run['metrics']['throughput']:.0f}/s (explained up to {lost})"


def write(folder: Path) -> None:
    """Write the suite, and baselines of four sessions at the speed that the engines have."""
    suite = folder / "suites" / "busy.mlperf.toml"
    suite.parent.mkdir(parents=True)
    suite.write_text(SUITE, "utf-8")
    for engine, rate in RATES.items():
        case = Case(
            workload="busy", scenario="Offline", engine=engine, precision="fp32", accelerator="cpu"
        )
        runs = tuple(_kept(rate * (1 + 0.005 * (-1) ** n), n // 2) for n in range(8))
        entry = HistoryEntry(
            date="2026-11-01", commit=None, reason="known", action="record", runs=8, old={},
            new={"throughput": rate},
        )  # fmt: skip
        record = Record(
            identity=dict(cpu.identity()),
            target_qps=rate,
            qps_source="suite",
            fingerprint={"engine": "null"},
            runs=runs,
            minimum_detectable_change={"throughput": 0.1},
            history=(entry,),
        )
        path = baseline_file(folder / "baselines", case, "quick")
        baselines.save(
            path,
            Baseline(
                round="v4.1", profile="quick", workload="busy", scenario="Offline", engine=engine,
                precision="fp32", accelerator="cpu", records=(record,),
            ),
        )  # fmt: skip


def _kept(rate: float, session: int) -> BaselineRun:
    day = time.strftime(
        "%Y-%m-%dT12:00:00+00:00", time.gmtime(time.time() - 86_400 * (4 - session))
    )
    return BaselineRun(
        metrics={"throughput": rate},
        within_se={},
        session=f"session-{session}",
        started=day,
        samples=1000,
        duration_s=2.0,
        commit=None,
        busy=0.0,
    )


if __name__ == "__main__":
    sys.exit(main())
