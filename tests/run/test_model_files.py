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
    """Return the fingerprint's facts, for an engine that hashes its weights by itself."""
    digests.HASHED.clear()
    weights_facts = weights_fact(model) if model.is_dir() else {}
    return {**weights_facts, **model_files_facts(str(model), options or {})}


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
    facts_at_start = facts(model)
    weights = set(weight_files(model))
    others = [file for file in model.rglob("*") if file.is_file() and file not in weights]

    assert len(others) == len(ADDED) + 4
    assert [file.name for file in flipped(others) if facts(model) == facts_at_start] == []
    assert facts(model) == facts_at_start
    for name in ("README.md", ".gitattributes", "__pycache__/model.pyc"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("not loaded", "utf-8")
    assert facts(model) == facts_at_start


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
    facts_at_start = facts(tmp_path / "served-name", options)

    assert facts_at_start.keys() == {"option_files_sha256"}
    same = [
        f.name for f in flipped(files) if facts(tmp_path / "served-name", options) == facts_at_start
    ]
    assert same == []


def test_a_folder_without_a_model_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "own.mlperf.toml").write_text("", "utf-8")

    assert model_files_facts(str(tmp_path), {}) == {}
    assert model_files_facts(None, {}) == {}
    assert model_files_facts("meta-llama/Llama-2-70b", {}) == {}


def test_a_digest_that_one_side_lacks_is_unknown() -> None:
    old_facts = {"engine": "torch", "engine.weights_sha256": "1"}
    new_facts = {**old_facts, "engine.model_files_sha256": "2"}

    assert changed_keys(old_facts, new_facts) == changed_keys(new_facts, old_facts) == []
    other = {**new_facts, "engine.model_files_sha256": "3"}
    assert changed_keys(new_facts, other) == ["engine.model_files_sha256"]
    assert changed_keys(old_facts, {**new_facts, "options": "{}"}) == ["options"]
