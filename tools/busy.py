"""`make busy`: what verdicts are worth beside neighbours, on this machine, in an hour.

Two engines run one thread each: one computes, one copies memory. The baseline of each is measured
beside every kind of neighbour: none, processes that compute, processes that copy memory. Then each
engine is compared with these baselines, unchanged and at half its speed, beside the same neighbours
and beside others, and under a processor quota. No unchanged comparison may be a drop, no half speed
may pass, and every session must end with a verdict. Half speed is decided by interleaving with the
build without the handicap wherever load leaves it open.

First it measures what `core.contention.MEMORY_SHARE` must cover: how much slower a thread copies
while others copy on other cores. The last table says by how much runs were slower than their bound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from pytest_mlperf.core.contention import MEMORY_SHARE, lost_change

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".mlperf" / "busy"

SUITE = """
schema = 1
round = "v4.1"
profile = "quick"

[workload]
name = "busy"
dataset = { use = "synthetic", samples = 64 }

[[engines]]
use = "one_thread:Computes"
accelerators = ["cpu"]

[[engines]]
use = "one_thread:Copies"
accelerators = ["cpu"]

[[scenarios]]
name = "Offline"
min_duration = "2s"

[limits]
throughput = { max_drop = "10%" }
"""

ENGINES = '''
import numpy as np

from pytest_mlperf.core.extension import Engine


class Computes(Engine):
    """Works in the processor's registers and first cache."""

    def __init__(self, **_):
        self.data = np.full(1_000, 1.01)

    def submit(self, ids, indices, sink):
        for one in ids:
            for _ in range(500):
                np.sqrt(self.data, out=self.data)
            sink.done([one])


class Copies(Engine):
    """Copies more than caches hold."""

    def __init__(self, **_):
        self.data, self.copy = np.ones(8_000_000), np.ones(8_000_000)

    def submit(self, ids, indices, sink):
        for one in ids:
            np.copyto(self.copy, self.data)
            sink.done([one])
'''

ALIVE = "import os\nparent = os.getppid()\nprint(flush=True)\nwhile os.getppid() == parent:\n"
"""Begins a neighbour that lives as long as whoever started it."""

NEIGHBOURS = {
    "compute": ALIVE + "    sum(range(10_000))\n",
    "copy": "import numpy as np\na, b = np.ones(8_000_000), np.ones(8_000_000)\n"
    + ALIVE
    + "    np.copyto(a, b)\n",
}


@dataclass(frozen=True, order=True)
class Beside:
    """What runs beside a session: so many neighbours of a kind, or a quota of half the cores."""

    kind: str = "none"
    count: int = 0

    def __str__(self) -> str:
        """As tables show it."""
        return self.kind if self.kind in {"none", "quota"} else f"{self.count} {self.kind}"


NONE, QUOTA = Beside(), Beside("quota")
RECORDED = [NONE, Beside("compute", 1), Beside("compute", 2), Beside("copy", 2)]
"""What baselines are measured beside."""

COMPARED = [NONE, *(Beside(kind, n) for kind in NEIGHBOURS for n in (1, 2, 4)), QUOTA]
"""What comparisons are made beside."""


@dataclass(frozen=True)
class Seen:
    """One comparison.

    Attributes:
        beyond: By how much its runs were slower than their bound explains, logarithmic.
    """

    engine: str
    before: Beside
    now: Beside
    half: bool
    outcome: str
    how: str
    beyond: float


def main() -> int:
    """Compare and print what came out; return 1 on a false alarm, a miss, or no verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unchanged", type=int, default=100, metavar="N")
    parser.add_argument("--half", type=int, default=40, metavar="N")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="use its baselines")
    parsed = parser.parse_args()
    folder = parsed.again or FOLDER / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = folder.resolve()
    (folder / "suites").mkdir(parents=True, exist_ok=True)
    (folder / "one_thread.py").write_text(ENGINES, "utf-8")
    (folder / "suites" / "busy.mlperf.toml").write_text(SUITE, "utf-8")
    began = time.monotonic()
    loss = memory_loss()
    print(
        f"copying loses {loss:.0%} beside copies on other cores; {MEMORY_SHARE:.0%} are allowed for"
    )
    if loss > MEMORY_SHARE:
        return 1
    with quota(folder) as limited:
        compared = [one for one in COMPARED if one != QUOTA or limited]
        for before in () if parsed.again else RECORDED:
            print(f"{_minutes(began)}  recording beside {before}", flush=True)
            record(folder, before)
        plan = [(e, b, n) for n in compared for b in RECORDED for e in ("Computes", "Copies")]
        seen = []
        for half, count in ((False, parsed.unchanged), (True, parsed.half)):
            for number in range(count):
                # A stride that has no factor in common with the plan's length visits all of it.
                engine, before, now = plan[number * _stride(len(plan)) % len(plan)]
                one = compare(folder, engine, before, now, half=half, limited=limited)
                seen.append(one)
                print(_line(_minutes(began), one), flush=True)
    return told(seen)


def _stride(length: int) -> int:
    return next(n for n in range(length * 5 // 8, length) if math.gcd(n, length) == 1)


def _minutes(began: float) -> str:
    return f"{(time.monotonic() - began) / 60:5.1f} min"


def _line(at: str, one: Seen) -> str:
    speed = "half" if one.half else "unchanged"
    return f"{at}  {one.engine:8s}  {one.before!s:>9s} -> {one.now!s:9s}  {speed:9s}  {one.how}"


def told(seen: Sequence[Seen]) -> int:
    """Print how often each outcome came; return 1 if one is wrong."""
    print()
    for half in (False, True):
        for now in sorted({one.now for one in seen}):
            words = Counter(one.outcome for one in seen if one.half is half and one.now == now)
            if words:
                found = ", ".join(f"{n} {word}" for word, n in words.most_common())
                print(f"{'half' if half else 'unchanged':9s}  {now!s:9s}  {found}")
    unchanged = [one for one in seen if not one.half]
    alarms = sum(one.outcome in {"PERF DROP", "SUSPECT"} for one in unchanged)
    halves = [one for one in seen if one.half]
    misses = sum(one.outcome in {"ok", "improved", "PROVISIONAL"} for one in halves)
    undecided = sum(one.outcome == "INCONCLUSIVE" for one in halves)
    known = {"ok", "improved", "PERF DROP", "SUSPECT", "PROVISIONAL", "INCONCLUSIVE"}
    without = sum(one.outcome not in known for one in seen)
    print(
        f"false alarms {alarms} of {len(unchanged)}; half speed passed {misses} and undecided "
        f"{undecided} of {len(halves)}; no verdict {without} of {len(seen)}"
    )
    for engine in ("Computes", "Copies"):
        beyond = [one.beyond for one in unchanged if one.engine == engine and one.now != one.before]
        if beyond:
            most = math.expm1(max(*beyond, 0.0))
            print(f"{engine:8s}  slower than its bound explains by at most {most:.1%}")
    return 1 if alarms or misses or without else 0


# --- the machine -----------------------------------------------------------------------------


@contextlib.contextmanager
def neighbours(beside: Beside, cores: Sequence[int] = ()) -> Iterator[None]:
    """Keep some processes that work, on these cores, or wherever the kernel puts them."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(beside.count):
            command = [sys.executable, "-c", NEIGHBOURS[beside.kind]]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            started.append(process)
            if cores:
                os.sched_setaffinity(process.pid, cores)
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def quota(folder: Path) -> Iterator[Path | None]:
    """Keep a control group that may use half of the cores; None if this user may not make one."""
    cores = len(os.sched_getaffinity(0)) / 2
    version2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup") / ("" if version2 else "cpu") / f"mlperf-{folder.name}"
    limit = ("cpu.max", f"{cores * 100_000:.0f} 100000")
    if not version2:
        limit = ("cpu.cfs_quota_us", f"{cores * 100_000:.0f}")
    try:
        group.mkdir()
        (group / limit[0]).write_text(limit[1], "ascii")
    except OSError as error:
        print(f"no comparisons under a processor quota: {error}")
        with contextlib.suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def memory_loss() -> float:
    """Return the share of its speed that copying loses beside copies on other cores.

    The largest of all counts of neighbours up to twice the other cores, each in the median of five
    windows; windows without neighbours lie between. 0 on a machine with one core.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    alone, beside = [], []
    for count in sorted({1, 2, len(others), 2 * len(others)} - {0}) if others else ():
        speeds = []
        for _ in range(5):
            alone.append(copies(first))
            with neighbours(Beside("copy", count), cores=others):
                speeds.append(copies(first))
        beside.append(median(speeds))
    return 1 - min(beside) / median(alone) if beside else 0.0


def copies(core: int, window_s: float = 1.0) -> float:
    """Return how often a second this thread copies 64 MB on a core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        data, copy = np.ones(8_000_000), np.ones(8_000_000)
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < window_s:
            np.copyto(copy, data)
            count += 1
        return count / spent
    finally:
        os.sched_setaffinity(0, allowed)


# --- sessions --------------------------------------------------------------------------------


def record(folder: Path, before: Beside) -> None:
    """Measure baselines of both engines: four sessions of two runs."""
    with neighbours(before):
        for _ in range(4):
            session(folder, before, "--mlperf-update=missing", "-omlperf_baseline_runs=2")


def compare(
    folder: Path, engine: str, before: Beside, now: Beside, *, half: bool, limited: Path | None
) -> Seen:
    """Compare an engine once."""
    more = ["--mlperf-handicap=50%"] if half else []
    group = limited if now == QUOTA else None
    with neighbours(now):
        cases = session(folder, before, "-k", engine, *more, group=group)
    verdict: dict[str, Any] = cases[0]["verdict"] if cases else {"outcome": "no results"}
    metrics = verdict.get("metrics", [])
    metric: Mapping[str, Any] = next((m for m in metrics if m["metric"] == "throughput"), {})
    runs = verdict.get("runs", [])
    shares = [(run["load"]["contention"] or {}).get("share") or 0.0 for run in runs]
    beyond = 0.0
    if runs and metric.get("baseline"):
        lost = [lost_change("throughput", share) for share in shares]
        speeds = [
            run["metrics"]["throughput"] * math.exp(d) for run, d in zip(runs, lost, strict=True)
        ]
        beyond = math.log(metric["baseline"] / geometric_mean(speeds))
    turns = verdict.get("turns") or {}
    change = metric.get("change")
    how = (
        f"{verdict['outcome']}, {len(runs)} runs, bound {max(shares, default=0.0):.0%}, change "
        f"{'unknown' if change is None else f'{change:+.1%}'}"
        + (f", {turns['pairs']} pairs {turns['state']}" if turns.get("pairs") else "")
    )
    return Seen(engine, before, now, half, verdict["outcome"], how, beyond)


def session(
    folder: Path, before: Beside, *more: str, group: Path | None = None
) -> list[Mapping[str, Any]]:
    """Run pytest once and return the cases of its results."""
    results = folder / "last.json"
    results.unlink(missing_ok=True)
    baselines = folder / "baselines" / str(before).replace(" ", "-")
    command = [sys.executable, "-m", "pytest", "suites", "-q", "-p", "no:cacheprovider"]
    command += [f"--mlperf-baselines={baselines}", f"--mlperf-json={results}"]
    command += ["-omlperf_wait_idle=0", *more]
    if group:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *command]
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    if not results.exists():
        print(done.stdout, done.stderr)
        return []
    cases: list[Mapping[str, Any]] = json.loads(results.read_text("utf-8"))["cases"]
    return cases


if __name__ == "__main__":
    sys.exit(main())
