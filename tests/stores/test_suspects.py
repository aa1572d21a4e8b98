"""What the next session measures first."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores import suspects


def test_what_is_saved_is_loaded_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "new" / "suspects.json"

    suspects.save(file, ["b", "a"])

    assert suspects.load(file) == ["b", "a"]


def test_no_suspects_and_no_file_stay_so(tmp_path: Path) -> None:
    file = tmp_path / "suspects.json"

    suspects.save(file, [])

    assert not file.exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"schema": 2, "tests": ["a"]}', '{"schema": 1, "tests": "a"}', "\udc80"],
)
def test_a_damaged_file_only_loses_the_order(tmp_path: Path, content: str) -> None:
    """It is started anew, and fails nothing."""
    file = tmp_path / "suspects.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))

    assert suspects.load(file) == []
    suspects.save(file, ["a"])
    assert suspects.load(file) == ["a"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")

    with pytest.raises(MlperfError, match="the suspects cannot be written: File exists"):
        suspects.save(tmp_path / "file" / "suspects.json", ["a"])
