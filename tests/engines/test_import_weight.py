from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "module",
    [
        "pytest_mlperf.engines.onnxruntime",
        "pytest_mlperf.engines.onnxruntime.tensorrt",
        "pytest_mlperf.engines.triton",
        "pytest_mlperf.engines.triton._clients",
        "pytest_mlperf.engines.tensorrt_llm",
        "pytest_mlperf.engines.torch",
        "pytest_mlperf.engines.torch.diffusion",
        "pytest_mlperf.engines.torch.module",
        "pytest_mlperf.datasets.imagenet",
        "pytest_mlperf.scorers.top1",
    ],
)
def test_importing_an_adapter_imports_none_of_the_libraries_it_works_with(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"

    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()

    assert module in loaded
    heavy = {
        "numpy",
        "onnxruntime",
        "PIL",
        "mlperf_loadgen",
        "torch",
        "transformers",
        "tritonclient",
    }
    assert not {*heavy, "diffusers", "safetensors"} & set(loaded)
