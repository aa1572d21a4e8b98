"""Define the conditions of a session's runs, and reserve accelerators for them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from pytest_mlperf.core.contention import TOLERATED_SHARE, Contention, busy_names
from pytest_mlperf.core.control import COPY, MATMUL, Control
from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.job import LoadGenSettings, MeasuredCase
from pytest_mlperf.core.server.identity import HARDWARE
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware.contention import ContentionMonitor, session_of
from pytest_mlperf.hardware.leases import file_name, opened_lease_folder
from pytest_mlperf.hardware.machine import KILL_WAIT_SECONDS, Machine, split
from pytest_mlperf.processes import answer_of, last_line
from pytest_mlperf.run.child.process import Patience, Waiting
from pytest_mlperf.run.power.exporter import Exporter, find_exporter
from pytest_mlperf.run.power.figures import Meter
from pytest_mlperf.run.power_limit import limited, restore_limits
from pytest_mlperf.run.server_hardware import ServerSources
from pytest_mlperf.stores.atomic import lock, open_regular, write_text
from pytest_mlperf.suite.pairs import Testable

Value = TypeVar("Value")

POLL_SECONDS = 0.1

WAIT_IDLE_S = 15.0
"""Default time that a session waits for an idle machine [s]."""


TURN_LEASE = "turn"
"""Lease of the next process in line: taken before all others, released once these are held."""

PROCESSORS = "cpu"
"""Lease of the processors: exclusive for a run that measures alone, else shared."""


class _Busy(Exception):
    def __init__(self, name: str, path: Path, holder: str) -> None:
        super().__init__(name)
        self.name, self.path, self.holder = name, path, holder or "another process"


@dataclass(frozen=True, kw_only=True)
class HeldLeases:
    """Hold the UUIDs of leased GPUs, and the locked descriptors of their lease files."""

    gpus: tuple[str, ...]
    leases: tuple[int, ...]


@contextlib.contextmanager
def lease_hardware(
    gpus: Sequence[str],
    count: int,
    *,
    alone: bool,
    limit_s: float,
    waiting: Callable[[str], None],
    fits: Callable[[Collection[str]], bool] = lambda _: True,
) -> Iterator[HeldLeases]:
    """Lease the processors and `count` free GPUs, preferring the first of `gpus`; yield them.

    RunError after `limit_s`; until then `waiting` gets progress texts. `fits` checks whether GPUs
    may be used together. `alone` keeps other processes from measuring on this machine.
    """
    until_s = time.monotonic() + limit_s

    def patiently(attempt: Callable[[], Value]) -> Value:
        while True:
            try:
                return attempt()
            except _Busy as error:
                about = f"{error.name}, held by {error.holder}"
                if time.monotonic() > until_s:
                    raise RunError(
                        "lease",
                        f"waited {limit_s:.0f} s for {about} ({error.path}); end that process, or "
                        "raise the ini setting mlperf_lease_timeout",
                    ) from None
            waiting(Waiting(f"waiting for {about}"))
            time.sleep(POLL_SECONDS)

    with contextlib.ExitStack() as stack:
        # Waiting is in turn, or a case of eight GPUs would never find all of them free.
        with contextlib.ExitStack() as turn:
            patiently(lambda: turn.enter_context(_leased(TURN_LEASE)))
            held = patiently(lambda: _lease_gpus(stack, gpus, count, fits, exclusive=alone))
        yield held


def _lease_gpus(
    stack: contextlib.ExitStack,
    gpus: Sequence[str],
    count: int,
    fits: Callable[[Collection[str]], bool],
    *,
    exclusive: bool,
) -> HeldLeases:
    """Lease `count` of the GPUs, and the processors; raise `_Busy` if other processes use them.

    `fits` accepts or rejects a group of GPUs. Leases of processors are `exclusive` or shared.
    """
    free: dict[str, contextlib.ExitStack] = {}
    leases: dict[str, int] = {}
    held: tuple[str, ...] = ()
    refused: _Busy | None = None
    with contextlib.ExitStack() as taken:
        processors = taken.enter_context(_leased(PROCESSORS, shared=not exclusive))
        for name in gpus:
            try:
                free[name] = taken.enter_context(contextlib.ExitStack())
                leases[name] = free[name].enter_context(_leased(name))
            except _Busy as busy:
                del free[name]
                refused = refused or busy
                continue
            groups = (group for group in combinations(free, count) if name in group)
            if held := next(filter(fits, groups), ()):
                break
        if refused and not held:
            raise refused
        for name in free.keys() - set(held):
            free[name].close()
        stack.push(taken.pop_all())
    return HeldLeases(gpus=held, leases=(processors, *(leases[name] for name in held)))


@contextlib.contextmanager
def _leased(name: str, *, shared: bool = False) -> Iterator[int]:
    with opened_lease_folder() as (lease_folder, folder):
        path = lease_folder / (file_name(name) + ".lock")
        descriptor = _open(path, folder)
    try:
        try:
            lock(descriptor, shared=shared)
        except BlockingIOError:
            raise _Busy(name, path, _holder(descriptor)) from None
        except OSError as error:
            raise RunError(
                "lease",
                f"{path}: its file system has no locks ({error.strerror}), and two sessions "
                f"would measure on {name} at once; set PYTEST_MLPERF_LEASES to a folder on a "
                "local disk that all users share",
            ) from None
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            worker = os.environ.get("PYTEST_XDIST_WORKER", "")
            whose = f"process {os.getpid()}" + f" ({worker})" * bool(worker)
            os.pwrite(descriptor, f"{whose}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
    try:
        os.kill(int(holder.split()[1]), 0)
    except (ValueError, IndexError, ProcessLookupError, OverflowError):
        return ""
    except PermissionError:  # another user's process exists
        pass
    return holder


def _open(path: Path, folder: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileNotFoundError):
            return open_regular(path.name, folder)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path.name, flags, 0o666, dir_fd=folder)
            os.fchmod(descriptor, 0o666)
            return descriptor
        return open_regular(path.name, folder)
    except OSError as error:
        raise RunError(
            "lease",
            f"cannot open {path}: {error.strerror}; set PYTEST_MLPERF_LEASES to a folder that all "
            "users share",
        ) from None


def control(
    gpus: int, *, limit_s: float = 60.0, environment: Mapping[str, str] = MappingProxyType({})
) -> ControlRun:
    """Run the micro-benchmark on an idle machine: 0.6 s on a CPU, some seconds on GPUs.

    The caller holds the machine's lease. `gpus` is their number, 0 for the CPU; the slowest counts.
    `environment` makes only these GPUs visible.
    """
    command = [sys.executable, "-m", "pytest_mlperf.hardware.control"]
    variables = {**os.environ, **environment}
    if gpus:
        command += ["--cuda", str(gpus)]
    try:
        answer = answer_of(
            command, limit_s=limit_s, killed_s=KILL_WAIT_SECONDS, environment=variables
        )
    except OSError as error:
        return ControlRun(unavailable=f"the micro-benchmark cannot start: {error.strerror}")
    if answer is None:
        return ControlRun(unavailable=f"the micro-benchmark did not finish within {limit_s:g} s")
    values = _read(*answer)
    return ControlRun(unavailable=values) if isinstance(values, str) else ControlRun(values=values)


def _is_idle(seen: Contention) -> bool:
    return (seen.foreign_s or 0.0) <= TOLERATED_SHARE * seen.cores * seen.window_s


def _read(returncode: int, out: bytes, err: bytes) -> Control | str:
    """Return the values that a micro-benchmark printed, or a text on why there are none."""
    if returncode:
        ended = f"exit code {returncode}"
        if returncode < 0:
            ended = f"signal {-returncode} ({signal.strsignal(-returncode)})"
        last = last_line(err)
        return f"the micro-benchmark ended with {ended}" + f": {broken(last)[:200]}" * bool(last)
    try:
        printed = json.loads(last_line(out))
        if "unavailable" in printed:
            return broken(str(printed["unavailable"]))
        seen = Contention(**(printed.pop("contention", None) or {"window_s": 0.0, "cores": 0}))
        if not _is_idle(seen):
            return "other processes used the CPU while it ran"
        values = {str(name): float(value) for name, value in printed.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return "the micro-benchmark printed no results"
    if not all(0 < values.get(name, 0.0) < math.inf for name in (MATMUL, COPY)):
        return "the results of the micro-benchmark are not positive"
    return values


@dataclass(frozen=True, kw_only=True)
class ControlRun:
    """Hold the result of one micro-benchmark of the machine's speed.

    Attributes:
        values: Results; empty if it was not run, or failed.
        unavailable: Why it failed, or None.
    """

    values: Control = field(default_factory=dict)
    unavailable: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Reason why the machine's speed is unknown; () if it is known."""
        if self.unavailable is None:
            return ()
        return (f"the speed of this machine was not checked: {self.unavailable}",)


WATCH_SECONDS = 0.2
"""Time of one observation: 5 % of two cores are two ticks of the kernel."""


def measure_contention() -> Contention:
    """Measure for `WATCH_SECONDS` how much other processes use the processor."""
    watch = ContentionMonitor(os.getpid(), session=session_of(os.getpid()))
    start = watch.read()
    time.sleep(WATCH_SECONDS)
    return Contention(**watch.between(start, watch.read()))


class IdleWait:
    """Wait until other processes leave the processor idle, at most `limit_s` per session."""

    def __init__(self, limit_s: float, look: Callable[[], Contention] = measure_contention) -> None:
        self._left_s, self._look = limit_s, look

    def wait(self, show: Callable[[str], None]) -> float:
        """Wait for an idle processor; show the busy processes; return the time waited [s]."""
        before_s = self._left_s
        while self._left_s > 0 and not _is_idle(seen := self._look()):
            limit, used = f"{self._left_s:.0f} s", (seen.foreign_s or 0.0) / seen.window_s
            names = busy_names(seen) or "names unknown"
            users = f"other processes used {used:.2g} of {seen.cores} cores ({names})"
            show(Waiting(f"waiting up to {limit} for an idle machine: {users}"))
            self._left_s -= seen.window_s
        return before_s - self._left_s


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Hold the conditions that all runs of a session share.

    Attributes:
        folder: Session's folder; each process gets a folder below it.
        handicap: Share of speed to remove from every engine.
        requests: Whether to record each request of Concurrency and OpenLoop runs.
        control: Whether to measure the machine's speed before each performance run.
        watched: Whether load from other processes affects the verdict.
        idle: How to wait for an idle machine before a timed run; None for no wait.
        warmups, lost: Records of used accelerators and of lost GPUs; None for no record.
        is_held: Whether the caller has reserved the machine's GPUs and processors.
        max_runs: Maximum number of runs of a case, for the progress line; None if unknown.
        server: Sources of the identity of the case's server if it is on another machine.
    """

    folder: Path
    session: str
    machine: Machine
    commit: str | None = None
    handicap: float = 0.0
    requests: bool = False
    patience: Patience = field(default_factory=Patience)
    lease_limit_s: float = 21_600.0
    power: bool = True
    meter: Meter | None = None
    exporter: Exporter | None = None
    control: bool = True
    watched: bool = False
    idle: IdleWait | None = None
    warmups: WarmUps | None = None
    is_held: bool = False
    lost: LostGpus | None = None
    max_runs: int | None = None
    server: ServerSources | None = None


def on_server(planned: Testable, conditions: Conditions) -> Conditions:
    """Return a case's conditions, with the machine of its server if that is another machine.

    Raises:
        RunError: The hardware cannot be determined, see `ServerSources.machine`.
    """
    exporter = conditions.exporter
    sources = ServerSources.of(planned, *((exporter.url, exporter.chosen) if exporter else ()))
    machine = sources.machine(conditions.machine) if sources else conditions.machine
    if sources is None or machine.server is None:
        return conditions
    if planned.limit_w:
        text = "power_limit_w cannot be set, because the server runs on another machine: remove it"
        raise RunError("server", text)
    entry = sources.entry
    if entry.exporter:
        exporter = find_exporter(entry.exporter, tuple(entry.gpus))
    elif entry.probe and "gpu" in machine.server.properties:
        hardware = machine.server.surroundings[HARDWARE]
        exporter = Exporter(gpus=hardware, probe=tuple(shlex.split(entry.probe)))
    return replace(conditions, machine=machine, server=sources, exporter=exporter)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Hold the resources that are reserved for a run.

    Attributes:
        conditions: Conditions of the session, limited to the leased GPUs of the accelerator.
        waited_s: Time waited for the resources [s].
        notes: Sentences on GPUs that were skipped, or whose power limit was restored.
    """

    conditions: Conditions
    waited_s: float = 0.0
    notes: tuple[str, ...] = ()

    def control(self, accelerator: str) -> ControlRun:
        """Run the micro-benchmark of the machine's speed; return no values if it is off."""
        machine = self.conditions.machine
        if not self.conditions.control:
            return ControlRun()
        gpus, environment = len(machine.uuids(accelerator)), machine.environment(accelerator)
        return control(gpus, environment=environment)


@contextlib.contextmanager
def placed(
    accelerator: str, conditions: Conditions, waiting: Callable[[str], None]
) -> Iterator[Placement]:
    """Reserve free GPUs of an accelerator class, or the processors, while the `with` block runs.

    The GPUs have the same hardware identity as the class's first GPUs, which selects the baseline.
    Lost GPUs are skipped. If the machine has a `power_limit_w`, it is set until the end. Raises
    RunError if other processes hold the GPUs too long, or too few GPUs are left.
    """
    if conditions.is_held:
        yield Placement(conditions=conditions)
        return
    machine, began_s = conditions.machine, time.monotonic()
    count, _ = split(accelerator)
    every = machine.matching_gpus(accelerator)
    lost = conditions.lost.messages(every) if conditions.lost else {}
    gpus = [uuid for uuid in every if uuid not in lost]
    alone = not (gpus and machine.shared)
    limit_s = conditions.lease_limit_s

    def fits(some: Collection[str]) -> bool:
        # Other GPUs of the class may differ in power limit or interconnect.
        return machine.only(accelerator, some).identity(accelerator) == machine.identity(
            accelerator
        )

    if lost and not any(map(fits, combinations(gpus, count))):
        raise RunError(
            "gpu",
            f"{accelerator} cannot be used any more in this session: "
            f"{'; '.join(lost.values())}; reset the GPU, or reboot, and start another session",
        )
    with lease_hardware(
        gpus, count, alone=alone, limit_s=limit_s, waiting=waiting, fits=fits
    ) as held:
        chosen = machine.only(accelerator, held.gpus) if held.gpus else machine
        waited_s = time.monotonic() - began_s
        passed = [
            f"GPU not used, because of an earlier failure in this session: {text}"
            for text in lost.values()
        ]
        killed = restore_limits(held.gpus) if held.gpus else ()
        left = [f"a killed process had left its power limit: {done}" for done in killed]
        watts = machine.limit_w if held.gpus else None
        with limited(held.gpus, watts, held.leases) if watts else contextlib.nullcontext():
            yield Placement(
                conditions=replace(conditions, machine=chosen, is_held=True),
                waited_s=waited_s,
                notes=(*passed, *left),
            )


LOST_FOLDER = ".lost"


@dataclass(frozen=True)
class LostGpus:
    """Record the GPUs that failed in a session, so that its later cases skip them.

    Attributes:
        folder: Folder with a file per GPU, which the workers of pytest-xdist share.
    """

    folder: Path

    def note(self, lost: Mapping[str, str]) -> None:
        """Record lost GPUs with a message by UUID; the first message of each GPU stays."""
        for uuid, text in lost.items():
            file = self._file(uuid)
            with contextlib.suppress(OSError):  # the run reports the loss anyway
                if not file.exists():
                    write_text(file, text)

    def messages(self, uuids: Sequence[str]) -> dict[str, str]:
        """Return the recorded message of each lost GPU among `uuids`, by UUID."""
        texts = {}
        for uuid in uuids:
            with contextlib.suppress(OSError):
                texts[uuid] = self._file(uuid).read_text("utf-8")
        return texts

    def _file(self, uuid: str) -> Path:
        return self.folder / file_name(uuid)


Mode = Literal["auto", "always", "never"]

MAX_WARMUP_SECONDS = 60.0
WARM_UP = "warm-up"
"""Part of the name of a warm-up's folder."""

WARM_FOLDER = ".warm"
IDLE_ENGINES = frozenset({"null"})


@dataclass(frozen=True)
class WarmUps:
    """Record which accelerators a session has used, and warm up those that it has not.

    Attributes:
        mode: Whether to warm up: "auto" (GPUs only), "always" or "never".
        folder: Folder with a file per accelerator, which the workers of pytest-xdist share.
    """

    mode: Mode
    folder: Path

    def ensure(self, job: MeasuredCase, names: Sequence[str], make: Callable[[], object]) -> bool:
        """Warm up accelerators unused so far by `make`, if `mode` allows; True if all are warm."""
        if self.used(names):
            return True
        pretended = self.mode == "auto" and list(names) == ["cpu"]
        if pretended or not needs_warm_up(job.accelerator, job.engine_use, self.mode):
            return False
        with contextlib.suppress(MlperfError):
            make()
        return True

    def used(self, names: Sequence[str]) -> bool:
        """Record accelerators as used; return whether all had been used before."""
        return True not in [self._is_first(name) for name in names]

    def _is_first(self, name: str) -> bool:
        file = self.folder / file_name(name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError as error:
            raise RunError("worker", f"{file} cannot be written: {error.strerror}") from None
        return True


def needs_warm_up(accelerator: str, engine: str, mode: str) -> bool:
    """Return whether to warm up: `mode` is "always", or "auto" on a GPU with a non-null engine."""
    if mode != "auto":
        return mode == "always"
    return split(accelerator)[1] != "cpu" and engine not in IDLE_ENGINES


def shortened(settings: LoadGenSettings) -> LoadGenSettings:
    """Return a case's settings for a warm-up of at most `MAX_WARMUP_SECONDS`."""
    work_s = settings.fixed_work_s
    return replace(
        settings,
        fixed_work_s=work_s if work_s is None else min(work_s, MAX_WARMUP_SECONDS),
        min_duration_ms=min(settings.min_duration_ms, round(MAX_WARMUP_SECONDS * 1000)),
        min_query_count=1,
    )
