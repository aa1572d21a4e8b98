"""Tiny language models of rounds since v5.0: trained, of their shape, found out when damaged."""

from __future__ import annotations

import json

import pytest

from tests.suites.tiny_twin import LANGUAGE, TINY, Twin, twin_marks

pytestmark = twin_marks(*LANGUAGE, "sympy", "pylatexenc")


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3.1-405b"])
def test_llama_3_1_has_shared_heads_and_scaled_positions(name: str) -> None:
    """Four heads share keys and values, and positions are scaled as in Llama 3.1."""
    config = Twin(name).config()
    rope = config["rope_parameters"]

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_attention_heads"] == 4 * config["num_key_value_heads"]
    assert not config["tie_word_embeddings"]
    assert (rope["rope_type"], rope["rope_theta"], rope["factor"]) == ("llama3", 5e5, 8)


def test_the_articles_are_laid_out_as_mlperfs() -> None:
    """Tokens are those of the prompt around the article, with a begin token."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = TINY / "llama3.1-8b"
    rows = json.loads((folder / "data/cnn-daily-mail/cnn_eval.json").read_text("utf-8"))
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model/tokenizer.json"))

    for row in rows:
        assert list(row) == ["instruction", "input", "tok_input", "output"]
        prompt = row["instruction"]["llama"].replace("{input}", row["input"])
        assert tokenizer.encode(prompt).ids == row["tok_input"]
    assert len({row["input"] for row in rows}) == len(rows) == 320
    assert row["tok_input"][0] == 0


def test_deepseeks_twin_has_latent_attention_and_balanced_experts() -> None:
    """It is far above chance in each part."""
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = TINY / "deepseek-r1"
    config = json.loads((folder / "model/config.json").read_text("utf-8"))
    weights = safetensors.load_file(folder / "model/model.safetensors")
    lines = (folder / "data/livecodebench.jsonl").read_text("utf-8").splitlines()
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["kv_lora_rank"] < config["num_attention_heads"] * config["v_head_dim"]
    biases = [one for name, one in weights.items() if name.endswith("e_score_correction_bias")]
    assert len(biases) == config["num_hidden_layers"] - config["first_k_dense_replace"] == 2
    assert all(one.any() for one in biases)
    assert {bool(json.loads(one["metadata"])) for one in map(json.loads, lines)} == {True, False}
    training = Twin("deepseek-r1").training

    for part in ("aime", "gpqa", "livecodebench", "math500", "mmlu_pro"):
        assert training["scores"][part] > training["chance"][part] + 40
        assert training["damaged"][part] < training["scores"][part] - 40


def test_needles_are_found_to_the_letter_in_prompts_longer_than_positions_were_made_for() -> None:
    """MLPerf's own score of UUIDs discriminates little: wrong ones have most of it."""
    twin = Twin("llama3.1-405b")
    config = json.loads((twin.model / "config.json").read_text("utf-8"))
    made_for = config["rope_parameters"]["original_max_position_embeddings"]

    assert min(len(twin.dataset.input(index)) for index in range(192)) > 2 * made_for
    assert twin.training["scores"]["uuids"] > 30
    assert twin.training["chance"]["uuids"] == 0
    assert twin.training["chance"]["exact_match"] < twin.training["scores"]["exact_match"] - 20
    kinds = [twin.dataset.reference(index)["metric"] for index in range(192)]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
        ("rouge", "niah_em", "qa_em"), 64
    )
