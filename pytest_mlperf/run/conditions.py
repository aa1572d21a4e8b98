"""What all runs of a session share, and how they hold their accelerator."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from pytest_mlperf.core.contention import TOLERATED_SHARE, Contention, in_words
from pytest_mlperf.core.control import COPY, MATMUL, Control
from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.job import Job, LoadGenSettings
from pytest_mlperf.core.untrusted_text import broken
from pytest_mlperf.hardware.contention import Watch, session_of
from pytest_mlperf.hardware.leases import file_name, opened_lease_folder
from pytest_mlperf.hardware.machine import KILL_WAIT_SECONDS, Machine, split
from pytest_mlperf.processes import answer_of, last_line
from pytest_mlperf.run.child.process import Patience, Waiting
from pytest_mlperf.run.power.exporter import Exporter
from pytest_mlperf.run.power.figures import Meter
from pytest_mlperf.run.power_limit import limited, restored
from pytest_mlperf.stores.atomic import lock, open_regular, write_text

Value = TypeVar("Value")

POLL_SECONDS = 0.1

WAIT_IDLE_S = 15.0
"""A session waits so long for an idle machine, unless it is told otherwise."""


TURN_LEASE = "turn"
"""The lease of who is next: taken before all others, and given back once these are held."""

PROCESSORS = "cpu"
"""The lease of the machine's processors: who measures alone has it, others share it."""


class _Busy(Exception):
    """Somebody else has what is wanted; `name` is what, `holder` who."""

    def __init__(self, name: str, path: Path, holder: str) -> None:
        super().__init__(name)
        self.name, self.path, self.holder = name, path, holder or "another process"


@dataclass(frozen=True, kw_only=True)
class HeldLeases:
    """What is held: GPUs by UUID, and the descriptors of the files that are locked for it."""

    gpus: tuple[str, ...]
    leases: tuple[int, ...]


@contextlib.contextmanager
def hold(
    gpus: Sequence[str],
    count: int,
    *,
    alone: bool,
    limit_s: float,
    waiting: Callable[[str], None],
    fits: Callable[[Collection[str]], bool] = lambda _: True,
) -> Iterator[HeldLeases]:
    """Hold the processors and the first free of `gpus`, by preference; yield them with leases.

    While waiting, only the turn is kept. `count` of the UUIDs are needed, and the first ones fit;
    `fits` says whether others do together. `alone` lets no other process measure on this machine.
    """
    patiently = partial(
        _patiently, until_s=time.monotonic() + limit_s, limit_s=limit_s, waiting=waiting
    )
    with contextlib.ExitStack() as stack:
        # Who waits is not overtaken: a case of eight GPUs would never find all of them free.
        with contextlib.ExitStack() as turn:
            patiently(lambda: turn.enter_context(_leased(TURN_LEASE)))
            held = patiently(lambda: _take(stack, gpus, count, fits, alone=alone))
        yield held


def _patiently(
    attempt: Callable[[], Value],
    *,
    until_s: float,
    limit_s: float,
    waiting: Callable[[str], None],
) -> Value:
    """Return what an attempt gives that is made again while somebody else has it."""
    while True:
        try:
            return attempt()
        except _Busy as error:
            busy = error
        about = f"{busy.name}, held by {busy.holder}"
        if time.monotonic() > until_s:
            raise RunError(
                "lease",
                f"waited {limit_s:.0f} s for {about} ({busy.path}); raise mlperf_lease_timeout or "
                "end that process",
            )
        waiting(Waiting(f"waiting for {about}"))
        time.sleep(POLL_SECONDS)


def _take(
    stack: contextlib.ExitStack,
    gpus: Sequence[str],
    count: int,
    fits: Callable[[Collection[str]], bool],
    *,
    alone: bool,
) -> HeldLeases:
    """Take what is wanted at once, or nothing."""
    free: dict[str, contextlib.ExitStack] = {}
    leases: dict[str, int] = {}
    held: tuple[str, ...] = ()
    refused: _Busy | None = None
    with contextlib.ExitStack() as taken:
        processors = taken.enter_context(_leased(PROCESSORS, shared=not alone))
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
    """Hold one lease and yield the descriptor of its file, or raise `_Busy` at once."""
    with opened_lease_folder() as (place, folder):
        path = place / (file_name(name) + ".lock")
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
    """Return who wrote last that it holds a lease; "": it is gone, and another shares it."""
    holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
    try:
        os.kill(int(holder.split()[1]), 0)
    except (ValueError, IndexError, ProcessLookupError, OverflowError):
        return ""
    except PermissionError:  # it is somebody else's
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


_NOTHING: Mapping[str, str] = MappingProxyType({})


def control(
    gpus: int, *, limit_s: float = 60.0, environment: Mapping[str, str] = _NOTHING
) -> tuple[Control, str | None]:
    """Measure now; about 0.6 s on a CPU, some seconds on GPUs.

    Hold the machine's lease, so that it is idle. `gpus` are measured one after the other, of which
    the slowest counts; 0 for the CPU. `environment` makes a process see only these GPUs. Returns
    the values and None, or no values and the reason.
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
        return {}, f"the control cannot start: {error.strerror}"
    if answer is None:
        return {}, f"the control was not done within {limit_s:g} s"
    return _read(*answer)


def _is_idle(seen: Contention) -> bool:
    return (seen.foreign_s or 0.0) <= TOLERATED_SHARE * seen.cores * seen.window_s


def _read(returncode: int, out: bytes, err: bytes) -> tuple[Control, str | None]:
    if returncode:
        ended = f"exit code {returncode}"
        if returncode < 0:
            ended = f"signal {-returncode} ({signal.strsignal(-returncode)})"
        last = last_line(err)
        return {}, f"the control ended with {ended}" + (f": {broken(last)[:200]}" * bool(last))
    try:
        printed = json.loads(last_line(out))
        if "unavailable" in printed:
            return {}, broken(str(printed["unavailable"]))
        seen = Contention(**(printed.pop("contention", None) or {"window_s": 0.0, "cores": 0}))
        if not _is_idle(seen):
            return {}, "other processes used the processor while it was measured"
        values = {str(name): float(value) for name, value in printed.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}, "the control printed no figures"
    if not all(0 < values.get(name, 0.0) < math.inf for name in (MATMUL, COPY)):
        return {}, "the control's figures are not positive"
    return values, None


@dataclass(frozen=True, kw_only=True)
class ControlRun:
    """One micro-benchmark of the machine's own speed.

    Attributes:
        values: What it measured; empty where it was not made, or gave nothing.
        waited_s: How long others held the accelerator first.
    """

    values: Control = field(default_factory=dict)
    unavailable: str | None = None
    waited_s: float = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of it."""
        if self.unavailable is None:
            return ()
        return (f"the machine's own speed is not known: {self.unavailable}",)


WATCH_SECONDS = 0.2
"""How long others are watched at a time: a share of 5 % of two cores is two ticks of the kernel."""


def others_now() -> Contention:
    """Look for a moment at who uses the processor beside this session."""
    watch = Watch(os.getpid(), session=session_of(os.getpid()))
    start = watch.read()
    time.sleep(WATCH_SECONDS)
    return Contention(**watch.between(start, watch.read()))


class IdleWait:
    """Waits until nobody else uses the processor, for so long in a session at most."""

    def __init__(self, limit_s: float, look: Callable[[], Contention] = others_now) -> None:
        """Wait for nothing yet; with a limit of 0 never."""
        self._left_s, self._look = limit_s, look

    def wait(self, show: Callable[[str], None]) -> float:
        """Wait, show for whom, and return for how many seconds."""
        before_s = self._left_s
        while self._left_s > 0 and not _is_idle(seen := self._look()):
            idle = f"up to {self._left_s:.0f} s for an idle machine"
            show(Waiting(f"waiting {idle}: {in_words(seen)}"))
            self._left_s -= seen.window_s
        return before_s - self._left_s


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all runs of a session share.

    Attributes:
        folder: The session's folder; each process gets a folder of its own below it.
        handicap: Share of speed taken away from every engine.
        requests: Keep a record of each request of a loop of our own.
        control: Measure the machine by the fixed micro-benchmark before each performance run.
        watched: What load can have taken counts in the verdict; else it is only told.
        idle: Before a timed run others are waited for; None: never.
        warmups: Which accelerators have worked in this session; None: nobody takes note.
        is_held: The machine's GPUs and processors are held already, by whoever passes this on.
        lost: GPUs that the session lost; None: nobody takes note.
        max_runs: Runs of a case at most, to tell how far it is; None if unknown.
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


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a run is made.

    Attributes:
        conditions: Those of the session, with the GPUs that are held and no others of their class.
        waited_s: How long others held them first.
        notes: Which GPUs of their class were passed over.
    """

    conditions: Conditions
    waited_s: float = 0.0
    notes: tuple[str, ...] = ()

    def control(self, accelerator: str) -> ControlRun:
        """Measure the machine by the micro-benchmark, where that is wanted."""
        machine, waited_s = self.conditions.machine, self.waited_s
        if not self.conditions.control:
            return ControlRun(waited_s=waited_s)
        gpus, environment = len(machine.uuids(accelerator)), machine.environment(accelerator)
        values, unavailable = control(gpus, environment=environment)
        return ControlRun(values=values, unavailable=unavailable, waited_s=waited_s)


@contextlib.contextmanager
def placed(
    accelerator: str, conditions: Conditions, waiting: Callable[[str], None]
) -> Iterator[Placement]:
    """Hold the next free GPUs of an accelerator's class, or the processors, for a run.

    They are of the first ones' identity, by which the case's baseline was looked up; lost ones are
    skipped. They get the machine's power limit, if any, while held, and their own afterwards.

    Raises RunError if another process kept them too long, too few of one identity are left, or a
    power limit could not be set or restored. Raises SuiteError if a GPU cannot have the limit,
    UnavailableError if this user may not set it.
    """
    if conditions.is_held:
        yield Placement(conditions=conditions)
        return
    machine, began_s = conditions.machine, time.monotonic()
    count, _ = split(accelerator)
    every = machine.choice(accelerator)
    lost = conditions.lost.among(every) if conditions.lost else {}
    gpus = [uuid for uuid in every if uuid not in lost]
    alone = not (gpus and machine.shared)
    limit_s = conditions.lease_limit_s

    def fits(some: Collection[str]) -> bool:
        # Others of the class may have another power limit, or other paths to each other.
        return machine.only(accelerator, some).identity(accelerator) == machine.identity(
            accelerator
        )

    if lost and not any(map(fits, combinations(gpus, count))):
        raise RunError(
            "gpu",
            f"{accelerator} cannot be measured any more in this session: {'; '.join(lost.values())}"
            "; reset the GPU, or reboot, and start another session",
        )
    with hold(gpus, count, alone=alone, limit_s=limit_s, waiting=waiting, fits=fits) as held:
        chosen = machine.only(accelerator, held.gpus) if held.gpus else machine
        waited_s = time.monotonic() - began_s
        passed = [f"passed over, earlier in this session: {text}" for text in lost.values()]
        killed = restored(held.gpus) if held.gpus else ()
        left = [f"a process that was killed had set it: {done}" for done in killed]
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
    """GPUs that a session lost: its later cases do without them.

    Attributes:
        folder: Where that is noted, a file each: the workers of pytest-xdist share it.
    """

    folder: Path

    def note(self, lost: Mapping[str, str]) -> None:
        """Note GPUs, by UUID, each with a sentence about its loss; the first one stays."""
        for uuid, text in lost.items():
            file = self._file(uuid)
            with contextlib.suppress(OSError):  # it is lost all the same, and its run says so
                if not file.exists():
                    write_text(file, text)

    def among(self, uuids: Sequence[str]) -> dict[str, str]:
        """Return those of some GPUs that were lost, with what was said of it."""
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
"""What the folder of a warm-up carries in its name."""

WARM_FOLDER = ".warm"
IDLE_ENGINES = frozenset({"null"})


@dataclass(frozen=True)
class WarmUps:
    """Which accelerators have worked in a session.

    Attributes:
        mode: Where a warm-up is made: on GPUs, everywhere, or nowhere.
        folder: Where that is noted, a file each: the workers of pytest-xdist share it.
    """

    mode: Mode
    folder: Path

    def before(self, job: Job, names: Sequence[str], make: Callable[[], object]) -> bool:
        """Warm an accelerator up if it has not worked yet and if that is wanted.

        Errors are ignored: the run that follows meets the same ones and reports them.
        """
        if self.used(names):
            return True
        pretended = self.mode == "auto" and list(names) == ["cpu"]
        if pretended or not is_due(job.accelerator, job.engine_use, self.mode):
            return False
        with contextlib.suppress(MlperfError):
            make()
        return True

    def used(self, names: Sequence[str]) -> bool:
        """Note that an accelerator works from now on, and return whether all of it did before."""
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


def is_due(accelerator: str, engine: str, mode: str) -> bool:
    """Whether an accelerator needs a warm-up before its first case.

    On CPUs no first run was seen to differ from later ones.
    """
    if mode != "auto":
        return mode == "always"
    return split(accelerator)[1] != "cpu" and engine not in IDLE_ENGINES


def shortened(settings: LoadGenSettings) -> LoadGenSettings:
    """Return what LoadGen is told for a warm-up: as the case, of `MAX_WARMUP_SECONDS` at most."""
    work_s = settings.fixed_work_s
    return replace(
        settings,
        fixed_work_s=work_s if work_s is None else min(work_s, MAX_WARMUP_SECONDS),
        min_duration_ms=min(settings.min_duration_ms, round(MAX_WARMUP_SECONDS * 1000)),
        min_query_count=1,
    )
