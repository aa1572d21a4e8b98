from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mlperf.stores import atomic


def test_text_is_written_as_utf8_into_folders_that_are_made(tmp_path: Path) -> None:
    """It is as readable as any other file, and its name may be the longest that a folder holds."""
    folder, plain = tmp_path / "a" / "b", tmp_path / "plain"
    path = folder / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    plain.touch()

    atomic.write_text(path, "für\r\nß\n")
    text = path.read_bytes()
    atomic.write_bytes(path, b"\x00\xff")

    assert (text, path.read_bytes()) == ("für\r\nß\n".encode(), b"\x00\xff")
    assert list(folder.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    with pytest.raises(OSError, match="plain"):
        atomic.write_text(plain / "b.txt", "new")


def test_whatever_stops_it_the_old_file_stays_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    for step in ("fsync", "replace"):
        for error in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):
            with monkeypatch.context() as patch:
                patch.setattr(os, step, Mock(side_effect=error))
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
