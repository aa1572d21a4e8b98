"""The tiny Whisper: trained, far from chance, and found out when it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.engines.llm.speech import spelled
from tests.suites.tiny_twin import TINY, Twin, load_tool

pytestmark = [pytest.mark.process, pytest.mark.slow]

pytest.importorskip("torch", reason="needs pytest-mlperf[lm]")
pytest.importorskip("transformers", reason="needs pytest-mlperf[lm]")
pytest.importorskip("whisper_normalizer", reason="needs pytest-mlperf[speech]")


@pytest.fixture(scope="module")
def twin() -> Twin:
    return Twin("whisper")


@pytest.fixture(scope="module")
def answers(twin: Twin) -> list[bytes]:
    return twin.answers()


def accuracy(twin: Twin, answers: list[bytes]) -> float:
    return twin.score(answers).aggregate["accuracy"]


def test_it_hears_what_its_trainer_reached_far_above_chance(
    twin: Twin, answers: list[bytes]
) -> None:
    """Chance is the transcript of another clip."""
    reached, heard = twin.training["accuracy"], accuracy(twin, answers)
    another = accuracy(twin, [*answers[1:], answers[0]])

    assert f"reference = {{ accuracy = {reached} }}" in twin.file.read_text("utf-8")
    assert heard == pytest.approx(reached, abs=1)
    assert another == pytest.approx(twin.training["chance"], abs=1)
    assert another < 10 < 95 < twin.gate("accuracy") < heard


def test_the_clips_are_those_that_the_script_says(twin: Twin) -> None:
    """Held-out texts, drawn and said anew from the seed, are the committed samples."""
    speech = load_tool("tiny_speech")
    random = speech.Random(f"{twin.training['seed']} held out")
    drawn = {
        clip.text: clip for clip in (speech.draw(random) for _ in range(2 * len(twin.dataset)))
    }

    assert twin.dataset.digest == twin.training["dataset_digest"]
    assert twin.references == list(drawn)[: len(twin.dataset)]
    for index, text in enumerate(twin.references):
        assert (twin.dataset.input(index)["audio"] * 32768 == drawn[text].audio).all()
    assert sum(len(text.split()) for text in twin.references) == twin.training["held_out_words"]


def test_what_was_said_scores_all_there_is(twin: Twin) -> None:
    """No word of the grammar is one that the normaliser changes on one side only."""
    assert accuracy(twin, [spelled(text) for text in twin.references]) == 100


def test_the_committed_baseline_holds_here(twin: Twin, tmp_path: Path) -> None:
    verdict = twin.verdict(tmp_path)

    assert verdict["outcome"] == "ok", verdict["headline"]
    assert verdict["baseline_file"].endswith("tiny-whisper/torch-whisper.fp32.json")


def test_a_run_with_damaged_weights_fails(twin: Twin, tmp_path: Path) -> None:
    """One weight in a hundred ten times as large, as in every twin."""
    damaged = tmp_path / "damaged"
    changed = load_tool("damage_weights").damage(twin.model, damaged)

    verdict = twin.verdict(tmp_path, model=damaged)

    assert changed == pytest.approx(0.01 * twin.training["parameters"], rel=0.1)
    assert verdict["outcome"] == "GATE FAIL"
    assert verdict["notes"][0].startswith("against the baseline: ACC DROP accuracy")
    assert verdict["accuracy"]["scores"]["accuracy"] == pytest.approx(
        twin.training["damaged"], abs=10
    )


def test_its_files_are_small() -> None:
    sizes = [file.stat().st_size for file in (TINY / "whisper").rglob("*") if file.is_file()]

    assert max(sizes) < 2e6
    assert sum(sizes) < 3.1e6
