from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_mlperf.stores import atomic


def test_text_is_written_as_utf8_with_its_line_ends(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a.txt", "für\r\nß\n")

    assert (tmp_path / "a.txt").read_bytes() == "für\r\nß\n".encode()


def test_missing_folders_are_made(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "a" / "b" / "c.bin", b"\x00\xff")

    assert (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"\x00\xff"


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old and longer")

    atomic.write_text(path, "new")

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.touch()

    atomic.write_text(written, "")

    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_the_longest_name_a_folder_holds_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))

    atomic.write_text(path, "x")

    assert path.read_text() == "x"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_whatever_stops_it_the_old_file_stays_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def stop(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(os, step, stop)
    with pytest.raises(type(error)):
        atomic.write_text(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_bytes_reach_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    fsync, rename = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noting_replace(old: Path, new: Path) -> None:
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    atomic.write_text(tmp_path / "a.txt", "new")

    assert steps == ["file", "rename", "folder"]


def test_a_file_in_place_of_a_folder_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")

    with pytest.raises(OSError, match="a"):
        atomic.write_text(tmp_path / "a" / "b.txt", "new")
