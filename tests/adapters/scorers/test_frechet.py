"""Test the Fréchet distance against the reference's way, and each sample's part in it."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_mlperf.adapters.scorers.images import _frechet
from pytest_mlperf.adapters.scorers.images._frechet import (
    OFFSET,
    Statistics,
    frechet,
    read_statistics,
)
from pytest_mlperf.core.errors import RunError
from tests.adapters.scorers.inputs import Trap
from tests.adapters.scorers.refusals import differences

Floats = NDArray[np.float64]


def statistics(features: Floats) -> Statistics:
    return Statistics(
        mean=features.mean(axis=0), covariance=np.atleast_2d(np.cov(features, rowvar=False))
    )


def reference_distance(features: Floats, real: Statistics, offset: float = 0.0) -> float:
    """The rule of the reference: the trace of SciPy's root of the product of the covariances."""
    linalg = pytest.importorskip("scipy.linalg")
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
def test_the_distance_is_that_of_the_reference_and_the_mean_of_the_pseudo_values(
    width: int, samples: int, real: int, seed: int, scale: float
) -> None:
    """Also with fewer samples than features, where only roots of rounding errors differ."""
    features = draw(samples, width, seed, scale=scale, shift=0.3)
    given_statistics = statistics(draw(real, width, seed + 100, scale=scale))

    distance, pseudo_values = frechet(features, given_statistics)

    expected = reference_distance(features, given_statistics)
    assert distance == pytest.approx(expected, rel=1e-6, abs=1e-6 * scale**2)
    assert pseudo_values.shape == (samples,)
    assert np.isfinite(pseudo_values).all()
    mean = pseudo_values.mean()
    assert mean == pytest.approx(distance, rel=1e-12, abs=1e-12 * scale**2)


def test_the_distance_is_that_of_the_reference_to_the_digit() -> None:
    for samples, real, width, digits in (
        (300, 300, 128, 9),
        (50, 400, 64, 5),
        (64, 64, 64, 5),
        (2, 2, 16, 5),
    ):
        features = draw(samples, width, 1, shift=0.2)
        given_statistics = statistics(draw(real, width, 2, scale=1.3))

        distance = frechet(features, given_statistics)[0]

        expected = reference_distance(features, given_statistics)
        assert f"{distance:.{digits}f}" == f"{expected:.{digits}f}"


def test_distances_by_hand() -> None:
    for features, mean, variance, distance in (
        # one feature: (difference of means)² + (difference of deviations)²
        ([[0.0], [2.0]], [4.0], [2.0], 9.0),
        ([[0.0], [2.0]], [1.0], [8.0], 2.0),
        ([[3.0], [3.0], [3.0]], [1.0], [4.0], 4.0 + 4.0),
        ([[1.0], [3.0]], [2.0], [0.0], 2.0),
        # independent features: their sum
        ([[0.0, 1.0], [2.0, 1.0]], [1.0, 0.0], [8.0, 9.0], 2.0 + 1.0 + 9.0),
    ):
        real = Statistics(mean=np.array(mean), covariance=np.diag(variance))
        assert frechet(np.array(features), real)[0] == pytest.approx(distance, abs=1e-12)


def test_the_diagonals_are_offset_where_each_side_has_a_constant_feature_of_its_own() -> None:
    """There the reference's SciPy 1.10.1 finds no root; elsewhere, also singular, it finds one."""
    constants: list[tuple[list[int], list[int], float]] = [
        ([], [], 0.0),
        ([1], [], 0.0),
        ([], [4], 0.0),
        ([1, 4], [4], 0.0),
        ([4], [1, 4], 0.0),
        ([1], [4], OFFSET),
        ([1, 2], [2, 4], OFFSET),
    ]
    for constant, constant_real, offset in constants:
        features, other = draw(60, 6, 3, shift=0.5), draw(80, 6, 4)
        features[:, constant], other[:, constant_real] = 0.25, 0.0
        real = statistics(other)

        distance = frechet(features, real)[0]

        assert distance == pytest.approx(reference_distance(features, real, offset), abs=1e-6)
        assert not offset or abs(distance - reference_distance(features, real)) > 1e-4


def weighted_distance(features: Floats, weights: Floats, real: Statistics) -> float:
    """The distance where samples have weights, which are 1 / n each in the usual one."""
    linalg = pytest.importorskip("scipy.linalg")
    samples = len(features)
    mean = weights @ features
    centred = features - mean
    covariance = samples / (samples - 1) * (centred * weights[:, None]).T @ centred
    root = linalg.sqrtm(real.covariance @ covariance)
    traces = np.trace(covariance) + np.trace(real.covariance)
    return float((mean - real.mean) @ (mean - real.mean) + traces - 2 * np.trace(np.real(root)))


def test_a_pseudo_value_is_the_derivative_in_the_direction_of_the_sample() -> None:
    """Checked against central differences of the distance with one sample's weight changed."""
    for width in (1, 2, 5):
        features, real = draw(25, width, 5, shift=0.4), statistics(draw(40, width, 6, scale=1.5))
        result, step, even = frechet(features, real), 1e-5, np.full(25, 1 / 25)
        derivatives = []
        for sample in range(25):
            towards = step * (np.eye(25)[sample] - even)
            change = weighted_distance(features, even + towards, real) - weighted_distance(
                features, even - towards, real
            )
            derivatives.append(change / (2 * step))

        np.testing.assert_allclose(result[1] - result[0], derivatives, rtol=1e-5, atol=1e-6)


def test_influences_with_fewer_samples_than_features_are_those_within_their_span() -> None:
    """Directions in which no sample differs have no part in them."""
    narrow, real = draw(12, 4, 7, shift=0.4), draw(40, 4, 8, scale=1.5)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))[0][:4]
    wide_real = Statistics(
        mean=real.mean(axis=0) @ turn, covariance=turn.T @ np.cov(real, rowvar=False) @ turn
    )

    pseudo_values = frechet(narrow @ turn, wide_real)[1]

    np.testing.assert_allclose(pseudo_values, frechet(narrow, statistics(real))[1], atol=1e-5)


def test_the_order_of_samples_and_the_axes_do_not_matter() -> None:
    """Samples that move take their pseudo-values along; a rotation changes nothing."""
    features, real = draw(30, 5, 1, shift=0.3), draw(50, 5, 2)
    order = np.random.default_rng(3).permutation(30)
    turn = np.linalg.qr(np.random.default_rng(4).normal(size=(5, 5)))[0]
    result = frechet(features, statistics(real))

    moved = frechet(features[order], statistics(real))
    turned = frechet(features @ turn, statistics(real @ turn))

    np.testing.assert_allclose(moved[1], result[1][order], rtol=1e-9)
    np.testing.assert_allclose(turned[1], result[1], rtol=1e-9)


def test_a_set_is_at_no_distance_from_itself_and_copies_of_one_image_are_at_one() -> None:
    real = draw(50, 6, 1)
    same = np.ones((7, 6))

    assert frechet(real, statistics(real))[0] == pytest.approx(0, abs=1e-6)
    result = frechet(same, statistics(real))
    expected = ((1 - real.mean(axis=0)) ** 2).sum() + np.trace(np.cov(real, rowvar=False))
    assert result[0] == pytest.approx(expected)
    np.testing.assert_allclose(result[1], result[0])


def test_the_standard_error_of_a_paired_change_is_that_of_the_bootstrap() -> None:
    """Rule A's paired t-test takes it from pseudo-values; both engines answer the same samples."""
    real = statistics(draw(4000, 6, 1))
    features = draw(600, 6, 2, shift=0.3)
    after = 0.95 * features + np.random.default_rng(3).normal(size=features.shape) * 0.25
    pairs = frechet(after, real)[1] - frechet(features, real)[1]
    rng = np.random.default_rng(4)

    again = [
        frechet(after[drawn], real)[0] - frechet(features[drawn], real)[0]
        for drawn in (rng.integers(0, 600, 600) for _ in range(400))
    ]

    error = pairs.std(ddof=1) / np.sqrt(600)
    assert error == pytest.approx(np.std(again, ddof=1), rel=0.25)
    unpaired = np.sqrt(2) * frechet(features, real)[1].std(ddof=1) / np.sqrt(600)
    assert error < 0.7 * unpaired


def test_every_damaged_byte_of_statistics_is_an_error_of_the_file_or_harmless(
    tmp_path: Path,
) -> None:
    """A bit that flips shows in the archive's checksums, never as another exception."""
    path, mean = tmp_path / "val.npz", np.arange(3.0)
    np.savez_compressed(path, mu=mean, sigma=np.eye(3))
    np.testing.assert_array_equal(read_statistics(path).mean, mean)
    whole = path.read_bytes()

    refused = 0
    for index in range(0, len(whole), 3):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x55]) + whole[index + 1 :])
        try:
            read = read_statistics(path)
        except RunError:
            refused += 1
        else:
            np.testing.assert_array_equal(read.covariance, np.eye(3))
    assert refused > len(whole) / 3 / 4


def test_other_statistics_are_refused_and_code_in_them_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "val.npz"
    unreadable, endless = "NumPy cannot read the arrays", "numbers that are not finite"
    zeros, bad = np.zeros(2), np.full((2, 2), np.inf)
    rows: list[tuple[bytes | dict[str, Any], str]] = [
        (b"", f"{unreadable} mu and sigma"),
        (b"no zip at all", unreadable),
        (b"PK\3\4 cut off", unreadable),
        ({"mu": zeros}, f"{unreadable}.*sigma"),
        (
            {"mu": zeros, "sigma": np.zeros((3, 3))},
            r"mu has shape \(2,\) and sigma \(3, 3\), not \(features,\) and",
        ),
        ({"mu": np.zeros((2, 1)), "sigma": np.eye(2)}, r"mu has shape \(2, 1\) and sigma"),
        ({"mu": np.zeros(0), "sigma": np.zeros((0, 0))}, r"mu has shape \(0,\) and sigma"),
        ({"mu": np.array([0, np.nan]), "sigma": np.eye(2)}, endless),
        ({"mu": zeros, "sigma": bad}, endless),
        ({"mu": zeros, "sigma": np.array([[1, 2], [3, 4]])}, "sigma is not symmetric"),
        ({"mu": np.array(["a"]), "sigma": np.eye(1)}, unreadable),
        ({"mu": np.array([Trap(tmp_path / "run")], object), "sigma": np.eye(1)}, unreadable),
    ]

    def read(content: bytes | dict[str, Any]) -> None:
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.savez(path, **content)
        read_statistics(path)

    assert differences(read, RunError, [(one, rf"val\.npz: .*{text}") for one, text in rows]) == []
    assert not (tmp_path / "run").exists()
    assert _frechet.MAX_ARRAY_BYTES == 2**28
    monkeypatch.setattr(_frechet, "MAX_ARRAY_BYTES", 10_000)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mu.npy", bytes(10_001))
    with pytest.raises(RunError, match=r"mu unpacks to 10,001 bytes \(at most"):
        read_statistics(path)
