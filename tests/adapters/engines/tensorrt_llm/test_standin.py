"""Test that the stand-in is as strict as the original."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mlperf.adapters.engines.tensorrt_llm._requests import AFFINITY, import_package
from tests.contracts.trees import TABLE, problems, read_table, series, used
from tests.refusals import unrefused

pytestmark = pytest.mark.torch


@pytest.fixture
def package(standin: Path) -> Any:
    importlib.import_module("tensorrt_llm.llmapi")
    return importlib.import_module("tensorrt_llm")


def names(package: Any) -> dict[str, set[str]]:
    table = dict(read_table())
    return {cls: set(each) for cls, each in table[series(package.__version__)].items()}


def test_configurations_and_enumerations_have_what_the_table_lists(package: Any) -> None:
    settings, table = importlib.import_module("tensorrt_llm.settings"), names(package)
    for config in ("KvCacheConfig", "CudaGraphConfig", "TorchCompileConfig", "SchedulerConfig"):
        made = getattr(package.llmapi, config)
        assert set(made.model_fields) == table[config]
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            made(anything_else=1)
    assert set(package.llmapi.TorchLlmArgs.model_fields) == table["LLM()"]
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        package.llmapi.TorchLlmArgs(model="m", anything_else=1)
    for enumeration in ("CapacitySchedulerPolicy", "LoadFormat"):
        assert set(getattr(settings, enumeration).__members__) == table[enumeration]


def test_a_value_of_another_type_is_refused_by_its_place(package: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tensor_parallel_size": 1.5}, "tensor_parallel_size"),
        ({"tensor_parallel_size": None}, "tensor_parallel_size"),
        ({"enable_attention_dp": "perhaps"}, "enable_attention_dp"),
        ({"max_seq_len": "long"}, "max_seq_len"),
        ({"kv_cache_config": {"free_gpu_memory_fraction": 1.5}}, "kv_cache_config.free_gpu_mem"),
        ({"kv_cache_config": {"enable_block_reuse": 7}}, "kv_cache_config.enable_block_reuse"),
        ({"kv_cache_config": {"dtype": "int3"}}, "kv_cache_config.dtype"),
        ({"cuda_graph_config": {"batch_sizes": 8}}, "cuda_graph_config.batch_sizes"),
        ({"cuda_graph_config": {"max_batch_size": -1}}, "cuda_graph_config.max_batch_size"),
        ({"scheduler_config": {"capacity_scheduler_policy": "FIRST"}}, "scheduler_config.capacity"),
        ({"allreduce_strategy": "FAST"}, "allreduce_strategy"),
        ({"speculative_config": {"decoding_type": "NGram"}}, "speculative_config.NGramDecoding"),
        ({"batch_wait_max_tokens_ratio": 2}, "batch_wait_max_tokens_ratio"),
    ]
    for arguments, refused in cases:
        with pytest.raises(ValueError, match="validation error") as error:
            package.llmapi.TorchLlmArgs(model="m", **arguments)
        errors = error.value.errors()  # type: ignore[attr-defined]
        assert any(".".join(map(str, each["loc"])).startswith(refused) for each in errors)
    args = package.llmapi.TorchLlmArgs(model="m")
    assert (args.max_batch_size, args.max_num_tokens, args.max_input_len) == (2048, 8192, 1024)
    assert (args.max_seq_len, args.max_beam_width, args.attn_backend) == (None, 1, "TRTLLM")
    assert args.backend == "pytorch"


def test_misuse_is_refused(package: Any, counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks need GPUs, experts are those of tensor parallelism, sampling has names of its own."""
    monkeypatch.setenv("TENSORRT_LLM_STANDIN", '{"gpus": 2}')
    tensors, experts = "moe_tensor_parallel_size", "moe_expert_parallel_size"
    few = "Only 2 GPUs are available, but 4 are required"
    graphs = package.llmapi.CudaGraphConfig(batch_sizes=[1], max_batch_size=2)
    world = "moe_tp_size * moe_ep_size * moe_cluster_size must equal to moe_world_size, but got"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"tensor_parallel_size": 4}, few),
        ({"context_parallel_size": 4}, few),
        ({"tensor_parallel_size": 2, experts: 4}, f"{world} 0"),
        ({"tensor_parallel_size": 2, tensors: 2, experts: 2}, f"{world} 4 != 2"),
        ({"kv_cache_dtype": "fp8"}, "LLM got invalid argument: kv_cache_dtype"),
        ({"cuda_graph_config": graphs}, "Please don't set both"),
        ({"load_format": "gguf"}, "Invalid LoadFormat: gguf"),
    ]

    def make(arguments: dict[str, Any]) -> None:
        package.LLM(str(counting), skip_tokenizer_init=True, **arguments)

    assert unrefused(make, Exception, rows) == []
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_new_tokens'"):
        package.SamplingParams(max_new_tokens=3)


@pytest.mark.process
def test_ranks_end_with_it(package: Any, counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in sessions of their own, as those of MPI, and give their GPU back at shutdown."""
    monkeypatch.setenv("TENSORRT_LLM_STANDIN", '{"gpus": 2}')
    llm = package.LLM(
        str(counting), skip_tokenizer_init=True, tensor_parallel_size=2, enable_attention_dp=True
    )
    ranks = [psutil.Process(pid) for pid in llm._ranks.pids]

    assert [os.getsid(rank.pid) for rank in ranks] == [rank.pid for rank in ranks]
    assert llm.generate([9], package.SamplingParams(end_id=2)).outputs[0].token_ids[-1] == 2
    llm.shutdown()
    assert not any(rank.is_running() for rank in ranks)


def test_a_prompt_needs_room_an_end_and_a_running_model(package: Any, counting: Path) -> None:
    sampling = package.SamplingParams(end_id=2)
    with package.LLM(str(counting), skip_tokenizer_init=True, max_seq_len=3) as llm:
        assert len(llm.generate([9, 9], sampling).outputs[0].token_ids) == 1
        with pytest.raises(ValueError, match="leaves no room in max_seq_len 3"):
            llm.generate([9, 9, 9], sampling)
        with pytest.raises(ValueError, match="tokenizer is required to reset end_id"):
            llm.generate_async([9])
    with pytest.raises(RuntimeError, match="LLM is shutting down"):
        llm.generate_async([9], sampling)


def test_outputs_have_listed_attributes_only(package: Any, counting: Path) -> None:
    with package.LLM(str(counting), skip_tokenizer_init=True, return_perf_metrics=True) as llm:
        output = llm.generate([9], package.SamplingParams(end_id=2, pad_id=2))

    (completion,) = output.outputs
    metrics = completion.request_perf_metrics
    timing = metrics.timing_metrics
    offered = names(package)
    for made in (llm, output, completion, metrics, timing):
        public = {name for name in dir(made) if not name.startswith("_")}
        assert public <= offered[type(made).__name__], made
    assert completion.token_ids == [8, 7, 6, 5, 4, 3, 2]
    assert timing.arrival_time <= timing.first_scheduled_time < timing.first_token_time


def test_its_version_is_in_the_table_with_all_that_the_engine_uses(package: Any) -> None:
    version = series(package.__version__)
    history = read_table()

    assert problems(used(), version, dict(history)[version], history) == []
    assert json.loads(TABLE.read_text("utf-8"))["versions"][0]["source"]


@pytest.mark.usefixtures("standin")
def test_a_binding_to_processors_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for processors, affinity, expected in ((2, None, "0"), (8, None, None), (2, "1", "1")):
        allowed = set(range(processors))
        monkeypatch.setattr("os.sched_getaffinity", lambda _, allowed=allowed: allowed)
        monkeypatch.delenv(AFFINITY, raising=False)
        if affinity:
            monkeypatch.setenv(AFFINITY, affinity)
        import_package()
        assert os.environ.get(AFFINITY) == expected
