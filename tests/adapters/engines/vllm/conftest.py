"""The stand-in in place of vLLM, and the models of the torch engine's tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.engines.torch.conftest import counting, random

__all__ = ["counting", "random"]

STANDINS = Path(__file__).resolve().parents[3] / "standins"

collect_ignore = (
    []
    if all(map(importlib.util.find_spec, ("torch", "transformers")))
    else [
        "test_answers.py",
        "test_faults.py",
        "test_loadgen.py",
        "test_media.py",
        "test_real.py",
        "test_real_server.py",
    ]
)


def forget() -> None:
    """Take the package out of this process: another test may need it not to be there."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `import vllm` find the stand-in."""
    import torch

    threads = torch.get_num_threads()  # which the stand-in changes
    monkeypatch.syspath_prepend(STANDINS)
    yield
    torch.set_num_threads(threads)
    forget()


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `vllm` is installed."""
    forget()
    monkeypatch.setitem(sys.modules, "vllm", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model."""
    config = '{"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "eos_token_id": 2}'
    (tmp_path / "config.json").write_text(config, "utf-8")
    return tmp_path
