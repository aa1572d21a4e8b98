"""What is dear to make is kept, and never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.stores.cache import cache_folder, kept_text


class Made:
    """Counts how often a text is made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> str:
        self.times += 1
        return "text"


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    make = Made()

    assert [kept_text("a.js", make) for _ in range(3)] == ["text"] * 3
    assert make.times == 1
    assert cache_folder() == tmp_path / "pytest-mlperf"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"], ids=["empty", "no text"])
def test_what_is_no_text_is_made_anew(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder().mkdir()
    (cache_folder() / "a.js").write_bytes(content)

    assert kept_text("a.js", Made()) == "text"
    assert (cache_folder() / "a.js").read_text("utf-8") == "text"


def test_a_cache_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest-mlperf").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    make = Made()

    assert [kept_text("a.js", make) for _ in range(2)] == ["text"] * 2
    assert make.times == 2
