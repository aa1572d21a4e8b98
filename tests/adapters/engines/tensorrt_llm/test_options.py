"""What the engine refuses before anything is loaded, and how it says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.tensorrt_llm import TensorRtLlmEngine
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.suite.trial import wrong_values
from tests.adapters.engines.recording import Samples
from tests.refusals import unrefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    content = {"vocab_size": 64, "eos_token_id": 2, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(content), "utf-8")
    return tmp_path


def engine(folder: Path | None, precision: str = "bf16", **options: Any) -> TensorRtLlmEngine:
    named = None if folder is None else str(folder)
    return TensorRtLlmEngine(dataset=Samples([]), model=named, precision=precision, **options)


GRAPHS = "is not true, false or a list of batch sizes, each at least 1"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"precision": "int3"}, "precision = 'int3' is not one of fp32, bf16, fp16, fp8, nvfp4, "),
    ({"kv_cache_dtype": "int8"}, "kv_cache_dtype = 'int8' is not one of auto, fp8, nvfp4, "),
    ({"load_format": "gguf"}, "load_format = 'gguf' is not one of auto, dummy"),
    (
        {"scheduler_policy": "fifo"},
        "scheduler_policy = 'fifo' is not one of guaranteed_no_evict, max_utilization, static_b",
    ),
    ({"tensor_parallel_size": 0}, "tensor_parallel_size = 0 is not a whole number, at least 1"),
    ({"max_batch_size": True}, "max_batch_size = True is not a whole number, at least 1"),
    ({"stream_interval": 1.5}, "stream_interval = 1.5 is not a whole number, at least 1"),
    (
        {"kv_cache_free_gpu_memory_fraction": 1.1},
        "kv_cache_free_gpu_memory_fraction = 1.1 is not above 0 and at most 1",
    ),
    ({"cuda_graphs": []}, f"cuda_graphs = [] {GRAPHS}"),
    ({"cuda_graphs": [1, 0]}, f"cuda_graphs = [1, 0] {GRAPHS}"),
    (
        {"cuda_graphs": False, "cuda_graph_padding": True},
        "cuda_graph_padding = true needs CUDA graphs, but cuda_graphs = false",
    ),
    ({"llm": {"dtype": "float16"}}, "llm.dtype is set by precision; leave it out of llm"),
    ({"llm": {"max_batch_size": 4}}, "llm.max_batch_size is set by the option max_batch_size; "),
    (
        {"llm": {"kv_cache_config": {"dtype": "fp8"}}},
        "llm.kv_cache_config.dtype is set by the option kv_cache_dtype; leave it out of llm",
    ),
    ({"llm": {"scheduler_config": 1}}, "llm.scheduler_config = 1 is not a table"),
    (
        {"cuda_graphs": False, "llm": {"cuda_graph_config": {"mode": 1}}},
        "llm.cuda_graph_config needs CUDA graphs, but cuda_graphs = false",
    ),
    ({"max_new_tokens": 0}, "max_new_tokens = 0 is not at least 1"),
    ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens = 9 is not from 0 to max_new_t"),
    ({"max_prompt_tokens": 0}, "max_prompt_tokens = 0 is not at least 1"),
    (
        {"llm": {"enable_attention_dp": True}},
        "llm.enable_attention_dp = true needs tensor_parallel_size above 1, because it gives each "
        "of these GPUs its own requests; set tensor_parallel_size to the number of GPUs of one "
        "copy of the model",
    ),
    (
        {"tensor_parallel_size": 4, "llm": {"moe_expert_parallel_size": 8}},
        "llm.moe_expert_parallel_size = 8 divides the experts among 8 GPUs, but "
        "tensor_parallel_size = 4; set a value by which 4 can be divided",
    ),
    (
        {"tensor_parallel_size": 8}
        | {"llm": {"moe_expert_parallel_size": 2, "moe_tensor_parallel_size": 2}},
        "llm.moe_tensor_parallel_size = 2 x llm.moe_expert_parallel_size = 2 divides the experts",
    ),
]


def test_an_option_out_of_range_is_refused_by_name(folder: Path) -> None:
    rows = [(said, re.escape(f"engine tensorrt_llm: {sentence}")) for said, sentence in REFUSED]
    assert unrefused(lambda options: engine(folder, **options), SuiteError, rows) == []
    accepted: list[dict[str, Any]] = [{}, {"cuda_graphs": [4, 1]}, {"llm": {"moe_config": {}}}]
    for options in accepted:
        engine(folder, **options)


def test_values_of_another_kind_are_refused_by_their_declaration() -> None:
    options = {"stream": "no", "enable_block_reuse": "no", "cuda_graph_padding": 1, "llm": 3}

    assert wrong_values("engines", "tensorrt_llm", options) == {
        "stream": "stream is 'no'; true or false is needed",
        "enable_block_reuse": "enable_block_reuse is 'no'; true or false is needed",
        "cuda_graph_padding": "cuda_graph_padding is 1; true or false is needed",
        "llm": "llm is 3; a table is needed",
    }


def test_a_model_must_be_named_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no model; set"):
        engine(None)
    rows = [(tmp_path / "nowhere", "does not exist"), (tmp_path, "so it is not a model")]
    assert unrefused(engine, UnavailableError, rows) == []
