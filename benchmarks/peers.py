"""`make peers`: our client beside MLCommons', AIPerf, GuideLLM and a bare socket reader.

All ask the same server, in turn, with 64 requests under way: answers of 8 tokens for requests/s,
of 512 for events/s. Requests/s are the server's, over the middle eight tenths of the answers that
it sent, so that nobody's start or report counts. Processor time is of all processes of a client:
what a longer run takes more than a shorter one, by what it was answered more. Of several rounds the
best counts, as neighbours only slow. Clients other than ours have an environment each
(`.venv-peers-*`); one that is not there is left out.

`python -m benchmarks.peers --scaling` shows what 1, 2 and 4 of our client processes reach, also on
few cores: each of them is held to a share of a core by Linux' control groups (as root), so that the
others, the worker's and the server's process, have what they need.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NoReturn
from urllib.request import urlopen

from benchmarks.stream_server import Pace, stream_server
from pytest_mlperf.adapters.engines.openai import OpenAiEngine
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.job import Factory, LoadGenSettings, Seeds
from pytest_mlperf.run.child.protocol import ReplicaSpec, WorkerSpec
from pytest_mlperf.run.worker._clients import ClientProcesses
from pytest_mlperf.run.worker.closed_loop import ClosedLoop, SlotSink
from pytest_mlperf.run.worker.conversations import Conversations
from pytest_mlperf.run.worker.worker import build, built_engine

ROOT = Path(__file__).parents[1]
ONCE = 400
"""GuideLLM asks each prompt once and then ends: so often is each in its file."""

TOKENIZER = ROOT / "suites/tiny/llama2-70b/model"

STREAMS = 64
SHORT_S = 2.0
LIMIT_S = 180.0
"""Beside what it measures, no client takes so long to start and to report."""

EDGE = 0.1
"""Share of the answers at both ends of a run that do not count."""

PROMPT = "once upon a time a benchmark counted words as they came back in a stream of events "
PROMPTS = [f"{number} {PROMPT}" for number in range(STREAMS)]

MOST = 1024
"""Tokens that are asked for at most: all answers end by themselves."""

LENGTHS = {"requests": 8, "events": 512}

PR_SET_CHILD_SUBREAPER = 36

CGROUPS, PERIOD_US = Path("/sys/fs/cgroup"), 5000

SCALED = (1, 2, 4)
"""Numbers of client processes that are compared, each with `SHARE` of a core."""

SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client is to do: ask `url`, whose answers have `tokens`, for `lasts_s`."""

    url: str
    tokens: int
    lasts_s: float
    folder: Path


def python_of(name: str) -> Path:
    return ROOT / f".venv-peers-{name}" / "bin" / "python"


def ours(asked: Asked, clients: int = 1, share: float = 1.0) -> list[str]:
    run = [asked.url, str(asked.tokens), str(asked.lasts_s), str(asked.folder)]
    command = [sys.executable, "-m", "benchmarks.peers", "--client", str(clients)]
    return [*command, "--share", str(share), *run]


def ours_in_two(asked: Asked) -> list[str]:
    return ours(asked, 2)


def bare(asked: Asked) -> list[str]:
    return ours(asked, 0)


def endpoints(asked: Asked) -> list[str]:
    length_ms = int(1e3 * asked.lasts_s)
    config = {
        "name": "peers",
        "version": "1.0",
        "type": "online",
        "model_params": {
            "name": "echo",
            "temperature": 0.0,
            "streaming": "on",
            "max_new_tokens": MOST,
        },
        "datasets": [{"name": "prompts", "type": "performance", "path": prompts(asked, "prompt")}],
        "settings": {
            "client": {"num_workers": 1},
            "service_ready_timeout_s": LIMIT_S,
            "runtime": {
                "min_duration_ms": length_ms,
                "max_duration_ms": length_ms,
                "n_samples_to_issue": 10**9,
            },
            "load_pattern": {"type": "concurrency", "target_concurrency": STREAMS},
        },
        "endpoint_config": {"endpoints": [asked.url], "api_type": "openai"},
        "report_dir": str(asked.folder / "report"),
    }
    file = asked.folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    command = ["-m", "inference_endpoint.main", "benchmark", "from-config", "-c", str(file)]
    return [str(python_of("endpoints")), *command]


def aiperf(asked: Asked) -> list[str]:
    options = {
        "-m": "echo",
        "--url": asked.url,
        "--endpoint-type": "chat",
        "--tokenizer": str(TOKENIZER),
        "--input-file": prompts(asked, "text"),
        "--custom-dataset-type": "single_turn",
        "--concurrency": str(STREAMS),
        "--benchmark-duration": str(asked.lasts_s),
        "--extra-inputs": f"max_tokens:{MOST}",
        "--artifact-dir": str(asked.folder),
        "--ui": "none",
    }
    words = [word for pair in options.items() for word in pair]
    command = str(python_of("aiperf").with_name("aiperf"))
    return [command, "profile", *words, "--streaming", "--use-server-token-count"]


def guidellm(asked: Asked) -> list[str]:
    options = {
        "--backend": f"kind=openai_http,target={asked.url},model=echo",
        "--profile": f"kind=concurrent,streams={STREAMS}",
        "--constraint": f"kind=max_duration,seconds={asked.lasts_s}",
        "--data": f"kind=json_file,path={prompts(asked, 'prompt', ONCE)}",
        "--tokenizer": f"kind=hf_auto,model={TOKENIZER}",
        "--output": f"kind=json,path={asked.folder / 'report.json'}",
    }
    words = [word for pair in options.items() for word in pair]
    command = str(python_of("guidellm").with_name("guidellm"))
    return [command, "run", *words, "--disable-console"]


CLIENTS = {
    "bare socket reader": bare,
    "pytest-mlperf": ours,
    "with clients = 2": ours_in_two,
    "MLCommons' client": endpoints,
    "AIPerf": aiperf,
    "GuideLLM": guidellm,
}
PAIRS = (
    ("pytest-mlperf", "MLCommons' client"),
    ("with clients = 2", "MLCommons' client"),
    ("with clients = 2", "pytest-mlperf"),
)
"""Clients whose rounds stand beside each other."""

NEEDS = {endpoints: "endpoints", aiperf: "aiperf", guidellm: "guidellm"}


def prompts(asked: Asked, field: str, times: int = 1) -> str:
    """Return a file with a line of JSON for each prompt, so many times."""
    file = asked.folder / "prompts.jsonl"
    lines = [json.dumps({field: one}) + "\n" for one in PROMPTS]
    file.write_text("".join(lines * times), encoding="utf-8")
    return str(file)


# --- one run of a client ---------------------------------------------------------------------


def cpu_s() -> float:
    """Return the processor time of all processes below this one that have ended."""
    while True:  # what a client left behind belongs to it
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one run of a client was: answers that the server sent, a second, and processor time."""

    answers: int
    rate: float
    cpu_s: float


def run(command: Sequence[str], asked: Asked) -> Ran:
    log = asked.folder / "log.txt"
    before_s, sent = cpu_s(), len(answered(asked.url))
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
        try:
            code = process.wait(asked.lasts_s + LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    at_ns = answered(asked.url)[sent:]
    if code or len(at_ns) < STREAMS:
        end = log.read_text("utf-8", "replace")[-2000:]
        raise RuntimeError(f"{command[0]} ended with {code} after {len(at_ns)} answers:\n{end}")
    first, last = (int(share * (len(at_ns) - 1)) for share in (EDGE, 1 - EDGE))
    rate = (last - first) / (at_ns[last] - at_ns[first]) * 1e9
    return Ran(answers=len(at_ns), rate=rate, cpu_s=cpu_s() - before_s)


def answered(url: str) -> list[int]:
    with urlopen(f"{url}/answered") as page:
        times: list[int] = json.load(page)
    return times


def scale(rounds: int, lasts_s: float) -> None:
    """Print what so many client processes reach, each with the same share of a core."""
    for kind, tokens in LENGTHS.items():
        rates: dict[int, list[float]] = {}
        for _ in range(rounds):
            for clients in SCALED:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    stream_server(Pace(tokens=tokens)) as url,
                ):
                    asked = Asked(url=url, tokens=tokens, lasts_s=lasts_s, folder=Path(folder))
                    ran = run(ours(asked, clients, SHARE), asked)
                rates.setdefault(clients, []).append(ran.rate)
                print(f"{clients} clients, {kind}: {ran.rate:,.0f} requests/s", flush=True)
        one = median(rates[1])
        for clients, found in rates.items():
            rate, each = median(found), median(found) / one / clients
            print(f"{kind}, {clients} x {SHARE:g} cores: {rate:,.0f} requests/s, {each:.2f} n")


def measured(name: str, tokens: int, lasts_s: float) -> tuple[float, float]:
    """Return requests/s of a client, and its processor time a request, microseconds."""
    runs = []
    for length_s in (SHORT_S, lasts_s):
        with tempfile.TemporaryDirectory() as folder, stream_server(Pace(tokens=tokens)) as url:
            asked = Asked(url=url, tokens=tokens, lasts_s=length_s, folder=Path(folder))
            runs.append(run(CLIENTS[name](asked), asked))
    short, long = runs
    return long.rate, 1e6 * (long.cpu_s - short.cpu_s) / (long.answers - short.answers)


# --- the clients that are here ---------------------------------------------------------------


def read_bare(url: str, lasts_s: float) -> None:
    """Keep requests under way by sockets whose bytes nobody looks at but for the end."""
    host, port = url.removeprefix("http://").split(":")
    messages = [{"role": "user", "content": PROMPT}]
    fields = {"model": "echo", "messages": messages, "stream": True, "max_tokens": MOST}
    body = json.dumps(fields).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    sent = head + body
    selector, until_s = selectors.DefaultSelector(), monotonic() + lasts_s
    with ExitStack() as opened:
        for _ in range(STREAMS):
            connection = opened.enter_context(socket.create_connection((host, int(port))))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(sent)
            selector.register(connection, selectors.EVENT_READ, connection)
        while monotonic() < until_s:
            for key, _ in selector.select():
                if key.data.recv(1 << 18).endswith(b"\r\n0\r\n\r\n"):
                    key.data.sendall(sent)


def keep_under_way(asked: Asked, clients: int, share: float) -> None:
    """Measure a point of Concurrency as a worker does, with a share of a core for each client."""
    settings = LoadGenSettings(
        scenario=Scenario.CONCURRENCY,
        seeds=Seeds(qsl=1, sample_index=2, schedule=3),
        target_qps=None,
        min_duration_ms=int(1e3 * asked.lasts_s),
        min_query_count=1,
        fixed_work_s=asked.lasts_s,
        performance_samples=STREAMS,
        latency_limit_ns=None,
        latency_percentile=0.99,
        points=[STREAMS],
        tokens=True,
        ramp_ms=0,
    )
    options = {"url": asked.url, "api": "chat", "max_new_tokens": MOST, "clients": clients}
    spec = WorkerSpec(
        folder=str(asked.folder),
        engine=Factory(
            target=f"{OpenAiEngine.__module__}:{OpenAiEngine.__name__}", options=options
        ),
        dataset=Factory(
            target="pytest_mlperf.adapters.datasets.user_prompts:UserPromptsDataset",
            options={"path": prompts(asked, "prompt")},
        ),
        model=None,
        precision="none",
        settings=settings,
        replicas=[ReplicaSpec(name=f"client {n}", client=True) for n in range(clients)],
    )
    file = asked.folder / "spec.json"
    file.write_text(spec.to_json(), encoding="utf-8")
    sink = SlotSink(refuse, tokens=True)
    samples = build("dataset", spec.dataset)
    engine: Engine = built_engine(spec, samples)
    if clients > 1:
        engine = ClientProcesses(spec, file, samples, refuse)
    with engine, ExitStack() as limits:
        if share < 1:
            for pid in client_pids(clients):
                limits.enter_context(limited(pid, share))
        engine.load_samples(range(STREAMS))
        loop = ClosedLoop(engine, sink, Conversations(range(STREAMS)), settings)
        (point,) = loop.run("peers", 0.0, lambda: None)["points"]
    print(point["metrics"]["throughput"])


def client_pids(clients: int) -> list[int]:
    """Return the processes that send requests: this one, or those that it started."""
    if clients == 1:
        return [os.getpid()]
    return [
        int(pid)
        for pid in Path("/proc/self/task").joinpath(f"{os.getpid()}/children").read_text().split()
    ]


@contextmanager
def limited(pid: int, share: float) -> Iterator[None]:
    """Let a process have no more than a share of one core, by version 1 or 2 of control groups."""
    old = CGROUPS / "cpu"
    root = old if old.is_dir() else CGROUPS
    group = root / f"pytest-mlperf-{os.getpid()}-{pid}"
    group.mkdir()
    quota_us = int(share * PERIOD_US)
    try:
        if old.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(ProcessLookupError):
            (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def refuse(error: BaseException) -> NoReturn:
    print(error, file=sys.stderr, flush=True)
    os._exit(1)


# --- all of them -----------------------------------------------------------------------------


def present() -> Iterator[str]:
    for name, command in CLIENTS.items():
        needed = NEEDS.get(command)
        if needed is None or python_of(needed).exists():
            yield name
        else:
            print(f"{name} is left out: .venv-peers-{needed} is not there (make peers)")


def compare(rounds: int, lasts_s: float, only: Sequence[str]) -> None:
    names = [name for name in present() if not only or name in only]
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for kind, tokens in LENGTHS.items():
            for name in names if number % 2 == 0 else reversed(names):
                try:
                    one = measured(name, tokens, lasts_s)
                except (RuntimeError, OSError, MlperfError) as error:
                    print(f"{name}, {kind}: {error}", flush=True)
                    continue
                results.setdefault((name, kind), []).append(one)
                print(f"{name}, {kind}: {one[0]:,.0f} requests/s, {one[1]:,.1f} us", flush=True)
    print(f"\n{'':<20}{'requests/s':>12}{'us each':>10}{'events/s':>12}{'us each':>10}")
    for name in names:
        row = f"{name:<20}"
        for kind, tokens in LENGTHS.items():
            share = tokens if kind == "events" else 1
            rates, costs_us = zip(*results.get((name, kind), [(0.0, 0.0)]), strict=True)
            rate, cost_us = max(rates) * share, min(costs_us) / share
            row += f"{rate:>12,.0f}{cost_us:>10,.2f}" if rate else f"{'failed':>12}{'':>10}"
        print(row)
    for ours_name, theirs_name in PAIRS:
        for kind in LENGTHS:
            print_pairs(kind, ours_name, theirs_name, results)


def print_pairs(
    kind: str,
    name: str,
    other: str,
    results: Mapping[tuple[str, str], Sequence[tuple[float, float]]],
) -> None:
    """Print what two clients reached in each round, one after the other on the same machine."""
    sides = [[rate for rate, _ in results.get((one, kind), ())] for one in (name, other)]
    if not all(sides) or len(sides[0]) != len(sides[1]):
        return
    pairs = list(zip(*sides, strict=True))
    ratio = median(ours_rate / theirs_rate for ours_rate, theirs_rate in pairs)
    ahead = sum(ours_rate > theirs_rate for ours_rate, theirs_rate in pairs)
    rounds = ", ".join(f"{a:,.0f} : {b:,.0f}" for a, b in pairs)
    print(f"{kind}, answers/s, {name} : {other}: {rounds}")
    print(f"  median {ratio:.2f} times, ahead in {ahead} of {len(pairs)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--only", action="append", default=[], choices=list(CLIENTS))
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("run", nargs="*", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.client is None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if told.scaling:
            scale(told.rounds, told.seconds)
        else:
            compare(told.rounds, told.seconds, told.only)
        return
    url, tokens, lasts_s, folder = told.run
    asked = Asked(url=url, tokens=int(tokens), lasts_s=float(lasts_s), folder=Path(folder))
    if told.client:
        keep_under_way(asked, told.client, told.share)
    else:
        read_bare(asked.url, asked.lasts_s)


if __name__ == "__main__":
    main()
