"""The stand-in package needs torch and transformers; the rest is tested without them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.engines.torch.conftest import counting, mute

__all__ = ["counting", "mute"]

STANDINS = Path(__file__).parents[3] / "standins"
LIBRARIES = ("torch", "transformers", "tokenizers")

collect_ignore = (
    []
    if all(map(importlib.util.find_spec, LIBRARIES))
    else ["test_answers.py", "test_failures.py", "test_loadgen.py", "test_standin.py"]
)


def forget() -> None:
    """Take the package out of this process: another test may need it not to be there."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`import tensorrt_llm` finds the stand-in."""
    monkeypatch.setattr(sys, "path", [str(STANDINS), *sys.path])
    # Set here so that what the engine sets for its process ends with the test.
    for name in ("HF_HUB_OFFLINE", "TRTLLM_NO_USAGE_STATS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TLLM_NUMA_AWARE_WORKER_AFFINITY", "1")
    forget()
    yield STANDINS
    forget()


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `tensorrt_llm` is installed."""
    forget()
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
