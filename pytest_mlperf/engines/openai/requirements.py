"""What the engine needs before a server is asked: libraries, and the program that serves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from urllib.parse import urlsplit

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.engines.model_folder import MAIN_TOKENIZER_FILES
from pytest_mlperf.engines.openai.client import library
from pytest_mlperf.engines.serving import Server
from pytest_mlperf.engines.serving.reach import require_listening


def require(folder: Path | None, server: Server | None, *, dummy: bool) -> None:
    """Look for all of it; nothing is started.

    Args:
        folder: The model's, or None.
        server: What is to be started, or None.
        dummy: Weights are random, so that none are read.

    Raises:
        EnvironmentFault: A library is not installed.
        RunError: The first word of `serve` is no program here.
    """
    library()
    if has_tokenizer(folder):
        _require("transformers", "the model's tokenizer")
    if has_weights(folder) and not dummy:
        _require("safetensors", "the fingerprint of the model's weights")
    if server is not None:
        server.require()


def require_reach(url: str) -> None:
    """Look whether a server listens at an address; nothing is sent.

    Raises:
        RunError: It does not.
    """
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    require_listening("openai", parts.hostname or "", port)


def has_tokenizer(folder: Path | None) -> bool:
    """Whether a model's folder has a tokenizer."""
    return folder is not None and any((folder / name).is_file() for name in MAIN_TOKENIZER_FILES)


def has_weights(folder: Path | None) -> bool:
    """Whether a model's folder has weights, which belong to the fingerprint."""
    return folder is not None and any(folder.glob("*.safetensors*"))


def _require(name: str, purpose: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise EnvironmentFault(
            f"engine openai needs {name} for {purpose}, which is not installed; "
            "try: pip install 'pytest-mlperf[openai]'"
        )
