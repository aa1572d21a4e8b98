"""The tiny 3D U-Net: trained, slid in windows, and found out when it is damaged."""

from __future__ import annotations

import numpy as np
import pytest

from tests.suites.tiny_twin import Twin, twin_marks

pytestmark = twin_marks("onnxruntime")
SUITE = "3d-unet"

WINDOW = 16


def test_chance_is_far_below(twin: Twin, answers: list[bytes]) -> None:
    """Both organs are found in nearly every case."""
    rng = np.random.default_rng(0)
    sizes = [len(each) for each in answers]
    guesses = {
        "background": [bytes(size) for size in sizes],
        "kidney": [b"\1" * size for size in sizes],
        "tumor": [b"\2" * size for size in sizes],
        "shuffled": [rng.permutation(np.frombuffer(each, np.uint8)).tobytes() for each in answers],
    }

    dice_of_guesses = {name: twin.score(guess).aggregate["dice"] for name, guess in guesses.items()}
    assert max(dice_of_guesses.values()) < 0.2 < 0.8 < twin.score(answers).aggregate["dice"]
    assert dice_of_guesses["background"] == pytest.approx(0, abs=1e-6)
    assert dice_of_guesses["shuffled"] == pytest.approx(
        twin.training["dice_of_shuffled_voxels"], abs=0.01
    )
    scores = twin.score(answers)
    assert scores.aggregate["dice_kidney"] > 0.9
    assert scores.aggregate["dice_tumor"] > 0.6
    assert np.quantile(np.array(scores.per_sample["dice"], float), 0.1) > 0.6


def test_windows_slide_over_its_volumes(twin: Twin) -> None:
    shapes = {each["label"].shape for each in twin.references}

    assert len(shapes) >= 6
    assert twin.planned.engine.options["roi_shape"] == [WINDOW] * 3
    assert all(length >= 1.5 * WINDOW for shape in shapes for length in shape)
    for reference in twin.references:
        assert set(np.unique(reference["label"])) == {0, 1, 2}


def test_overlapping_windows_are_better_than_windows_side_by_side(
    twin: Twin, answers: list[bytes]
) -> None:
    """Compare on the cases that windows side by side cover exactly."""
    from pytest_mlperf.adapters.engines.onnxruntime import OnnxRuntimeEngine
    from pytest_mlperf.adapters.scorers.dice import DiceScorer
    from tests.adapters.engines.recording import Tokenless

    chosen = [
        index
        for index, each in enumerate(twin.references)
        if not any(length % WINDOW for length in each["label"].shape)
    ]
    sink = Tokenless(expected=len(chosen))
    with OnnxRuntimeEngine(**twin.engine_options(twin.dataset, overlap=0.0)) as engine:
        engine.load_samples(chosen)
        engine.submit(chosen, chosen, sink)

    references = [twin.references[index] for index in chosen]
    without_overlap = DiceScorer().score([sink.outputs[index] for index in chosen], references)
    slid = DiceScorer().score([answers[index] for index in chosen], references)
    assert len(chosen) >= 2
    assert slid.aggregate["dice"] > without_overlap.aggregate["dice"] + 0.005
