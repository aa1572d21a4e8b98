"""Hashes of large files are remembered, and a change is always seen."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mlperf.stores import digests
from pytest_mlperf.stores.digests import sha256


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large and old enough to be remembered."""
    monkeypatch.setattr(digests, "WORTH_BYTES", 4)
    monkeypatch.setattr(digests, "SETTLED_SECONDS", -60.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"12345678")
    return path


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*")) if (folder / "cache").is_dir() else []


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_an_unchanged_file_is_read_once_and_a_changed_or_replaced_one_again(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of the same size whose time of change was put back: that it was is a change too."""
    state = weights.stat()
    assert sha256([weights]) == digest(b"12345678")
    with monkeypatch.context() as patch:
        patch.setattr(digests, "_hashed", None)  # who reads again fails
        assert sha256([weights]) == digest(b"12345678")
    weights.write_bytes(b"87654321")
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert sha256([weights]) == digest(b"87654321")
    other = tmp_path / "other"
    other.write_bytes(b"abcdefgh")
    assert sha256([weights, other]) == digest(b"87654321abcdefgh")
    other.replace(weights)
    assert sha256([weights]) == digest(b"abcdefgh")


def test_a_file_that_has_just_changed_or_changes_while_read_is_not_remembered(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within one tick of the file system's clock would not be seen."""
    with monkeypatch.context() as patch:
        patch.setattr(digests, "SETTLED_SECONDS", time.time())
        sha256([weights])
    assert not kept(tmp_path)
    reading = digests._hashed

    def changing(paths: list[Path]) -> str:
        digests_read = reading(paths)
        weights.write_bytes(b"somebody's else")
        return digests_read

    monkeypatch.setattr(digests, "_hashed", changing)
    sha256([weights])

    assert not kept(tmp_path)


def test_small_files_and_a_cache_that_cannot_be_written_or_read_change_nothing(
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A container may run as a number that no user has. Hashing for long shows progress."""
    assert sha256([weights])
    (cache_file,) = [path for path in kept(tmp_path) if path.is_file()]
    cache_file.write_text("nonsense", "ascii")
    assert sha256([weights]) == digest(b"12345678")
    monkeypatch.setenv("XDG_CACHE_HOME", str(weights))  # no folder
    assert sha256([weights]) == digest(b"12345678")
    with monkeypatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME")
        patch.setattr(Path, "expanduser", Mock(side_effect=RuntimeError("no home directory")))
        assert sha256([weights]) == digest(b"12345678")
    monkeypatch.setattr(digests, "WORTH_BYTES", 1 << 30)
    monkeypatch.setattr(digests, "cache_folder", None)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(digests, "LOG_PERIOD_SECONDS", -1.0)
    assert sha256([weights]) == digest(b"12345678")
    assert capfd.readouterr().err == "weights: 0 GB hashed\n"
