"""One process at a time measures on an accelerator, and nobody waits for the dead."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.run import lease

HOLDER = """
import sys, time
from pytest_mlperf.run import lease
with lease.hold(sys.argv[1:], limit_s=60, waiting=print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lease folder of this test's own."""
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path))
    return tmp_path / "pytest-mlperf"


def holder(*names: str) -> subprocess.Popen[str]:
    """Start a process that holds leases until its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_held_lease_is_waited_for_and_then_taken() -> None:
    """The one who waits is told for whom."""
    other = holder("cpu")
    told: list[str] = []

    def waiting(text: str) -> None:
        told.append(text)
        assert other.stdin is not None
        other.stdin.close()

    with lease.hold(["cpu"], limit_s=60, waiting=waiting):
        other.wait(30)

    assert told[0] == f"waiting for cpu, held by process {other.pid}"
    assert other.stdout is not None
    other.stdout.close()


def test_a_wait_has_a_limit() -> None:
    """Past it, one error names the accelerator, the holder and the setting."""
    with holder("GPU-1") as other:
        expected = f"waited 0 s for GPU-1, held by process {other.pid}.*mlperf_lease_timeout"
        with (
            pytest.raises(RunError, match=expected),
            lease.hold(["GPU-1"], limit_s=0.0, waiting=lambda _: None),
        ):
            pass


def test_a_killed_holder_blocks_nobody(folder: Path) -> None:
    """The kernel frees the lock of a process that is gone; its file stays and does no harm."""
    with holder("cpu") as other:
        other.send_signal(signal.SIGKILL)
        other.wait(30)

        with lease.hold(["cpu"], limit_s=30, waiting=lambda _: None):
            held = (folder / "cpu.lock").read_text()

    assert held == f"process {os.getpid()}\n"


def test_different_accelerators_do_not_wait_for_each_other() -> None:
    """A lease is per accelerator."""
    with holder("GPU-1"), lease.hold(["GPU-2"], limit_s=0.0, waiting=pytest.fail):
        pass


def test_leases_are_taken_in_one_order(folder: Path) -> None:
    """Two holders of the same two accelerators never wait crosswise."""
    with lease.hold(["GPU-b", "GPU-a"], limit_s=1, waiting=pytest.fail):
        assert sorted(p.name for p in folder.iterdir()) == ["GPU-a.lock", "GPU-b.lock"]
        with (
            pytest.raises(RunError, match="for GPU-a,"),
            lease.hold(["GPU-b", "GPU-a"], limit_s=0.0, waiting=lambda _: None),
        ):
            pass


def test_the_folder_is_shared_by_all_users(folder: Path) -> None:
    """Mode 1777 for the folder, 0666 for the files, whatever the umask."""
    before = os.umask(0o077)
    try:
        with lease.hold(["cpu"], limit_s=1, waiting=pytest.fail):
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
        lease.hold(["cpu"], limit_s=1, waiting=pytest.fail),
    ):
        pass

    folder.unlink()
    folder.mkdir()
    (folder / "cpu.lock").symlink_to(target / "elsewhere")
    with (
        pytest.raises(RunError, match="cannot open"),
        lease.hold(["cpu"], limit_s=1, waiting=pytest.fail),
    ):
        pass
    assert list(target.iterdir()) == []


def test_names_cannot_leave_the_folder(folder: Path) -> None:
    """Whatever an accelerator is called, its file lies in the folder."""
    with lease.hold(["../../etc/passwd"], limit_s=1, waiting=pytest.fail):
        assert [p.name for p in folder.iterdir()] == [".._.._etc_passwd.lock"]


def test_a_folder_without_locks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with (
        pytest.raises(RunError, match=r"has no locks .*set PYTEST_MLPERF_LEASES to a folder"),
        lease.hold(["cpu"], limit_s=1, waiting=print),
    ):
        pass


def test_a_lease_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(tmp_path / "file"))

    with pytest.raises(RunError, match="cannot be made: Not a directory; set PYTEST_MLPERF_LEASES"):
        lease.folder()


def test_temporary_folders_of_ones_own_do_not_part_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch systems and sandboxes give each job its TMPDIR."""
    monkeypatch.delenv("PYTEST_MLPERF_LEASES")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert tempfile.gettempdir() == str(tmp_path)
    assert lease.folder() == Path(lease.MACHINE_WIDE) / "pytest-mlperf"
