"""CLIP score and FID of images, with networks of one's own and with the official ones' code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.images import ClipFidScorer
from pytest_mlperf.adapters.scorers.images._frechet import Statistics, frechet
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from tests.adapters.scorers.image_networks_made_here import WIDTH, describe, fit
from tests.adapters.scorers.inputs import Once
from tests.adapters.scorers.refusals import differences

HERE = "tests.adapters.scorers.image_networks_made_here"
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
def test_scores_do_not_depend_on_the_batch_size(
    real: Path, count: int, batch_size: int, seed: int
) -> None:
    """CLIP's aggregate is the mean; FID's is the distance, and the mean of its pseudo-values."""
    images, captions = draw(count, seed), ["a" * (index % 5 + 1) for index in range(count)]

    scores = scorer(real, batch_size=batch_size).score(
        outputs(images), [{"caption": caption, "id": 1} for caption in captions]
    )

    assert scores.per_sample["clip"] == fit(images, captions).tolist()
    assert scores.aggregate["clip"] == pytest.approx(fit(images, captions).mean(), rel=1e-12)
    fid, pseudo_values = frechet(describe(images), REAL)
    assert scores.aggregate["fid"] == fid
    assert scores.per_sample["fid"] == pseudo_values.tolist()
    assert scores.lower == scores.whole == frozenset({"fid"})
    assert all(type(value) is float for values in scores.per_sample.values() for value in values)


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
    scores = scorer(real, clip=f"{HERE}:score_captions", model="four", device="cpu").score(
        outputs(draw(3)), ["é 🐱", "a &amp;", " b "]
    )

    assert scores.per_sample["clip"] == [304_000.0 + ord(last) for last in "🐱; "]


def test_equal_images_have_a_distance_too(real: Path) -> None:
    scores = scorer(real).score([bytes([90]) * HEIGHT * LENGTH * 3] * 5, ["a"] * 5)

    assert scores.aggregate["fid"] == pytest.approx(np.trace(REAL.covariance))
    assert scores.per_sample["fid"] == [scores.aggregate["fid"]] * 5


def test_wrong_outputs_and_references_name_their_sample(real: Path) -> None:
    two = outputs(draw(2))
    rows: list[tuple[list[bytes], list[Any], str]] = [
        ([], [], "got 0 outputs for 0 references; .* and at least two"),
        (two[:1], ["a"], "got 1 outputs for 1 references; .* and at least two"),
        (two, ["a"] * 3, "got 2 outputs for 3 references"),
        ([*two, b""], ["a"] * 2, "got 3 outputs for 2 references"),
        ([], ["a"] * 2, "got 0 outputs for 2 references"),
    ]
    for size in (0, 71, 73, 24, 288):
        text = (
            f"output of sample 2 has {size} bytes, not the 72 of an image of 4 x 6 pixels in red, "
            "green and blue; set the scorer's size"
        )
        rows.append(([*two, bytes(size)], ["a"] * 3, text))
    for caption in ("", " ", None, 3, {}, {"caption": None}, {"caption": ""}):
        rows.append((two, ["a", caption], "of sample 1 has no caption; use a data set whose"))

    assert differences(scorer(real).score, RunError, rows) == []


def test_networks_must_be_there_and_give_one_finite_row_for_each_image(real: Path) -> None:
    images = draw(9) | 8
    images[7, 0, 0, 0] = 7
    rows = [
        ("inception", "narrow", r"of shape \(2, 3\) for 2 images, not \(2, 4\) as in the statist"),
        ("clip", "one_score", r"clip returned an array of shape \(\) for 2 images, not \(2,\);"),
    ]
    for option in ("clip", "inception"):
        text = f"{option} returned a number that is not finite for sample 7; check the weights"
        rows += [(option, factory, text) for factory in ("not_a_number", "infinite")]
    missing = [
        (option, name, f"{option} = '{name}' cannot be imported")
        for option in ("clip", "inception")
        for name in ("no.such.module:factory", f"{HERE}:nothing")
    ]

    def score(option: str, name: str) -> None:
        built = scorer(real, batch_size=2, **{option: name})
        built.score(outputs(images), ["a"] * 9)

    assert (
        differences(lambda option, function: score(option, f"{HERE}:{function}"), RunError, rows)
        == []
    )
    assert differences(score, SuiteError, missing) == []


def test_wrong_options_and_files_that_are_not_here_are_refused_at_once(real: Path) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"size": 0}, "size = 0 is neither a number of pixels nor"),
        ({"size": True}, "size = True is neither"),
        ({"size": [4]}, r"size = \[4\] is neither"),
        ({"size": [4, -6]}, r"size = \[4, -6\] is neither"),
        ({"size": "46"}, "size = '46' is neither"),
        ({"batch_size": 0}, "batch_size = 0 is not a whole number of at least 1"),
        ({"batch_size": 1.5}, r"batch_size = 1\.5 is not"),
        ({"device": "gpu"}, "device = 'gpu' is not one of cpu, cuda"),
    ]
    files = [
        ("clip", r"/no/x: this folder does not exist; it needs config.* or set the scorer's clip"),
        ("inception", r"/no/x: this file .weights .*; download pt_inception.*scorer's inception"),
        ("statistics", r"/no/x: .*statistics.* get MLPerf's val2014\.npz .*scorer's statistics"),
    ]

    assert differences(lambda options: scorer(real, **options), SuiteError, options) == []
    assert (
        differences(lambda option: scorer(real, **{option: "/no/x"}), UnavailableError, files) == []
    )


def test_all_files_that_are_missing_are_named_together() -> None:
    with pytest.raises(UnavailableError) as caught:
        ClipFidScorer(clip="/no/clip", inception="/no/i.pth", statistics="/no/s.npz")

    clip, inception, statistics = str(caught.value).split("; also ")
    assert clip.startswith("/no/clip: this folder does not exist; it needs config.json")
    assert clip.endswith(", or set the scorer's clip to the folder that has them")
    assert inception.startswith("/no/i.pth: this file (weights of the Inception network) does not ")
    assert inception.endswith(", and set the scorer's inception to it")
    assert statistics == (
        "/no/s.npz: this file (statistics of real images) does not exist; get MLPerf's val2014.npz "
        "from text_to_image/tools of github.com/mlcommons/inference, and set the scorer's "
        "statistics to it"
    )


def test_without_torch_the_official_networks_say_what_to_install(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.pth").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(EnvironmentFault, match=r"pip install 'pytest-mlperf\[diffusion\]'"):
        scorer(real, inception=str(tmp_path / "weights.pth")).score(outputs(draw(2)), ["a", "b"])


@pytest.mark.slow
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
    clip_made_here = pytest.importorskip("tests.adapters.scorers.clip_made_here")
    inception_made_here = pytest.importorskip("tests.adapters.scorers.inception_made_here")
    torch = pytest.importorskip("torch")
    from pytest_mlperf.adapters.scorers.images._clip import ClipScores
    from pytest_mlperf.adapters.scorers.images._inception import InceptionFeatures

    weights, folder = tmp_path / "weights.pth", tmp_path / "clip"
    torch.save(inception_made_here.random_weights(), weights)
    clip_made_here.write_clip(folder)
    np.savez(tmp_path / "val.npz", mu=np.zeros(2048), sigma=np.eye(2048))
    images, captions = draw(3), ["a cat", "a dog", "two birds"]

    scores = ClipFidScorer(
        clip=str(folder),
        inception=str(weights),
        statistics=str(tmp_path / "val.npz"),
        size=[HEIGHT, LENGTH],
        batch_size=3,
    ).score(outputs(images), captions)

    expected = ClipScores(folder, device="cpu")(images, captions)
    assert scores.per_sample["clip"] == expected.tolist()
    features = InceptionFeatures(weights, device="cpu")(images)
    centred = features - features.mean(axis=0)
    # With statistics 0 and 1 the roots are those of three samples' covariance.
    values = np.linalg.eigvalsh(centred @ centred.T / 2).clip(0)
    distance = (features.mean(axis=0) ** 2).sum() + values.sum() + 2048 - 2 * np.sqrt(values).sum()
    assert scores.aggregate["fid"] == pytest.approx(distance, rel=1e-6)
    weights.unlink()
