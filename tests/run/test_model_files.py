"""run/worker/model_files.py: no file of a model changes without another fingerprint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines import weight_files
from pytest_mlperf.adapters.engines.llm.model_folder import weights_fact
from pytest_mlperf.core.baseline import changed_keys
from pytest_mlperf.run.worker.model_files import model_files_facts
from pytest_mlperf.stores import digests

TWINS = Path(__file__).parents[2] / "suites" / "tiny"
ADDED = {
    "preprocessor_config.json": b"{}",
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": b"adapter",
    "chat_template.jinja": b"{{ messages }}",
    "unet/config.json": b"{}",
    "tokenizer.model": b"words",
}
"""Files of a model folder that the twin lacks, and that some engine loads."""


@pytest.fixture(autouse=True)
def _nothing_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "HASHED", set())


def facts(model: Path, options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return what a fingerprint has, of an engine that hashes its weights by itself."""
    digests.HASHED.clear()
    own = weights_fact(model) if model.is_dir() else {}
    return {**own, **model_files_facts(str(model), options or {})}


def flipped(files: list[Path]) -> Iterator[Path]:
    """Change the last byte of each file in turn."""
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        yield file
        file.write_bytes(content)


def test_one_byte_of_any_file_of_a_model_folder_is_another_fingerprint(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TWINS / "llama2-70b" / "model", model)
    for name, content in ADDED.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(content)
    before = facts(model)
    weights = set(weight_files(model))
    others = [file for file in model.rglob("*") if file.is_file() and file not in weights]

    assert len(others) == len(ADDED) + 4
    assert [file.name for file in flipped(others) if facts(model) == before] == []
    assert facts(model) == before
    for name in ("README.md", ".gitattributes", "__pycache__/model.pyc"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("not loaded", "utf-8")
    assert facts(model) == before


def test_files_named_in_options_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    adapter, table = tmp_path / "adapter", tmp_path / "table.cache"
    adapter.mkdir()
    files = [table, adapter / "adapter_config.json", adapter / "adapter_model.safetensors"]
    for file in files:
        file.write_text("1", "utf-8")
    options = {
        "serve": ["vllm", "serve", "{model}", f"--lora-modules=a={adapter}", "--log=/tmp/x.log"],
        "engine": {"table": str(table), "cache": str(tmp_path)},
    }
    before = facts(tmp_path / "served-name", options)

    assert before.keys() == {"option_files_sha256"}
    same = [f.name for f in flipped(files) if facts(tmp_path / "served-name", options) == before]
    assert same == []


def test_a_folder_that_is_no_model_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "own.mlperf.toml").write_text("", "utf-8")

    assert model_files_facts(str(tmp_path), {}) == {}
    assert model_files_facts(None, {}) == {}
    assert model_files_facts("meta-llama/Llama-2-70b", {}) == {}


def test_a_digest_that_one_side_lacks_is_unknown() -> None:
    before = {"engine": "torch", "engine.weights_sha256": "1"}
    now = {**before, "engine.model_files_sha256": "2"}

    assert changed_keys(before, now) == changed_keys(now, before) == []
    other = {**now, "engine.model_files_sha256": "3"}
    assert changed_keys(now, other) == ["engine.model_files_sha256"]
    assert changed_keys(before, {**now, "options": "{}"}) == ["options"]
