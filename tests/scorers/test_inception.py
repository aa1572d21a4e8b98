"""The FID's network, block by block beside plain formulas, and every file that is not its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.scorers.images._inception import (
    NETWORK,
    Fork,
    InceptionFeatures,
    compute,
    load_weights,
    shapes,
)
from tests.scorers.inception_made_here import (
    BLOCKS,
    LAYOUT,
    conv,
    maximum,
    random_weights,
    torch,
)


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    return random_weights()


@pytest.fixture(scope="module")
def features(
    weights: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> InceptionFeatures:
    """The network with random weights; the official file is in torch's older form, too."""
    file = tmp_path_factory.mktemp("weights") / "random.pth"
    torch.save(weights, file, _use_new_zipfile_serialization=False)
    loaded = InceptionFeatures(file, device="cpu")
    file.unlink()
    return loaded


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape)


def test_the_weights_are_those_of_the_official_file_by_name_and_shape() -> None:
    """94 convolutions with five weights each."""
    found, channels = shapes(NETWORK, 3)

    assert found == {name: shape for name, shape in LAYOUT.items() if not name.startswith("fc.")}
    assert (len(found), channels) == (470, 2048)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_computes_its_formulas(name: str, weights: dict[str, Any]) -> None:
    channels, formula = BLOCKS[name]
    forks = {first(step): step for step in NETWORK if isinstance(step, Fork)}
    x = noise(2, channels, 5, 7)

    with torch.inference_mode():
        found = compute((forks[name],), torch.from_numpy(x).float(), weights).numpy()

    np.testing.assert_allclose(found, formula(x, weights, name), rtol=1e-4, atol=1e-4)


def first(fork: Fork) -> str:
    """Return the block that a fork is, by the name of its first convolution."""
    return str(getattr(fork.paths[0][0], "name", "")).partition(".")[0]


def test_what_comes_before_the_blocks_computes_its_formulas(weights: dict[str, Any]) -> None:
    """Five convolutions, of which only one keeps the size, and two pools that halve it."""
    x = noise(1, 3, 43, 37)
    expected = conv(x, weights, "Conv2d_1a_3x3", stride=2, pad=False)
    expected = conv(expected, weights, "Conv2d_2a_3x3", pad=False)
    expected = maximum(conv(expected, weights, "Conv2d_2b_3x3"), 2)
    expected = conv(expected, weights, "Conv2d_3b_1x1")
    expected = maximum(conv(expected, weights, "Conv2d_4a_3x3", pad=False), 2)

    with torch.inference_mode():
        found = compute(NETWORK[:7], torch.from_numpy(x).float(), weights).numpy()

    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_blocks_follow_in_the_order_of_the_paper() -> None:
    assert [first(step) for step in NETWORK[7:] if isinstance(step, Fork)] == list(BLOCKS)


def resized(image: Any, side: int = 299) -> Any:
    """Interpolate between the four nearest pixels; the centres of corner pixels stay inside."""
    for axis in (0, 1):
        length = image.shape[axis]
        at = ((np.arange(side) + 0.5) * length / side - 0.5).clip(0, length - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        high = np.minimum(low + 1, length - 1)
        image = image.take(low, axis) * (1 - share) + image.take(high, axis) * share
    return image


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(64, 48), (299, 299), (320, 410)])
def test_images_are_resized_without_smoothing_and_scaled_to_one(
    features: InceptionFeatures, weights: dict[str, Any], height: int, width: int
) -> None:
    """Bilinear, to 299 x 299, from -1 to 1; features are means over the last block's pixels."""
    images = (noise(1, height, width, 3) * 255).round().astype(np.uint8)
    pixels = 2 * resized(images[0] / 255.0) - 1

    with torch.inference_mode():
        x = torch.from_numpy(pixels.transpose(2, 0, 1)[None]).float()
        expected = compute(NETWORK, x, weights).numpy().mean(axis=(2, 3))

    found = features(images)
    assert found.shape == (1, 2048)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.slow
def test_features_are_repeatable_and_do_not_depend_on_the_batch(
    features: InceptionFeatures,
) -> None:
    """The same to the bit in the same batch, and up to rounding in another one."""
    images = (noise(3, 40, 40, 3) * 255).astype(np.uint8)
    images[2] = 7

    found = features(images)

    np.testing.assert_array_equal(features(images), found)
    alone = np.concatenate([features(image[None]) for image in images])
    np.testing.assert_allclose(alone, found, rtol=1e-4, atol=1e-5 * np.abs(found).max())
    assert np.ptp(found, axis=0).max() > 0.01 * np.abs(found).max()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save weights of the right names and shapes that take no room, some replaced or left out."""

    def saved(name: str = "weights.pth", /, *, older: bool = False, **parts: Any) -> Path:
        content = {name: torch.zeros(1).expand(shape) for name, shape in LAYOUT.items()}
        content.update(parts)
        kept = {name: part for name, part in content.items() if part is not None}
        torch.save(kept, tmp_path / name, _use_new_zipfile_serialization=not older)
        return tmp_path / name

    return saved


@pytest.mark.parametrize("older", [False, True])
def test_both_forms_of_torch_files_are_read_and_counters_are_passed_over(
    save: Callable[..., Path], older: bool
) -> None:
    counter = {"Mixed_5b.branch1x1.bn.num_batches_tracked": torch.tensor(3)}

    found = load_weights(save(older=older, **counter))

    assert {name: tuple(value.shape) for name, value in found.items()} == shapes(NETWORK, 3)[0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"Mixed_7c.branch_pool.bn.bias": None, "fc.bias": None},
            r"2 of 472 weights are missing, first 'Mixed_7c\.branch_pool\.bn\.bias'",
        ),
        (
            {"fc.weight": torch.zeros(1000, 2048)},
            r"'fc\.weight' has shape \(1000, 2048\), not \(1008, 2048\)",
        ),
        ({"AuxLogits.fc.bias": torch.zeros(1)}, r"it has 'AuxLogits\.fc\.bias' besides"),
        ({"fc.bias": 3}, r"'fc\.bias' is a int, no tensor"),
        (
            {"Conv2d_1a_3x3.bn.bias": torch.zeros(32, dtype=torch.float16)},
            r"'Conv2d_1a_3x3\.bn\.bias' is of type torch\.float16, not torch\.float32",
        ),
    ],
)
def test_weights_of_another_network_say_what_differs(
    save: Callable[..., Path], parts: dict[str, Any], message: str
) -> None:
    file = save(**parts)

    with pytest.raises(RunError, match=f"is not the Inception network of the FID: {message}; get "):
        load_weights(file)


class Trap:
    """Leaves a file where a pickle of it is executed."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("older", [False, True])
def test_code_in_the_file_is_refused_and_never_run(
    save: Callable[..., Path], tmp_path: Path, older: bool
) -> None:
    file = save(older=older, **{"fc.bias": Trap(tmp_path / "run")})

    with pytest.raises(RunError, match=r"weights\.pth: torch cannot read these weights \("):
        load_weights(file)

    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\3\4 cut off"])
def test_a_file_that_torch_cannot_read_says_which_to_get(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(content)

    with pytest.raises(
        RunError,
        match=r"torch cannot read these weights .*; get pt_inception-2015-12-05-6726825d\.pth from "
        "the release fid_weights of the project pytorch-fid",
    ) as caught:
        load_weights(file)

    assert caught.value.layer == "scorer"


def test_a_list_of_tensors_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "weights.pth")

    with pytest.raises(RunError, match="holds a list, not weights by name"):
        load_weights(tmp_path / "weights.pth")


def test_digits_in_the_official_name_are_those_of_the_file(
    save: Callable[..., Path], tmp_path: Path
) -> None:
    """A file that was cut off or changed shows before it is read."""
    file = save()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    right = file.rename(tmp_path / f"pt_inception-2015-12-05-{digest[:8]}.pth")
    assert load_weights(right)

    wrong = right.rename(tmp_path / "pt_inception-2015-12-05-6726825d.pth")
    with pytest.raises(
        RunError, match=f"its SHA-256 begins with {digest[:8]}, not with 6726825d as its name says"
    ):
        load_weights(wrong)
