"""A model's files: an index names those beside it, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import engines as files
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.llm.model_folder import read_json

pytest.importorskip("safetensors")

DEEP = "[" * 60_000


def index(folder: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps({"weight_map": content})
    (folder / "model.safetensors.index.json").write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../b", "x/../y"])
def test_an_index_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match=r"index\.json: names .* outside its folder; correct it"):
        files.weight_files(index(tmp_path, {"w": name}))


@pytest.mark.parametrize(
    "content",
    [
        {"w": 7},
        {"w": None},
        {"w": ["a"]},
        {"w": ""},
        {"w": "a\x00b"},
        ["a"],
        7,
        "[]",
        "5",
        DEEP,
        "{",
        "\ufeff{}",
    ],
    ids=lambda content: str(content)[:12],
)
def test_what_is_no_index_is_one_sentence(tmp_path: Path, content: Any) -> None:
    with pytest.raises(RunError, match="is no index of safetensors files: "):
        files.weight_files(index(tmp_path, content))


def test_an_index_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with index(tmp_path, {}).joinpath("model.safetensors.index.json").open("wb") as file:
        file.truncate(files.LARGEST_INDEX + 1)

    with pytest.raises(RunError, match="is larger than 64 MiB, which no index is"):
        files.weight_files(tmp_path)


def test_a_file_that_is_named_and_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"sub/a\.safetensors: is missing, but model"):
        files.weight_files(index(tmp_path, {"w": "sub/a.safetensors"}))


def test_json_that_is_nested_too_deeply_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP, "utf-8")

    with pytest.raises(RunError, match="is no JSON object"):
        read_json(tmp_path / "config.json")
