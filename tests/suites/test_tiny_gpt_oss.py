"""The tiny gpt-oss draws its answers, thinks before it says them, and is found out if damaged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_mlperf.adapters.scorers.reasoning.scorer import REPEATS, GptOssScorer
from pytest_mlperf.core.errors import MlperfError
from tests.suites.tiny_twin import TINY, Twin, ids_of, load_tool, packed, twin_marks

pytestmark = twin_marks("transformers", "sympy", "pyarrow")
SUITE = "gpt-oss-120b"

NOISE = 8.0
"""Points that passes of other seeds may be apart: about three standard deviations."""


def scores_of(twin: Twin, answers: Sequence[bytes]) -> dict[str, float]:
    scorer = GptOssScorer(model=str(twin.model), has_programs=False)
    return dict(scorer.score(answers, twin.references).aggregate)


def special(twin: Twin, name: str) -> int:
    tokenizer = json.loads((twin.model / "tokenizer.json").read_text("utf-8"))
    (token,) = [one["id"] for one in tokenizer["added_tokens"] if one["content"] == name]
    assert isinstance(token, int)
    return token


def test_its_answers_are_drawn_and_come_again_by_their_seed(
    twin: Twin, answers: list[bytes]
) -> None:
    first = {twin.dataset.group(index) for index in range(len(answers))}
    spread = twin.training["other_seeds"]

    assert twin.answers() == answers
    assert len({(twin.dataset.group(i), one) for i, one in enumerate(answers)}) > len(first)
    assert len({*spread, twin.training["scores"]["exact_match"]}) > 1
    assert max(spread) - min(spread) < NOISE


def test_only_the_channel_final_is_graded(twin: Twin, answers: list[bytes]) -> None:
    """What it only thought is not, nor does the first token matter that MLPerf's logs may lack."""
    channel = special(twin, "<|channel|>")
    rows = [ids_of(one) for one in answers]
    second = [max(i for i, token in enumerate(row) if token == channel) for row in rows]

    whole = scores_of(twin, answers)
    thought = scores_of(twin, [packed(r[:at] or r[:1]) for r, at in zip(rows, second, strict=True)])
    final_scores = scores_of(twin, [packed(r[at:]) for r, at in zip(rows, second, strict=True)])
    later = scores_of(twin, [packed(row[1:]) for row in rows])

    assert Counter(row.count(channel) for row in rows).most_common(1)[0][0] == 2
    assert thought["exact_match"] == 0
    assert final_scores["exact_match"] == whole["exact_match"] == later["exact_match"]
    assert later["tokens_per_sample"] == pytest.approx(whole["tokens_per_sample"] - 1)


def test_its_experts_are_stored_as_mxfp4(twin: Twin) -> None:
    """Plain weights are none."""
    safetensors = pytest.importorskip("safetensors")
    config = twin.config()
    with safetensors.safe_open(twin.model / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    experts = config["num_local_experts"]
    assert config["architectures"] == ["GptOssForCausalLM"]
    assert config["quantization_config"]["quant_method"] == "mxfp4"
    assert {"sliding_attention", "full_attention"} == set(config["layer_types"])
    for layer in range(config["num_hidden_layers"]):
        of_experts = f"model.layers.{layer}.mlp.experts"
        for name, rows, columns in (
            ("gate_up_proj", 2 * inner, hidden),
            ("down_proj", hidden, inner),
        ):
            blocks = stored[f"{of_experts}.{name}_blocks"]
            scales = stored[f"{of_experts}.{name}_scales"]
            assert tuple(blocks.shape) == (experts, rows, columns // 32, 16)
            assert tuple(scales.shape) == (experts, rows, columns // 32)
            assert {str(blocks.dtype), str(scales.dtype)} == {"torch.uint8"}
            assert f"{of_experts}.{name}" not in stored
    plain = TINY / "mixtral-8x7b" / "model"
    with pytest.raises(MlperfError, match="its weights are not quantised, but the suite has"):
        twin.answers(plain)


@pytest.mark.nightly
def test_rounding_to_mxfp4_is_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    convert = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    pytest.importorskip("rouge_score")
    monkeypatch.syspath_prepend(str(TINY.parents[1] / "twins"))
    tool = load_tool("train_tiny_gpt_oss")
    weights = torch.randn(3, 64, 96, generator=torch.Generator().manual_seed(1))

    codes, exponents = tool.to_mxfp4(weights)
    rounded = tool.of_mxfp4(codes, exponents)
    blocks = codes[..., ::2] + 16 * codes[..., 1::2]

    assert torch.equal(convert(blocks, exponents, dtype=torch.float32).mT, rounded)
    assert torch.equal(tool.of_mxfp4(*tool.to_mxfp4(rounded)), rounded)
    assert float((rounded - weights).abs().max()) <= 0.25 * float(weights.abs().max())


def test_its_tables_are_laid_out_as_mlperfs(twin: Twin) -> None:
    pd = pytest.importorskip("pandas")
    data = TINY / twin.name / "data" / "gpt-oss"
    scored = pd.read_parquet(data / "acc_eval_tiny.parquet")
    timed = pd.read_parquet(data / "perf_eval_tiny.parquet")
    scored_inputs = scored["input_tokens"].map(tuple)

    assert list(scored) == list(timed) == ["input_tokens", "dataset", "ground_truth"]
    for part, repeats in REPEATS.items():
        counts = Counter(scored_inputs[scored["dataset"] == part])
        assert set(counts.values()) <= {repeats}
    assert not {*scored_inputs} & {*timed["input_tokens"].map(tuple)}
