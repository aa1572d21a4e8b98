"""One process at a time measures on an accelerator, and nobody waits for the dead."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.hardware.leases import MACHINE_WIDE, lease_folder
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run import conditions
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import HeldLeases

HOLDER = """
import sys, time
from pytest_mlperf.run import conditions
alone, count, *gpus = sys.argv[1:]
how = {"alone": alone == "alone", "limit_s": 60, "waiting": print}
with conditions.hold(gpus, int(count), **how):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lease folder of this test's own."""
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    return tmp_path / "pytest-mlperf"


def hold(
    *gpus: str,
    count: int = 1,
    alone: bool = True,
    limit_s: float = 1,
    waiting: Callable[[str], None] = pytest.fail,
) -> AbstractContextManager[HeldLeases]:
    """Hold the processors, and so many of some GPUs."""
    return conditions.hold(gpus, count, alone=alone, limit_s=limit_s, waiting=waiting)


def holder(*gpus: str, count: int = 1, alone: bool = True) -> subprocess.Popen[str]:
    """Start a process that does so until its stdin closes."""
    words = ["alone" if alone else "beside", str(count), *gpus]
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.process
def test_a_held_lease_is_waited_for_and_then_taken() -> None:
    other = holder()
    told: list[str] = []

    def waiting(text: str) -> None:
        told.append(text)
        assert other.stdin is not None
        other.stdin.close()

    with hold(limit_s=60, waiting=waiting):
        other.wait(30)

    assert told[0] == f"waiting for cpu, held by process {other.pid}"
    assert other.stdout is not None
    other.stdout.close()


@pytest.mark.process
def test_a_wait_has_a_limit() -> None:
    with holder("GPU-1", alone=False) as other:
        expected = f"waited 0 s for GPU-1, held by process {other.pid}.*mlperf_lease_timeout"
        with (
            pytest.raises(RunError, match=expected),
            hold("GPU-1", alone=False, limit_s=0.0, waiting=lambda _: None),
        ):
            pass


@pytest.mark.process
def test_a_killed_holder_blocks_nobody(folder: Path) -> None:
    """The kernel frees the lock of a process that is gone; its file stays and does no harm."""
    with holder() as other:
        other.send_signal(signal.SIGKILL)
        other.wait(30)

        with hold(limit_s=30, waiting=lambda _: None):
            held = (folder / "cpu.lock").read_text()

    assert held == f"process {os.getpid()}\n"


@pytest.mark.process
def test_neighbours_take_the_next_free_gpus() -> None:
    four = [f"GPU-{n}" for n in range(4)]
    with holder(*four, count=2, alone=False):
        with hold(*four, alone=False) as third, hold(*four, alone=False) as last:
            assert (third.gpus, last.gpus) == (("GPU-2",), ("GPU-3",))
        with hold(*four, count=2, alone=False) as both:
            assert both.gpus == ("GPU-2", "GPU-3")
        with (
            pytest.raises(RunError, match="waited 0 s for GPU-0, held by"),
            hold(*four, count=3, alone=False, limit_s=0.0, waiting=lambda _: None),
        ):
            pass


@pytest.mark.process
@pytest.mark.parametrize(("theirs", "ours"), [(True, True), (True, False), (False, True)])
def test_who_measures_alone_has_no_neighbour(*, theirs: bool, ours: bool) -> None:
    with (
        holder("GPU-1", alone=theirs) as other,
        pytest.raises(RunError, match=f"waited 0 s for cpu, held by process {other.pid}"),
        hold("GPU-2", alone=ours, limit_s=0.0, waiting=lambda _: None),
    ):
        pass


LIMITS_W = {"GPU-0": 700, "GPU-1": 500, "GPU-2": 700, "GPU-3": 700}


@pytest.mark.parametrize(
    ("busy", "accelerator", "taken"),
    [
        ((), "H200", ["GPU-0"]),
        (("GPU-0",), "H200", ["GPU-2"]),
        ((), "2xH200", ["GPU-0", "GPU-1"]),
        (("GPU-0",), "2xH200", ["GPU-1", "GPU-2"]),
        (("GPU-1",), "2xH200", None),
        (("GPU-0", "GPU-2", "GPU-3"), "H200", None),
    ],
    ids=[
        "one",
        "not the capped one",
        "two",
        "capped alike",
        "none alike",
        "the capped one is free",
    ],
)
def test_gpus_that_are_taken_are_those_that_the_baseline_applies_to(
    tmp_path: Path, busy: tuple[str, ...], accelerator: str, taken: list[str] | None
) -> None:
    """One of four has another power limit: a run on it would be held against others' figures.

    What is free and does not fit is nobody's: it is given back.
    """
    here = Machine(
        cpu={},
        gpus=tuple(
            {"uuid": uuid, "gpu": "NVIDIA H200", "power_limit_w": w} for uuid, w in LIMITS_W.items()
        ),
        shared=True,
    )
    asked = conditions.Conditions(
        folder=tmp_path, session="s", machine=here, lease_limit_s=0.0, patience=Patience()
    )
    with contextlib.ExitStack() as stack:
        for uuid in busy:
            stack.enter_context(hold(uuid, alone=False))
        if taken is None:
            with pytest.raises(RunError, match=f"for {busy[0]}, held by"):
                stack.enter_context(conditions.placed(accelerator, asked, lambda _: None))
        else:
            place = stack.enter_context(conditions.placed(accelerator, asked, pytest.fail))
            used = place.conditions.machine
            assert used.uuids(accelerator) == taken
            assert used.identity(accelerator) == here.identity(accelerator)
        rest = LIMITS_W.keys() - {*busy, *(taken or ())}
        for uuid in rest:
            stack.enter_context(hold(uuid, alone=False))


@pytest.mark.parametrize(
    ("gone", "accelerator", "taken"),
    [
        (("GPU-0",), "H200", ["GPU-2"]),
        (("GPU-0",), "2xH200", ["GPU-1", "GPU-2"]),
        (("GPU-1",), "2xH200", None),
        (("GPU-3",), "4xH200", None),
    ],
    ids=["the next alike", "two as before", "none alike", "all are needed"],
)
@pytest.mark.parametrize("shared", [True, False])
def test_a_gpu_that_the_session_lost_is_passed_over(
    tmp_path: Path,
    gone: tuple[str, ...],
    accelerator: str,
    taken: list[str] | None,
    *,
    shared: bool,
) -> None:
    """By all later cases, with a note; one that needs it says so at once."""
    here = Machine(
        cpu={},
        gpus=tuple(
            {"uuid": uuid, "gpu": "NVIDIA H200", "power_limit_w": w} for uuid, w in LIMITS_W.items()
        ),
        shared=shared,
    )
    lost = conditions.LostGpus(tmp_path / "lost")
    lost.note({uuid: f"{uuid} was lost" for uuid in gone})
    lost.note(dict.fromkeys(gone, "lost twice"))
    asked = conditions.Conditions(folder=tmp_path, session="s", machine=here, lost=lost)

    with contextlib.ExitStack() as stack:
        if taken is None:
            expected = f"{accelerator} cannot be measured .* in this session: {gone[0]} was lost; "
            with pytest.raises(RunError, match=expected) as error:
                stack.enter_context(conditions.placed(accelerator, asked, pytest.fail))
            assert error.value.layer == "gpu"
            return
        place = stack.enter_context(conditions.placed(accelerator, asked, pytest.fail))
        assert place.conditions.machine.uuids(accelerator) == taken
        assert place.notes == (f"passed over, earlier in this session: {gone[0]} was lost",)


def test_nothing_but_the_turn_is_kept_while_waiting(folder: Path) -> None:
    free: list[bool] = []

    def look(_: str) -> None:
        with (folder / "GPU-b.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(True)

    with (
        hold("GPU-a", alone=False),
        pytest.raises(RunError, match="for GPU-a,"),
        hold("GPU-b", "GPU-a", count=2, alone=False, limit_s=0.05, waiting=look),
    ):
        pass

    assert free


@pytest.mark.process
def test_who_waits_is_not_overtaken(folder: Path) -> None:
    """A case of two GPUs waits for one of them: a later one of one GPU does not take the other."""
    told: list[str] = []

    def later(_: str) -> None:
        with (
            pytest.raises(RunError, match=f"for turn, held by process {os.getpid()}"),
            hold("GPU-b", alone=False, limit_s=0.0, waiting=lambda _: None),
        ):
            pass
        told.append("waits behind")

    with (
        hold("GPU-a", alone=False),
        pytest.raises(RunError, match="for GPU-a,"),
        hold("GPU-b", "GPU-a", count=2, alone=False, limit_s=0.05, waiting=later),
    ):
        pass

    assert told
    with hold("GPU-b", alone=False):
        assert (folder / "turn.lock").exists()


def test_the_folder_is_shared_by_all_users(folder: Path) -> None:
    """Mode 1777 for the folder, 0666 for the files, whatever the umask."""
    before = os.umask(0o077)
    try:
        with hold():
            pass
    finally:
        os.umask(before)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "cpu.lock").stat().st_mode) == 0o666


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither the folder nor a lock file may be a symbolic link."""
    target = tmp_path / "target"
    target.mkdir()
    folder.symlink_to(target)
    with (
        pytest.raises(RunError, match="is no folder"),
        hold(),
    ):
        pass

    folder.unlink()
    folder.mkdir()
    (folder / "cpu.lock").symlink_to(target / "elsewhere")
    with (
        pytest.raises(RunError, match="cannot open"),
        hold(),
    ):
        pass
    assert list(target.iterdir()) == []


def test_names_cannot_leave_the_folder(folder: Path) -> None:
    """Whatever an accelerator is called, its file lies in the folder."""
    with hold("../../etc/passwd"):
        assert {p.name for p in folder.iterdir()} == {
            *("turn.lock", "cpu.lock"),
            ".._.._etc_passwd.lock",
        }


def test_a_folder_without_locks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with (
        pytest.raises(RunError, match=r"has no locks .*set PYTEST_MLPERF_LEASES to a folder"),
        hold(),
    ):
        pass


def test_a_lease_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "file"))

    with pytest.raises(RunError, match="cannot be made: Not a directory; set PYTEST_MLPERF_LEASES"):
        lease_folder()


def test_a_lease_folder_of_each_working_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", "leases")

    with pytest.raises(RunError, match=r"^PYTEST_MLPERF_LEASES=leases: .* an absolute path"):
        lease_folder()


@pytest.mark.process
def test_a_holder_that_is_gone_is_not_named(folder: Path) -> None:
    with hold("GPU-1", alone=False):
        with holder("GPU-2", alone=False) as last:
            last.kill()
        expected = "waited 0 s for cpu, held by another process"
        with (
            pytest.raises(RunError, match=expected),
            hold("GPU-3", limit_s=0.0, waiting=lambda _: None),
        ):
            pass


def test_temporary_folders_of_ones_own_do_not_part_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_MLPERF_LEASES")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert tempfile.gettempdir() == str(tmp_path)
    assert lease_folder() == Path(MACHINE_WIDE) / "pytest-mlperf"


@pytest.mark.process
def test_how_long_others_held_it_is_a_value(tmp_path: Path) -> None:
    other = holder()

    def waiting(_: str) -> None:
        assert other.stdin is not None
        other.stdin.close()

    session = conditions.Conditions(
        folder=tmp_path,
        session="now",
        commit=None,
        handicap=0.0,
        patience=Patience(),
        lease_limit_s=60.0,
        machine=Machine(cpu={}),
    )
    with conditions.placed("cpu", session, waiting) as first:
        other.wait(30)
        assert first.waited_s >= conditions.POLL_S
    with conditions.placed("cpu", session, pytest.fail) as second:
        assert second.waited_s < first.waited_s
    assert other.stdout is not None
    other.stdout.close()
