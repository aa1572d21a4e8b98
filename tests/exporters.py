"""An HTTP server on this machine that shows pages of metrics, as servers and exporters do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Show = Callable[[BaseHTTPRequestHandler], None]


class Exporter(ThreadingHTTPServer):
    """Answers each request with what `show` writes; `asked` counts them."""

    daemon_threads = True

    def __init__(self, show: Show) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.show = show
        self.requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/metrics"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients may go in the middle of a page."""


class Handler(BaseHTTPRequestHandler):
    """One connection, kept open."""

    protocol_version = "HTTP/1.1"
    server: Exporter

    def do_GET(self) -> None:
        self.server.requests += 1
        self.server.show(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def page(text: str | bytes, status: int = 200) -> Show:
    """Return what writes a page."""
    body = text.encode() if isinstance(text, str) else text

    def show(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return show


@contextmanager
def exporting(show: Show) -> Iterator[Exporter]:
    """Serve from threads of this process until the block ends."""
    with Exporter(show) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
