"""Test that files are written whole or not at all, and that caches are optional."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any
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


def test_any_interruption_leaves_the_old_file_and_no_other(
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
    """A new file is linked to its name; an older one is replaced."""
    steps = []
    fsync, rename, link = os.fsync, os.replace, os.link

    def noting_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noting_replace(old: str, new: str, **folders: int) -> None:
        steps.append("rename")
        rename(old, new, **folders)

    def noting_link(old: str, new: str, **folders: Any) -> None:
        link(old, new, **folders)
        steps.append("link")

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "link", noting_link)
    atomic.write_text(tmp_path / "a.txt", "new")
    created = steps.copy()
    steps.clear()
    atomic.write_text(tmp_path / "a.txt", "newer")

    assert created in (["file", "link", "folder"], ["file", "rename", "folder"])
    assert [step for step in steps if step != "link"] == ["file", "rename", "folder"]
