"""Test the CLIP score against its formulas, and the refusal of folders without a CLIP model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pytest_mlperf.adapters.scorers.images._clip import MEAN, STD, ClipScores, preprocess
from pytest_mlperf.core.errors import RunError, UnavailableError
from tests.adapters.scorers.clip_made_here import SIDE, image_embedding, text_embedding, write_clip
from tests.adapters.scorers.inputs import Trap
from tests.adapters.scorers.refusals import differences

pytestmark = pytest.mark.slow

CAPTIONS = ["A cat", "a dog on the mat", "b", "Zebra crossing crowded street", "9 lives"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("clip")
    return folder, write_clip(folder)


@pytest.fixture
def folder(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made[0], tmp_path / "clip"))


def noise(count: int, height: int, width: int) -> Any:
    return np.random.default_rng(1).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def test_the_score_is_a_hundred_times_the_cosine_and_not_clipped(
    made: tuple[Path, dict[str, Any]],
) -> None:
    """Captions of different length in one batch, and one that is cut to the model's context."""
    images = noise(5, SIDE, SIDE)
    expected = []
    for image, caption in zip(images, CAPTIONS, strict=True):
        pixels = ((image / 255 - MEAN) / STD).transpose(2, 0, 1)
        left, right = image_embedding(made[1], pixels), text_embedding(made[1], caption)
        cosine = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
        expected.append(100 * cosine)

    scores = ClipScores(made[0], device="cpu")(images, CAPTIONS)

    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-3)
    assert min(expected) < -1
    assert max(expected) > 1


def test_scores_are_repeatable_and_do_not_depend_on_the_batch(
    made: tuple[Path, dict[str, Any]],
) -> None:
    clip, images = ClipScores(made[0], device="cpu"), noise(5, 20, 14)

    scores = clip(images, CAPTIONS)

    np.testing.assert_array_equal(clip(images, CAPTIONS), scores)
    alone = [clip(images[i : i + 1], CAPTIONS[i : i + 1])[0] for i in range(5)]
    np.testing.assert_allclose(alone, scores, atol=1e-3)


def test_captions_are_read_as_open_clip_does(made: tuple[Path, dict[str, Any]]) -> None:
    """Unescaped twice, in lower case, and any white space is one space."""
    clip, image = ClipScores(made[0], device="cpu"), noise(1, SIDE, SIDE)

    for plain, written in (("a & b", "A &amp;amp; B"), ("a cat", "  A \n\tCat ")):
        np.testing.assert_array_equal(clip(image, [written]), clip(image, [plain]))
    assert clip(image, ["a & b"]) != clip(image, ["a amp b"])


def test_images_are_resized_by_the_shorter_side_and_cropped_at_the_centre() -> None:
    """As torchvision's Resize and CenterCrop, which open_clip uses, do."""
    for height, width, resized, (left, top) in (
        (224, 224, (224, 224), (0, 0)),
        (1024, 1024, (224, 224), (0, 0)),
        (300, 517, (386, 224), (81, 0)),  # 224 * 517 / 300 = 386.03
        (517, 300, (224, 386), (0, 81)),
        (448, 898, (449, 224), (112, 0)),  # 112.5 and 1.5 are rounded to the even number
        (224, 227, (227, 224), (2, 0)),
        (112, 113, (226, 224), (1, 0)),
    ):
        image = noise(1, height, width)[0]
        cut = Image.fromarray(image).resize(resized, Image.Resampling.BICUBIC)
        cut = cut.crop((left, top, left + 224, top + 224))

        pixels = preprocess(image, 224)

        assert pixels.shape == (3, 224, 224)
        assert pixels.dtype == np.float32
        expected = ((np.asarray(cut) / 255 - MEAN) / STD).transpose(2, 0, 1)
        np.testing.assert_allclose(pixels, expected, atol=1e-6)


def test_a_folder_that_lacks_files_says_which(folder: Path) -> None:
    rows = [
        (["config.json"], "lacks config.json; put the files of openai/clip-vit-base-patch32"),
        (["model.safetensors"], "lacks model.safetensors or pytorch_model.bin; put"),
        (
            ["vocab.json", "config.json"],
            "lacks config.json and vocab.json or tokenizer.json; put",
        ),
        (["merges.txt"], "lacks merges.txt or tokenizer.json; put"),
    ]

    def load(missing: list[str]) -> None:
        contents = {name: (folder / name).read_bytes() for name in missing}
        for name in missing:
            (folder / name).unlink()
        try:
            ClipScores(folder, device="cpu")
        finally:
            for name, content in contents.items():
                (folder / name).write_bytes(content)

    assert differences(load, UnavailableError, rows) == []


def test_damaged_files_and_models_of_another_kind_are_refused(folder: Path) -> None:
    """A weight that is missing would be drawn at random by transformers."""
    from safetensors.torch import load_file, save

    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = load_file(folder / "model.safetensors")
    del weights["visual_projection.weight"]
    incomplete = r"clip: cannot be used as CLIP model: .*; download the files of ope"
    rows = [
        (
            "model.safetensors",
            save(weights, {"format": "pt"}),
            r"1 weights are missing, such as 'visual_projection\.weight'",
        ),
        ("model.safetensors", b"no weights", incomplete),
        ("config.json", b"{", incomplete),
        ("config.json", b"[" * 100_000, incomplete),
        ("vocab.json", b"{", incomplete),
        (
            "config.json",
            json.dumps(config | {"model_type": "bert"}).encode(),
            "its model_type is 'bert', not 'clip'",
        ),
    ]

    def load(name: str, content: bytes) -> None:
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        try:
            ClipScores(folder, device="cpu")
        finally:
            (folder / name).write_bytes(original)

    assert differences(load, RunError, rows) == []


def test_weights_in_a_pickle_are_read_and_code_in_it_never_run(folder: Path) -> None:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    image = noise(1, SIDE, SIDE)
    expected = ClipScores(folder, device="cpu")(image, ["a cat"])
    (folder / "model.safetensors").unlink()
    torch = pytest.importorskip("torch")
    torch.save(weights, folder / "pytorch_model.bin")
    # Weights that lie elsewhere in memory may be added up in another order.
    scores = ClipScores(folder, device="cpu")(image, ["a cat"])
    np.testing.assert_allclose(scores, expected, rtol=1e-6)

    torch.save({"a": Trap(folder / "run")}, folder / "pytorch_model.bin")
    with pytest.raises(RunError, match="cannot be used as CLIP model"):
        ClipScores(folder, device="cpu")
    assert not (folder / "run").exists()
