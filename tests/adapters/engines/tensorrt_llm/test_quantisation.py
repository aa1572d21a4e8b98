"""The precision that a suite names is that of the weights, or the suite is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm.model_folder import ALGORITHMS, METHODS, Config, read_config
from pytest_mlperf.adapters.engines.tensorrt_llm import PRECISIONS, read_weights
from pytest_mlperf.core.errors import RunError, SuiteError
from tests.refusals import unrefused


def checkpoint(folder: Path, *, inside: Any = None, outside: Any = None) -> Config:
    """Write a checkpoint's JSON files: `inside` config.json, `beside` it."""
    config = {"vocab_size": 64} | ({} if inside is None else {"quantization_config": inside})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    if outside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(outside), "utf-8")
    return read_config(folder)


def modelopt(algorithm: str | None, cache: str | None = None) -> dict[str, Any]:
    return {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": cache}}


def test_every_known_algorithm_is_a_precision_that_a_suite_can_name() -> None:
    assert {names[0] for names in (*ALGORITHMS.values(), *METHODS.values())} <= set(PRECISIONS)


PRECISION: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, "bf16", "none", "none"),
    ({}, "fp32", "none", "none"),
    ({"outside": modelopt("FP8", "FP8")}, "fp8", "FP8", "FP8"),
    ({"outside": modelopt("NVFP4")}, "nvfp4", "NVFP4", "none"),
    ({"outside": modelopt("W4A16_AWQ")}, "int4-awq", "W4A16_AWQ", "none"),
    ({"outside": modelopt("W8A8_SQ_PER_CHANNEL")}, "int8", "W8A8_SQ_PER_CHANNEL", "none"),
    ({"outside": modelopt(None, "FP8")}, "bf16", "none", "FP8"),
    ({"inside": {"quant_method": "gptq", "bits": 4}}, "gptq", "gptq", "none"),
    ({"inside": {"quant_method": "awq", "bits": 4}}, "int4-awq", "awq", "none"),
    ({"inside": {"quant_method": "fp8", "weight_block_size": [128] * 2}}, "fp8", "fp8", "none"),
    ({"inside": {"quant_method": "mxfp4"}}, "mxfp4", "mxfp4", "none"),
    ({"inside": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4", "NVFP4", "none"),
    # ModelOpt's own file says more than what it repeats in config.json.
    ({"outside": modelopt("FP8", "FP8"), "inside": {"quant_method": "fp8"}}, "fp8", "FP8", "FP8"),
]


def test_a_checkpoint_says_how_it_is_quantised(tmp_path: Path) -> None:
    for number, (files, precision, algorithm, cache) in enumerate(PRECISION):
        folder = tmp_path / str(number)
        folder.mkdir()
        weights = read_weights(folder, precision, checkpoint(folder, **files))
        assert weights.describe() == {"quantisation": algorithm, "kv_cache_calibrated": cache}


def test_another_precision_than_the_weights_have_is_refused(tmp_path: Path) -> None:
    other = "or model to another checkpoint"
    rows: list[tuple[dict[str, Any], str, str]] = [
        (
            {},
            "fp8",
            "{folder} holds plain weights: neither hf_quant_config.json nor config.json names a "
            "quantisation; set model to the quantised checkpoint, or precision to bf16 or fp16",
        ),
        (
            {"inside": {"quant_method": "gptq"}},
            "int4-awq",
            f'{{folder}}/config.json says gptq; set precision = "gptq", {other}',
        ),
        (
            {"outside": modelopt("FP8")},
            "bf16",
            f'{{folder}}/hf_quant_config.json says FP8; set precision = "fp8", {other}',
        ),
    ]
    for files, precision, text in rows:
        config = checkpoint(tmp_path, **files)
        with pytest.raises(SuiteError) as refused:
            read_weights(tmp_path, precision, config)
        sentence = f'engine tensorrt_llm: precision = "{precision}", but {text}'
        assert str(refused.value) == sentence.format(folder=tmp_path)


def test_unknown_quantisations_are_refused(tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"inside": {"quant_method": "hqq"}}, "config.json: names quant_method 'hqq', which"),
        ({"outside": modelopt("FP2")}, "hf_quant_config.json: names quant_algo 'FP2', which"),
        ({"outside": []}, "hf_quant_config.json: is not a JSON object"),
    ]

    def read(files: dict[str, Any]) -> None:
        read_weights(tmp_path, "fp8", checkpoint(tmp_path, **files))

    assert unrefused(read, RunError, rows) == []
