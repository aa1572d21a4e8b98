"""Identify the hardware of a server by probe, exporter, kubectl, and the server itself."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pytest_mlperf.core.energy.exporter import ENERGY_METRIC, POWER_METRIC
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.prometheus import page_samples
from pytest_mlperf.core.server.identity import ServerIdentity
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware import probe, server
from pytest_mlperf.hardware.contention import LINUX, listeners
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.processes import ChildProcess
from pytest_mlperf.run.scraping import MetricsPage, PageError, read_page
from pytest_mlperf.suite.pairs import Testable
from pytest_mlperf.suite.places import expand, unset_in
from pytest_mlperf.suite.plan import Planned, url_of
from pytest_mlperf.suite.tables import ServerEntry

PROBE_SECONDS = 10.0
"""Maximum run time of a probe or of kubectl."""

MAX_OUTPUT_BYTES = 8 * 2**20
"""Most output of such a command; kubectl prints some 20 kB for a node."""

SCRIPT = Path(probe.__file__)
KILL_WAIT_SECONDS = 5.0
WATCH_SECONDS = 0.25
API_PATH = re.compile(r"(/v\d+)?(/(chat/)?completions)?/?(\?.*)?$")
"""End of a url that pages about the server do not have."""

ENERGY_ROWS = (("watts", POWER_METRIC, 1), ("joules", ENERGY_METRIC, 1000))
CONNECTIONS = 3
"""Number of connections that look for several servers behind one url."""


class ProbePage(MetricsPage):
    """Read the energy that a probe on the server's machine prints, formatted as a metrics page.

    Readings get their time of arrival here, because the clocks of two machines differ.
    """

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__("http://probe")
        self._command = [*command, "--watch", str(WATCH_SECONDS)]
        self._child: ChildProcess | None = None
        self._failure = ""

    def read(self) -> bytes:
        """Return the newest reading as a page; raise PageError if none arrives in time."""
        if self._failure:  # a command that fails is not started again and again during a run
            raise PageError(self._failure)
        try:
            self._child = child = self._child or _started(self._command, SCRIPT)
            deadline_s, newest = time.monotonic() + PROBE_SECONDS, b""
            while line := child.line(deadline_s, MAX_OUTPUT_BYTES):
                newest, deadline_s = line, 0.0
            rows = [
                f'{metric}{{UUID="{gpu["uuid"]}",modelName="{gpu["gpu"]}"}} {gpu[name] * factor}'
                for gpu in parse_json(newest)["gpus"]
                for name, metric, factor in ENERGY_ROWS
                if gpu[name] is not None
            ]
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            self.close()
            text = f"the probe printed no energy ({type(error).__name__})"
            self._failure = f"{text}: run the command of probe with --watch to see why"
            raise PageError(self._failure) from None
        return "\n".join(rows).encode()

    def close(self) -> None:
        """End the probe, also during a read."""
        child, self._child = self._child, None
        if child is not None:
            child.end(killed_s=KILL_WAIT_SECONDS)
            child.close()

    interrupt = close


@dataclass(frozen=True, kw_only=True)
class ServerSources:
    """Hold the sources for a server's hardware: its `url`, and those in its suite `entry`."""

    url: str
    accelerator: str = "cpu"
    entry: ServerEntry = field(default_factory=ServerEntry)

    def __post_init__(self) -> None:
        if "://" not in self.url:
            object.__setattr__(self, "url", f"http://{self.url}")
        with contextlib.suppress(ValueError):
            parts = urlsplit(self.url)
            if parts.path if parts.scheme == "unix" else parts.hostname and parts.port != 0:
                return
        url = broken(self.url.rpartition("@")[2])  # without a password
        text = f"{url!r} is not the address of a server, such as http://gpu-box:8000"
        raise RunError("server", text)

    @classmethod
    def of(cls, planned: Testable, exporter: str = "", gpus: Sequence[str] = ()) -> Self | None:
        """Return where to ask for a server's hardware; None without URL or with unset variables.

        An entry without an exporter or a probe uses the session's `exporter` and `gpus`.
        """
        url = url_of(planned)
        if not isinstance(planned, Planned) or not url or unset_in(planned.options):
            return None  # an unset variable is reported when the options are resolved
        entry = planned.engine.server or ServerEntry()
        table = expand(entry.model_dump(exclude_none=True))
        if exporter and not (entry.exporter or entry.probe):
            table |= {"exporter": exporter, "gpus": list(gpus)}
        entry = ServerEntry.model_validate(table)
        return cls(url=url, accelerator=planned.case.accelerator, entry=entry)

    def ask(self) -> ServerIdentity:
        """Ask all sources; raise RunError if one fails, is invalid or contradicts another."""
        reports, entry, name = {}, self.entry, self.accelerator
        if entry.probe:
            answer = _json_line(output_of("the probe", shlex.split(entry.probe), SCRIPT))
            reports["probe"] = server.parse_probe(answer, name, self.url)
        try:
            if entry.exporter:
                page = read_page(entry.exporter)
                reports["exporter"] = server.identify_by_exporter(page, entry.gpus, name)
        except PageError as error:
            raise RunError(
                "server", f"exporter: {error}; start it, or correct its address"
            ) from None
        if entry.kubernetes:
            command = "kubectl", "get", "-o", "json"
            reports["kubernetes"] = server.of_kubernetes(
                lambda *words: output_of("kubectl", [*command, *words]), entry.kubernetes, name
            )
        pages, headers, starts = _pages(self.url)
        return server.identified(
            self.url, name, reports, pages, headers, starts, time_s=time.monotonic()
        )

    def machine(self, client: Machine) -> Machine:
        """Return the machine on which the server runs, which may be `client`.

        Raises:
            RunError: See `ask`; also if the probe ran on the client, but the server does not.
        """
        if not self.entry.probe and self.is_here and client.has(self.accelerator):
            return client
        identity = self.ask()
        if not self.entry.probe or identity.properties.get("node") != own_node_id():
            return client.with_server(identity)
        if not is_own_address(self.url):
            raise RunError(
                "server",
                f"the probe ran on this machine, but the server {self.url} is on another one: let "
                'it run there, e.g. probe = "ssh HOST python3 -"',
            )
        return client if client.has(self.accelerator) else client.with_server(identity)

    @property
    def is_here(self) -> bool:
        """Whether a process on this machine, not a tunnel, listens at the url."""
        parts = urlsplit(self.url)
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        if parts.scheme == "unix":
            return bool(listeners(LINUX, parts.path))
        return is_own_address(self.url) and bool(listeners(LINUX, port))


def is_own_address(url: str) -> bool:
    """Return whether a url's host is this machine, which may forward the port to another one."""
    with contextlib.suppress(OSError, UnicodeError):
        host, stream = urlsplit(url).hostname, socket.SOCK_STREAM
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=stream):
            with contextlib.suppress(OSError), socket.socket(family, kind) as attempt:
                attempt.bind(address)  # only an own address can be bound
                return True
    return False


@functools.cache
def own_node_id() -> str:
    """Return the hash that identifies this machine, as the hardware probe prints it."""
    printed = output_of("the probe of this machine", [sys.executable, "-I", "-S", "-"], SCRIPT)
    return str(parse_json(_json_line(printed))["node"])


def _started(command: Sequence[str], stdin: Path) -> ChildProcess:
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    return ChildProcess(command, stdout=pipe, stderr=same, stdin=stdin)


def output_of(title: str, command: Sequence[str], stdin: Path = Path(os.devnull)) -> bytes:
    """Return a command's output; raise RunError if it fails, hangs or prints too much."""
    deadline_s, printed, failure = time.monotonic() + PROBE_SECONDS, b"", ""
    try:
        child = _started(command, stdin)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise RunError("server", f"{title} cannot start: {broken(command[0])}: {reason}") from None
    try:
        while len(printed) <= MAX_OUTPUT_BYTES:
            line = child.line(deadline_s, MAX_OUTPUT_BYTES)
            if line is None:
                failure = f"did not end within {PROBE_SECONDS:g} s: try it by hand"
                break
            printed += line
        else:
            failure = f"prints more than {MAX_OUTPUT_BYTES >> 20} MiB"
    except EOFError:
        printed += child.rest
        if not child.ends_within(max(0.0, deadline_s - time.monotonic())):
            failure = f"closed its output, but did not end within {PROBE_SECONDS:g} s"
        elif child.returncode:
            last = broken(printed[-400:].decode("utf-8", "replace").strip().rpartition("\n")[2])
            failure = f"ended with exit code {child.returncode}: {last}"
    finally:
        child.end(killed_s=KILL_WAIT_SECONDS)
        child.close()
    if failure:
        raise RunError("server", f"{title} {failure}")
    return printed


def _json_line(printed: bytes) -> bytes:
    lines = [line for line in printed.splitlines() if line.lstrip().startswith(b"{")]
    return lines[-1] if lines else printed


def _pages(url: str) -> tuple[dict[str, bytes], dict[str, str], frozenset[float]]:
    """Return (metrics pages by path, HTTP headers, start times of the server's processes [s])."""
    base = API_PATH.sub("", url)
    pages: dict[str, bytes] = {}
    headers: dict[str, str] = {}
    starts: set[float] = set()
    for path in [*server.PAGES, *["/metrics"] * (CONNECTIONS - 1)]:
        page = MetricsPage(base + path)
        with contextlib.suppress(PageError), contextlib.closing(page):
            pages[path] = page.read()
        if not page.headers:  # no server answers
            break
        headers |= page.headers
        starts |= {one.value for one in page_samples(pages.get(path, b""), {server.START_METRIC})}
    return pages, headers, frozenset(starts)
