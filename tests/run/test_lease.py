"""Test that one process at a time measures on an accelerator, without waits for dead processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_mlperf.core.contention import Contention
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.hardware.leases import MACHINE_WIDE, file_name, lease_folder
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.run import conditions
from pytest_mlperf.run.child.process import Waiting
from pytest_mlperf.run.conditions import HeldLeases, IdleWait

HOLDER = """
import sys, time
from pytest_mlperf.run import conditions
alone, count, *gpus = sys.argv[1:]
how = {"alone": alone == "alone", "limit_s": 60, "waiting": print}
with conditions.lease_hardware(gpus, int(count), **how):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    return tmp_path / "pytest-mlperf"


def hold(
    *gpus: str,
    count: int = 1,
    alone: bool = True,
    limit_s: float = 1,
    waiting: Callable[[str], None] = pytest.fail,
) -> AbstractContextManager[HeldLeases]:
    return conditions.lease_hardware(gpus, count, alone=alone, limit_s=limit_s, waiting=waiting)


def holder(*gpus: str, count: int = 1, alone: bool = True) -> subprocess.Popen[str]:
    words = ["alone" if alone else "beside", str(count), *gpus]
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_XDIST_WORKER"}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def refused(match: str, *gpus: str, count: int = 1, alone: bool = True) -> None:
    """Try to lease GPUs that another process has, without a wait."""
    with (
        pytest.raises(RunError, match=match),
        hold(*gpus, count=count, alone=alone, limit_s=0.0, waiting=lambda _: None),
    ):
        pass


@pytest.mark.process
def test_neighbours_take_the_next_free_gpus() -> None:
    four = [f"GPU-{n}" for n in range(4)]
    with holder(*four, count=2, alone=False):
        with hold(*four, alone=False) as third, hold(*four, alone=False) as last:
            assert (third.gpus, last.gpus) == (("GPU-2",), ("GPU-3",))
        with hold(*four, count=2, alone=False) as both:
            assert both.gpus == ("GPU-2", "GPU-3")
        refused("waited 0 s for GPU-0, held by", *four, count=3, alone=False)


@pytest.mark.process
def test_who_measures_alone_has_no_neighbour() -> None:
    """Nor waits for longer than its limit, nor for one with other GPUs that has a neighbour."""
    for alone in (True, False):
        with holder("GPU-1", alone=alone) as other:
            held = f"held by process {other.pid}.*mlperf_lease_timeout"
            for ours in {True, not alone}:
                refused(f"waited 0 s for cpu, {held}", "GPU-2", alone=ours)
            if not alone:
                refused(f"waited 0 s for GPU-1, {held}", "GPU-1", alone=False)


LIMITS_W = {"GPU-0": 700, "GPU-1": 500, "GPU-2": 700, "GPU-3": 700}


def four_gpus(*, shared: bool) -> Machine:
    return Machine(
        cpu={},
        gpus=tuple(
            {"uuid": uuid, "gpu": "NVIDIA H200", "power_limit_w": w} for uuid, w in LIMITS_W.items()
        ),
        shared=shared,
    )


def test_gpus_that_are_taken_are_those_that_the_baseline_applies_to(tmp_path: Path) -> None:
    """One of four has another power limit; a free GPU that does not fit is given back."""
    here = four_gpus(shared=True)
    session_conditions = conditions.Conditions(
        folder=tmp_path, session="s", machine=here, lease_limit_s=0.0
    )
    cases: list[tuple[tuple[str, ...], str, list[str] | None]] = [
        ((), "H200", ["GPU-0"]),
        (("GPU-0",), "H200", ["GPU-2"]),
        ((), "2xH200", ["GPU-0", "GPU-1"]),
        (("GPU-0",), "2xH200", ["GPU-1", "GPU-2"]),
        (("GPU-1",), "2xH200", None),
        (("GPU-0", "GPU-2", "GPU-3"), "H200", None),
    ]
    for busy, accelerator, taken in cases:
        with contextlib.ExitStack() as stack:
            for uuid in busy:
                stack.enter_context(hold(uuid, alone=False))
            if taken is None:
                with pytest.raises(RunError, match=f"for {busy[0]}, held by"):
                    stack.enter_context(
                        conditions.placed(accelerator, session_conditions, lambda _: None)
                    )
            else:
                placement = stack.enter_context(
                    conditions.placed(accelerator, session_conditions, pytest.fail)
                )
                used = placement.conditions.machine
                assert used.uuids(accelerator) == taken
                assert used.identity(accelerator) == here.identity(accelerator)
            for uuid in LIMITS_W.keys() - {*busy, *(taken or ())}:
                stack.enter_context(hold(uuid, alone=False))


@pytest.mark.parametrize("shared", [True, False])
def test_a_gpu_that_the_session_lost_is_passed_over(tmp_path: Path, *, shared: bool) -> None:
    """By all later cases, with a note; one that needs it says so at once."""
    cases: list[tuple[str, str, list[str] | None]] = [
        ("GPU-0", "H200", ["GPU-2"]),
        ("GPU-0", "2xH200", ["GPU-1", "GPU-2"]),
        ("GPU-1", "2xH200", None),
        ("GPU-3", "4xH200", None),
    ]
    for number, (gone, accelerator, taken) in enumerate(cases):
        lost = conditions.LostGpus(tmp_path / f"lost-{number}")
        lost.note({gone: f"{gone} was lost"})
        lost.note({gone: "lost twice"})
        here = four_gpus(shared=shared)
        session_conditions = conditions.Conditions(
            folder=tmp_path, session="s", machine=here, lost=lost
        )
        with contextlib.ExitStack() as stack:
            if taken is None:
                expected = (
                    f"{accelerator} cannot be used any more in this session: {gone} was lost; "
                )
                with pytest.raises(RunError, match=expected) as error:
                    stack.enter_context(
                        conditions.placed(accelerator, session_conditions, pytest.fail)
                    )
                assert error.value.layer == "gpu"
                continue
            placement = stack.enter_context(
                conditions.placed(accelerator, session_conditions, pytest.fail)
            )
            assert placement.conditions.machine.uuids(accelerator) == taken
            assert placement.notes == (
                f"GPU not used, because of an earlier failure in this session: {gone} was lost",
            )


@pytest.mark.process
def test_who_waits_is_not_overtaken_and_keeps_nothing_but_its_turn(folder: Path) -> None:
    """A case of two GPUs waits for one of them: a later one of one GPU does not take the other."""
    heard: list[str] = []

    def later(_: str) -> None:
        with (folder / "GPU-b.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refused(f"for turn, held by process {os.getpid()}", "GPU-b", alone=False)
        heard.append("waits behind")

    with (
        hold("GPU-a", alone=False),
        pytest.raises(RunError, match="for GPU-a,"),
        hold("GPU-b", "GPU-a", count=2, alone=False, limit_s=0.05, waiting=later),
    ):
        pass

    assert heard
    with hold("GPU-b", alone=False):
        assert (folder / "turn.lock").exists()


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither the folder nor a lock file may be a symbolic link."""
    target = tmp_path / "target"
    target.mkdir()
    folder.symlink_to(target)
    refused("is not a folder")

    folder.unlink()
    folder.mkdir()
    (folder / "cpu.lock").symlink_to(target / "elsewhere")
    refused("cannot open")
    assert list(target.iterdir()) == []


def test_links_are_not_followed_and_names_cannot_leave_the_folder(folder: Path) -> None:
    """Mode 1777 for the folder, 0666 for the files, whatever the umask and the name."""
    with hold("../../etc/passwd"):
        assert {p.name for p in folder.iterdir()} == {
            *("turn.lock", "cpu.lock"),
            ".._.._etc_passwd.lock",
        }

    umask = os.umask(0o077)
    try:
        with hold():
            pass
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "cpu.lock").stat().st_mode) == 0o666


def test_an_unusable_lease_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with (
            pytest.raises(RunError, match=r"has no locks .*set PYTEST_MLPERF_LEASES to a folder"),
            hold(),
        ):
            pass
    (tmp_path / "file").touch()
    for value, match in (
        (str(tmp_path / "file"), "cannot be created: Not a directory; set PYTEST_MLPERF_LEASES"),
        ("leases", r"^PYTEST_MLPERF_LEASES=leases is a relative path.* to an absolute path"),
    ):
        monkeypatch.setenv("PYTEST_MLPERF_LEASES", value)
        with pytest.raises(RunError, match=match):
            lease_folder()

    monkeypatch.delenv("PYTEST_MLPERF_LEASES")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert tempfile.gettempdir() == str(tmp_path)
    assert lease_folder() == Path(MACHINE_WIDE) / "pytest-mlperf"


@pytest.mark.process
def test_a_killed_holder_blocks_no_other_and_is_not_named(folder: Path) -> None:
    """The kernel frees the lock of a process that is gone; its file stays and does no harm."""
    with hold("GPU-1", alone=False):
        with holder("GPU-2", alone=False) as last:
            last.kill()
        refused("waited 0 s for cpu, held by another process", "GPU-3")
    for worker, whose in ((None, ""), ("gw1", " (gw1)")):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYTEST_XDIST_WORKER", raising=False)
            if worker:
                patch.setenv("PYTEST_XDIST_WORKER", worker)
            with hold(limit_s=30, waiting=lambda _: None):
                text = (folder / "cpu.lock").read_text()
        assert text == f"process {os.getpid()}{whose}\n"


@pytest.mark.process
def test_a_held_lease_is_waited_for_and_how_long_is_a_value(tmp_path: Path) -> None:
    other = holder()
    heard: list[str] = []

    def waiting(text: str) -> None:
        heard.append(text)
        assert other.stdin is not None
        other.stdin.close()

    machine = Machine(cpu={})
    session = conditions.Conditions(
        folder=tmp_path, session="now", lease_limit_s=60.0, machine=machine
    )
    with conditions.placed("cpu", session, waiting) as first:
        other.wait(30)
        assert first.waited_s >= conditions.POLL_SECONDS
    assert heard[0] == f"waiting for cpu, held by process {other.pid}"
    with conditions.placed("cpu", session, pytest.fail) as second:
        assert second.waited_s < first.waited_s
    assert other.stdout is not None
    other.stdout.close()


def test_others_are_waited_for_until_they_are_done_or_the_sessions_time_is_over() -> None:
    busy = Contention(window_s=0.2, cores=2, foreign_s=0.2, others={"cc1": 1.0})
    idle = Contention(window_s=0.2, cores=2, foreign_s=0.01)
    unknown = Contention(window_s=0.2, cores=2)
    words = "for an idle machine: other processes used 1 of 2 cores (cc1 1)"
    for limit_s, looks, left, waited_s, lines in (
        (15.0, [busy, busy, idle, busy], 1, 0.4, [f"waiting up to 15 s {words}"] * 2),
        (0.5, [busy] * 4, 1, 0.6, [f"waiting up to 0 s {words}"] * 3),
        (15.0, [unknown, busy], 1, 0.0, []),
        (0.0, [busy], 1, 0.0, []),
    ):
        coming, messages = iter(looks), list[str]()
        waited = IdleWait(limit_s, partial(next, coming)).wait(messages.append)
        assert (len(list(coming)), messages) == (left, lines)
        assert waited == pytest.approx(waited_s)
        assert all(isinstance(line, Waiting) for line in messages)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("whose", ["", "pytest-mlperf"])
def test_a_folder_that_another_user_may_change_is_refused(tmp_path: Path, whose: str) -> None:
    """Its owner could remove a lease; the sticky bit, root and this user are trusted."""
    folder = tmp_path / whose
    lease_folder()
    os.chown(folder, 65534, 65534)
    folder.chmod(0o777)

    with pytest.raises(
        RunError, match=rf"^{folder} belongs to user 65534, .* chmod \+t {folder}, or"
    ):
        lease_folder()
    folder.chmod(0o1777)
    assert lease_folder() == tmp_path / "pytest-mlperf"


@pytest.mark.parametrize("make", [os.mkfifo, "hard link"])
def test_a_lease_that_is_a_link_or_not_a_file_is_refused(
    tmp_path: Path, folder: Path, make: Callable[[Path], object] | str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("text")
    lock = lease_folder() / "cpu.lock"
    if callable(make):
        make(lock)
    else:
        lock.hardlink_to(victim)

    refused(f"cannot open {folder}/cpu.lock: it is a pipe, a device or a hard link")
    assert victim.read_text() == "text"


def test_a_lease_is_opened_in_the_folder_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user swaps the folder for a link after the check."""
    target = tmp_path / "target"
    target.mkdir()
    folder = lease_folder()

    def swap(name: str) -> str:
        if not folder.is_symlink():
            folder.rename(tmp_path / "moved")
            folder.symlink_to(target)
        return file_name(name)

    monkeypatch.setattr("pytest_mlperf.run.conditions.file_name", swap)
    refused("is not a folder")
    assert list(target.iterdir()) == []
