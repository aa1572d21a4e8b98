"""Test that the vllm engine uses existing parts of vLLM, by the table and by real wheels.

The table (vllm_api.json) says in which of the versions read a name is there. A real wheel or
source tree is read where PYTEST_MLPERF_VLLM_WHEEL names one, and fetched by pip where
PYTEST_MLPERF_NETWORK is set; nothing of it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.vllm import (
    RESERVED,
    VllmOptions,
    engine_arguments,
    max_batch_entry,
    media_arguments,
)
from pytest_mlperf.adapters.engines.vllm._library import (
    IMPORTED,
    MIN_VLLM,
    SETTING_PATHS,
    sampling_arguments,
)
from tests.contracts import wheels
from tests.contracts.signatures import Source
from tests.contracts.vllm_table import Table, add, load, names, order, read, version

CALLED: Mapping[str, tuple[str, ...]] = {
    "AsyncLLM.from_engine_args": ("engine_args",),
    "AsyncLLM.generate": ("prompt", "sampling_params", "request_id"),
    "AsyncLLM.shutdown": (),
    "LLM.generate": ("prompts", "sampling_params", "use_tqdm"),
    "tokens_input": ("prompt_token_ids",),
    "BaseRenderer.render_cmpl_async": ("prompts",),
}
"""Arguments that are given to its functions, beside those made below."""

READ: Mapping[str, tuple[str, ...]] = {
    "AsyncLLM": ("renderer", "vllm_config"),
    "LLM": ("llm_engine",),
    "LLMEngine": ("engine_core", "vllm_config"),
    "RequestOutputKind": ("CUMULATIVE", "DELTA", "FINAL_ONLY"),
    "RequestOutput": ("outputs", "metrics", "prompt_token_ids"),
    "CompletionOutput": ("token_ids", "finish_reason"),
    "RequestStateStats": ("first_token_ts", "last_token_ts", "num_generation_tokens"),
    "TokensPrompt": ("prompt_token_ids", "multi_modal_data"),
    "ExplicitEncoderDecoderPrompt": ("encoder_prompt", "decoder_prompt"),
}
"""Attributes that are read of its objects, by class."""

TABLE = load()
SUPPORTED = [each for each in TABLE["read"] if order(each) >= MIN_VLLM]

EVERYTHING = VllmOptions(
    api="async",
    stream=True,
    tensor_parallel_size=2,
    pipeline_parallel_size=2,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=8192,
    gpu_memory_utilization=0.9,
    kv_cache_dtype="fp8",
    quantization="fp8",
    enable_prefix_caching=True,
    enforce_eager=True,
    load_format="dummy",
    request_metrics=True,
    engine_args={},
)
"""Every option that is handed to vLLM."""


def used() -> Iterator[tuple[str, str]]:
    """Yield every name of vLLM's API that the engine uses, with the thing it belongs to."""
    generation = Generation(max_new_tokens=8, min_new_tokens=1, num_beams=1, ignore_eos=False)
    for name, module in IMPORTED.items():
        yield module, name
    for name in engine_arguments(Path("model"), "fp8", EVERYTHING):
        yield "AsyncEngineArgs()", name
    for name in media_arguments(EVERYTHING, pictures=True, sees=True):
        yield "AsyncEngineArgs()", name
    for name in sampling_arguments(generation, None):
        yield "SamplingParams()", name
    for function, parameters in CALLED.items():
        yield from ((f"{function}()", name) for name in parameters)
        owner, _, method = function.rpartition(".")
        if owner:
            yield owner, method
    for thing, attributes in READ.items():
        yield from ((thing, attribute) for attribute in attributes)
    yield "EngineCoreClient", "shutdown"
    for path in SETTING_PATHS.values():
        thing, _, attribute = path.partition(".")
        yield thing, attribute


def missing(names_by_thing: Mapping[str, set[str]], at: str, table: Table) -> list[str]:
    """Return a sentence for every name in use that is not among those found.

    Args:
        found: Names by thing.
        at: Their version.
        table: Says when a name was there.
    """
    return [
        f"vLLM {at}: {thing} has no {name}{history(table, thing, name)}"
        for thing, name in used()
        if name not in names_by_thing.get(thing, set())
    ]


def history(table: Table, thing: str, name: str) -> str:
    """Return the versions that have a name, according to the table."""
    span = table["names"].get(thing, {}).get(name)
    if span is None:
        return "; no version read had it"
    newer = [each for each in table["read"] if order(each) > order(span[1])]
    gone = f", and is gone in {newer[0]}" if newer else ""
    return f"; it came with {span[0]} or before, was last seen in {span[1]}{gone}"


def test_every_name_in_use_is_in_the_supported_versions_and_in_no_older_one() -> None:
    absent = {
        at: missing({thing: names(TABLE, thing, at) for thing in TABLE["names"]}, at, TABLE)
        for at in TABLE["read"]
    }

    assert order(SUPPORTED[0])[:2] == MIN_VLLM
    assert [sentence for at in SUPPORTED for sentence in absent[at]] == []
    assert [at for at, sentences in absent.items() if not sentences] == SUPPORTED
    # Refusing what vLLM does not know either would hide its name's change.
    assert set(RESERVED) <= set(TABLE["names"]["AsyncEngineArgs()"])


def test_how_many_samples_share_a_step_is_an_upper_bound() -> None:
    ngram = {"speculative_config": {"method": "ngram"}}
    for arguments, settled, batch_size, most in (
        ({}, "256", None, "256"),
        ({}, "256", 8, "8"),
        ({}, "4", 8, "4"),
        ({"data_parallel_size": 2}, "4", None, "8"),
        (ngram, "256", None, "256"),
        ({}, "", None, None),
    ):
        facts = max_batch_entry(arguments, {"settled.max_num_seqs": settled}, batch_size)
        assert facts.get("work.batch") == most, (arguments, settled, batch_size)


def test_a_name_that_vanished_fails_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = TABLE["read"][-1]
    names_by_thing = {each: names(TABLE, each, newest) for each in TABLE["names"]}
    vanished = {
        ("SamplingParams()", "best_of"): "was last seen in 0.11.0, and is gone in 0.14.0",
        ("AsyncEngineArgs()", "swap_space"): "was last seen in 0.17.0, and is gone in 0.20.0",
        ("SamplingParams()", "beams"): "; no version read had it",
    }
    monkeypatch.setitem(globals(), "used", lambda: iter([*vanished, ("LLM", "generate")]))

    sentences = missing(names_by_thing, newest, TABLE)

    for sentence, ((thing, name), end) in zip(sentences, vanished.items(), strict=True):
        assert sentence.startswith(f"vLLM {newest}: {thing} has no {name}")
        assert sentence.endswith(end)


def test_a_tree_at_hand_refreshes_the_table(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/_version.py").write_text("__version__ = version = '0.34.0'\n", "utf-8")
    text = "class SamplingParams:\n    n: int = 1\n    best_of: int = 1\n"
    (tmp_path / "vllm/sampling_params.py").write_text(text, "utf-8")
    with Source.open(tmp_path) as source:
        merged = add(TABLE, version(source), read(source))

    sampling: Any = merged["names"]["SamplingParams()"]
    assert merged["read"] == [*TABLE["read"], "0.34.0"]
    assert sampling["n"] == [TABLE["read"][0], "0.34.0"]
    assert sampling["temperature"] == [TABLE["read"][0], TABLE["read"][-1]]
    assert "gone in 0.34.0" in history(merged, "SamplingParams()", "temperature")
    assert missing(read(Source.open(tmp_path)), "0.34.0", merged)


def holds(path: Path) -> None:
    """Check a wheel or source tree, and the table against it if its version was read."""
    with Source.open(path) as source:
        at, names_by_thing = version(source), read(source)
    assert missing(names_by_thing, at, TABLE) == []
    if at in TABLE["read"]:
        assert {thing: names(TABLE, thing, at) for thing in names_by_thing} == names_by_thing


def test_a_real_vllm_that_is_named_has_every_name() -> None:
    holds(wheels.named())


@pytest.mark.network
@pytest.mark.process
@pytest.mark.parametrize("requirement", [f"vllm=={TABLE['read'][-1]}", "vllm"])
def test_a_real_vllm_from_the_index_has_every_name(
    requirement: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    holds(wheels.fetched(requirement, tmp_path_factory.getbasetemp() / "wheels"))
