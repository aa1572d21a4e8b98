"""The tiny Llama on a real vLLM, with the torch engine's answers as its reference."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence

import pytest

from pytest_mlperf.adapters.datasets.openorca import OpenOrcaDataset
from tests.adapters.engines.torch import models
from tests.run.harness import ROOT

PYTHON = os.environ.get("PYTEST_MLPERF_VLLM_PYTHON")

needs_vllm = pytest.mark.skipif(
    not PYTHON, reason="PYTEST_MLPERF_VLLM_PYTHON names no Python that has vLLM"
)

TWIN = ROOT / "suites" / "tiny" / "llama2-70b"
DATA = str(TWIN / "data" / "open_orca" / "open_orca_tiny.pkl.gz")
SAMPLES = 64
LONGEST = 64


@functools.cache
def prompts() -> list[list[int]]:
    """Return the token ids of the first samples."""
    data = OpenOrcaDataset(path=DATA, count=SAMPLES)
    return [list(map(int, data.input(index))) for index in range(SAMPLES)]


@functools.cache
def expected() -> list[list[int]]:
    """Return the torch engine's answers to the prompts."""
    return models.answers(TWIN / "model", prompts(), max_new_tokens=LONGEST, batching="static")


def equal(outputs: Mapping[int, Sequence[int]]) -> bool:
    """Whether answers by index are those of the torch engine, for all samples but 1 in 20.

    Scores that are all but equal may fall the other way in another order of additions.
    """
    assert sorted(outputs) == list(range(SAMPLES))
    same = sum(list(outputs[index]) == row for index, row in enumerate(expected()))
    print(f"{same} of {SAMPLES} answers are those of the torch engine")
    return same >= 0.95 * SAMPLES
