from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mlperf.stores import atomic


def test_text_is_written_as_utf8_into_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    atomic.write_text(path, "für\r\nß\n")
    assert path.read_bytes() == "für\r\nß\n".encode()

    atomic.write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(path.parent.iterdir()) == [path]


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

    monkeypatch.setattr(os, step, Mock(side_effect=error))
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
