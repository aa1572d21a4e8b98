"""Test the engine on the stand-in: its tokens equal the torch engine's, and come in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.conventions import LOGPROB_RECORD
from pytest_mlperf.adapters.engines.vllm import VllmEngine
from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.testing import check_engine
from tests.adapters.engines.recording import Recorder, SizedSamples, Tokenless, ask, packed
from tests.adapters.engines.torch import models
from tests.adapters.engines.torch.models import EOS, MIXED
from tests.adapters.engines.vllm.running import answers, describe, open_engine

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("standin")]

LONGEST = 10


@pytest.fixture(scope="module")
def expected(random: Path) -> list[list[int]]:
    """What the torch engine answers."""
    return models.answers(random, MIXED, max_new_tokens=LONGEST, batching="static")


def test_every_way_answers_as_the_torch_engine(random: Path, expected: list[list[int]]) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"stream": False},
        {"request_metrics": False},
        {"engine_args": {"stream_interval": 3}},
        {"api": "offline"},
        {"api": "offline", "batch_size": 5},
    ]
    others = [
        (options, one_by_one)
        for options in ways
        for one_by_one in (False, True)
        if answers(random, MIXED, one_by_one=one_by_one, max_new_tokens=LONGEST, **options)
        != expected
    ]
    assert others == []


def test_lengths_are_those_of_the_suite_or_the_data_set(counting: Path) -> None:
    for fewest in (0, 1, 4):  # after token 3 the model wants to end at once
        (row,) = answers(counting, [[3]], min_new_tokens=fewest, max_new_tokens=9)
        assert len(row) >= max(1, fewest)
        assert EOS not in row[:fewest]
    ignored: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 7}
    assert [len(row) for row in answers(counting, [[6], [30]], **ignored)] == [7, 7]
    dataset = SizedSamples([[6], [30], [9]], [3, 7, 3])
    for api in ("async", "offline"):
        outputs = answers(counting, [None] * 3, dataset=dataset, api=api, **ignored)
        assert [len(row) for row in outputs] == [3, 7, 3]


def test_text_is_tokenised_by_the_models_own_tokenizer(counting: Path) -> None:
    """vLLM sees token ids only; the fingerprint names the tokenizer's files."""
    with open_engine(counting, ["a"], max_new_tokens=5) as engine:
        engine.load_samples([0])
        ids = engine._task.prompts[0]
        assert len(engine.describe()["tokenizer_sha256"]) == 16

    assert ids[0] == models.BOS
    assert answers(counting, ["a"], max_new_tokens=5) == answers(counting, [ids], max_new_tokens=5)


def test_tokens_are_reported_as_they_come(counting: Path) -> None:
    """The first before all others, each of them once, the end last, whatever the pieces."""
    for interval in (1, 4):
        sink = Recorder(expected=2)
        args = {"stream_interval": interval}
        with open_engine(counting, [[9], [4]], max_new_tokens=20, engine_args=args) as engine:
            ask(engine, sink, 2)
        assert sink.answers == {100: [8, 7, 6, 5, 4, 3, 2], 101: [3, 2]}
        assert sink.reports(100) == ["first", *["next"] * 6, "done"]
        assert sink.reports(101) == ["first", "next", "done"]
        assert sink.n_tokens == {100: 7, 101: 2}
        assert len(sink.threads) == 1


def test_answers_are_reported_whole_in_offline_unless_the_suite_sets_otherwise(
    counting: Path,
) -> None:
    """LoadGen waits for no first token there, and every message costs."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({"stream": False}, 0),
        ({"api": "offline"}, 0),
        ({}, 0),
        ({"stream": True}, 7),
    ]
    for options, streamed in cases:
        sink = Recorder(expected=2, offline=True)
        with open_engine(counting, [[9], [4]], **options) as engine:
            ask(engine, sink, 2)
            assert engine.describe().get("stream", "") == str(options.get("stream", "")).lower()
            if options and not streamed:
                with pytest.raises(
                    SuiteError, match="tokens cannot be timed; use it only with scenario"
                ):
                    engine.submit([5, 6], [0, 1], Recorder(expected=2))
        assert len(sink.reports(100)) == streamed + 1
        assert sink.n_tokens == {100: 7, 101: 2}


def test_stamps_are_logged_at_unload(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(counting, [[9], [4]]) as engine:
        ask(engine, Recorder(expected=2), 2)
        engine.unload_samples([0, 1])
        engine.unload_samples([0, 1])

    log = capsys.readouterr().err
    assert log.count("engine vllm: tokens arrived in this process later than vLLM's own") == 1
    assert "over 2 requests" in log


def test_the_fingerprint_has_what_decides_speed_and_answers(counting: Path) -> None:
    options: dict[str, Any] = {"max_num_seqs": 24, "max_prompt_tokens": 7}
    facts = describe(counting, **options, engine_args={"stream_interval": 2})

    from vllm import __version__

    expected = {
        "vllm": __version__,
        "engine": "vllm",
        "api": "async",
        "dtype": "float32",
        "max_num_seqs": "24",
        "settled.max_num_seqs": "24",
        "work.batch": "24",
        "settled.max_model_len": "512",
        "stream_interval": "2",
        "enable_prefix_caching": "false",
        "generation.eos": "2",
        "generation.max_new_tokens": "128",
        "generation.num_beams": "1",
        "generation.max_prompt_tokens": "7",
    }
    assert facts.items() >= expected.items()
    assert len(facts["weights_sha256"]) == 16
    assert "model" not in facts  # a folder of this machine


def test_random_weights_need_no_files(counting: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((counting / "config.json").read_bytes())

    assert describe(tmp_path, load_format="dummy")["weights"] == "dummy"
    advice = r'has no model\.safetensors; copy it here, or set load_format = "dummy"'
    with pytest.raises(RunError, match=advice):
        describe(tmp_path)


def test_a_prompt_must_fit(counting: Path) -> None:
    """Checked before the run, against the smaller of the model's context and max_model_len."""
    with (
        open_engine(counting, [[9] * 60], max_model_len=64, max_new_tokens=8) as engine,
        pytest.raises(RunError, match="do not fit the model's context of 64"),
    ):
        engine.load_samples([0])


@pytest.mark.parametrize("api", ["async", "offline"])
def test_the_engine_keeps_the_contract(random: Path, expected: list[list[int]], api: str) -> None:
    """Asked in every way of LoadGen, it owes a run nothing."""
    outputs = check_engine(
        VllmEngine,
        MIXED,
        model=str(random),
        options={"max_new_tokens": LONGEST, "api": api},
        tokens=api == "async",  # the other one gives answers whole
    )

    assert outputs == {index: packed(row) for index, row in enumerate(expected)}


NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}


def test_accepted_drafts_are_counted(counting: Path) -> None:
    """The answer's first token is the prompt's; of three others each step gives two by drafts."""
    cases: list[tuple[dict[str, Any], list[int | None]]] = [
        ({"api": "async", "engine_args": NGRAM}, [2 * 4, 0]),  # 7 tokens: 1, then 3 and 3
        ({"api": "offline", "engine_args": NGRAM}, [2 * 4, 0]),
        ({"request_metrics": False, "engine_args": NGRAM}, [None, None]),
        ({}, [None, None]),
    ]
    for options, drafts in cases:
        with open_engine(counting, [[9], [9]], **options) as engine:
            engine.accepted_drafts()
            ask(engine, Recorder(expected=2, offline=True), 2)
            assert [engine.accepted_drafts(), engine.accepted_drafts()] == drafts
            facts = engine.describe()
        assert facts.get("work.drafts") == ("true" if options else None)
        assert facts["work.batch"] == "256"


def test_log_probabilities_of_prompts_are_those_of_the_torch_engine(random: Path) -> None:
    def evaluated(engine: Any) -> list[Any]:
        sink = Tokenless(len(MIXED))
        with engine:
            ask(engine, sink, len(MIXED))
        return [
            np.frombuffer(sink.outputs[100 + index], list(LOGPROB_RECORD))
            for index in range(len(MIXED))
        ]

    usual = evaluated(models.open_engine(random, MIXED, prompt_logprobs=True))
    for api in ("async", "offline"):
        others = evaluated(open_engine(random, MIXED, prompt_logprobs=True, api=api))
        for row, other in zip(usual, others, strict=True):
            assert row["token"].tolist() == other["token"].tolist()
            assert other["logprob"] == pytest.approx(row["logprob"], abs=1e-4, nan_ok=True)
