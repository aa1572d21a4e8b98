"""The stand-in is as strict as what it stands for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.trees import TABLE, problems, read_table, series, used


@pytest.fixture
def package(standin: Path) -> Any:
    importlib.import_module("tensorrt_llm.llmapi")
    return importlib.import_module("tensorrt_llm")


def names(package: Any) -> dict[str, set[str]]:
    table = dict(read_table())
    return {cls: set(each) for cls, each in table[series(package.__version__)].items()}


@pytest.mark.parametrize(
    "config", ["KvCacheConfig", "CudaGraphConfig", "TorchCompileConfig", "SchedulerConfig"]
)
def test_a_configuration_takes_what_the_table_lists_and_nothing_else(
    package: Any, config: str
) -> None:
    made = getattr(package.llmapi, config)
    for name in names(package)[config]:
        assert hasattr(made(**{name: None}), name)
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        made(anything_else=1)


def test_sampling_parameters_and_arguments_are_refused_as_the_real_ones_are(
    package: Any, counting: Path
) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_new_tokens'"):
        package.SamplingParams(max_new_tokens=3)
    with pytest.raises(ValueError, match="LLM got invalid argument: kv_cache_dtype"):
        package.LLM(str(counting), skip_tokenizer_init=True, kv_cache_dtype="fp8")
    with pytest.raises(ValueError, match="Please don't set both"):
        package.llmapi.CudaGraphConfig(batch_sizes=[1], max_batch_size=2)
    with pytest.raises(ValueError, match="Invalid LoadFormat: gguf"):
        package.LLM(str(counting), skip_tokenizer_init=True, load_format="gguf")


def test_what_it_gives_back_has_no_attribute_that_the_table_does_not_list(
    package: Any, counting: Path
) -> None:
    with package.LLM(str(counting), skip_tokenizer_init=True, return_perf_metrics=True) as llm:
        output = llm.generate([9], package.SamplingParams(end_id=2, pad_id=2))

    completion = output.outputs[0]
    metrics = completion.request_perf_metrics
    offered = names(package)
    for cls, made in (
        ("LLM", llm),
        ("RequestOutput", output),
        ("CompletionOutput", completion),
        ("RequestPerfMetrics", metrics),
        ("TimingMetrics", metrics.timing_metrics),
    ):
        public = {name for name in dir(made) if not name.startswith("_")}
        assert public <= offered[cls], cls
    assert completion.token_ids == [8, 7, 6, 5, 4, 3, 2]
    timing = metrics.timing_metrics
    assert timing.arrival_time <= timing.first_scheduled_time < timing.first_token_time


def test_it_answers_nobody_after_its_end_and_needs_an_end_token(
    package: Any, counting: Path
) -> None:
    llm = package.LLM(str(counting), skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="tokenizer is required to reset end_id"):
        llm.generate_async([9])
    llm.shutdown()
    with pytest.raises(RuntimeError, match="LLM is shutting down"):
        llm.generate_async([9], package.SamplingParams(end_id=2))


def test_its_version_is_in_the_table_with_all_that_the_engine_uses(package: Any) -> None:
    version = series(package.__version__)
    history = read_table()

    assert problems(used(), version, dict(history)[version], history) == []
    assert json.loads(TABLE.read_text("utf-8"))["versions"][0]["source"]
