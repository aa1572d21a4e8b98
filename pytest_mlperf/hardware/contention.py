"""Read the processor time of other processes, and how long a group of processes waited.

All figures are differences of counters that Linux keeps anyway, read only at start and end.
Containers may hide some counters and other systems have none; missing figures are None.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_mlperf.hardware.clock import ClockWatch
from pytest_mlperf.hardware.host import usable_cores
from pytest_mlperf.hardware.probe import text_at

CLOCK_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
Key = tuple[int, int]
"""(pid, start time) of a process; (pid, tid) of a thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUsage:
    """Hold the resource use of one process.

    Attributes:
        name: Command name, at most 15 bytes.
        groups: Ids of its process group and of its session.
        used_s: Processor time of all its threads, including ended ones.
        reaped_s: Processor time of its ended children.
        faults: Major page faults, including those of its ended children.
    """

    name: str
    parent: int
    groups: tuple[int, int]
    used_s: float
    reaped_s: float
    faults: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Thread:
    """Hold a thread's wait for cores [s], its time slices and preemptions; None if unknown."""

    waited_s: float | None
    turns: int | None
    switches: int | None


def processes(root: Path) -> dict[Key, ProcessUsage]:
    """Return the resource use of every visible process, by pid and start time."""
    usage = {}
    for pid in _numbers(root / "proc"):
        raw = _read(root / f"proc/{pid}/stat")
        # The name may contain blanks and parentheses: the last parenthesis ends it.
        head, _, rest = raw.rpartition(b")")
        fields = rest.split()
        if len(fields) < 20:
            continue
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        parent, group, session = (int(fields[place]) for place in (1, 2, 3))
        ticks = [int(fields[place]) for place in (11, 12, 13, 14)]
        usage[pid, int(fields[19])] = ProcessUsage(
            name=name,
            parent=parent,
            groups=(group, session),
            used_s=sum(ticks[:2]) * CLOCK_TICK_SECONDS,
            reaped_s=sum(ticks[2:]) * CLOCK_TICK_SECONDS,
            faults=int(fields[9]) + int(fields[10]),
        )
    return usage


def process_tree(processes: Mapping[Key, ProcessUsage], leader: int) -> set[int]:
    """Return the pids of a process group or session and of all its descendants."""
    inside = {pid for (pid, _), each in processes.items() if leader in (pid, *each.groups)}
    grew = True
    while grew:
        children = {pid for (pid, _), each in processes.items() if each.parent in inside}
        grew = not children <= inside
        inside |= children
    return inside


LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 - compared, nothing is bound


def port_here(url: object) -> int | str | None:
    """Return the port or socket path of a server on this machine; None for any other URL."""
    with contextlib.suppress(ValueError):
        server = urlsplit(str(url or ""))
        if server.scheme == "unix":
            return server.path
        if server.hostname in LOCAL_HOSTS:
            return server.port or {"https": 443}.get(server.scheme, 80)
    return None


LISTENING_STATE, LISTENING_UNIX_FLAG = "0A", "00010000"

PROXIES = {
    *("docker-proxy", "rootlessport", "conmon", "pasta", "slirp4netns", "gvproxy", "tailscaled"),
    *("ssh", "sshd", "autossh", "kubectl", "oc", "gcloud", "tsh", "socat", "ncat", "chisel"),
    *("nginx", "haproxy", "envoy", "traefik", "caddy", "cloudflared", "stunnel", "frpc"),
    *("litellm", "mitmdump", "mitmproxy", "mitmweb"),
}
"""Processes that listen for a container or another machine, not for their own children."""


def listeners(root: Path, port: int | str) -> set[int]:
    """Return the pids that listen on a TCP port or Unix socket; empty if one is a known proxy."""
    rows = [line.split(maxsplit=7) for line in _lines(root / "proc/net/unix")]
    inodes = {row[6] for row in rows if row[7:] == [port] and row[3] == LISTENING_UNIX_FLAG}
    tcp = (*_lines(root / "proc/net/tcp"), *_lines(root / "proc/net/tcp6"))
    for fields in (line.split() for line in tcp if isinstance(port, int)):
        if len(fields) > 9 and fields[3] == LISTENING_STATE and fields[1].endswith(f":{port:04X}"):
            inodes.add(fields[9])
    sockets = {f"socket:[{number}]" for number in inodes}
    pids = {pid for pid in _numbers(root / "proc") if sockets & _open_files(root, pid)}
    names = {each.name for (pid, _), each in processes(root).items() if pid in pids}
    # A proxy in Python has an interpreter's name.
    words = (word for pid in pids for word in _read(root / f"proc/{pid}/cmdline").split(b"\0")[:3])
    names |= {word.decode("utf-8", "replace").rpartition("/")[2] for word in words}
    return set() if names & PROXIES else pids


def _open_files(root: Path, pid: int) -> set[str]:
    files = set()
    for descriptor in _numbers(root / f"proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            files.add(str((root / f"proc/{pid}/fd/{descriptor}").readlink()))
    return files


def session_of(pid: int) -> int | None:
    """Return the pid of the pytest (or xdist controller) that started `pid`; None if hidden."""
    steps = 2 if "PYTEST_XDIST_WORKER" in os.environ else 1
    parents = {number: each.parent for (number, _), each in processes(LINUX).items()}
    for _ in range(steps):
        pid = parents.get(pid, 0)
    return pid if pid > 1 else None


def threads(root: Path, pids: Set[int]) -> dict[Key, Thread]:
    """Return the threads of some processes by (process id, thread id)."""
    threads_by_key = {}
    for pid in pids:
        for tid in _numbers(root / f"proc/{pid}/task"):
            folder = root / f"proc/{pid}/task/{tid}"
            times = _read(folder / "schedstat").split()
            complete = len(times) >= 3
            threads_by_key[pid, tid] = Thread(
                waited_s=int(times[1]) * 1e-9 if complete else None,
                turns=int(times[2]) if complete else None,
                switches=_status(folder, b"nonvoluntary_ctxt_switches"),
            )
    return threads_by_key


def _status(folder: Path, field: bytes) -> int | None:
    _, separator, rest = _read(folder / "status").partition(b"\n%s:" % field)
    return int(rest.split()[0]) if separator else None


def _numbers(folder: Path) -> Iterator[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


LINUX = Path("/")

SCHEDULING_S = 30e-6
"""Wake-up time of a core on an idle machine; shorter waits do not count as contention."""

MAX_LISTED_PROCESSES, MIN_LISTED_CORES = 3, 0.02
"""Maximum number of other processes to name, and the cores that each must have used."""

QUOTA_PERIOD_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageTotals:
    """Hold resource totals at one moment; None if unknown.

    Attributes:
        busy_s: Processor time of all processes on the watched cores.
        stolen_s: Time of these cores that the hypervisor gave to other virtual machines.
        everyone: Usage of every process on the machine.
        group: Pids of the watched processes.
        serves: Whether the watched server's process was found; None if no server is watched.
        throttled_s: Throttled time by control group, see `_throttled`.
        cpu_s: Time in which at least one process waited for a core, from PSI.
        memory_s: Times in which some process waited for memory, and in which all did, from PSI.
    """

    at_s: float
    busy_s: float | None
    stolen_s: float | None
    everyone: Mapping[Key, ProcessUsage]
    group: Collection[int]
    threads: Mapping[Key, Thread]
    serves: bool | None
    throttled_s: Mapping[str, tuple[float, float]]
    cpu_s: float | None
    memory_s: tuple[float, float] | None
    swapped_in: int | None


class ContentionMonitor:
    """Read CPU and memory counters of a process and its descendants, and of their cores."""

    def __init__(
        self,
        leader: int,
        *,
        session: int | None = None,
        port: int | str | None = None,
        root: Path = LINUX,
        cores: Collection[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the processes and the cores to watch.

        Args:
            leader: A pid; its descendants are watched too.
            session: Another pid that is watched with its descendants, see `session_of`.
            port: Port or socket path of a server here that processes the leader's requests, or
                None.
            cores: Default: cores that this thread may use now; call this before engines bind
                threads.
        """
        self._leader, self._session, self._port = leader, session, port
        self._root = root
        self._cores = frozenset(usable_cores() if cores is None else cores)
        self._clock = clock

    def read(self) -> UsageTotals:
        """Read the CPU, memory and process totals; takes a millisecond for fifty processes."""
        root, everyone = self._root, processes(self._root)
        servers = listeners(root, self._port) if self._port else set()
        leaders = {self._leader, self._session or self._leader, *servers}
        group = set[int]().union(*(process_tree(everyone, leader) for leader in leaders))
        busy_s, stolen_s = self._processor()
        memory = _pressure(root, "memory")
        cpu = _pressure(root, "cpu")
        return UsageTotals(
            at_s=self._clock(),
            busy_s=busy_s,
            stolen_s=stolen_s,
            everyone=everyone,
            group=group,
            threads=threads(root, group),
            serves=bool(servers) if self._port else None,
            throttled_s=dict(_throttled(root)),
            cpu_s=cpu[0] if cpu else None,
            memory_s=memory,
            swapped_in=_swapped_in(root),
        )

    def peak_bytes(self) -> int | None:
        """Return the sum of the processes' peak memory [bytes], an upper bound; None if unknown."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pids = process_tree(processes(self._root), self._leader)
            peaks_kib = (_status(self._root / f"proc/{pid}", b"VmHWM") or 0 for pid in pids)
            return sum(peaks_kib) * 1024 or None
        return None

    def between(self, start: UsageTotals, end: UsageTotals) -> dict[str, Any]:
        """Return the load between two readings, as fields of `core.contention.Contention`.

        It is a dict because a worker's Python may have only LoadGen and numpy.
        """
        window_s = end.at_s - start.at_s
        used_s, earlier_s = (
            sum(usage.used_s + usage.reaped_s for usage in _watched(edge)) for edge in (end, start)
        )
        own_s = max(0.0, used_s - earlier_s) if start.group and end.group else None
        busy_s = _less(end.busy_s, start.busy_s)
        foreign_s = None if busy_s is None or own_s is None else max(0.0, busy_s - own_s)
        waited_s, switches = _waited(start.threads, end.threads)
        stolen_s = _less(end.stolen_s, start.stolen_s)
        if stolen_s and own_s is not None and busy_s:  # on the cores that we used
            stolen_s *= min(1.0, own_s / busy_s)
        throttled = [
            min(held - start.throttled_s[name][0], periods - start.throttled_s[name][1])
            for name, (held, periods) in end.throttled_s.items()
            if name in start.throttled_s
        ]
        memory = [
            _less(*pair) for pair in zip(end.memory_s or (), start.memory_s or (), strict=False)
        ]
        return {
            "window_s": max(0.0, window_s),
            "cores": len(self._cores),
            "own_s": own_s,
            "foreign_s": foreign_s,
            "waited_s": waited_s,
            "stolen_s": stolen_s,
            "throttled_s": max(0.0, *throttled, 0.0) if throttled else None,
            "switches": switches,
            "pressure_s": _less(end.cpu_s, start.cpu_s),
            "memory_some_s": memory[0] if memory else None,
            "memory_full_s": memory[1] if memory else None,
            "faults": max(0, _faults(end) - _faults(start)) if end.group and start.group else None,
            "swapped_in": _less(end.swapped_in, start.swapped_in),
            "others": _others(start, end, window_s),
            "serves": end.serves if start.serves else start.serves,
        }

    def _processor(self) -> tuple[float | None, float | None]:
        rows = {}
        for line in _lines(self._root / "proc/stat"):
            name, *values = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and len(values) >= 8:
                rows[int(name[3:])] = [int(value) * CLOCK_TICK_SECONDS for value in values[:8]]
        if not self._cores or not self._cores <= rows.keys():
            return None, None
        watched = [rows[core] for core in self._cores]
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user and nice.
        busy = sum(sum(row[:3]) + row[5] + row[6] for row in watched)
        return busy, sum(row[7] for row in watched)


def _faults(reading: UsageTotals) -> int:
    return sum(usage.faults for usage in _watched(reading))


def _watched(reading: UsageTotals) -> list[ProcessUsage]:
    return [usage for (pid, _), usage in reading.everyone.items() if pid in reading.group]


def _waited(
    start: Mapping[Key, Thread], end: Mapping[Key, Thread]
) -> tuple[float | None, int | None]:
    waited: list[float] = []
    switches: list[int] = []
    for key, thread in end.items():
        earlier = start.get(key, Thread(waited_s=0.0, turns=0, switches=0))
        if thread.waited_s is not None and thread.turns is not None:
            turns = thread.turns - (earlier.turns or 0)
            longer_s = thread.waited_s - (earlier.waited_s or 0.0) - turns * SCHEDULING_S
            waited.append(max(0.0, longer_s))
        if thread.switches is not None:
            switches.append(max(0, thread.switches - (earlier.switches or 0)))
    return sum(waited) if waited else None, sum(switches) if switches else None


def _others(start: UsageTotals, end: UsageTotals, window_s: float) -> dict[str, float]:
    used: dict[str, float] = {}
    for key, usage in end.everyone.items():
        earlier = start.everyone.get(key)
        if key[0] not in end.group:
            spent_s = usage.used_s - (earlier.used_s if earlier else 0.0)
            used[usage.name] = used.get(usage.name, 0.0) + spent_s
    largest = sorted(used.items(), key=lambda pair: -pair[1])[:MAX_LISTED_PROCESSES]
    if not window_s > 0:
        return {}
    return {name: s / window_s for name, s in largest if s / window_s >= MIN_LISTED_CORES}


def _less(end: float | None, start: float | None) -> float | None:
    return None if end is None or start is None else max(0, end - start)


# --- the kernel's counters -------------------------------------------------------------------


def _pressure(root: Path, resource: str) -> tuple[float, float] | None:
    groups = (folder / f"{resource}.pressure" for folder in _groups(root))
    for path in (*groups, root / "proc/pressure" / resource):
        rows = _table(path)
        totals = [rows.get(name, "").removeprefix("total=") for name in ("some", "full")]
        if totals[0].isdecimal():
            some, full = (int(total) * 1e-6 if total.isdecimal() else 0.0 for total in totals)
            return some, full
    return None


def _throttled(root: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield (folder, two estimates of CPU time lost to quotas [s]) of our cgroup and its parents.

    Both estimates are upper bounds: the sum over all cores; throttled periods x period length.
    """
    for folder in _groups(root):
        rows = _table(folder / "cpu.stat")
        quota = " ".join(_lines(folder / "cpu.max")).split()[1:]
        quota = quota or _lines(folder / "cpu.cfs_period_us")
        period_s = int(quota[0]) * 1e-6 if quota and quota[0].isdecimal() else QUOTA_PERIOD_SECONDS
        if "throttled_usec" in rows:
            held_s = int(rows["throttled_usec"]) * 1e-6
        elif "throttled_time" in rows:
            held_s = int(rows["throttled_time"]) * 1e-9
        else:
            continue
        yield str(folder), (held_s, int(rows.get("nr_throttled", 0)) * period_s)


def _groups(root: Path) -> Iterator[Path]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for name in [controllers] if controllers else ["", "unified"]:
            top = root / "sys/fs/cgroup" / name
            inside = Path(path.strip("/"))
            yield from (top / part for part in (inside, *inside.parents) if (top / part).is_dir())


def _swapped_in(root: Path) -> int | None:
    count = _table(root / "proc/vmstat").get("pswpin")
    return None if count is None else int(count)


def _table(path: Path) -> dict[str, str]:
    """Return a dict of a system file's lines: the first word of each line to its last word."""
    return {words[0]: words[-1] for line in _lines(path) if (words := line.split())}


def _lines(path: Path) -> list[str]:
    return text_at(path).splitlines()


class Window:
    """Read CPU and memory counters and the wall clock at the start and at the end of a run.

    Attributes:
        clock: Detects whether the wall clock was set during the run.
    """

    def __init__(self, watch: ContentionMonitor) -> None:
        self.watch = watch
        self._edges: list[UsageTotals] = []
        self.clock = ClockWatch()
        self._looks = 0

    def read_edge(self) -> None:
        """Read the counters: the first call at a run's start, the second at its end."""
        self._looks += 1
        if self._looks == 1:
            self.clock.start()
        elif self._looks == 2:
            self.clock.stop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._edges.append(self.watch.read())

    @property
    def seen(self) -> dict[str, Any] | None:
        """Processor load from start to end, as fields of `Contention`; None if a reading failed."""
        return self.watch.between(*self._edges) if len(self._edges) == 2 else None
