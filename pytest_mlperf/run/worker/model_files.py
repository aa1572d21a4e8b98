"""Compute digests of files that an engine may load and has not hashed itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.core.untrusted_text import texts_in
from pytest_mlperf.stores import digests

NEVER_LOADED = frozenset({".md", ".lock", ".log", ".pyc"})
"""Suffixes of files that no engine loads: documentation, and files that a run writes."""

MAX_FILES = 10_000
MODEL_SUFFIXES = re.compile(
    r"\.(bin|cache|data|engine|gguf|jinja|json|model|onnx|plan|pt|pth|safetensors|tiktoken|ya?ml)"
)
"""Names of files in options that are part of the model: adapters, tables, templates."""

MODEL_FOLDERS = ("config.json", "adapter_config.json")


def model_files_facts(model: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of model files that the engine did not hash, and of files in its options.

    A digest is 16 hex digits of SHA-256. `model` may be a name; paths in `options` are absolute.
    """
    of_model = list(_files(Path(model))) if model else []
    named = [file for path in sorted(set(_paths(options))) for file in _files(path)]
    facts = {"model_files_sha256": of_model, "option_files_sha256": named}
    return {
        key: digest
        for key, files in facts.items()
        if (digest := _digest([one for one in files if one.resolve() not in digests.HASHED]))
    }


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield from [path] if path.is_file() else []
        return
    files: list[Path] = []
    for file in path.rglob("*"):
        if any(part.startswith((".", "__pycache__")) for part in file.relative_to(path).parts):
            continue
        if file.name.endswith(".mlperf.toml") or len(files) > MAX_FILES:
            return
        if file.suffix not in NEVER_LOADED and file.is_file():
            files.append(file)
    yield from sorted(files)


def _paths(options: Mapping[str, Any]) -> Iterator[Path]:
    for text in path_texts(options):
        path = Path(text)
        if "/" not in text or "\0" in text or not path.exists():
            continue
        in_folder = any((path / name).is_file() for name in MODEL_FOLDERS)
        if in_folder or MODEL_SUFFIXES.fullmatch(path.suffix):
            yield path


def path_texts(value: Any) -> Iterator[str]:
    """Yield the strings in options that may be paths, including the path in "--name=path"."""
    for text in texts_in(value):
        yield from {text, text.rpartition("=")[2]} - {""}


def _digest(files: Sequence[Path]) -> str:
    if not files:
        return ""
    lines = [f"{file.name} {digests.sha256([file])}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
