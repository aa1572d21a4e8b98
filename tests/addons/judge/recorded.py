"""Write the result files of docs/judge.md into the working folder: `python -m` runs it."""

from __future__ import annotations

import json
from pathlib import Path

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
    for side, folder in enumerate(("old-table", "new-table")):
        tables(here / folder, side=side)


if __name__ == "__main__":
    main()
