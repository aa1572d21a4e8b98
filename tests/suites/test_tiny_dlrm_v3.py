"""The tiny DLRM v3: trained, above what the true probabilities reach, found out when damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.suites.tiny_twin import TINY, Twin, load_tool

pytestmark = [pytest.mark.process, pytest.mark.slow]

pytest.importorskip("torch", reason="needs pytest-mlperf[lm]")
pytest.importorskip("safetensors", reason="needs pytest-mlperf[lm]")

METRICS = ("normalized_entropy", "accuracy", "gauc")


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin("dlrm-v3")


@pytest.fixture(scope="module")
def answers(twin: Twin) -> list[bytes]:
    return twin.answers()


@pytest.fixture(scope="module")
def stream(twin: Twin) -> Any:
    """The tastes that the data were drawn from."""
    return load_tool("tiny_stream").Stream(twin.training["seed"])


def test_it_reaches_its_reference(twin: Twin, answers: list[bytes]) -> None:
    """Entropy is better when lower: its gate is above, those of the others are below."""
    reached = twin.score(answers).aggregate
    bounds = twin.planned.bounds(())
    assert bounds is not None

    for name in METRICS:
        assert reached[name] == pytest.approx(twin.training[name], abs=0.002)
        assert f"{name} = {twin.training[name]}" in twin.file.read_text("utf-8")
    high = bounds["normalized_entropy"].high
    assert high is not None
    assert reached["normalized_entropy"] < high < 0.75 < twin.training["chance_normalized_entropy"]
    assert reached["gauc"] > twin.gate("gauc") > 0.75 > twin.training["chance_gauc"] + 0.1
    assert reached["accuracy"] > twin.gate("accuracy") > twin.training["chance_accuracy"] + 0.1


def test_the_true_probabilities_are_better(twin: Twin, answers: list[bytes], stream: Any) -> None:
    """Entropy that nothing can be expected to be below, from the committed requests themselves."""
    rows = []
    for index, answer in enumerate(answers):
        request, row = twin.dataset.input(index), np.frombuffer(answer, "<f4").copy()
        row[2 : 2 + int(row[-1])] = stream.chances(request["user"], request["candidates"])
        rows.append(row.tobytes())

    bound = twin.score(rows).aggregate["normalized_entropy"]

    assert bound == pytest.approx(twin.training["true_normalized_entropy"], abs=1e-4)
    assert 0 < twin.training["normalized_entropy"] - bound < 0.1


def test_the_data_are_what_the_tastes_draw(twin: Twin, stream: Any) -> None:
    folder = TINY / "dlrm-v3" / "data" / "sampled_data"

    for name, content in stream.files(0).items():
        assert (folder / name).read_bytes() == content
    assert twin.dataset.digest == twin.training["dataset_digest"]
    assert len(twin.dataset) == twin.training["samples"]


def test_unchanged_it_scores_every_request_as_in_the_baseline(twin: Twin, tmp_path: Path) -> None:
    verdict = twin.verdict(tmp_path)

    assert verdict["outcome"] == "ok"
    assert verdict["baseline_file"].endswith("tiny-dlrm-v3/hstu.fp32.json")
    paired = {metric["metric"]: metric for metric in verdict["paired"] if metric["outcome"]}
    assert paired.keys() <= set(METRICS)
    assert all(each["change"] == pytest.approx(0, abs=0.001) for each in paired.values())


def test_damaged_weights_fail(twin: Twin, tmp_path: Path) -> None:
    """One weight of a hundred, ten times too large."""
    damaged = tmp_path / "damaged"
    changed = load_tool("damage_weights").damage(twin.model, damaged)

    verdict = twin.verdict(tmp_path, model=damaged)

    assert changed == pytest.approx(0.01 * twin.training["parameters"], rel=0.1)
    assert verdict["outcome"] == "GATE FAIL"
    assert any(note.startswith("against the baseline: ACC DROP") for note in verdict["notes"])


def test_its_files_are_small() -> None:
    sizes = [file.stat().st_size for file in (TINY / "dlrm-v3").rglob("*") if file.is_file()]

    assert sum(sizes) < 1e6
