"""The tiny Stable Diffusion XL: trained, far from chance, and found out when it is damaged."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.suite.resolve import built_scorer
from tests.suites.tiny_twin import TINY, UNETS, Twin, load_tool, twin_marks

# diffusers 0.42 hands tensors to NumPy in a way that it will not take for ever.
pytestmark = [
    pytest.mark.torch,
    *twin_marks(*UNETS),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

NAME = "stable-diffusion-xl"
UNET = Path("unet") / "diffusion_pytorch_model.safetensors"
SIZE = 64


class Painter(Twin):
    """The twin, scored with the networks that its suite names."""

    def __init__(self) -> None:
        super().__init__(NAME)

    def scores(self, answers: Sequence[bytes]) -> Mapping[str, float]:
        scorer = built_scorer(self.planned)
        assert scorer is not None
        built = registry.resolve(scorer.target)(model=str(self.model), **scorer.options)
        aggregate: Mapping[str, float] = built.score(answers, self.references).aggregate
        return aggregate

    def missed(self, answers: Sequence[bytes]) -> set[str]:
        """Return the scores that do not keep the suite's gate."""
        bounds = self.planned.bounds({"fid"})
        assert bounds is not None
        assert bounds.keys() == {"clip", "fid"}
        scores = self.scores(answers)
        return {name for name, each in bounds.items() if each.missed(scores[name]) is not None}


@pytest.fixture(scope="module")
def twin() -> Painter:
    return Painter()


@pytest.fixture(autouse=True)
def clip_fid_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find modules as the suite's conftest.py does."""
    monkeypatch.syspath_prepend(TINY / NAME)


def damaged(model: Path, copy: Path, share: float) -> Path:
    """Copy a pipeline with a seeded share of the UNet's weights ten times as large."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(model, copy)
    weights, rng = load_file(copy / UNET), np.random.default_rng(0)
    for name in sorted(weights):
        hit = rng.random(weights[name].shape) < share
        weights[name] = np.where(hit, weights[name] * 10, weights[name]).astype(np.float16)
    save_file(weights, copy / UNET, metadata={"format": "pt"})
    return copy


def test_its_images_reach_the_scores_of_its_trainer(twin: Painter, answers: list[bytes]) -> None:
    """Chance is far below."""
    scores = twin.scores(answers)
    assert scores["clip"] == pytest.approx(twin.training["clip"], rel=0.001)
    assert scores["fid"] == pytest.approx(twin.training["fid"], rel=0.01)
    assert twin.missed(answers) == set()
    scores = twin.scores(answers)
    others = twin.scores([*answers[1:], answers[0]])
    rng = np.random.default_rng(0)
    noise = twin.scores([rng.bytes(SIZE * SIZE * 3) for _ in answers])
    assert max(others["clip"], noise["clip"]) < 10 < 80 < scores["clip"]
    assert others["fid"] == pytest.approx(scores["fid"])
    assert noise["fid"] > 10 * scores["fid"]
    assert {"clip", "fid"} <= twin.missed([rng.bytes(SIZE * SIZE * 3) for _ in answers])
    assert twin.missed([*answers[1:], answers[0]]) == {"clip"}


@pytest.mark.nightly
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_damaged_weights_are_outside_the_gate(twin: Painter, tmp_path: Path, share: float) -> None:
    copy = damaged(twin.model, tmp_path / "damaged", share)

    answers = twin.answers(copy)

    assert twin.missed(answers) == {"clip", "fid"}
    assert twin.scores(answers)["fid"] > 2 * twin.training["fid"]


def test_its_data_set_has_a_caption_for_each_colour_and_digit(twin: Painter) -> None:
    """A caption that names none of them or two is refused."""
    judge = importlib.import_module("coloured_digits")
    captions = [each["caption"] for each in twin.references]
    assert sorted(map(judge.read, captions)) == [
        (digit, colour) for digit in range(10) for colour in range(8)
    ]
    pytest.importorskip("sklearn")
    painter = load_tool("tiny_paintings")
    assert (tuple(painter.COLOURS), painter.DIGITS) == (judge.COLOURS, judge.DIGITS)
    written = {painter.caption(p, c, d) for p in range(4) for c in range(8) for d in range(10)}
    assert set(captions) < written
    judge = importlib.import_module("coloured_digits")

    for caption in ("a seven", "a red cat", "a red or blue seven", "red one two", "", "REDSEVEN"):
        with pytest.raises(RunError, match="does not name one digit") as caught:
            judge.read(caption)
        assert caught.value.layer == "scorer"
    assert judge.read("A RED seven, red.") == (7, 0)


@pytest.mark.nightly
def test_its_judge_is_not_the_one_that_made_the_images(twin: Painter) -> None:
    """It names real paintings, of digits that nothing was trained on, almost always rightly."""
    pytest.importorskip("sklearn")
    painter, judge = load_tool("tiny_paintings"), importlib.import_module("coloured_digits")
    _, held_out = painter.load_strokes(twin.training["seed"])
    seen = painter.paint(held_out, 200, np.random.default_rng(1))
    captions = [painter.caption(0, *pair) for pair in zip(seen.colours, seen.digits, strict=True)]

    scores = judge.CaptionScores(model=None, device="cpu")(seen.images, captions)

    assert np.mean(scores > 50) > 0.93
    assert twin.training["judge"]["both_percent"] > 95


def test_the_pipeline_is_one_of_diffusers(twin: Painter) -> None:
    index = json.loads((twin.model / "model_index.json").read_text("utf-8"))
    sizes = [file.stat().st_size for file in (TINY / NAME).rglob("*") if file.is_file()]

    assert index["_class_name"] == "StableDiffusionXLPipeline"
    assert index["scheduler"][1] == "EulerDiscreteScheduler"
    assert twin.training["parameters"]["unet"] > 1_000_000
    assert max(sizes) < 5e6
    assert sum(sizes) < 8e6
