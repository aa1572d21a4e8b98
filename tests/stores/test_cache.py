"""What is dear to make is kept, and never needed."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mlperf.stores.cache import cache_folder, kept_text


def test_it_is_made_once_and_what_is_no_text_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that cannot be written costs time alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    make, again = Mock(return_value="text"), Mock(return_value="text")
    folder = tmp_path / "pytest-mlperf"

    assert [kept_text("a.js", make) for _ in range(3)] == ["text"] * 3
    assert (make.call_count, cache_folder()) == (1, folder)
    for content in (b"", b"\xff\xfe"):
        (folder / "a.js").write_bytes(content)
        assert kept_text("a.js", lambda: "text") == "text"
        assert (folder / "a.js").read_text("utf-8") == "text"
    shutil.rmtree(folder)
    folder.touch()
    assert [kept_text("a.js", again) for _ in range(2)] == ["text"] * 2
    assert again.call_count == 2
