"""Simulate how often `pytest-mlperf judge` errs on files: the table of docs/decisions.md.

    python research/judged_files.py

Each comparison has three metrics. Sessions share an effect, runs vary inside them. The first metric
of the slower build rises by its limit of 5 %.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pytest_mlperf.addons.judge.judging import compare
from pytest_mlperf.addons.judge.model import ToolPoint, ToolRun
from pytest_mlperf.addons.judge.rows import Settings

COMPARISONS = 20_000
SEED = 2
LIMIT_FACTOR = 1.05
DAY_SECONDS, RUN_SECONDS = 86_400.0, 60.0
METRICS = ("ttft_p50", "tpot_p50", "itl_p50")


@dataclass(frozen=True)
class World:
    """Hold one kind of noise.

    Attributes:
        sessions: Sessions of each side; 0 for runs in turns on one day.
        runs: Runs of a session, or pairs of runs in turns.
        between, inside: Relative standard deviation of sessions, and of runs inside one.
    """

    sessions: int
    runs: int
    between: float
    inside: float

    @property
    def title(self) -> str:
        """The runs of a side in words."""
        if not self.sessions:
            return f"{self.runs} pairs of runs in turns"
        return f"{self.sessions} sessions of {self.runs}"


WORLDS = (
    *(World(2, 1, 0.01, 0.005), World(2, 2, 0.01, 0.005), World(3, 1, 0.01, 0.005)),
    *(World(4, 1, 0.01, 0.005), World(4, 2, 0.01, 0.005), World(5, 1, 0.01, 0.005)),
    *(World(8, 1, 0.01, 0.005), World(8, 1, 0.02, 0.005), World(10, 1, 0.03, 0.01)),
    *(World(3, 3, 0.0, 0.01), World(0, 4, 0.0, 0.005), World(0, 6, 0.0, 0.01)),
)


def run_at(
    when: float, level: float, factor: float, inside: float, noise: random.Random
) -> ToolRun:
    """Return a run at a time in seconds; `factor` slows its first metric."""
    metrics = {
        name: (factor if name == METRICS[0] else 1.0) * (1 + level + noise.gauss(0, inside))
        for name in METRICS
    }
    point = ToolPoint(name="one", metrics=metrics)
    return ToolRun(tool="vllm", source="", digest="", host="a", started=1e9 + when, points=(point,))


def sides(world: World, factor: float, noise: random.Random) -> tuple[list[ToolRun], list[ToolRun]]:
    """Return the runs of an old build, and of one that is slower by a factor."""
    both: tuple[list[ToolRun], list[ToolRun]] = ([], [])
    for pair in range(0 if world.sessions else world.runs):
        for place, build in enumerate((0, 1) if pair % 2 == 0 else (1, 0)):
            when = (2 * pair + place) * RUN_SECONDS
            slower = factor if build else 1.0
            both[build].append(run_at(when, 0.0, slower, world.inside, noise))
    for build, slower in enumerate((1.0, factor)):
        for session in range(world.sessions):
            level = noise.gauss(0, world.between)
            day = (build * world.sessions + session) * DAY_SECONDS
            both[build].extend(
                run_at(day + run * RUN_SECONDS, level, slower, world.inside, noise)
                for run in range(world.runs)
            )
    return both


def rates(world: World, noise: random.Random) -> tuple[float, float, float]:
    """Return the shares of red unchanged builds, of passed drops, and of drops that are red."""
    red = passed = proven = 0
    for _ in range(COMPARISONS):
        red += str(compare(*sides(world, 1.0, noise), Settings()).outcome) == "PERF DROP"
        slower = compare(*sides(world, LIMIT_FACTOR, noise), Settings())
        outcome = next(str(row.outcome) for row in slower.rows if row.metric == METRICS[0])
        passed += outcome in {"ok", "improved"}
        proven += outcome == "PERF DROP"
    return red / COMPARISONS, passed / COMPARISONS, proven / COMPARISONS


def main() -> None:
    """Print the table."""
    print("| each side | sessions vary by | runs vary by | red | passed | found |")
    print("|---|--:|--:|--:|--:|--:|")
    for world in WORLDS:
        figures = " | ".join(f"{100 * share:.2f}" for share in rates(world, random.Random(SEED)))
        print(
            f"| {world.title} | {world.between:.1%} | {world.inside:.1%} | {figures} |", flush=True
        )


if __name__ == "__main__":
    main()
