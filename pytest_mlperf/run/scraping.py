"""Read metrics pages about once a second in a thread, during a measurement."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self
from urllib.parse import urlsplit

from pytest_mlperf.hardware.rapl import CLOCK_STEP_S, ahead_s

POLL_SECONDS = 1.0
PAGE_TIMEOUT_SECONDS = 2.0
MAX_PAGE_BYTES = 4 * 2**20
"""Maximum size of a page; servers' pages have about 100 kB."""

READ_BYTES = 1 << 16

THREAD_EXIT_SECONDS = 3.0


class PageError(Exception):
    """Report why a server's metrics page, or its hardware probe, could not be read."""


class MetricsPage:
    """Read page `url` repeatedly over one connection; `headers` are those of the last response."""

    def __init__(self, url: str, *, timeout_s: float = PAGE_TIMEOUT_SECONDS) -> None:
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # The connection drops its reference if a response lasts until the connection closes.
        self._socket: socket.socket | None = None
        self._timeout_s = timeout_s
        self.url = url
        self.headers: dict[str, str] = {}

    def read(self) -> bytes:
        """Return the page's content; raise PageError if it does not arrive in time."""
        begun_s = time.monotonic()
        # A socket's own time-out restarts with every byte received.
        timer = threading.Timer(self._timeout_s, self.interrupt)
        timer.daemon = True
        try:
            if self._connection.sock is None:
                self._connection.connect()
                self._socket = self._connection.sock
            timer.start()
            page = self._read()
            self._require_in_time(begun_s)
        except (OSError, http.client.HTTPException, ValueError, PageError) as error:
            self.close()
            self._require_in_time(begun_s)
            if isinstance(error, PageError):
                raise
            text = str(error) or type(error).__name__
            raise PageError(f"{self.url} does not answer: {text}") from None
        finally:
            timer.cancel()
        return page

    def _require_in_time(self, begun_s: float) -> None:
        if time.monotonic() - begun_s > self._timeout_s:
            raise PageError(f"{self.url} takes longer than {self._timeout_s:g} s") from None

    def _read(self) -> bytes:
        self._connection.request("GET", self._path, headers={"Accept": "text/plain"})
        answer = self._connection.getresponse()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != http.client.OK:
            raise PageError(f"{self.url} answers {answer.status}")
        page = b""
        while chunk := answer.read1(READ_BYTES):
            page += chunk
            if len(page) > MAX_PAGE_BYTES:
                raise PageError(f"{self.url} is larger than {MAX_PAGE_BYTES // 2**20} MiB")
        if answer.length:
            raise PageError(f"{self.url} ends {answer.length:,} bytes too early")
        answer.close()  # or the connection accepts no further request
        return page

    def close(self) -> None:
        """Close the connection; the next read opens a new one."""
        self._connection.close()

    def interrupt(self) -> None:
        """Abort a read in another thread."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def read_page(url: str) -> bytes:
    """Read a page over a new connection; raise PageError if it cannot be read."""
    is_address: object = False
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not is_address:
        raise PageError(f'{url!r} is not an address such as "http://gpu-box:9400/metrics"')
    with contextlib.closing(MetricsPage(url)) as page:
        return page.read()


class Scraper:
    """Read metrics pages about once a second inside the `with` block.

    Attributes:
        cpu_s: Processor time of the thread [s].
        failures: Errors of failed reads, in order.
        clock_stepped: Whether the wall clock was set, so that the run's window is unknown.
    """

    def __init__(
        self,
        urls: Sequence[str | MetricsPage],
        callback: Callable[[float, Sequence[bytes]], None],
        *,
        period_s: float = POLL_SECONDS,
    ) -> None:
        """Prepare a thread that calls `callback(time, pages of urls)` every `period_s` seconds."""
        self._pages = [MetricsPage(url) if isinstance(url, str) else url for url in urls]
        self._take, self._period_s = callback, period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="metrics", daemon=True)
        self.cpu_s = 0.0
        self.failures: list[str] = []
        self.clock_stepped = False
        self._ahead_s = ahead_s()

    def __enter__(self) -> Self:
        if self._pages:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self.clock_stepped = abs(ahead_s() - self._ahead_s) > CLOCK_STEP_S
        if self._thread.is_alive():
            self._thread.join(self._period_s / 10)
            for page in self._pages:
                page.interrupt()
            self._thread.join(THREAD_EXIT_SECONDS)

    def _look_on(self) -> None:
        due_s = time.monotonic()
        while not self._over.is_set():
            self._look()
            self.cpu_s = time.thread_time()
            due_s = max(due_s + self._period_s, time.monotonic())
            self._over.wait(due_s - time.monotonic())
        for page in self._pages:
            page.close()

    def _look(self) -> None:
        began_s = time.monotonic()
        try:
            pages = [page.read() for page in self._pages]
        except PageError as error:
            if not self._over.is_set():
                self.failures.append(str(error))
            return
        self._take((began_s + time.monotonic()) / 2 + self._ahead_s, pages)
