"""Test the engine on the stand-in: answers come token by token, and no process is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_mlperf.adapters.engines.tensorrt_llm import TensorRtLlmEngine
from pytest_mlperf.adapters.engines.tensorrt_llm._requests import speculative_options
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.recording import (
    Recorder,
    Samples,
    SizedSamples,
    answers_of,
    ask,
    packed,
)
from tests.adapters.engines.torch.models import (
    EOS,
    answers,
    chain_model,
    change_json,
    countdown,
    random_model,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("standin")]


def engine(folder: Path, prompts: Any = ([9],), **options: Any) -> TensorRtLlmEngine:
    arguments = {"dataset": Samples(prompts), "model": str(folder), "precision": "fp32"}
    return TensorRtLlmEngine(**{**arguments, **options})


def test_every_token_is_reported_in_order_if_tokens_are_timed(counting: Path) -> None:
    expected = {100: [8, 7, 6, 5, 4, 3, 2], 101: [5, 4, 3, 2], 102: [3, 2]}
    for options in ({}, {"stream_interval": 3}):  # several tokens in a message are all counted
        timed, untimed = Recorder(3), Recorder(3, times_tokens=False)
        unread = Recorder(3, wants_output=False)
        with engine(counting, [[9], [5, 6], [4]], **options) as model:
            for sink in (timed, untimed, unread):
                ask(model, sink, 3)

        assert timed.answers == untimed.answers == expected
        for sample, tokens in expected.items():
            assert timed.reports(sample) == ["first", *["next"] * (len(tokens) - 1), "done"]
            assert untimed.reports(sample) == ["done"]
            assert timed.n_tokens[sample] == unread.n_tokens[sample] == len(tokens)
        assert len(timed.threads) == 1


def test_offline_streams_tokens_only_where_a_suite_says_so(counting: Path) -> None:
    """LoadGen waits for no first token there, and every message costs."""
    for stream in (None, False, True):
        options = {} if stream is None else {"stream": stream}
        sink = Recorder(expected=2, offline=True)
        with engine(counting, [[9], [5]], **options) as model:
            ask(model, sink, 2)
            assert model.describe().get("stream", "") == str(options.get("stream", "")).lower()
            if stream is False:
                with pytest.raises(SuiteError, match="stream = false returns whole answers"):
                    model.submit([102], [0], Recorder(expected=1))
        assert sink.answers == {100: [8, 7, 6, 5, 4, 3, 2], 101: [4, 3, 2]}
        assert len(sink.reports(100)) == (8 if stream else 1)


def test_text_is_tokenised_by_the_models_own_tokenizer(counting: Path) -> None:
    sink = Recorder(expected=1)
    with engine(counting, ["\x01"]) as model:
        ask(model, sink, 1)
        facts = model.describe()

    assert sink.answers[100][0] > EOS
    assert len(facts["tokenizer_sha256"]) == 16


def test_lengths_are_those_of_the_suite_or_the_data_set(counting: Path) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"max_new_tokens": 3}, 3),
        ({"max_new_tokens": 9, "ignore_eos": True}, 9),
        ({"max_prompt_tokens": 1}, 2),
        ({}, 7),
    ]
    lengths = [len(answers_of(engine(counting, [[4, 9]], **each), 1)[0]) for each, _ in cases]
    assert lengths == [length for _, length in cases]
    dataset = SizedSamples([[6], [30], [9]], [3, 7, 3])
    sized = engine(counting, dataset=dataset, ignore_eos=True, max_new_tokens=7)
    assert [len(row) for row in answers_of(sized, 3)] == [3, 7, 3]


def test_each_end_token_of_the_model_ends_an_answer_and_belongs_to_it(tmp_path: Path) -> None:
    folder = chain_model(tmp_path, countdown)
    change_json(folder / "generation_config.json", eos_token_id=[2, 6])

    assert answers_of(engine(folder, [[9], [5]]), 2) == [[8, 7, 6], [4, 3, 2]]


def test_min_new_tokens_holds_the_end_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = chain_model(tmp_path, lambda _: EOS)
    for faults, counted in (
        ("{}", "of prompt and answer, made up for"),
        ('{"min_of_answer": true}', "of the answer"),
    ):
        monkeypatch.setenv("TENSORRT_LLM_STANDIN", faults)
        opened = engine(folder, [[9], [9, 8, 7, 6, 5]], min_new_tokens=3, max_new_tokens=8)
        assert [(row[-1], len(row)) for row in answers_of(opened, 2)] == [(EOS, 4)] * 2
        assert opened.describe()["min_tokens"] == counted


def test_greedy_answers_are_those_of_the_torch_engine(tmp_path: Path) -> None:
    """Prompts of many lengths, in a batch that samples join and leave, and 24 end tokens."""
    folder = random_model(tmp_path)
    prompts = [[3 + (7 * row + place) % 300 for place in range(1 + row)] for row in range(24)]
    lengths: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 0}
    outputs = answers_of(engine(folder, prompts, max_batch_size=5, **lengths), 24)

    assert outputs == answers(folder, prompts, **lengths)
    assert len({len(row) for row in outputs}) > 3


def test_the_fingerprint_says_what_decides_speed_and_answers(counting: Path) -> None:
    options = {
        "max_batch_size": 4,
        "cuda_graphs": [1, 4],
        "kv_cache_dtype": "fp8",
        "scheduler_policy": "max_utilization",
        "llm": {"disable_overlap_scheduler": True},
    }
    with engine(counting, **options) as model:
        facts = dict(model.describe())

    assert len(facts.pop("weights_sha256")) == 16
    assert facts.pop("torch")
    facts.pop("transformers", None)  # the tokenizer's; told where something has imported it
    assert facts == {
        "engine": "tensorrt_llm",
        "tensorrt_llm": "1.2.1+standin",
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "quantisation": "none",
        "kv_cache_calibrated": "none",
        "tensor_parallel_size": "1",
        "pipeline_parallel_size": "1",
        "max_batch_size": "4",
        "work.batch": "4",
        "work.replica_gpus": "1",
        "min_tokens": "of prompt and answer, made up for",
        "max_num_tokens": "8192",
        "kv_cache_dtype": "fp8",
        "kv_cache_free_gpu_memory_fraction": "0.9",
        "enable_block_reuse": "false",
        "cuda_graphs": "1,4",
        "cuda_graph_padding": "true",
        "scheduler_policy": "max_utilization",
        "enable_chunked_prefill": "false",
        "stream_interval": "1",
        "llm.disable_overlap_scheduler": "true",
        "generation.max_new_tokens": "128",
        "generation.min_new_tokens": "1",
        "generation.num_beams": "1",
        "generation.ignore_eos": "false",
        "generation.eos": "2",
    }


def test_random_weights_need_no_weights(counting: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((counting / "config.json").read_bytes())
    opened = engine(tmp_path, load_format="dummy", ignore_eos=True, max_new_tokens=4)

    assert len(answers_of(opened, 1)[0]) == 4
    assert opened.describe()["weights"] == "dummy"


def test_the_log_compares_stamps(counting: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with engine(counting, [[9], [8]]) as model:
        ask(model, Recorder(expected=2), 2)
        model.unload_samples(range(2))

    (line,) = [each for each in capfd.readouterr().err.splitlines() if "own time stamps" in each]
    assert line.startswith("engine tensorrt_llm: tokens arrived in this process later than ")
    assert "over 2 requests" in line


@pytest.mark.process
def test_the_engine_keeps_the_contract(counting: Path) -> None:
    """Asked in every way of LoadGen, it owes a run nothing, and leaves no thread."""
    prompts = [[9], [5, 6], [4], [30, 7]]

    outputs = check_engine(TensorRtLlmEngine, prompts, model=str(counting), tokens=True)

    expected = [packed(range(prompt[-1] - 1, EOS - 1, -1)) for prompt in prompts]
    assert outputs == dict(enumerate(expected))


NGRAM = {"decoding_type": "NGram", "max_draft_len": 2, "max_matching_ngram_size": 2}


def test_accepted_drafts_are_counted(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.2 has a class for each kind, and refuses a table that says which."""
    ngram = {"llm": {"speculative_config": NGRAM}}
    cases: list[tuple[dict[str, Any], str, list[int | None]]] = [
        (ngram, "{}", [2 * 4, None]),  # 7 tokens: 1, then 3 and 3
        (ngram, '{"no_metrics": true}', [None, None]),
        ({}, "{}", [None, None]),
    ]
    for options, faults, drafts in cases:
        monkeypatch.setenv("TENSORRT_LLM_STANDIN", faults)
        sink = Recorder(expected=2)
        with engine(counting, [[9], [9]], **options) as model:
            model.accepted_drafts()
            ask(model, sink, 2)
            assert [model.accepted_drafts(), model.accepted_drafts()] == drafts
            assert model.describe().get("work.drafts") == ("true" if options else None)
        assert sink.answers[100] == [8, 7, 6, 5, 4, 3, 2]


class Listed:
    """Streaming kinds of a package: 1.2 names them by class, newer versions differently."""

    class NGramDecodingConfig:
        model_fields: ClassVar = {"max_draft_len": int}

        def __init__(self, max_draft_len: int) -> None:
            self.max_draft_len = max_draft_len

    class MTPDecodingConfig:
        model_fields: ClassVar = {"decoding_type": str}


def test_a_kind_of_drafts_that_reads_its_name_gets_the_table() -> None:
    newer = {"decoding_type": "MTP", "num_nextn_predict_layers": 1}

    assert speculative_options(newer, Listed) is newer
    assert speculative_options({"decoding_type": "Unheard"}, Listed) == {"decoding_type": "Unheard"}
    assert speculative_options("auto", Listed) == "auto"
    assert (
        speculative_options({"decoding_type": "NGram", "max_draft_len": 2}, Listed).max_draft_len
        == 2
    )


@pytest.mark.process
def test_ranks_make_one_step_together(counting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention data parallelism: each of two has batches of 8, and one copy has both GPUs."""
    monkeypatch.setenv("TENSORRT_LLM_STANDIN", '{"gpus": 2}')
    options = {"max_batch_size": 8, "tensor_parallel_size": 2}
    with engine(counting, llm={"enable_attention_dp": True}, **options) as model:
        facts = model.describe()

    assert (facts["work.batch"], facts["work.replica_gpus"]) == ("16", "2")
