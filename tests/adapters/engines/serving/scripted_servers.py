"""Servers that behave well or badly on purpose: `python scripted_servers.py WHAT PORT [FOLDER]`.

Standard library only, so that one starts in a tenth of a second.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


class Healthy(BaseHTTPRequestHandler):
    """Answers 200 to GET /health, 404 to anything else."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *values: Any) -> None:
        print(values[0] % values[1:], file=sys.stderr)


class Loading(Healthy):
    """Is ready at the third question."""

    health_requests = 0

    def do_GET(self) -> None:
        Loading.health_requests += 1
        if Loading.health_requests >= 3:
            super().do_GET()
        else:
            self.send_error(503, "loading")


class NeverReady(Healthy):
    """A server that always reports that it is loading."""

    def do_GET(self) -> None:
        self.send_error(503, "loading")


class Listener(ThreadingHTTPServer):
    """Does not wait for connections to end."""

    daemon_threads = True


def serve(port: int, handler: type[BaseHTTPRequestHandler] = Healthy) -> None:
    """Listen until killed."""
    server = Listener(("127.0.0.1", port), handler)
    print(f"listening on {port}", flush=True)
    server.serve_forever()


def mute(port: int) -> None:
    """Accept connections and say nothing."""
    with socket.create_server(("127.0.0.1", port)):
        threading.Event().wait()


def taken(port: int, folder: str, times: int) -> None:
    """Find the port taken, the first `times` times that it is started."""
    starts = Path(folder, "starts")
    starts_so_far = starts.read_text("ascii") if starts.exists() else ""
    starts.write_text(starts_so_far + "+", "ascii")
    if len(starts_so_far) < times:
        with socket.create_server(("127.0.0.1", port)):
            serve(port)
    serve(port)


def complain(words: str, code: int) -> None:
    """Say what went wrong, then much else, and end."""
    print("loading weights\rloading weights: 100%", flush=True)
    print(f"\x1b[31m{words}\x1b[0m", flush=True)
    for number in range(8):
        print(f"shutting down part {number} \x07::error::")
    sys.stdout.flush()
    os._exit(code)


def leave_grandchild(port: int, folder: str) -> None:
    """Serve, and leave behind a process of another session that ignores SIGTERM."""
    child = subprocess.Popen(
        [sys.executable, __file__, "grandchild", "0", folder], start_new_session=True
    )
    child.wait()
    serve(port)


def grandchild(folder: str) -> None:
    """Fork once more, so that the caller loses track of this process."""
    reads, writes = os.pipe()
    if os.fork():
        os.close(writes)
        os.read(reads, 1)  # until the other ignores SIGTERM
        os._exit(0)
    ignore_end()
    Path(folder, "grandchild").write_text(str(os.getpid()), "ascii")
    os.close(writes)
    os.close(reads)
    threading.Event().wait()


def serve_on(port: int) -> None:
    """Serve, and take no notice of SIGTERM."""
    ignore_end()
    serve(port)


def ignore_end() -> None:
    """Take no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(behaviour: str, port: int, folder: str = "") -> None:
    """Run the named behaviour."""
    behaviours: dict[str, Callable[[], object]] = {
        "healthy": lambda: serve(port),
        "loading": lambda: serve(port, Loading),
        "never ready": lambda: serve(port, NeverReady),
        "mute": lambda: mute(port),
        "deaf": lambda: threading.Event().wait(),
        "out of CUDA memory": lambda: complain(CUDA, 1),
        "137": lambda: complain("Killed", 137),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "ends": lambda: None,
        "stubborn": lambda: serve_on(port),
        "grandchild": lambda: grandchild(folder),
        "leaves a grandchild": lambda: leave_grandchild(port, folder),
        "taken once": lambda: taken(port, folder, 1),
        "taken": lambda: taken(port, folder, 99),
    }
    behaviours[behaviour]()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
