"""CLIP score and FID of images, with networks of one's own and with the official ones' code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.scorers.images import ClipFidScorer
from pytest_mlperf.scorers.images._frechet import Statistics, frechet
from tests.scorers.image_networks_made_here import WIDTH, describe, fit

HERE = "tests.scorers.image_networks_made_here"
HEIGHT, LENGTH = 4, 6
REAL = Statistics(mean=np.full(WIDTH, 90.0), covariance=np.diag([4.0, 2.0, 9.0, 1.0]) + 1)

Build = Callable[..., ClipFidScorer]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("statistics") / "val.npz"
    np.savez(file, mu=REAL.mean, sigma=REAL.covariance)
    return file


def scorer(real: Path, **options: Any) -> ClipFidScorer:
    """Build the scorer with networks of the test's own, for images of 4 x 6 pixels."""
    given_options = {
        "clip": f"{HERE}:captions",
        "inception": f"{HERE}:features",
        "statistics": str(real),
        "size": [HEIGHT, LENGTH],
    }
    return ClipFidScorer(**{**given_options, **options})


def draw(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, HEIGHT, LENGTH, 3), dtype=np.uint8)


def outputs(images: Any) -> list[bytes]:
    return [image.tobytes() for image in images]


@settings(max_examples=30)
@given(count=st.integers(2, 20), batch_size=st.integers(1, 25), seed=st.integers(0, 99))
def test_scores_are_those_of_the_networks_whatever_the_batch(
    real: Path, count: int, batch_size: int, seed: int
) -> None:
    """CLIP's aggregate is the mean; FID's is the distance, and the mean of its pseudo-values."""
    images, captions = draw(count, seed), ["a" * (index % 5 + 1) for index in range(count)]

    found = scorer(real, batch_size=batch_size).score(
        outputs(images), [{"caption": caption, "id": 1} for caption in captions]
    )

    assert found.per_sample["clip"] == fit(images, captions).tolist()
    assert found.aggregate["clip"] == pytest.approx(fit(images, captions).mean(), rel=1e-12)
    expected = frechet(describe(images), REAL)
    assert found.aggregate["fid"] == expected.distance
    assert found.per_sample["fid"] == expected.pseudo_values.tolist()
    assert found.lower == found.whole == frozenset({"fid"})
    assert all(type(value) is float for values in found.per_sample.values() for value in values)


class Once(Sequence[Any]):
    """Items that may be read once each, as those on disk should be."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.reads: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self.items):
            raise IndexError(index)
        self.reads.append(index)
        return self.items[index]


def test_outputs_are_read_once_and_in_order(real: Path) -> None:
    """They may be 15 GB on disk."""
    lazy, references = Once(outputs(draw(7))), Once(["a"] * 7)

    scorer(real, batch_size=3).score(lazy, references)

    assert lazy.reads == list(range(7))
    assert references.reads == list(range(7))


def test_code_of_your_own_is_given_the_model_and_the_device_and_captions_as_they_are(
    real: Path,
) -> None:
    """Unicode and escapes included: what to do with them is its own choice."""
    found = scorer(real, clip=f"{HERE}:told", model="four", device="cpu").score(
        outputs(draw(3)), ["é 🐱", "a &amp;", " b "]
    )

    assert found.per_sample["clip"] == [304_000.0 + ord(last) for last in "🐱; "]


def test_equal_images_have_a_distance_too(real: Path) -> None:
    found = scorer(real).score([bytes([90]) * HEIGHT * LENGTH * 3] * 5, ["a"] * 5)

    assert found.aggregate["fid"] == pytest.approx(np.trace(REAL.covariance))
    assert found.per_sample["fid"] == [found.aggregate["fid"]] * 5


@pytest.mark.parametrize("count", [0, 1])
def test_fid_needs_two_images(real: Path, count: int) -> None:
    with pytest.raises(
        RunError, match=f"got {count} outputs for {count} references; .* and at least two"
    ) as caught:
        scorer(real).score(outputs(draw(count)), ["a"] * count)

    assert caught.value.layer == "scorer"


@pytest.mark.parametrize(("count", "references"), [(2, 3), (3, 2), (0, 2)])
def test_every_reference_needs_one_output(real: Path, count: int, references: int) -> None:
    with pytest.raises(RunError, match=f"got {count} outputs for {references} references"):
        scorer(real).score(outputs(draw(count)), ["a"] * references)


@pytest.mark.parametrize("size", [0, 71, 73, 24, 288])
def test_an_output_of_another_size_names_its_sample(real: Path, size: int) -> None:
    images = [*outputs(draw(4)), bytes(size)]

    with pytest.raises(
        RunError,
        match=f"output of sample 4 has {size} bytes, not the 72 of an image of 4 x 6 pixels in red,"
        " green and blue; set the scorer's size",
    ):
        scorer(real).score(images, ["a"] * 5)


@pytest.mark.parametrize("reference", ["", " ", None, 3, {}, {"caption": None}, {"caption": ""}])
def test_a_reference_without_a_caption_names_its_sample(real: Path, reference: Any) -> None:
    with pytest.raises(RunError, match="of sample 1 has no caption; use a data set whose"):
        scorer(real).score(outputs(draw(2)), ["a", reference])


@pytest.mark.parametrize("option", ["clip", "inception"])
@pytest.mark.parametrize("factory", ["not_a_number", "infinite"])
def test_what_is_not_finite_names_its_sample(real: Path, option: str, factory: str) -> None:
    images = draw(9) | 8
    images[7, 0, 0, 0] = 7

    with pytest.raises(
        RunError, match=f"what {option} gave for sample 7 is not finite; check the weights"
    ):
        scorer(real, batch_size=2, **{option: f"{HERE}:{factory}"}).score(
            outputs(images), ["a"] * 9
        )


@pytest.mark.parametrize(
    ("option", "factory", "message"),
    [
        ("inception", "narrow", r"of shape \(2, 3\) for 2 images, not \(2, 4\) as in the statist"),
        ("clip", "one_score", r"clip gave numbers of shape \(\) for 2 images, not \(2,\); correct"),
    ],
)
def test_networks_must_give_one_row_for_each_image(
    real: Path, option: str, factory: str, message: str
) -> None:
    with pytest.raises(RunError, match=message):
        scorer(real, **{option: f"{HERE}:{factory}"}).score(outputs(draw(2)), ["a", "b"])


@pytest.mark.parametrize("option", ["clip", "inception"])
@pytest.mark.parametrize("name", ["no.such.module:factory", f"{HERE}:nothing"])
def test_code_that_is_not_there_names_the_option(real: Path, option: str, name: str) -> None:
    with pytest.raises(SuiteError, match=f"{option} = '{name}' cannot be imported"):
        scorer(real, **{option: name}).score(outputs(draw(2)), ["a", "b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size = 0 is neither a number of pixels nor"),
        ({"size": True}, "size = True is neither"),
        ({"size": [4]}, r"size = \[4\] is neither"),
        ({"size": [4, -6]}, r"size = \[4, -6\] is neither"),
        ({"size": "46"}, "size = '46' is neither"),
        ({"batch_size": 0}, "batch_size = 0 is not a number of images"),
        ({"batch_size": 1.5}, r"batch_size = 1\.5 is not"),
        ({"device": "gpu"}, "device = 'gpu' is unknown; valid are cpu, cuda"),
    ],
)
def test_a_wrong_option_is_refused_at_once(
    real: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SuiteError, match=f"scorer clip_fid: {message}"):
        scorer(real, **options)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("clip", r"/no/x: this folder lacks config\.json and .* or set the scorer's clip to the"),
        ("inception", r"/no/x: the weights .* not here; get pt_inception.*scorer's inception to"),
        ("statistics", r"/no/x: the statistics .* get MLPerf's val2014\.npz .*scorer's statistics"),
    ],
)
def test_files_that_are_not_here_say_what_to_get_before_anything_is_loaded(
    real: Path, option: str, message: str
) -> None:
    with pytest.raises(UnavailableError, match=message):
        scorer(real, **{option: "/no/x"})


def test_all_files_that_are_missing_are_named_together() -> None:
    with pytest.raises(UnavailableError) as caught:
        ClipFidScorer(clip="/no/clip", inception="/no/i.pth", statistics="/no/s.npz")

    clip, inception, statistics = str(caught.value).split("; also ")
    assert clip.startswith("/no/clip: this folder lacks config.json and ")
    assert clip.endswith(", or set the scorer's clip to the folder that has them")
    assert inception.startswith("/no/i.pth: the weights of the Inception network are not here; get")
    assert inception.endswith(", or set the scorer's inception to the file")
    assert statistics == (
        "/no/s.npz: the statistics of real images are not here; get MLPerf's val2014.npz from the "
        "folder text_to_image/tools of its repository inference, or set the scorer's statistics to "
        "the file"
    )


def test_statistics_that_are_none_are_an_error_of_the_scorer(tmp_path: Path) -> None:
    (tmp_path / "val.npz").write_bytes(b"no statistics")

    with pytest.raises(RunError, match=r"val\.npz: NumPy cannot read the arrays mu and sigma"):
        scorer(tmp_path / "val.npz").score(outputs(draw(2)), ["a", "b"])


def test_without_torch_the_official_networks_say_what_to_install(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.pth").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(EnvironmentFault, match=r"pip install 'pytest-mlperf\[diffusion\]'"):
        scorer(real, inception=str(tmp_path / "weights.pth")).score(outputs(draw(2)), ["a", "b"])


def test_a_device_that_is_not_there_is_said_before_weights_are_read(
    real: Path, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("it is there")
    (tmp_path / "weights.pth").write_bytes(b"")

    with pytest.raises(EnvironmentFault, match='device = "cuda", but torch finds no such device'):
        scorer(real, inception=str(tmp_path / "weights.pth"), device="cuda").score(
            outputs(draw(2)), ["a", "b"]
        )


@pytest.mark.slow
def test_the_official_networks_score_images_from_their_files(tmp_path: Path) -> None:
    """A small CLIP model, and the whole Inception network with random weights."""
    clip_made_here = pytest.importorskip("tests.scorers.clip_made_here")
    inception_made_here = pytest.importorskip("tests.scorers.inception_made_here")
    from pytest_mlperf.scorers.images._clip import ClipScores
    from pytest_mlperf.scorers.images._inception import InceptionFeatures

    weights, folder = tmp_path / "weights.pth", tmp_path / "clip"
    inception_made_here.torch.save(inception_made_here.random_weights(), weights)
    clip_made_here.write_clip(folder)
    np.savez(tmp_path / "val.npz", mu=np.zeros(2048), sigma=np.eye(2048))
    images, captions = draw(3), ["a cat", "a dog", "two birds"]

    found = ClipFidScorer(
        clip=str(folder),
        inception=str(weights),
        statistics=str(tmp_path / "val.npz"),
        size=[HEIGHT, LENGTH],
        batch_size=3,
    ).score(outputs(images), captions)

    expected = ClipScores(folder, device="cpu")(images, captions)
    assert found.per_sample["clip"] == expected.tolist()
    features = InceptionFeatures(weights, device="cpu")(images)
    centred = features - features.mean(axis=0)
    # With statistics 0 and 1 the roots are those of three samples' covariance.
    values = np.linalg.eigvalsh(centred @ centred.T / 2).clip(0)
    distance = (features.mean(axis=0) ** 2).sum() + values.sum() + 2048 - 2 * np.sqrt(values).sum()
    assert found.aggregate["fid"] == pytest.approx(distance, rel=1e-6)
    weights.unlink()
