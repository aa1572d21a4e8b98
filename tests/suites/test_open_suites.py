"""Test the open division's suites: each model is the named one, with its changes declared."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import UnavailableError
from pytest_mlperf.suite.pairs import plan_pairs
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.resolve import model_of
from pytest_mlperf.testing import RecordingSink
from tests.jobs import job_of

ROOT = Path(__file__).resolve().parents[2]
OPEN = ROOT / "suites" / "open"
SUITE = OPEN / "tiny-llama2-70b.mlperf.toml"
FOLDER = OPEN / "tiny-llama2-70b"
DENSE = ROOT / "suites" / "tiny" / "llama2-70b"
TRAINING = json.loads((FOLDER / "training.json").read_text("utf-8"))
README = (FOLDER / "README.md").read_text("utf-8")
ROUGES = ("rouge1", "rouge2", "rougeL")
REAL = [OPEN / f"{name}.mlperf.toml" for name in ("gptj-99", "llama2-70b-99")]

needs_lm = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="needs pytest-mlperf[lm]",
)


def weights_of(folder: Path) -> dict[str, Any]:
    """Return the weights of a checkpoint by name, as numpy arrays."""
    numpy = pytest.importorskip("safetensors.numpy", reason="needs pytest-mlperf[lm]")
    loaded: dict[str, Any] = numpy.load_file(folder / "model.safetensors")
    return loaded


def entry(name: str) -> Planned:
    """Return the Offline case of an engine entry of the tiny suite."""
    (planned,) = [
        p for p in plan_suite(SUITE) if p.case.id.startswith(f"tiny-llama2-70b-Offline-{name}-")
    ]
    return planned


def test_of_each_four_weights_of_the_sparse_model_two_are_zero() -> None:
    """Along the inputs, in every matrix of attention and MLP; embeddings and head are dense."""
    zeros = total = 0
    for name, weights in weights_of(FOLDER / "sparse").items():
        if weights.ndim == 2 and ".layers." in name:
            outputs, inputs = weights.shape
            filled = np.count_nonzero(weights.reshape(outputs, inputs // 4, 4), axis=2)
            assert filled.max() == 2, name
            zeros, total = zeros + weights.size - int(filled.sum()), total + weights.size
        else:
            # The padding token's embedding is zero.
            assert np.count_nonzero(weights) > 0.99 * weights.size, name
    assert total == TRAINING["models"]["sparse"]["in_linear_layers"]
    assert zeros == TRAINING["models"]["sparse"]["zeros_in_linear_layers"]
    assert f"({zeros:,} of {total:,})" in README
    dense, pruned = weights_of(DENSE / "model"), weights_of(FOLDER / "pruned")
    left = sum(weights.size for weights in pruned.values())
    share = left / sum(weights.size for weights in dense.values())
    assert share < 0.7
    assert f"{share:.1%} of the dense model's parameters are left" in README
    assert f"| `pruned/` | {left:,} |" in README
    zeros = sum(weights.size - np.count_nonzero(weights) for weights in pruned.values())
    assert zeros < 0.001 * left
    layers = {name.split(".")[2] for name in pruned if ".layers." in name}
    assert layers == {"0", "1", "2"}
    for layer in layers:
        assert pruned[f"model.layers.{layer}.mlp.down_proj.weight"].shape == (128, 256)
        assert pruned[f"model.layers.{layer}.self_attn.q_proj.weight"].shape == (128, 128)


def test_the_files_are_those_that_were_scored() -> None:
    for name in ("sparse", "pruned"):
        model = FOLDER / name / "model.safetensors"
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        assert digest == TRAINING["models"][name]["model_sha256"]
        assert digest in README
        assert model.stat().st_size < 5 << 20
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            assert (FOLDER / name / file).read_bytes() == (DENSE / "model" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.nightly
@needs_lm
@pytest.mark.parametrize("name", ["sparse", "pruned"])
def test_a_model_stands_to_the_gate_as_its_readme_says(name: str) -> None:
    """Through the suite's engine, options and scorer, and far above chance."""
    scores, facts = run(entry(name))

    reached = TRAINING["models"][name]
    bounds = entry(name).bounds(())
    assert bounds is not None
    for kind in ROUGES:
        # Another machine's kernels may choose another token where two are as likely.
        assert scores[kind] == pytest.approx(reached[kind], abs=0.5)
        assert scores[kind] > TRAINING["chance_same_task"][kind] + 20
    met = all(reached[kind] >= (bounds[kind].low or 0) for kind in ROUGES)
    assert met is (reached["share_of_dense"] >= 0.99)
    figures = " | ".join(f"{reached[kind]:.4f}" for kind in ROUGES)
    figures_of_gate = f"{reached['share_of_dense']:.2%}, {'met' if met else 'missed'}"
    assert f"| `{name}/` | {reached['parameters']:,} | {figures} | {figures_of_gate} |" in README
    if name == "sparse":
        assert facts["zeros"] == "50.00% of the weights of 28 linear layers"


def run(planned: Planned) -> tuple[dict[str, float], dict[str, str]]:
    """Return the scores of a case and its engine's description."""
    job = job_of(planned, scorer=True)
    engine, source = job.engine, job.dataset
    dataset = registry.resolve(source.target)(**source.options)
    indices, sink = range(len(dataset)), RecordingSink(len(dataset))
    engine_options = {"dataset": dataset, "model": str(job.model), "precision": "fp32"}
    with registry.resolve(engine.target)(**engine_options, **engine.options) as opened:
        opened.load_samples(indices)
        opened.submit(indices, indices, sink)
        sink.wait_for_end()
        facts = dict(opened.describe())
    assert sink.error is None
    built = job.scoring.scorer
    assert built is not None
    scorer = registry.resolve(built.target)(model=job.model, **built.options)
    outputs = [sink.outputs[index] for index in indices]
    scores = scorer.score(outputs, [dataset.reference(index) for index in indices])
    return dict(scores.aggregate), facts


def test_the_suite_measures_against_the_dense_model() -> None:
    """Its reference scores are the dense twin's, its baseline is the dense entry's."""
    dense = json.loads((DENSE / "training.json").read_text("utf-8"))
    planned = plan_suite(SUITE)[0]

    reference = planned.suite.workload.reference or {}
    assert {kind: reference[kind] for kind in ROUGES} == {kind: dense[kind] for kind in ROUGES}
    assert {kind: TRAINING["dense"][kind] for kind in ROUGES} == {
        kind: dense[kind] for kind in ROUGES
    }
    named = planned.suite.reference_engine
    assert named is not None
    assert (named.label, named.techniques) == ("dense", [])


def test_every_model_but_the_dense_one_declares_its_changes() -> None:
    rows = [SUITE, *REAL]
    for suite in rows:
        planned = plan_suite(suite)
        assert planned[0].suite.division == "open"
        for case in planned:
            label, options = case.engine.label, case.engine.options
            assert bool(case.techniques) is (case.engine.model is not None) is (label != "dense")
            assert ("2:4-sparsity" in case.techniques) is (options.get("sparsity") == "2:4")
            assert ("pruning" in case.techniques) is (label == "pruned")
        claims = plan_pairs(planned)
        assert claims
        assert {claim.b.engine.label for claim in claims} == {"dense"}


def test_the_real_suites_are_mlperfs_workloads_and_name_their_missing_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MLPERF_MODELS", "MLPERF_DATA"):
        monkeypatch.delenv(name, raising=False)

    for suite in REAL:
        for case in plan_suite(suite):
            assert (case.suite.is_mlperf, case.suite.round) == (True, "v4.1")
            assert case.case.accelerator != "cpu"
            with pytest.raises(UnavailableError, match=r"\$\{MLPERF_MODELS\} is not set; set it s"):
                model_of(case)
        assert "Nothing here has been measured yet." in suite.read_text("utf-8")
