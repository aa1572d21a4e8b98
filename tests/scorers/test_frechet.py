"""The Fréchet distance beside the way of the reference, and what each sample's part in it is."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.scorers.images._frechet import (
    LARGEST,
    OFFSET,
    Statistics,
    frechet,
    read_statistics,
)

linalg = pytest.importorskip("scipy.linalg")

Floats = NDArray[np.float64]


def statistics(features: Floats) -> Statistics:
    return Statistics(
        mean=features.mean(axis=0), covariance=np.atleast_2d(np.cov(features, rowvar=False))
    )


def reference_distance(features: Floats, real: Statistics, offset: float = 0.0) -> float:
    """The rule of the reference: the trace of SciPy's root of the product of the covariances."""
    mean, covariance = features.mean(axis=0), np.atleast_2d(np.cov(features, rowvar=False))
    added = offset * np.eye(len(mean))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's, where the product is singular
        root = linalg.sqrtm((real.covariance + added) @ (covariance + added))
    difference = real.mean - mean
    traces = np.trace(real.covariance) + np.trace(covariance)
    return float(difference @ difference + traces - 2 * np.trace(np.real(root)))


def draw(samples: int, width: int, seed: int, *, scale: float = 1.0, shift: float = 0.0) -> Floats:
    """Features that depend on each other, as a network's do."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(samples, width)) @ np.random.default_rng(9).normal(size=(width, width))
    return np.asarray(scale * mixed / np.sqrt(width) + shift)


@given(
    width=st.integers(1, 8),
    samples=st.integers(2, 40),
    real=st.integers(2, 40),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_the_distance_is_that_of_the_reference(
    width: int, samples: int, real: int, seed: int, scale: float
) -> None:
    """Also with fewer samples than features, where only roots of rounding errors differ."""
    features = draw(samples, width, seed, scale=scale, shift=0.3)
    given_statistics = statistics(draw(real, width, seed + 100, scale=scale))

    found = frechet(features, given_statistics).distance

    expected = reference_distance(features, given_statistics)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * scale**2)


@pytest.mark.parametrize(
    ("samples", "real", "width", "digits"),
    [(400, 900, 64, 9), (300, 300, 128, 9), (50, 400, 64, 5), (64, 64, 64, 5), (2, 2, 16, 5)],
)
def test_the_distance_is_that_of_the_reference_to_the_digit(
    samples: int, real: int, width: int, digits: int
) -> None:
    features = draw(samples, width, 1, shift=0.2)
    given_statistics = statistics(draw(real, width, 2, scale=1.3))

    found = frechet(features, given_statistics).distance

    expected = reference_distance(features, given_statistics)
    assert f"{found:.{digits}f}" == f"{expected:.{digits}f}"


@pytest.mark.parametrize(
    ("features", "mean", "variance", "distance"),
    [
        # one feature: (difference of means)² + (difference of deviations)²
        ([[0.0], [2.0]], [4.0], [2.0], 9.0),
        ([[0.0], [2.0]], [1.0], [8.0], 2.0),
        ([[3.0], [3.0], [3.0]], [1.0], [4.0], 4.0 + 4.0),
        ([[1.0], [3.0]], [2.0], [0.0], 2.0),
        # independent features: their sum
        ([[0.0, 1.0], [2.0, 1.0]], [1.0, 0.0], [8.0, 9.0], 2.0 + 1.0 + 9.0),
    ],
)
def test_distances_by_hand(
    features: list[list[float]], mean: list[float], variance: list[float], distance: float
) -> None:
    real = Statistics(mean=np.array(mean), covariance=np.diag(variance))

    assert frechet(np.array(features), real).distance == pytest.approx(distance, abs=1e-12)


@pytest.mark.parametrize(
    ("constant", "constant_real", "offset"),
    [
        ([], [], 0.0),
        ([1], [], 0.0),
        ([], [4], 0.0),
        ([1, 4], [4], 0.0),
        ([4], [1, 4], 0.0),
        ([1], [4], OFFSET),
        ([1, 2], [2, 4], OFFSET),
    ],
)
def test_the_diagonals_are_offset_where_each_side_has_a_constant_feature_of_its_own(
    constant: list[int], constant_real: list[int], offset: float
) -> None:
    """There the reference's SciPy 1.10.1 finds no root; elsewhere, also singular, it finds one."""
    features, real = draw(60, 6, 3, shift=0.5), draw(80, 6, 4)
    features[:, constant], real[:, constant_real] = 0.25, 0.0

    found = frechet(features, statistics(real)).distance

    assert found == pytest.approx(reference_distance(features, statistics(real), offset), abs=1e-6)
    if offset:
        assert abs(found - reference_distance(features, statistics(real))) > 1e-4


@given(samples=st.integers(2, 30), width=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_mean_of_the_pseudo_values_is_the_distance(samples: int, width: int, seed: int) -> None:
    found = frechet(draw(samples, width, seed), statistics(draw(20, width, seed + 1, shift=1.0)))

    assert found.pseudo_values.shape == (samples,)
    assert np.isfinite(found.pseudo_values).all()
    assert found.pseudo_values.mean() == pytest.approx(found.distance, rel=1e-12, abs=1e-12)


def weighted_distance(features: Floats, weights: Floats, real: Statistics) -> float:
    """The distance where samples have weights, which are 1 / n each in the usual one."""
    samples = len(features)
    mean = weights @ features
    centred = features - mean
    covariance = samples / (samples - 1) * (centred * weights[:, None]).T @ centred
    root = linalg.sqrtm(real.covariance @ covariance)
    traces = np.trace(covariance) + np.trace(real.covariance)
    return float((mean - real.mean) @ (mean - real.mean) + traces - 2 * np.trace(np.real(root)))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_pseudo_value_is_the_derivative_in_the_direction_of_the_sample(width: int) -> None:
    """Checked against central differences of the distance with one sample's weight changed."""
    features, real = draw(25, width, 5, shift=0.4), statistics(draw(40, width, 6, scale=1.5))
    found, step, even = frechet(features, real), 1e-5, np.full(25, 1 / 25)

    for sample in range(25):
        towards = np.eye(25)[sample] - even
        change = weighted_distance(features, even + step * towards, real) - weighted_distance(
            features, even - step * towards, real
        )
        derivative = change / (2 * step)
        assert found.pseudo_values[sample] - found.distance == pytest.approx(
            derivative, rel=1e-5, abs=1e-6
        )


def test_influences_with_fewer_samples_than_features_are_those_within_their_span() -> None:
    """Directions in which no sample differs have no part in them."""
    narrow, real = draw(12, 4, 7, shift=0.4), draw(40, 4, 8, scale=1.5)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))[0][:4]
    wide_real = Statistics(
        mean=real.mean(axis=0) @ turn, covariance=turn.T @ np.cov(real, rowvar=False) @ turn
    )

    found = frechet(narrow @ turn, wide_real).pseudo_values

    np.testing.assert_allclose(found, frechet(narrow, statistics(real)).pseudo_values, atol=1e-5)


def test_the_order_of_samples_and_the_axes_do_not_matter() -> None:
    """Samples that move take their pseudo-values along; a rotation changes nothing."""
    features, real = draw(30, 5, 1, shift=0.3), draw(50, 5, 2)
    order = np.random.default_rng(3).permutation(30)
    turn = np.linalg.qr(np.random.default_rng(4).normal(size=(5, 5)))[0]
    found = frechet(features, statistics(real))

    moved = frechet(features[order], statistics(real))
    turned = frechet(features @ turn, statistics(real @ turn))

    np.testing.assert_allclose(moved.pseudo_values, found.pseudo_values[order], rtol=1e-9)
    np.testing.assert_allclose(turned.pseudo_values, found.pseudo_values, rtol=1e-9)


def test_a_set_is_at_no_distance_from_itself_and_copies_of_one_image_are_at_one() -> None:
    real = draw(50, 6, 1)
    same = np.ones((7, 6))

    assert frechet(real, statistics(real)).distance == pytest.approx(0, abs=1e-6)
    found = frechet(same, statistics(real))
    expected = ((1 - real.mean(axis=0)) ** 2).sum() + np.trace(np.cov(real, rowvar=False))
    assert found.distance == pytest.approx(expected)
    np.testing.assert_allclose(found.pseudo_values, found.distance)


def test_the_standard_error_of_a_paired_change_is_that_of_the_bootstrap() -> None:
    """Rule A's paired t-test takes it from pseudo-values; both engines answer the same samples."""
    real = statistics(draw(4000, 6, 1))
    before = draw(600, 6, 2, shift=0.3)
    after = 0.95 * before + np.random.default_rng(3).normal(size=before.shape) * 0.25
    pairs = frechet(after, real).pseudo_values - frechet(before, real).pseudo_values
    rng = np.random.default_rng(4)

    again = [
        frechet(after[drawn], real).distance - frechet(before[drawn], real).distance
        for drawn in (rng.integers(0, 600, 600) for _ in range(400))
    ]

    error = pairs.std(ddof=1) / np.sqrt(600)
    assert error == pytest.approx(np.std(again, ddof=1), rel=0.25)
    unpaired = np.sqrt(2) * frechet(before, real).pseudo_values.std(ddof=1) / np.sqrt(600)
    assert error < 0.7 * unpaired


def test_statistics_are_the_arrays_mu_and_sigma(tmp_path: Path) -> None:
    real = statistics(draw(30, 4, 1))
    np.savez_compressed(tmp_path / "val.npz", mu=real.mean, sigma=real.covariance)

    found = read_statistics(tmp_path / "val.npz")

    np.testing.assert_array_equal(found.mean, real.mean)
    np.testing.assert_array_equal(found.covariance, real.covariance)


def test_every_damaged_byte_of_statistics_is_an_error_of_the_file_or_harmless(
    tmp_path: Path,
) -> None:
    """A bit that flips shows in the archive's checksums, never as another exception."""
    path = tmp_path / "val.npz"
    np.savez_compressed(path, mu=np.zeros(3), sigma=np.eye(3))
    whole = path.read_bytes()

    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            found = read_statistics(path)
        except RunError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.covariance, np.eye(3))
    assert refused > len(whole) / 3 / 4


class Trap:
    """Leaves a file where a pickle of it is executed."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def arrays(**parts: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **parts)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b""), r"NumPy cannot read the arrays mu and sigma"),
        (lambda path: path.write_bytes(b"no zip at all"), r"NumPy cannot read the arrays"),
        (lambda path: path.write_bytes(b"PK\3\4 cut off"), r"NumPy cannot read the arrays"),
        (arrays(mu=np.zeros(2)), r"NumPy cannot read .*sigma"),
        (
            arrays(mu=np.zeros(2), sigma=np.zeros((3, 3))),
            r"mu has shape \(2,\) and sigma \(3, 3\), not \(features,\) and",
        ),
        (arrays(mu=np.zeros((2, 1)), sigma=np.eye(2)), r"mu has shape \(2, 1\) and sigma"),
        (arrays(mu=np.zeros(0), sigma=np.zeros((0, 0))), r"mu has shape \(0,\) and sigma"),
        (arrays(mu=np.array([0, np.nan]), sigma=np.eye(2)), r"numbers that are not finite"),
        (arrays(mu=np.zeros(2), sigma=np.full((2, 2), np.inf)), r"numbers that are not finite"),
        (arrays(mu=np.zeros(2), sigma=np.array([[1, 2], [3, 4]])), r"sigma is not symmetric"),
        (arrays(mu=np.array(["a"]), sigma=np.eye(1)), r"NumPy cannot read the arrays"),
    ],
)
def test_other_statistics_are_refused(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "val.npz"
    write(path)

    with pytest.raises(RunError, match=rf"val\.npz: .*{message}") as caught:
        read_statistics(path)

    assert caught.value.layer == "scorer"


def test_pickled_statistics_are_refused_and_never_run(tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "run")], object)
    np.savez(tmp_path / "val.npz", mu=trap, sigma=np.eye(1))

    with pytest.raises(RunError, match="NumPy cannot read the arrays"):
        read_statistics(tmp_path / "val.npz")

    assert not (tmp_path / "run").exists()


def test_statistics_that_unpack_to_too_much_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "val.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mu.npy", bytes(LARGEST + 1))

    with pytest.raises(RunError, match="it unpacks to 268,435,457 bytes, and at most 268,435,456"):
        read_statistics(path)
