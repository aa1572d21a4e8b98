"""What of a server's log an error message shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.engines import serving


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "server.log"


@given(text=st.binary() | st.text().map(str.encode))
def test_lines_of_a_servers_log_are_safe_to_print(log: Path, text: bytes) -> None:
    """Nothing in them moves a cursor, starts a line or passes for a command to a CI system."""
    log.write_bytes(text)

    lines = serving.last_lines(log)

    assert len(lines) <= serving.LINES
    for line in lines:
        assert line
        assert line.isprintable() or "\u200b" in line
        assert not set("\n\r\x1b\x07") & set(line)
        assert "::" not in line
        assert len(line) <= serving.WIDTH


def test_the_last_lines_are_those_a_terminal_would_show(log: Path) -> None:
    texts = {
        b"": [],
        b"one\n\n  \ntwo": ["one", "two"],
        b"\n".join(b"%d" % n for n in range(20)): ["14", "15", "16", "17", "18", "19"],
        b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x": ["red x"],
        b"10%\r50%\r100%\n": ["100%"],
        b"windows\r\n": ["windows"],
        b"\xff\x00": ["\ufffd\\x00"],
        "ü日本".encode(): ["ü日本"],
        b"x" * 1000: ["x" * 199 + "…"],
    }
    for text, lines in texts.items():
        log.write_bytes(text)
        assert serving.last_lines(log) == lines


def test_a_lack_of_memory_is_found_far_above_the_last_lines_and_a_taken_port(log: Path) -> None:
    for line in (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
        "ValueError: No available memory for the cache blocks. Try increasing it.",
        "terminate called after throwing an instance of std.bad_alloc",
        "OSError: [Errno 12] Cannot allocate memory",
        "MemoryError",
    ):
        log.write_text("loading\n" * 1000 + line + "\n" + "shutting down\n" * 1000, "utf-8")
        assert serving.about_memory(log) == line
    for line in (
        "OSError: [Errno 98] Address already in use",
        "[Errno 98] error while attempting to bind on ('127.0.0.1', 1): address already in use",
        "Error: listen EADDRINUSE: address already in use 127.0.0.1:8000",
        "Bind for 127.0.0.1:8000 failed: port is already allocated.",
        "ERROR: port 8000 is in use",
        "the model is already in use by another process",
    ):
        log.write_text(f"loading\n{line}\nTraceback\n", "utf-8")
        assert serving.port_was_taken(log) is ("the model" not in line)
        assert serving.about_memory(log) is None
    log.unlink()
    assert serving.last_lines(log) == []
    assert serving.about_memory(log) is None
