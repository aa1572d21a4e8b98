"""Who used the processor between two readings: by made-up /proc trees, and a real neighbour."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.contention import Contention
from pytest_mlperf.hardware.contention import (
    CLOCK_TICK_SECONDS,
    LINUX,
    SCHEDULING_S,
    ContentionMonitor,
    ProcessUsage,
    listeners,
    port_here,
    process_tree,
    processes,
    session_of,
)

ENGINE, SERVER, DAEMON, OTHER = 100, 101, 102, 200
"""An engine, the server that it started in a session of its own, what that started, a stranger."""


class Tree:
    """A scripted /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time_s = 1000.0

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, "utf-8")

    def cores(self, busy_s: float, stolen_s: float = 0.0, count: int = 2) -> None:
        rows = [
            f"cpu{n} {round(busy_s / CLOCK_TICK_SECONDS) if n == 0 else 0} 0 0 9999 5 0 0 "
            f"{round(stolen_s / CLOCK_TICK_SECONDS) if n == 0 else 0} 0 0"
            for n in range(count)
        ]
        self.write("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 10\n" + "\n".join(rows) + "\nintr 0\n")

    def process(
        self,
        pid: int,
        *,
        parent: int = 1,
        group: int | None = None,
        name: str = "python",
        used_s: float = 0.0,
        reaped_s: float = 0.0,
        faults: int = 0,
        began: int = 7,
    ) -> None:
        ticks = f"{round(used_s / CLOCK_TICK_SECONDS)} 0 {round(reaped_s / CLOCK_TICK_SECONDS)} 0"
        pgid = group or pid
        self.write(
            f"proc/{pid}/stat",
            f"{pid} ({name}) S {parent} {pgid} {pgid} 0 -1 0 0 0 {faults} 0 {ticks} 20 0 1 0 "
            f"{began} 0\n",
        )

    def thread(
        self, pid: int, tid: int, *, waited_s: float, turns: int = 0, switches: int = 0
    ) -> None:
        folder = f"proc/{pid}/task/{tid}"
        self.write(f"{folder}/schedstat", f"5 {round(waited_s * 1e9)} {turns}\n")
        status = f"Name:\tx\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t{switches}\n"
        self.write(f"{folder}/status", status)

    def listen(self, pid: int, port: int, *, inode: int = 4711, table: str = "tcp") -> None:
        """Let a process listen at a port, and have a connection to another process itself."""
        rows = [
            f"0: 00000000:{port:04X} 0:0 0A 0:0 0:0 0 0 0 {inode} 1",
            "1: 0:0050 0:0 01 0:0 0:0 0 0 0 9 1",
        ]
        self.write(
            f"proc/net/{table}",
            "sl local rem st tx tr retrnsmt uid timeout inode\n" + "\n".join(rows) + "\n",
        )
        folder = self.root / f"proc/{pid}/fd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "3").unlink(missing_ok=True)
        (folder / "3").symlink_to(f"socket:[{inode}]")

    def watch(self, **options: Any) -> ContentionMonitor:
        return ContentionMonitor(
            ENGINE, root=self.root, cores={0, 1}, clock=lambda: self.time_s, **options
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def between(tree: Tree, meanwhile: Callable[[], None] = lambda: None, **options: Any) -> Contention:
    """Return the use in a window of 10 s in which something happens."""
    watch = tree.watch(**options)
    start = watch.read()
    meanwhile()
    tree.time_s += 10.0
    return Contention(**watch.between(start, watch.read()))


def test_own_and_others_use_are_separated(tree: Tree) -> None:
    """The engine's server and what that starts are its own, in whatever group they are."""

    def state(factor: float) -> None:
        tree.cores(busy_s=50 + 15 * factor)
        tree.process(ENGINE, used_s=3 + 1 * factor)
        tree.process(SERVER, parent=ENGINE, group=SERVER, used_s=4 * factor, reaped_s=1 * factor)
        tree.process(DAEMON, parent=SERVER, group=DAEMON, used_s=2 * factor)
        tree.process(OTHER, name="a) b (c", used_s=30 + 5 * factor)
        tree.process(OTHER + 1, name="idle", used_s=77)

    state(0)
    usage = between(tree, lambda: state(1))

    assert usage.own_s == pytest.approx(8)
    assert usage.foreign_s == pytest.approx(7)
    assert usage.others == {"a) b (c": pytest.approx(0.5)}


PORT = 8000


@pytest.mark.parametrize(
    ("name", "port", "table", "serves", "own_s"),
    [
        ("vllm", PORT, "tcp", True, 6.0),
        ("vllm", PORT, "tcp6", True, 6.0),
        ("vllm", 80, "tcp", False, 1.0),  # connected there, and nobody listens
        ("docker-proxy", PORT, "tcp", False, 1.0),
    ],
)
def test_the_server_at_a_port_of_this_machine_is_the_runs_own(
    tree: Tree, name: str, port: int, table: str, serves: bool, own_s: float
) -> None:
    """With its child processes; a container's proxy is not the server."""

    def state(factor: float) -> None:
        tree.cores(busy_s=10 * factor)
        tree.process(ENGINE, used_s=1 * factor)
        tree.process(OTHER, name=name, used_s=2 * factor)
        tree.process(OTHER + 1, parent=OTHER, used_s=3 * factor)

    state(0)
    tree.listen(OTHER, PORT, table=table)
    usage = between(tree, lambda: state(1), port=port)

    assert usage.serves is serves
    assert usage.own_s == pytest.approx(own_s)
    assert between(tree).serves is None


def test_the_own_session_does_not_count_as_a_neighbour(tree: Tree) -> None:
    """Neither pytest nor its other workers."""

    def state(factor: float) -> None:
        tree.cores(busy_s=10 * factor)
        for pid, parent in ((50, 1), (51, 50), (ENGINE, 51), (52, 50), (OTHER, 1)):
            tree.process(pid, parent=parent, used_s=factor)

    state(0)
    usage = between(tree, lambda: state(1), session=50)

    assert usage.own_s == pytest.approx(4)


def test_a_url_of_this_machine_has_a_port() -> None:
    for url, port in (
        ("http://localhost:8000/v1", 8000),
        ("https://[::1]/v1", 443),
        ("http://127.0.0.1", 80),
        ("http://10.0.0.7:8000", None),
        ("localhost:8000", None),
        ("http://localhost:99999", None),
        ("unix:///run/a.sock", "/run/a.sock"),
        (None, None),
    ):
        assert port_here(url) == port, url


def test_the_process_that_listens_on_a_unix_socket_is_found(tmp_path: Path) -> None:
    name = str(tmp_path / "a server.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        assert listeners(LINUX, name) == set()
        server.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
            assert listeners(LINUX, name) == {os.getpid()}


def test_the_session_of_a_process_is_its_parent_and_of_a_worker_of_xdist_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert session_of(os.getpid()) == os.getppid()
    assert session_of(1) is None
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert session_of(os.getpid()) != os.getppid()


def test_a_child_that_came_and_went_counts_once(tree: Tree) -> None:
    """And a number that another process got is another process."""
    tree.cores(0)
    tree.process(ENGINE, used_s=1)
    tree.process(SERVER, parent=ENGINE, used_s=5)
    tree.process(OTHER, name="old", used_s=500, began=7)

    def meanwhile() -> None:
        tree.cores(busy_s=8)
        (tree.root / f"proc/{SERVER}/stat").unlink()
        tree.process(ENGINE, used_s=1, reaped_s=8)
        tree.process(OTHER, name="new", used_s=5, began=8)

    usage = between(tree, meanwhile)

    assert usage.own_s == pytest.approx(3)
    assert usage.others == {"new": pytest.approx(0.5)}


def test_waits_of_threads_count_beyond_the_cost_of_scheduling(tree: Tree) -> None:
    tree.process(ENGINE)
    tree.process(SERVER, parent=ENGINE)
    tree.thread(ENGINE, 100, waited_s=1.0, turns=10, switches=5)
    tree.thread(SERVER, 101, waited_s=9.0, turns=10)

    def meanwhile() -> None:
        tree.thread(ENGINE, 100, waited_s=1.5, turns=110, switches=25)
        tree.thread(SERVER, 101, waited_s=9.001, turns=1010)  # many turns, each at once
        tree.thread(SERVER, 109, waited_s=0.25, turns=0, switches=2)  # born meanwhile

    usage = between(tree, meanwhile)

    assert usage.waited_s == pytest.approx(0.5 - 100 * SCHEDULING_S + 0.25)
    assert usage.switches == 22


def test_cores_that_are_not_ours_do_not_matter(tree: Tree) -> None:
    """Of stolen time, the part on our cores counts."""
    tree.process(ENGINE)
    tree.cores(0, count=4)
    usage = between(tree, lambda: tree.cores(6, count=4))
    assert usage.foreign_s == pytest.approx(6)

    elsewhere = ContentionMonitor(ENGINE, root=tree.root, cores={2, 3}, clock=lambda: tree.time_s)
    start = elsewhere.read()
    tree.cores(60, count=4)
    assert elsewhere.between(start, elsewhere.read())["foreign_s"] == 0

    def meanwhile() -> None:
        tree.cores(busy_s=68, stolen_s=2)
        tree.process(ENGINE, used_s=6)

    assert between(tree, meanwhile).stolen_s == pytest.approx(1.5)


V2 = {
    "proc/self/cgroup": "0::/pod/job\n",
    "sys/fs/cgroup/pod/cpu.stat": "usage_usec 1\nnr_throttled {n}\nthrottled_usec {usec}\n",
    "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
    "sys/fs/cgroup/pod/job/cpu.stat": "usage_usec 1\n",
}
V1 = {
    "proc/self/cgroup": "9:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_throttled {n}\nthrottled_time {usec}000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_processor_quota_is_seen(tree: Tree, files: dict[str, str]) -> None:
    """Over many cores it holds back longer than the window lasts: whole periods are the most."""

    def state(n: int, s: float) -> None:
        for path, text in files.items():
            tree.write(path, text.format(n=n, usec=round(s * 1e6)))

    for periods, held_s, throttled_s in ((0, 0.0, 0.0), (30, 1.2, 1.2), (30, 90.0, 3.0)):
        state(5, 70.0)
        usage = between(tree, lambda n=5 + periods, s=70.0 + held_s: state(n, s))  # type: ignore[misc]
        assert usage.throttled_s == pytest.approx(throttled_s)


def test_pressure_is_that_of_our_group_where_it_tells(tree: Tree) -> None:
    """Faults and pages that were swapped in are counted."""

    def state(path: str, some: int, full: int) -> None:
        row = "{} avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
        tree.write(path, row.format("some", some) + row.format("full", full))

    def both(seconds: int, swapped: int) -> None:
        state("proc/pressure/memory", 10 + 9_000_000 * seconds, 10 + 9_000_000 * seconds)
        state("proc/pressure/cpu", 2_000_000 * seconds, 0)
        state("sys/fs/cgroup/job/memory.pressure", 1_000_000 + 500_000 * seconds, 250_000 * seconds)
        tree.process(ENGINE, faults=5 + 20 * seconds)
        tree.write("proc/vmstat", f"pgmajfault 1\npswpin {swapped}\npswpout 3\n")

    tree.write("proc/self/cgroup", "0::/job\n")
    both(0, 100)
    usage = between(tree, lambda: both(1, 164))

    assert (usage.memory_some_s, usage.memory_full_s, usage.pressure_s) == (0.5, 0.25, 2.0)
    assert (usage.faults, usage.swapped_in) == (20, 64)


@given(st.dictionaries(st.integers(2, 30), st.integers(1, 30), max_size=25))
def test_a_family_is_closed_and_no_more(parents: dict[int, int]) -> None:
    families = {
        (pid, 0): ProcessUsage(
            name="x", parent=parent, groups=(pid, pid), used_s=0, reaped_s=0, faults=0
        )
        for pid, parent in parents.items()
    }
    inside = process_tree(families, 5)

    for pid, parent in parents.items():
        assert (pid in inside) == (pid == 5 or parent in inside)


BURN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    sum(range(10_000))
"""
"""Computes as long as whoever started it lives."""


@contextmanager
def burning(count: int) -> Iterator[list[int]]:
    """Keep processes that compute, on the core that this thread may use first."""
    core = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", BURN], stdout=subprocess.PIPE, start_new_session=True
                )
            )
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            process.stdout.readline()
            started.append(process.pid)
        yield started


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel tells no waits")
def test_a_process_that_shares_its_core_waits_and_is_seen_to() -> None:
    core = min(os.sched_getaffinity(0))
    with burning(2) as (mine, other):
        watch = ContentionMonitor(mine, cores={core})
        start = watch.read()
        time.sleep(0.6)
        usage = Contention(**watch.between(start, watch.read()))
        own_family, theirs = (process_tree(processes(Path("/")), pid) for pid in (mine, other))

    assert own_family == {mine}
    assert theirs == {other}
    assert usage.waited_s is not None
    assert usage.waited_s > usage.window_s / 3
    assert usage.own_s is not None
    assert usage.own_s < 2 * usage.window_s / 3
    assert usage.foreign_s is None or usage.foreign_s > usage.window_s / 4


def test_the_peak_of_memory_is_that_of_a_worker_and_all_that_it_started(tree: Tree) -> None:
    """A figure that a kernel does not report is unknown, not zero."""
    assert between(tree) == Contention(window_s=10.0, cores=2)
    tree.process(ENGINE)
    assert tree.watch().peak_bytes() is None

    tree.process(SERVER, parent=ENGINE, group=SERVER)
    tree.process(OTHER)
    for pid, kib in ((ENGINE, 2048), (SERVER, 1024), (OTHER, 4096)):
        tree.write(f"proc/{pid}/status", f"Name:\tx\nVmPeak:\t9 kB\nVmHWM:\t    {kib} kB\n")
    assert tree.watch().peak_bytes() == 3 * 2**20
