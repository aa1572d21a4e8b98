"""Identify the hardware of a server by probe, exporter, kubectl, and the server itself."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pytest_mlperf.core.energy.exporter import ENERGY_METRIC, POWER_METRIC
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.prometheus import page_samples
from pytest_mlperf.core.server.identity import ServerIdentity
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware import probe
from pytest_mlperf.hardware.contention import LINUX, listeners
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.hardware.server import (
    PAGES,
    START_METRIC,
    counts_of,
    identified,
    of_exporter,
    of_kubernetes,
    of_probe,
)
from pytest_mlperf.processes import ChildProcess
from pytest_mlperf.run.scraping import MetricsPage, PageError

PROBE_SECONDS = 10.0
"""Maximum run time of a probe or of kubectl."""

MAX_OUTPUT_BYTES = 8 * 2**20
"""Most output of such a command; kubectl prints some 20 kB for a node."""

KILL_WAIT_SECONDS = 5.0
WATCH_SECONDS = 0.25
API_PATH = re.compile(r"(/v\d+)?(/(chat/)?completions)?/?(\?.*)?$")
"""End of a url that pages about the server do not have."""

METRICS = (POWER_METRIC, ENERGY_METRIC)
CONNECTIONS = 3
"""Number of connections that look for several servers behind one url."""


class ProbePage(MetricsPage):
    """Read the energy that a probe on the server's machine prints, as an exporter's page.

    Times are those of arrival on this machine, as clocks of two machines differ.
    """

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__("http://probe")
        self._command = [*command, "--watch", str(WATCH_SECONDS)]
        self._child: ChildProcess | None = None

    def read(self) -> bytes:
        """Return the newest reading as a page; raise PageError if none arrives in time."""
        try:
            if self._child is None:
                self._child = started(self._command, _script())
            deadline_s, newest = time.monotonic() + PROBE_SECONDS, b""
            while line := self._child.line(deadline_s, MAX_OUTPUT_BYTES):
                newest, deadline_s = line, 0.0
            gpus = json.loads(newest)["gpus"]
            rows = [
                f'{metric}{{UUID="{gpu["uuid"]}",modelName="{gpu["gpu"]}"}} {gpu[name] * 1000**n}'
                for gpu in gpus
                for n, (name, metric) in enumerate(zip(("watts", "joules"), METRICS, strict=True))
                if gpu[name] is not None
            ]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            self.close()
            text = f"the probe printed no energy: {type(error).__name__}"
            raise PageError(f"{text}; try {' '.join(self._command)}") from None
        return "\n".join(rows).encode()

    def interrupt(self) -> None:
        """End the probe."""
        if self._child is not None:
            self._child.end(killed_s=KILL_WAIT_SECONDS)

    def close(self) -> None:
        """End the probe and release its pipes; the next read starts it again."""
        child, self._child = self._child, None
        if child is not None:
            child.end(killed_s=KILL_WAIT_SECONDS)
            child.close()


@dataclass(frozen=True, kw_only=True)
class ServerSources:
    """Identify the server at `url` by the sources that `suite.tables.ServerEntry` describes."""

    url: str
    accelerator: str
    probe: tuple[str, ...] = ()
    exporter: str = ""
    gpus: tuple[str, ...] = ()
    kubernetes: str = ""

    def ask(self) -> ServerIdentity:
        """Ask all sources; raise RunError if one fails, answers nonsense or contradicts another."""
        reports = {}
        if self.probe:
            answer = _json_line(output_of("the probe", self.probe, _script()))
            reports["probe"] = of_probe(answer, self.accelerator, self.url)
        if self.exporter:
            reports["exporter"] = of_exporter(_page(self.exporter), self.gpus, self.accelerator)
        if self.kubernetes:
            reports["kubernetes"] = of_kubernetes(*_kubernetes(*self.kubernetes.split("/", 1)))
        pages, headers, starts = _pages(self.url)
        return identified(
            self.url, self.accelerator, reports, pages, headers, starts, time_s=time.monotonic()
        )

    def machine(self, client: Machine) -> Machine:
        """Return the machine on which the server runs, which may be `client`.

        Raises:
            RunError: See `ask`; or the probe ran on the client, but the server runs elsewhere.
        """
        if not self.probe and self.is_here and client.has(self.accelerator):
            return client
        server = self.ask()
        if server.properties.get("node") not in _nodes(client):
            return client.of_server(server)
        if not is_own_address(self.url):
            raise RunError(
                "server",
                f"the probe reports this machine, and {self.url} is another one: run the probe "
                "beside the server, e.g. ssh HOST python3 -",
            )
        return client if client.has(self.accelerator) else client.of_server(server)

    @property
    def is_here(self) -> bool:
        """Whether a process on this machine, not a tunnel, listens at the url."""
        parts = urlsplit(self.url)
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        if parts.scheme == "unix":
            return bool(listeners(LINUX, parts.path))
        return is_own_address(self.url) and bool(listeners(LINUX, port))


def _nodes(client: Machine) -> set[str]:
    """Return the hashes by which a probe would identify this machine, with and without GPUs."""
    uuids = sorted({probe.hashed(str(gpu["uuid"])) for gpu in client.gpus})
    ids = {"".join(uuids)} if uuids else set[str]()
    return {probe.hashed(name) for name in {*ids, f"pytest-mlperf {client.machine_id}"}}


def is_own_address(url: str) -> bool:
    """Return whether a url's host is this machine; it may still forward the port elsewhere."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(
            urlsplit(url).hostname, 0, type=socket.SOCK_STREAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as attempt:
                attempt.bind(address)  # only an own address can be bound
                return True
    return False


def started(command: Sequence[str], text: bytes) -> ChildProcess:
    """Start a command with `text` as its stdin; raise OSError if it cannot start."""
    child = ChildProcess(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    child.tell(text)
    child.let_go()
    return child


def output_of(title: str, command: Sequence[str], text: bytes = b"") -> bytes:
    """Return a command's output; raise RunError if it fails, hangs or prints too much."""
    deadline_s, printed = time.monotonic() + PROBE_SECONDS, b""
    try:
        child = started(command, text)
    except OSError as error:
        raise RunError("server", f"{title} cannot start: {command[0]}: {error.strerror}") from None
    try:
        with contextlib.suppress(EOFError):
            while len(printed) <= MAX_OUTPUT_BYTES:
                line = child.line(deadline_s, MAX_OUTPUT_BYTES)
                if line is None:
                    raise RunError(
                        "server",
                        f"{title} did not end within {PROBE_SECONDS:g} s: try it by hand: "
                        f"{' '.join(command)}",
                    )
                printed += line
            raise RunError("server", f"{title} prints more than {MAX_OUTPUT_BYTES >> 20} MiB")
        printed += child.rest
        child.ends_within(max(0.0, deadline_s - time.monotonic()))
    finally:
        child.end(killed_s=KILL_WAIT_SECONDS)
        child.close()
    if child.returncode:
        last = broken(printed[-400:].decode("utf-8", "replace").strip().rpartition("\n")[2])
        raise RunError("server", f"{title} ended with exit code {child.returncode}: {last}")
    return printed


def _script() -> bytes:
    return Path(probe.__file__).read_bytes()


def _json_line(printed: bytes) -> bytes:
    """Return the last line that may be JSON, as a login shell may print other lines."""
    lines = [line for line in printed.splitlines() if line.lstrip().startswith(b"{")]
    return lines[-1] if lines else printed


def _kubernetes(namespace: str, selector: str) -> tuple[bytes, bytes]:
    get = ("kubectl", "get", "-o", "json")
    pods = output_of("kubectl", [*get, "pods", "-n", namespace, "-l", selector])
    names = counts_of(pods)
    return pods, output_of("kubectl", [*get, "nodes", *names]) if names else b'{"items": []}'


def _page(url: str) -> bytes:
    page = MetricsPage(url)
    try:
        return page.read()
    except PageError as error:
        raise RunError("server", f"exporter: {error}; start it, or correct exporter") from None
    finally:
        page.close()


def _pages(url: str) -> tuple[dict[str, bytes], dict[str, str], frozenset[float]]:
    """Return the server's pages and their headers, and start times of several connections."""
    base = API_PATH.sub("", url if "://" in url else f"http://{url}")
    pages: dict[str, bytes] = {}
    headers: dict[str, str] = {}
    starts: set[float] = set()
    for path in [*PAGES, *["/metrics"] * (CONNECTIONS - 1)]:
        page = MetricsPage(base + path)
        try:
            pages[path] = page.read()
        except PageError:
            if not page.headers:  # nobody answers at all
                break
        finally:
            headers |= page.headers
            page.close()
        if path == "/metrics" and path in pages:
            starts |= {sample.value for sample in page_samples(pages[path], {START_METRIC})}
    return pages, headers, frozenset(starts)
