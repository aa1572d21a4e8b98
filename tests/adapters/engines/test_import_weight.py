from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


MODULES = [
    "pytest_mlperf.adapters.engines.onnxruntime.tensorrt",
    "pytest_mlperf.adapters.engines.triton._clients",
    "pytest_mlperf.adapters.engines.tensorrt_llm",
    "pytest_mlperf.adapters.engines.torch.diffusion",
    "pytest_mlperf.adapters.engines.torch.module",
    "pytest_mlperf.adapters.datasets.imagenet",
    "pytest_mlperf.adapters.scorers.top1",
]
"""Packages come with the modules in them."""
HEAVY = {
    *("numpy", "onnxruntime", "PIL", "mlperf_loadgen", "torch", "transformers", "tritonclient"),
    *("diffusers", "safetensors"),
}


def test_importing_adapters_imports_none_of_the_libraries_they_work_with() -> None:
    code = f"import sys, {', '.join(MODULES)}; print(*sys.modules, sep='\\n')"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()

    assert set(MODULES) <= set(loaded)
    assert not HEAVY & set(loaded)
