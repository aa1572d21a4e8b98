"""A scripted KServe v2 server over HTTP in a child process, which answers rightly or wrongly.

Run as `python scripted.py PORT SCRIPT`, the script as JSON. Its model "echo" returns the row of the
request: input "row", output "scores", both FP32 of shape (-1, 4). It needs numpy.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

TENSOR = {"datatype": "FP32", "shape": [-1, 4]}

NORMAL: dict[str, Any] = {
    "server": {"name": "scripted", "version": "7", "extensions": ["binary_tensor_data"]},
    "model": {
        "name": "echo",
        "versions": ["1"],
        "platform": "none",
        "inputs": [{"name": "row", **TENSOR}],
        "outputs": [{"name": "scores", **TENSOR}],
    },
    "config": None,
    "models": ["echo"],
    "version": "1",
    "ready_after": 0,  # times that it is asked before the model is ready; None: never
    "after": 1 << 30,  # requests that are answered as "first" says, the others as "then" says
    "first": "",  # the end of a name of a method below
    "then": "",
    "blanks": 0,  # bytes behind what the server says of itself
    "says_length": True,
    "closes": False,  # the connection after each answer, without a word
}

HEADER = "Inference-Header-Content-Length"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    script: dict[str, Any] = NORMAL
    lock = threading.Lock()
    answered = ready_requests = 0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer the requests of the preparation."""
        path, script = self.path, self.script
        if path == "/v2/health/ready":
            self.reply(200, {})
        elif path.endswith("/ready"):
            with self.lock:
                type(self).ready_requests += 1
                wait = script["ready_after"]
                ready = wait is not None and self.ready_requests > wait
            self.reply(200 if ready and "/echo/" in path else 400, {})
        elif path == "/v2":
            self.reply(200, script["server"], blanks=script["blanks"])
        elif path.endswith("/config") and script["config"] is not None:
            self.reply(200, script["config"])
        elif path in ("/v2/models/echo", "/v2/models/echo/versions/2"):
            self.reply(200, script["model"])
        else:
            self.reply(404, {"error": f"nothing is at {path}"})

    def do_POST(self) -> None:
        """Answer a request as the script says."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v2/repository/index":
            self.reply(200, [{"name": name} for name in self.script["models"]])
            return
        with self.lock:
            type(self).answered += 1
            late = self.answered > self.script["after"]
        length = int(self.headers.get(HEADER, len(body)))
        request = json.loads(body[:length])
        (tensor,) = request["inputs"]
        if length < len(body):
            rows = np.frombuffer(body[length:], "<f4").reshape(tensor["shape"])
        else:
            rows = np.array(tensor["data"], "<f4").reshape(tensor["shape"])
        getattr(self, f"then_{self.script['then' if late else 'first']}")(rows, length < len(body))

    def then_(self, rows: Any, binary: bool, **changes: Any) -> None:
        """Answer."""
        version = changes.pop("version", self.script["version"])
        output = {"name": "scores", "datatype": "FP32", "shape": list(rows.shape), **changes}
        raw = rows.tobytes() if binary else b""
        if binary:
            output["parameters"] = {"binary_data_size": len(raw)}
        else:
            output["data"] = rows.ravel().tolist()
        self.reply(200, {"model_version": version, "outputs": [output]}, raw)

    def then_500(self, rows: Any, binary: bool) -> None:
        """Refuse as Triton does when a model fails."""
        self.reply(500, {"error": "the model ran into a wall"})

    def then_429(self, rows: Any, binary: bool) -> None:
        """Refuse as a gateway does, without KServe's form."""
        self.send_raw(429, 9, b"slow down")

    def then_garbage(self, rows: Any, binary: bool) -> None:
        self.send_raw(200, 5, b"\xff{[]\n")

    def then_nothing(self, rows: Any, binary: bool) -> None:
        self.reply(200, {"model_version": "1", "outputs": []})

    def then_wide(self, rows: Any, binary: bool) -> None:
        self.then_(np.pad(rows, ((0, 0), (0, 1))), binary)

    def then_double(self, rows: Any, binary: bool) -> None:
        self.then_(rows.astype("<f8"), binary, datatype="FP64")

    def then_short(self, rows: Any, binary: bool) -> None:
        self.then_(rows[1:], binary)

    def then_reload(self, rows: Any, binary: bool) -> None:
        self.then_(rows, binary, version="2")

    def then_hang(self, rows: Any, binary: bool) -> None:
        """Answer nothing, and keep the connection."""
        self.server.over.wait()  # type: ignore[attr-defined]  # the base class's name

    def then_half(self, rows: Any, binary: bool) -> None:
        """Break off in the middle of an answer."""
        self.send_raw(200, 100, b'{"outputs": [')
        self.close_connection = True

    def then_kill(self, rows: Any, binary: bool) -> None:
        """End without a word, as when memory runs out."""
        print("the last line of the log", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def send_raw(self, status: int, length: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def reply(self, status: int, reply: Any, raw: bytes = b"", *, blanks: int = 0) -> None:
        """Send JSON, and bytes behind it."""
        text = json.dumps(reply).encode() + b" " * blanks
        self.send_response(status)
        if raw:
            self.send_header(HEADER, str(len(text)))
        if self.script["says_length"]:
            self.send_header("Content-Length", str(len(text) + len(raw)))
        self.end_headers()
        self.wfile.write(text + raw)
        self.close_connection = bool(self.script["closes"])


class Server(ThreadingHTTPServer):
    """A thread for each connection; many may come at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.over = threading.Event()


def server_of(script: dict[str, Any], port: int = 0) -> Server:
    kind = type("Scripted", (Handler,), {"script": {**NORMAL, **script}})
    return Server(("127.0.0.1", port), kind)


if __name__ == "__main__":
    server_of(json.loads(sys.argv[2]), int(sys.argv[1])).serve_forever()
