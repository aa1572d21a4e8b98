"""Test that the index of a model names files of its own folder only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters import engines as files
from pytest_mlperf.adapters.engines.llm.model_folder import (
    read_config,
    read_json,
    read_quantisation,
)
from pytest_mlperf.adapters.engines.torch._base import check_quantised
from pytest_mlperf.core.errors import RunError
from tests.refusals import unrefused

pytest.importorskip("safetensors")

DEEP = "[" * 60_000


def index(folder: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps({"weight_map": content})
    (folder / "model.safetensors.index.json").write_text(text, "utf-8")
    return folder


def test_an_index_that_names_files_elsewhere_or_none_is_refused(tmp_path: Path) -> None:
    elsewhere = r"index\.json: names .* outside its folder; correct it"
    names = ["../secret.safetensors", "/etc/passwd", "a/../../b", "x/../y"]
    contents = [
        *({"w": 7}, {"w": None}, {"w": ["a"]}, {"w": ""}, {"w": "a\x00b"}, ["a"], 7),
        *("[]", "5", DEEP, "{", "\ufeff{}"),
    ]
    rows = [
        *(({"w": name}, elsewhere) for name in names),
        *((content, "is not an index of safetensors files: ") for content in contents),
        ({"w": "sub/a.safetensors"}, r"sub/a\.safetensors: is missing, but model"),
    ]

    def read(content: Any) -> None:
        files.weight_files(index(tmp_path, content))

    assert unrefused(read, RunError, rows) == []


def test_weights_are_checked_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a server hashes the model's files, and its extra installs no torch."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    monkeypatch.setitem(sys.modules, "torch", None)

    assert files.weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_files_that_are_too_large_or_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    with index(tmp_path, {}).joinpath("model.safetensors.index.json").open("wb") as file:
        file.truncate(files.MAX_INDEX_BYTES + 1)
    (tmp_path / "config.json").write_text(DEEP, "utf-8")

    with pytest.raises(RunError, match="has more than 64 MiB, so it is not an index"):
        files.weight_files(tmp_path)
    with pytest.raises(RunError, match="is not a JSON object"):
        read_json(tmp_path / "config.json")


OTHER_TYPES: list[Any] = ["x", 5, True, 1.5, ["x"], [None], [[1]], {"a": 1}, {"a": {"weights": 5}}]


def test_a_configuration_with_values_of_other_types_is_refused_by_its_file(tmp_path: Path) -> None:
    """Whatever a value is, the file is read or refused in a sentence."""
    usual = {"architectures": ["A"], "vocab_size": 9, "max_position_embeddings": 8}
    tables = [
        {"quant_method": method, key: value}
        for method, key in (("compressed-tensors", "config_groups"), ("torchao", "quant_type"))
        for value in OTHER_TYPES
    ]
    entries = [(key, value) for key in (*usual, "eos_token_id") for value in OTHER_TYPES]
    entries += [("text_config", value) for value in OTHER_TYPES]
    entries += [("quantization_config", value) for value in (*OTHER_TYPES, *tables)]
    read = 0
    for key, value in entries:
        (tmp_path / "config.json").write_text(json.dumps({**usual, key: value}), "utf-8")
        try:
            config = read_config(tmp_path)
            read_quantisation(tmp_path, config).describe()
            check_quantised(tmp_path, config.quantization, "fp8")
            assert {type(config.vocabulary), type(config.context)} <= {int, type(None)}
            read += 1
        except RunError as error:
            assert str(error).startswith(str(tmp_path))  # noqa: PT017 - some are read
    assert 0 < read < len(entries)
    (tmp_path / "config.json").write_text(json.dumps(usual), "utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "2"}', "utf-8")
    with pytest.raises(RunError, match=r"generation_config\.json: has a value of an unexpected"):
        read_config(tmp_path)
