"""How fast generated programs are run in sandboxes, beside bare subprocesses."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.scorers.code._languages import source
from pytest_mlperf.adapters.scorers.code.programs import Problem, passed
from pytest_mlperf.adapters.scorers.code.sandbox import readable_python, why_not

PROBLEMS = 100
ROUNDS = 3

ANSWER = """
def min_cost(cost, m, n):
    best = [[0] * (n + 1) for _ in range(m + 1)]
    for i in range(m + 1):
        for j in range(n + 1):
            before = [best[a][b] for a, b in ((i - 1, j), (i, j - 1), (i - 1, j - 1))
                      if a >= 0 and b >= 0]
            best[i][j] = cost[i][j] + min(before, default=0)
    return best[m][n]
"""
TEST = """
def check(candidate):
    assert candidate([[1, 2, 3], [4, 8, 2], [1, 5, 3]], 2, 2) == 8
    assert candidate([[2, 3, 4], [5, 9, 3], [2, 6, 4]], 2, 2) == 12
"""
WRONG = "def min_cost(cost, m, n): return 8"


def problems() -> list[Problem]:
    """Return programs of which every third is wrong."""
    return [
        Problem(
            language="python",
            code=ANSWER if n % 3 else WRONG,
            entry_point="min_cost",
            test=TEST,
        )
        for n in range(PROBLEMS)
    ]


def bare(programs: list[Problem], folder: Path, processes: int) -> list[bool]:
    """Run each program as a plain child process, which can do anything."""
    python, _ = readable_python()

    def run(number: int, problem: Problem) -> bool:
        file = folder / f"{number}.py"
        file.write_text(
            source(problem.language, problem.code, problem.test, problem.entry_point), "utf-8"
        )
        command = [python, "-S", "-s", str(file)]
        return not subprocess.run(command, check=False, capture_output=True, timeout=20).returncode

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(run, range(len(programs)), programs))


def best(work: Callable[[], object]) -> float:
    """Return the shortest of a few times, in seconds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.benchmark(group="mbxp")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_sandbox_costs_a_few_bare_processes(
    benchmark: Any, tmp_path: Path, processes: int
) -> None:
    """Target: at most 12 x the time of a bare interpreter, wished 4 x."""
    if reason := why_not():
        pytest.skip(reason)
    if processes > len(os.sched_getaffinity(0)):
        pytest.skip("needs two cores")
    programs = problems()
    expected = [bool(n % 3) for n in range(PROBLEMS)]
    assert passed(programs, processes=processes) == expected == bare(programs, tmp_path, processes)

    theirs = best(lambda: bare(programs, tmp_path, processes))
    ours = best(lambda: passed(programs, processes=processes))
    benchmark.pedantic(lambda: passed(programs, processes=processes), rounds=1)

    ratio = ours / theirs
    print(
        f"\nMBXP with {processes} processes: {PROBLEMS / ours:.1f} programs/s in sandboxes, "
        f"{PROBLEMS / theirs:.1f} bare, {ratio:.1f} x the time"
    )
    benchmark.extra_info.update({"ours_s": ours, "bare_s": theirs, "ratio": ratio})
    assert ratio <= 12
