#!/usr/bin/env python3
"""Measure how often `--mlperf-against` sees a known slowdown: the table of docs/decisions.md.

    python research/against.py FOLDER [--work device] [--sessions 40] [--calm 1.0]

Two wheels of one package differ by work that takes 0, 3, 5 or 10 % longer; the limit is 5 %. The
work is a wait, as for a GPU (`--work device`), or a loop in Python (`--work core`). Each
session is a pytest session of its own, beside 0 or 1 process that keeps a core busy. Every finished
session is a line of FOLDER/sessions.jsonl, so the same command goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from pytest_mlperf.stores.results import read_results

SLOWDOWNS = (0, 3, 5, 10)
NEIGHBOURS = (0, 1)
LIMIT = "5%"
POLL_SECONDS = 20.0

PACKAGES = {
    "device": """\
import time

VERSION = "1.{slowdown}"


def answer(samples):
    time.sleep(0.0002 * {factor} * samples)
""",
    "core": """\
VERSION = "1.{slowdown}"


def answer(samples):
    total = 0
    for _ in range(round(4000 * {factor}) * samples):
        total += 1
    return total
""",
}
"""Module that takes about 0.2 ms for a sample, by kind of work."""
ENGINE = """\
from pytest_mlperf import Engine


class Busy(Engine):
    def __init__(self, *, dataset, model, precision):
        self.dataset = dataset

    def __enter__(self):
        import busyloop

        self.library = busyloop
        return self

    def submit(self, ids, indices, sink):
        for start in range(0, len(ids), 16):
            part = slice(start, start + 16)
            self.library.answer(len(ids[part]))
            sink.done(ids[part], None)

    def describe(self):
        return {"busyloop": self.library.VERSION}
"""
SUITE = f"""\
schema = 1
round = "v4.1"

[workload]
name = "busy"
dataset = {{ use = "synthetic", samples = 64 }}

[[engines]]
use = "busy_engine:Busy"

[[scenarios]]
name = "Offline"
target_qps = 4000
min_duration = "1s"

[limits]
throughput = {{ max_drop = "{LIMIT}" }}
"""


def write_wheel(folder: Path, work: str, slowdown: int) -> None:
    """Write the wheel of a version, and its module in a folder of its own."""
    version = f"1.{slowdown}"
    text = PACKAGES[work].format(slowdown=slowdown, factor=1 + slowdown / 100)
    about = f"busyloop-{version}.dist-info"
    tag = "Wheel-Version: 1.0\nGenerator: research\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        "busyloop.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: busyloop\nVersion: {version}\n",
        f"{about}/WHEEL": tag,
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"busyloop-{version}-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    here = folder / version
    here.mkdir(exist_ok=True)
    (here / "busyloop.py").write_text(text, "utf-8")


def prepare(folder: Path, work: str) -> None:
    """Write the project and its wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "busy_engine.py").write_text(ENGINE, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n", "utf-8")
    (folder / "busy.mlperf.toml").write_text(SUITE, "utf-8")
    for slowdown in SLOWDOWNS:
        write_wheel(folder, work, slowdown)


def session(folder: Path, slowdown: int, neighbours: int) -> Mapping[str, object]:
    """Run one session, and return its row."""
    file = folder / "results.json"
    file.unlink(missing_ok=True)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
    load, begun = os.getloadavg()[0], time.monotonic()
    try:
        words = (sys.executable, "-m", "pytest", "busy.mlperf.toml", "-q", "-p", "no:cacheprovider")
        options = ("--mlperf-against", "pip:busyloop==1.0", f"--mlperf-json={file}")
        places = [str(folder / f"1.{slowdown}"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder),
        }
        with (folder / "pytest.log").open("wb") as log:
            subprocess.run(
                [*words, *options], cwd=folder, env=environment, stdout=log, stderr=log, check=False
            )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    (result,) = read_results(file).cases
    verdict = result.verdict
    metric = next((one for one in verdict.metrics if one.metric == "throughput"), None)
    shares = [run.load.contention.share for run in verdict.runs if run.load.contention]
    return {
        "slowdown": slowdown,
        "neighbours": neighbours,
        "outcome": str(verdict.outcome),
        "pairs": verdict.interleaved.pairs if verdict.interleaved else 0,
        "change": metric.change if metric else None,
        "seconds": round(time.monotonic() - begun, 1),
        "load": round(load, 2),
        "busy": max((share for share in shares if share is not None), default=None),
    }


def rows_in(file: Path) -> list[dict[str, object]]:
    """Return the finished sessions."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yield the table of all sessions so far."""
    yield "| slowdown | neighbours | sessions | PERF DROP | ok | INCONCLUSIVE | pairs, median |"
    yield "|---|---|---|---|---|---|---|"
    for slowdown, neighbours in product(SLOWDOWNS, NEIGHBOURS):
        these = [r for r in rows if (r["slowdown"], r["neighbours"]) == (slowdown, neighbours)]
        if not these:
            continue
        counts = Counter(str(row["outcome"]) for row in these)
        passed = counts["ok"] + counts["improved"]
        pairs = median(int(str(row["pairs"])) for row in these)
        rest = f"{counts['PERF DROP']} | {passed} | {counts['INCONCLUSIVE']} | {pairs:g} |"
        yield f"| {slowdown} % | {neighbours} | {len(these)} | {rest}"


def main() -> None:
    """Run the missing sessions when the machine is calm, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", choices=PACKAGES, default="device")
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--calm", type=float, default=1.0, help="largest load average of a start")
    parser.add_argument("--only-table", action="store_true")
    parsed = parser.parse_args()
    folder = parsed.folder.resolve()
    prepare(folder, parsed.work)
    file = folder / "sessions.jsonl"
    file.touch()
    for number in range(0 if parsed.only_table else parsed.sessions):
        for slowdown, neighbours in product(SLOWDOWNS, NEIGHBOURS):
            cells = Counter((row["slowdown"], row["neighbours"]) for row in rows_in(file))
            if cells[slowdown, neighbours] > number:
                continue
            while os.getloadavg()[0] > parsed.calm:
                time.sleep(POLL_SECONDS)
            row = session(folder, slowdown, neighbours)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
    print(*table(rows_in(file)), sep="\n")


if __name__ == "__main__":
    main()
