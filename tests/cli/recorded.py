"""Sessions of MLCommons' endpoints client with scaled times.

`python -m tests.cli.recorded day1=1.0 day2=1.004` writes folders whose times are multiplied.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "data" / "endpoints"
SUMMARY, CONFIG = "performance/result_summary.json", "config.yaml"
POINTS = ("c1", "c4")

ANSWERS = FOLDER.with_name("endpoints_accuracy") / "c4"
"""A run that the client scored, with what tells which answer belongs to which sample."""

EVENTS, MAP = "events.jsonl", "sample_idx_map.json"

Change = Callable[[Any], Any]


def change(folder: Path, edit: Change, file: str = SUMMARY) -> None:
    """Edit a file of a run folder in place."""
    path = folder / file
    is_json = path.suffix == ".json"
    content = json.loads(path.read_text("utf-8")) if is_json else yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(json.dumps(content) if is_json else yaml.safe_dump(content), "utf-8")


def edit_events(folder: Path, answers: Mapping[int, str]) -> None:
    """Give samples other answers, as if the server had given these."""
    requests = json.loads((folder / MAP).read_text("utf-8"))["questions"]
    lines = []
    for line in (folder / EVENTS).read_text("utf-8").splitlines():
        event = json.loads(line)
        sample = requests.get(event["sample_uuid"])
        if sample in answers and event["event_type"] == "sample.complete":
            event["data"] = ["TextModelOutput", answers[sample]]
        lines.append(json.dumps(event, separators=(",", ":")) + "\n")
    (folder / EVENTS).write_text("".join(lines), "utf-8")


def slowed(factor: float) -> Change:
    """Return what makes every time of a result longer."""

    def edit(raw: dict[str, Any]) -> None:
        raw["duration_ns"] = round(raw["duration_ns"] * factor)
        raw["qps"], raw["tps"] = raw["qps"] / factor, raw["tps"] / factor
        for name in ("ttft", "tpot", "latency"):
            raw[name]["avg"] *= factor
            values = raw[name]["percentiles"]
            raw[name]["percentiles"] = {key: value * factor for key, value in values.items()}

    return edit


def record(folder: Path, factor: float = 1.0) -> Path:
    """Make a session of two points whose times are a factor longer than recorded."""
    shutil.copytree(FOLDER, folder)
    for point in POINTS:
        change(folder / point, slowed(factor))
    return folder


if __name__ == "__main__":
    for word in sys.argv[1:]:
        folder, _, times = word.partition("=")
        record(Path(folder), float(times))
