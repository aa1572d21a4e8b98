"""Run the client against a local server that computes nothing, to measure the client's limit."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import Sink
from pytest_mlperf.adapters.connections import new_loop
from pytest_mlperf.adapters.engines import StackedEngine, engine_error
from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.llm.streaming import Streams
from pytest_mlperf.adapters.engines.openai._address import PATHS, Address
from pytest_mlperf.adapters.engines.openai._client import Bodies, Client
from pytest_mlperf.adapters.engines.openai._events import StreamedAnswer
from pytest_mlperf.adapters.engines.openai._traffic import Checks, Traffic
from pytest_mlperf.extension import ChildProcess

SERVER = Path(__file__).with_name("_null_server.py")

START_TIMEOUT_SECONDS = 30.0

EXIT_SECONDS, KILL_SECONDS = 2.0, 5.0

MAX_PORT_BYTES = 64


class Uncounted(Checks):
    """Accept answers of any length, because the null server ignores the requested length."""

    def checked_tokens(self, answer: StreamedAnswer, *_: Any) -> int:
        return answer.tokens or 0


def drive(
    undo: contextlib.ExitStack, client: Client, traffic: Traffic, concurrency: int
) -> tuple[Streams, str]:
    """Open `client` on a new event loop; return (its Streams, loop's name); `undo` closes both."""
    loop, kind = new_loop()
    streams = Streams(traffic.answer, concurrency=concurrency, loop=loop)
    undo.callback(streams.close)
    streams.run(client.open())
    undo.callback(lambda: streams.run(traffic.close()))
    return streams, kind


@contextlib.contextmanager
def null_server(tokens: int, writes: int, api: str, *, ids: bool) -> Iterator[str]:
    """Serve answers of `tokens` tokens in `writes` chunks; yield the URL; `ids`: send token ids."""
    command = [sys.executable, "-I", "-S", str(SERVER), "--tokens", str(tokens), "--api", api]
    child = ChildProcess(
        [*command, "--writes", str(writes), *(["--ids"] if ids else [])],
        stdout=subprocess.PIPE,
        stderr=sys.stderr.fileno(),
    )
    try:
        yield f"http://127.0.0.1:{_port(child)}"
    finally:
        child.end(alone_s=EXIT_SECONDS, killed_s=KILL_SECONDS)
        child.close()


def _port(child: ChildProcess) -> int:
    try:
        return int(child.line(time.monotonic() + START_TIMEOUT_SECONDS, MAX_PORT_BYTES) or b"")
    except (EOFError, ValueError):
        raise engine_error(
            "the built-in test server, which measures how fast the client can be, did not start; "
            "see the log of the run"
        ) from None


@dataclass(kw_only=True, eq=False)
class NullClient(StackedEngine):
    """Send the loaded requests of an engine to the null server, which computes nothing."""

    tokens: int
    writes: int
    api: str
    ids: bool
    bodies: Bodies
    generation: Generation
    concurrency: int
    timeout_s: float

    def _open(self, undo: contextlib.ExitStack) -> None:
        url = undo.enter_context(null_server(self.tokens, self.writes, self.api, ids=self.ids))
        client = Client(Address(root=url), PATHS[self.api], {}, self.timeout_s)
        self._traffic = Traffic(client, None, self.timeout_s)
        checks = Uncounted(self.generation, watch_ends=False)
        self._traffic.use(self.bodies, checks, self.generation, None, None)
        self._streams, _ = drive(undo, client, self._traffic, self.concurrency)

    def event_loop(self) -> asyncio.AbstractEventLoop:
        return self._streams.loop

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self._traffic.submitted += len(ids)
        self._streams.put(ids, indices, sink)
