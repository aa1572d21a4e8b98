"""Stands in for a Python that has MLCommons' client: takes its arguments, leaves its files.

Run as `python client_stand_in.py MANNER ARGUMENTS...`. The results are in tests/data/endpoints and
were written by the client, with events of the time at which this ran. Kept free of the package.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

RECORDED = Path(__file__).parents[3] / "data" / "endpoints"
SCORED = RECORDED.with_name("endpoints_accuracy") / "c4" / "accuracy"


def tell_version(manner: str) -> None:
    if manner == "is not installed":
        sys.exit("ModuleNotFoundError: No module named 'inference_endpoint'")
    print(json.dumps(["0.1.0", None]))


def work_for_ever() -> NoReturn:
    while True:
        print("working", flush=True)
        time.sleep(0.1)


def measure(config: dict[str, Any], manner: str) -> None:
    concurrency = config["settings"]["load_pattern"]["target_concurrency"]
    print("starting", flush=True)
    if manner == "refuses":
        print("2026 - inference_endpoint - ERROR - Config error: extra_forbidden", file=sys.stderr)
        sys.exit(2)
    if manner == "hangs":
        time.sleep(600)
    if manner == "works for ever":
        work_for_ever()
    if manner == "crashes":
        os.kill(os.getpid(), 11)
    folder = Path(config["report_dir"])
    shutil.copytree(RECORDED / f"c{concurrency}", folder)
    if any(one["type"] == "accuracy" for one in config["datasets"]):
        shutil.copytree(SCORED, folder / "accuracy")
    (folder / "key").write_text(str(os.environ.get("ENDPOINTS_API_KEY")), "utf-8")
    content = json.loads((folder / "performance/result_summary.json").read_text("utf-8"))
    write_events(folder / "events.jsonl", content)


def write_events(file: Path, summary: dict[str, Any]) -> None:
    begin_ns, count = time.monotonic_ns() - summary["duration_ns"], summary["n_samples_completed"]
    end_ns = begin_ns + summary["duration_ns"]
    steps = [begin_ns + summary["duration_ns"] * n // count for n in range(count)]
    events = [("session.started", begin_ns - 10), ("session.start_performance_tracking", begin_ns)]
    events += [("sample.complete", at_ns) for at_ns in steps]
    events += [("session.stop_performance_tracking", end_ns), ("session.ended", end_ns)]
    lines = [
        json.dumps({"event_type": k, "timestamp_ns": t}, separators=(",", ":")) for k, t in events
    ]
    file.write_text("".join(line + "\n" for line in lines), "utf-8")


def main() -> None:
    manner, *arguments = sys.argv[1:]
    if arguments[0] == "-c":
        tell_version(manner)
        return
    assert arguments[:5] == ["-m", "inference_endpoint.main", "benchmark", "from-config", "-c"]
    measure(json.loads(Path(arguments[5]).read_text("utf-8")), manner)
    if manner == "scores in silence":
        time.sleep(1.5)


if __name__ == "__main__":
    main()
