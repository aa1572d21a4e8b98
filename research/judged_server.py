"""Measure how often `pytest-mlperf judge` errs on files of Locust and a server slowed by a sleep.

    python research/judged_server.py measure runs.jsonl --locust /path/to/locust --rounds 60
    python research/judged_server.py judge runs.jsonl

A round has a run of each server in random order: two equal ones, and three that are slower by 3, 5
and 10 %. Each run is a line of the file, so `measure` goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean, stdev

from pytest_mlperf.addons.judge.files import read_side
from pytest_mlperf.addons.judge.judging import compare
from pytest_mlperf.addons.judge.model import ToolRun
from pytest_mlperf.addons.judge.rows import FileComparison, Settings

SLOWER = {"base": 1.0, "equal": 1.0, "3 %": 1.03, "5 %": 1.05, "10 %": 1.10}
"""Servers by name, and the factor of their answer's time."""

ANSWER_S = 0.5
"""Long against the delay of a busy machine's scheduler, so that few runs show a slowdown of 5 %."""

USERS, RUN_S = 10, 4
ROUNDS = 40

USER = """from locust import HttpUser, task

class User(HttpUser):
    @task
    def answer(self):
        self.client.get("/answer")
"""

METRIC = "latency_mean"
LIMIT = 0.05
SETTINGS = Settings(metrics=(METRIC,), limits={"latency": LIMIT})

SESSIONS, PAIRS = (2, 3, 4, 6, 8), (4, 6, 8)
DRAWS = 2000


@contextmanager
def serving(factor: float) -> Iterator[int]:
    """Serve answers that take `ANSWER_S` times a factor; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(ANSWER_S * factor)
            with suppress(ConnectionError):  # the client ends with its run
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

        def log_message(self, *words: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def measured(locust: str, name: str) -> object:
    """Return Locust's JSON of a run against a server."""
    while True:
        if content := _run(locust, SLOWER[name]):
            return content  # else the run ended before its first answer


def _run(locust: str, factor: float) -> object:
    with tempfile.TemporaryDirectory() as folder, serving(factor) as port:
        (Path(folder) / "locustfile.py").write_text(USER, "utf-8")
        options = f"--headless -u {USERS} -r {USERS} -t {RUN_S}s --json-file out --loglevel ERROR"
        host = ("-H", f"http://127.0.0.1:{port}")
        subprocess.run(
            [locust, *options.split(), *host], cwd=folder, check=True, capture_output=True
        )
        return json.loads((Path(folder) / "out.json").read_text("utf-8"))


def measure(file: Path, locust: str, rounds: int) -> None:
    """Add runs to the file until it has all rounds."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    finished = {tuple(json.loads(line)[:2]) for line in lines}
    for number in range(rounds):
        names = random.Random(number).sample(sorted(SLOWER), len(SLOWER))
        for name in names:
            if (number, name) not in finished:
                with file.open("a", encoding="utf-8") as out:
                    print(json.dumps([number, name, measured(locust, name)]), file=out, flush=True)


def runs_of(file: Path) -> dict[str, list[ToolRun]]:
    """Return the runs of each server in the order of rounds, read as files of Locust."""
    runs: dict[str, list[ToolRun]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for line in file.read_text("utf-8").splitlines():
            number, name, content = json.loads(line)
            result = Path(folder) / "out.json"
            result.write_text(json.dumps(content), "utf-8")
            (run,) = read_side([result]).runs
            runs[name].append(replace(run, folder=f"round {number}", host="h"))
    return runs


def centred(base: Sequence[ToolRun], now: Sequence[ToolRun], ratio: float) -> list[ToolRun]:
    """Return the runs of a side, scaled so that all of them have a ratio to the other side.

    The servers differ by their sleep alone, and by chance. Without the scale, the drop of a set
    that is drawn from these runs would not be known.
    """
    means = [fmean(math.log(run.points[0].metrics[METRIC]) for run in side) for side in (base, now)]
    factor = ratio * math.exp(means[0] - means[1])
    scaled = []
    for run in now:
        (point,) = run.points
        metrics = {**point.metrics, METRIC: point.metrics[METRIC] * factor}
        scaled.append(replace(run, points=(replace(point, metrics=metrics),)))
    return scaled


def outcome(base: Sequence[ToolRun], now: Sequence[ToolRun]) -> str:
    """Return the outcome of the judged metric."""
    result: FileComparison = compare(base, now, SETTINGS)
    return next(str(row.outcome) for row in result.rows if row.metric == METRIC)


def by_sessions(
    base: Sequence[ToolRun], now: Sequence[ToolRun], sessions: int, draws: int
) -> Counter[str]:
    """Count the outcomes of random sets of runs of other rounds; each run is a session."""
    choice, outcomes = random.Random(sessions), Counter[str]()
    for _ in range(draws):
        rounds = choice.sample(range(min(len(base), len(now))), 2 * sessions)
        sides = ([base[n] for n in rounds[:sessions]], [now[n] for n in rounds[sessions:]])
        # Without a time, a folder is a session.
        outcomes[outcome(*([replace(run, started=None) for run in side] for side in sides))] += 1
    return outcomes


def in_turns(base: Sequence[ToolRun], now: Sequence[ToolRun], pairs: int) -> Counter[str]:
    """Count the outcomes of all stretches of successive rounds, whose runs alternated."""
    return Counter(
        outcome(base[first : first + pairs], now[first : first + pairs])
        for first in range(min(len(base), len(now)) - pairs + 1)
    )


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["measure", "judge"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--locust", default="locust")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.command == "measure":
        measure(options.file, options.locust, options.rounds)
        return
    runs = runs_of(options.file)
    latencies = [run.points[0].metrics[METRIC] for run in runs["base"]]
    spread = stdev(latencies) / fmean(latencies)
    print(f"{len(latencies)} rounds; a run takes {fmean(latencies):.3f} s a request ± {spread:.1%}")
    print("| each side | slower by | comparisons | red | passed | open |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in [name for name in SLOWER if name != "base"]:
        now = centred(runs["base"], runs[name], SLOWER[name])
        counts = {f"{n} sessions of 1": by_sessions(runs["base"], now, n, DRAWS) for n in SESSIONS}
        counts |= {f"{n} pairs of runs in turns": in_turns(runs["base"], now, n) for n in PAIRS}
        for title, outcomes in counts.items():
            total = outcomes.total()
            red, passed = outcomes["PERF DROP"], outcomes["ok"] + outcomes["improved"]
            shares = " | ".join(
                f"{100 * n / total:.1f}" for n in (red, passed, total - red - passed)
            )
            print(
                f"| {title} | {name.replace('equal', '0 %')} | {total:,} | {shares} |", flush=True
            )


if __name__ == "__main__":
    main()
