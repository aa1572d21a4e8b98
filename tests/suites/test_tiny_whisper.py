"""The tiny Whisper: trained, far from chance, and found out when it is damaged."""

from __future__ import annotations

import pytest

from pytest_mlperf.adapters.engines.llm.speech import spelled
from tests.suites.tiny_twin import Twin, load_tool, twin_marks

pytestmark = twin_marks("torch", "transformers", "whisper_normalizer")
SUITE = "whisper"


def accuracy(twin: Twin, answers: list[bytes]) -> float:
    return twin.score(answers).aggregate["accuracy"]


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    another = accuracy(twin, [*answers[1:], answers[0]])

    assert another == pytest.approx(twin.training["chance"], abs=1)
    assert another < 10 < 95 < twin.gate("accuracy")


def test_the_clips_are_those_that_the_script_says(twin: Twin) -> None:
    speech = load_tool("tiny_speech")
    random = speech.Random(f"{twin.training['seed']} held out")
    drawn = {
        clip.text: clip for clip in (speech.draw(random) for _ in range(2 * len(twin.dataset)))
    }

    assert twin.references == list(drawn)[: len(twin.dataset)]
    for index, text in enumerate(twin.references):
        assert (twin.dataset.input(index)["audio"] * 32768 == drawn[text].audio).all()
    assert sum(len(text.split()) for text in twin.references) == twin.training["held_out_words"]


def test_the_spoken_text_has_the_full_score(twin: Twin) -> None:
    """No word of the grammar is one that the normaliser changes on one side only."""
    assert accuracy(twin, [spelled(text) for text in twin.references]) == 100
