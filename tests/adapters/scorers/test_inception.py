"""Test the FID's network, block by block against plain formulas, and the refusal of other files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf.adapters.scorers.images._inception import (
    NETWORK,
    Fork,
    InceptionFeatures,
    compute,
    load_weights,
    shapes,
)
from pytest_mlperf.core.errors import RunError
from tests.adapters.scorers.inception_made_here import BLOCKS, LAYOUT, conv, maximum, random_weights
from tests.adapters.scorers.inputs import Trap
from tests.adapters.scorers.refusals import differences

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    """Yield torch limited to one thread: more would compete with other workers."""
    module = pytest.importorskip("torch")
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    return random_weights()


@pytest.fixture(scope="module")
def features(
    torch: Any, weights: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
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
    network_shapes, channels = shapes(NETWORK, 3)

    assert network_shapes == {
        name: shape for name, shape in LAYOUT.items() if not name.startswith("fc.")
    }
    assert (len(network_shapes), channels) == (470, 2048)


def first(fork: Fork) -> str:
    """Return the block that a fork is, by the name of its first convolution."""
    return str(getattr(fork.paths[0][0], "name", "")).partition(".")[0]


def test_what_comes_before_the_blocks_and_each_block_computes_its_formulas(
    torch: Any, weights: dict[str, Any]
) -> None:
    """Five convolutions, of which only one keeps the size, and two pools that halve it."""
    x = noise(1, 3, 43, 37)
    expected = conv(x, weights, "Conv2d_1a_3x3", stride=2, pad=False)
    expected = conv(expected, weights, "Conv2d_2a_3x3", pad=False)
    expected = maximum(conv(expected, weights, "Conv2d_2b_3x3"), 2)
    expected = conv(expected, weights, "Conv2d_3b_1x1")
    expected = maximum(conv(expected, weights, "Conv2d_4a_3x3", pad=False), 2)
    parts = [(NETWORK[:7], x, expected)]
    forks = {first(step): step for step in NETWORK[7:] if isinstance(step, Fork)}
    assert list(forks) == list(BLOCKS)
    for name, (channels, formula) in BLOCKS.items():
        x = noise(1, channels, 5, 4)
        parts.append(((forks[name],), x, formula(x, weights, name)))

    for steps, x, expected in parts:
        with torch.inference_mode():
            outputs = compute(steps, torch.from_numpy(x).float(), weights).numpy()

        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


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


def test_images_are_resized_without_smoothing_and_scaled_to_one(
    torch: Any, features: InceptionFeatures, weights: dict[str, Any]
) -> None:
    """Bilinear, to 299 x 299, from -1 to 1; features are means over the last block's pixels."""
    for height, width in ((64, 48), (320, 410)):
        images = (noise(1, height, width, 3) * 255).round().astype(np.uint8)
        pixels = 2 * resized(images[0] / 255.0) - 1

        with torch.inference_mode():
            x = torch.from_numpy(pixels.transpose(2, 0, 1)[None]).float()
            expected = compute(NETWORK, x, weights).numpy().mean(axis=(2, 3))

        vectors = features(images)
        assert vectors.shape == (1, 2048)
        assert vectors.dtype == np.float64
        np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_features_are_repeatable_and_do_not_depend_on_the_batch(
    features: InceptionFeatures,
) -> None:
    """The same to the bit in the same batch, and up to rounding in another one."""
    images = (noise(2, 40, 40, 3) * 255).astype(np.uint8)
    images[1] = 7

    vectors = features(images)

    np.testing.assert_array_equal(features(images), vectors)
    alone = np.concatenate([features(image[None]) for image in images])
    np.testing.assert_allclose(alone, vectors, rtol=1e-4, atol=1e-5 * np.abs(vectors).max())
    assert np.ptp(vectors, axis=0).max() > 0.01 * np.abs(vectors).max()


@pytest.fixture
def save(torch: Any, tmp_path: Path) -> Callable[..., Path]:
    """Save weights of the right names and shapes that take no room, some replaced or left out."""

    def saved(name: str = "weights.pth", /, *, older: bool = False, **parts: Any) -> Path:
        content = {name: torch.zeros(1).expand(shape) for name, shape in LAYOUT.items()}
        content.update(parts)
        kept = {name: part for name, part in content.items() if part is not None}
        torch.save(kept, tmp_path / name, _use_new_zipfile_serialization=not older)
        return tmp_path / name

    return saved


def test_both_forms_of_torch_files_are_read_and_counters_are_passed_over(
    torch: Any, save: Callable[..., Path]
) -> None:
    counter = {"Mixed_5b.branch1x1.bn.num_batches_tracked": torch.tensor(3)}

    for older in (False, True):
        weights = load_weights(save(older=older, **counter))
        assert {name: tuple(value.shape) for name, value in weights.items()} == shapes(NETWORK, 3)[
            0
        ]


def test_other_files_say_what_differs_and_code_in_them_is_never_run(
    torch: Any, save: Callable[..., Path], tmp_path: Path
) -> None:
    parts: list[tuple[dict[str, Any], str]] = [
        (
            {"Mixed_7c.branch_pool.bn.bias": None, "fc.bias": None},
            r"2 of 472 weights are missing, such as 'Mixed_7c\.branch_pool\.bn\.bias'",
        ),
        (
            {"fc.weight": torch.zeros(1000, 2048)},
            r"'fc\.weight' has shape \(1000, 2048\), not \(1008, 2048\)",
        ),
        ({"AuxLogits.fc.bias": torch.zeros(1)}, r"it has a weight 'AuxLogits\.fc\.bias', which .*"),
        ({"fc.bias": 3}, r"'fc\.bias' is a int, not a tensor"),
        (
            {"Conv2d_1a_3x3.bn.bias": torch.zeros(32, dtype=torch.float16)},
            r"'Conv2d_1a_3x3\.bn\.bias' is of type torch\.float16, not torch\.float32",
        ),
    ]
    network = [
        (one, f"is not the Inception network of the FID: {text}; download ") for one, text in parts
    ]
    unreadable = (
        r"weights\.pth: torch cannot read these weights .*; download pt_inception-2015-12-05-67268"
        r"25d\.pth \(github\.com/mseitzer/pytorch-fid, release fid_weights\)"
    )
    trap = {"fc.bias": Trap(tmp_path / "run")}
    traps = [({"older": older, **trap}, unreadable) for older in (False, True)]
    contents = [(content, unreadable) for content in (b"", b"no weights", b"PK\3\4 cut off")]

    def load(content: bytes) -> None:
        (tmp_path / "weights.pth").write_bytes(content)
        load_weights(tmp_path / "weights.pth")

    assert (
        differences(lambda changes: load_weights(save(**changes)), RunError, [*network, *traps])
        == []
    )
    assert not (tmp_path / "run").exists()
    assert differences(load, RunError, contents) == []
    torch.save([torch.zeros(1)], tmp_path / "weights.pth")
    with pytest.raises(RunError, match="holds a list, not a table of named weights"):
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
