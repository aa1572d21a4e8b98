"""Write the result files of docs/judge.md into the working folder: `python -m` runs it."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from tests.addons.judge.files import document, spread, write


def serving(folder: Path, *, side: int, slower: float, first_day: int) -> Path:
    """Write five files of vLLM's benchmark, of five days."""
    for number, factor in enumerate(spread(side, 5)):
        content = document("vllm-serve.json")
        content["date"] = f"202611{first_day + number:02d}-080000"
        for key in content:
            if key.endswith("_ms"):
                content[key] *= factor * (slower if "ttft" in key else 1.0)
            elif key.endswith("throughput"):
                content[key] /= factor
        write(folder / f"run-{number}.json", content)
    return folder


def samples(scores: list[int]) -> str:
    """Return a file of lm-eval's samples."""
    return "\n".join(
        json.dumps(
            {
                "doc_id": number,
                "doc": {},
                "target": "x",
                "filtered_resps": ["x"],
                "filter": "none",
                "metrics": ["acc"],
                "acc": float(score),
                "doc_hash": f"d{number}",
                "prompt_hash": f"p{number}",
            }
        )
        for number, score in enumerate(scores)
    )


DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")


def tables(folder: Path, *, side: int) -> None:
    """Write a table for each of five days."""
    for day, factor in zip(DAYS, sorted(spread(side, 5), key=lambda f: abs(f - 1)), strict=True):
        p50, rate = 12.5 * factor, 80 / factor
        write(folder / day / "t.csv", f"size,p50 [ms],rate\n1,{p50:.5g},{rate:.5g}\n")


def scaled(value: Any, factor: float) -> Any:
    """Return the statistics of a time: all numbers times a factor."""
    if isinstance(value, dict):
        return {key: scaled(inner, factor) for key, inner in value.items()}
    return value * factor if isinstance(value, float) else value


def tools(folder: Path, *, side: int, first_day: int) -> None:
    """Write five files of AIPerf, GuideLLM and pytest-benchmark, of five days."""
    for number, factor in enumerate(spread(side, 5)):
        day = f"2026-11-{first_day + number:02d}"
        aiperf = document("real/aiperf-0.13.0.json") | {"start_time": f"{day}T08:00:00"}
        for name in ("request_latency", "time_to_first_token", "inter_token_latency"):
            aiperf[name] = scaled(aiperf[name], factor)
        write(folder / "aiperf" / f"{number}.json", aiperf)
        guidellm = document("real/guidellm-0.8.1.json")
        noon = dt.datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
        for benchmark in guidellm["benchmarks"]:
            benchmark["start_time"] = noon
            for name, metric in benchmark["metrics"].items():
                if name.endswith(("_ms", "latency", "per_second")):
                    rate = name.endswith("per_second")
                    benchmark["metrics"][name] = scaled(metric, 1 / factor if rate else factor)
        write(folder / "guidellm" / f"{number}.json", guidellm)
        timed = document("pytest-benchmark.json") | {"datetime": f"{day}T08:00:00+00:00"}
        for benchmark in timed["benchmarks"]:
            benchmark["stats"] = scaled(benchmark["stats"], factor)
        write(folder / "pytest-benchmark" / f"{number}.json", timed)


def main() -> None:
    """Write files of an old build, an equal one and a slower one."""
    here = Path()
    serving(here / "old", side=0, slower=1.0, first_day=1)
    serving(here / "new", side=1, slower=1.0, first_day=11)
    serving(here / "slow", side=1, slower=1.12, first_day=11)
    right = [1] * 700 + [0] * 300
    other = [1] * 698 + [0] * 299 + [1] * 3
    name = "samples_gsm8k_2026-11-12T08-00-00.jsonl"
    write(here / "old-samples" / name, samples(right))
    write(here / "new-samples" / name, samples(other))
    for side, (name, first_day) in enumerate((("old", 1), ("new", 11))):
        tables(here / f"{name}-table", side=side)
        tools(here / f"{name}-tools", side=side, first_day=first_day)


if __name__ == "__main__":
    main()
