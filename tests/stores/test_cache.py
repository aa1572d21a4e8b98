"""What is dear to make is kept, and never needed."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mlperf.stores.cache import cache_folder, kept_text


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_is_made_once(tmp_path: Path) -> None:
    make = Mock(return_value="text")

    assert [kept_text("a.js", make) for _ in range(3)] == ["text"] * 3
    assert make.call_count == 1
    assert cache_folder() == tmp_path / "pytest-mlperf"


def test_what_is_no_text_is_made_anew() -> None:
    cache_folder().mkdir()
    for content in (b"", b"\xff\xfe"):
        (cache_folder() / "a.js").write_bytes(content)
        assert kept_text("a.js", lambda: "text") == "text"
        assert (cache_folder() / "a.js").read_text("utf-8") == "text"


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "pytest-mlperf").touch()
    make = Mock(return_value="text")

    assert [kept_text("a.js", make) for _ in range(2)] == ["text"] * 2
    assert make.call_count == 2
