"""Test weights of compressed-tensors and ModelOpt, made by the real libraries if installed.

PYTEST_MLPERF_LLMCOMPRESSOR_PYTHON and PYTEST_MLPERF_MODELOPT_PYTHON name Pythons of environments
that have them; without, the precisions are read of configurations as these libraries write them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm.model_folder import quantisation_of
from tests.adapters.engines.torch import models
from tests.adapters.engines.torch.models import answers

ROOT = Path(__file__).resolve().parents[3]

BUILD = """
import json, sys
from pathlib import Path
from pytest_mlperf.adapters.builders.{module} import {name}
source, target, recipe = map(str, sys.argv[1:])
builder = {name}(recipe=recipe)
prompts = [[5, 9, 20], [30, 31, 32], [7, 8]] if builder.calibrates else []
facts = builder.build(Path(source), Path(target), prompts, lambda *_: None)
print(json.dumps(dict(facts)))
"""


def build(variable: str, module: str, name: str, folders: tuple[Path, Path], recipe: str) -> Any:
    """Build in another environment, which has no more of this package than its code."""
    if not (python := os.environ.get(variable)):
        pytest.skip(f"{variable} names no Python")
    source, target = folders
    code = target.parent / "code"
    shutil.copytree(ROOT / "pytest_mlperf", code / "pytest_mlperf", dirs_exist_ok=True)
    target.mkdir()
    done = subprocess.run(
        [python, "-c", BUILD.format(module=module, name=name), str(source), str(target), recipe],
        env={"PYTHONPATH": str(code), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that counts down, wide enough for groups of 128."""
    folder = tmp_path_factory.mktemp("source")
    return models.chain_model(folder, models.countdown, vocabulary=128)


def test_the_precision_of_compressed_tensors_is_read() -> None:
    four = {"num_bits": 4, "type": "float"}
    for weights, names in (
        ([{"num_bits": 8, "type": "int"}], [("int8",)]),
        ([{"num_bits": 4, "type": "int", "group_size": 128}], [("int4",)]),
        ([{"num_bits": 8, "type": "float"}], [("fp8",)]),
        ([{**four, "group_size": 16}], [("nvfp4",)]),
        ([four, None], [("nvfp4", "mxfp4"), ()]),
    ):
        groups = {f"group_{place}": {"weights": each} for place, each in enumerate(weights)}
        quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
        assert list(quantisation_of(quantization).weights) == names


@pytest.mark.process
@pytest.mark.parametrize("recipe", ["int8", "int8-gptq", "int4-gptq", "fp8", "fp8-static"])
def test_llm_compressors_builds_answer_alike(source: Path, tmp_path: Path, recipe: str) -> None:
    """Loaded by the torch engine, with inputs rounded as the checkpoint says."""
    pytest.importorskip("compressed_tensors")
    variable, name = "PYTEST_MLPERF_LLMCOMPRESSOR_PYTHON", "LlmCompressorBuilder"
    target = tmp_path / "built"
    facts = build(variable, "llmcompressor", name, (source, target), recipe)

    assert facts["quantised"] == "7 of 7 linear layers"
    prompts = [[5, 9, 20], [60, 61], [7]]
    precision = recipe.partition("-")[0]
    assert answers(target, prompts, precision=precision) == answers(source, prompts)


@pytest.mark.process
def test_modelopts_fp8_weights_are_the_models(tmp_path: Path) -> None:
    """No engine here runs them; by their scales they are the model's own, up to fp8's rounding."""
    from safetensors.torch import load_file

    (tmp_path / "source").mkdir()
    source = models.random_model(tmp_path / "source")  # weights of zero have no scale
    target, variable = tmp_path / "built", "PYTEST_MLPERF_MODELOPT_PYTHON"
    facts = build(variable, "modelopt", "ModelOptBuilder", (source, target), "fp8")

    source_weights, built = (load_file(folder / "model.safetensors") for folder in (source, target))
    for name, weight in source_weights.items():
        if name.endswith("proj.weight"):
            scale = built[name.replace(".weight", ".weight_scale")]
            error = (built[name].float() * scale - weight).norm()
            assert float(error) <= 0.04 * float(weight.norm())
    assert facts["quantised"] == "14 of 14 linear layers"
    quantization_config = json.loads((target / "hf_quant_config.json").read_text("utf-8"))
    assert quantization_config["quantization"]["quant_algo"] == "FP8"
