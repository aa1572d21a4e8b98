"""Compute the Fréchet distance of features from reference statistics, and samples' influences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf import RunError
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.extension import read_arrays

OFFSET = 1e-6
"""Added by the reference to the diagonals of covariances whose product it finds singular."""


MAX_ARRAY_BYTES = 256 * 2**20
"""Maximum bytes of a statistics file, and of each unpacked array; 2,048 features take 34e6."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Hold the statistics of the features of real images.

    Attributes:
        mean: Mean of each feature, shape (features,).
        covariance: Covariance matrix, shape (features, features), symmetric.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


def read_statistics(path: Path) -> Statistics:
    """Read mean "mu" and covariance "sigma" from a file such as MLPerf's val2014.npz.

    Pickled objects in the file are refused, as loading them could run code.
    """
    try:
        mean, covariance = (
            np.asarray(array, np.float64)
            for array in read_arrays(path, ("mu", "sigma"), max_bytes=MAX_ARRAY_BYTES)
        )
    except (ValueError, TypeError) as error:
        raise _wrong(path, f"NumPy cannot read the arrays mu and sigma ({error})") from error
    if mean.ndim != 1 or not len(mean) or covariance.shape != (len(mean), len(mean)):
        raise _wrong(
            path,
            f"mu has shape {mean.shape} and sigma {covariance.shape}, not (features,) and "
            "(features, features)",
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise _wrong(path, "mu or sigma has numbers that are not finite")
    if not np.allclose(covariance, covariance.T, rtol=1e-6, atol=1e-9):
        raise _wrong(path, "sigma is not symmetric, so it is not a covariance")
    return Statistics(mean=mean, covariance=covariance)


def frechet(features: NDArray[np.float64], real: Statistics) -> tuple[float, NDArray[np.float64]]:
    """Return the squared Fréchet distance between Gaussians fitted to features and to real images.

    Also returns the distance plus each sample's influence, (samples,), whose mean is the distance.

    With mean m and covariance S of the features (divided by samples - 1), and m_r, S_r of the real
    images, the distance is |m - m_r|² + tr(S) + tr(S_r) - 2 tr((S S_r)^½). The trace of the root is
    the sum of the roots of the eigenvalues of Rᵀ S R, with R Rᵀ = S_r: this symmetric matrix has
    the eigenvalues of S S_r, whose root the reference takes (calculate_frechet_distance in
    text_to_image/tools/fid/fid_score.py of https://github.com/mlcommons/inference).

    The influence of a sample x, the derivative of the distance by its weight, is 2 (m - m_r)·c +
    n/(n-1) cᵀ(I - T)c - const, with c = x - m, T = R (Rᵀ S R)^-½ Rᵀ (by the pseudo-inverse if it is
    singular, as no c is in its kernel), and const so that the mean is 0. It is the infinitesimal
    jackknife: B. Efron, "The jackknife, the bootstrap and other resampling plans", 1982, chapter 6.

    Args:
        features: Shape (samples, features), at least two samples, all finite.
        real: Statistics of as many features.
    """
    samples, width = features.shape
    mean = features.mean(axis=0)
    centred = features - mean
    covariance = centred.T @ centred / (samples - 1)
    offset = np.eye(width) * (OFFSET if _reference_adds_offset(covariance, real) else 0.0)
    root = _root(real.covariance + offset)
    if samples < width and not offset.any():
        # The same eigenvalues from a smaller matrix, without roots of rounding errors.
        _, singular, turned = np.linalg.svd(centred @ root, full_matrices=False)
        values, vectors = singular[::-1] ** 2 / (samples - 1), turned[::-1].T
    else:
        values, vectors = np.linalg.eigh(root.T @ (covariance + offset) @ root)
    difference = mean - real.mean
    roots = float(np.sqrt(values.clip(min=0)).sum())
    traces = float(np.trace(covariance) + np.trace(real.covariance))
    distance = float(difference @ difference) + traces - 2 * roots

    kept = values > width * np.finfo(np.float64).eps * values[-1]
    transport = root @ vectors[:, kept] * values[kept] ** -0.25
    spread = (centred**2).sum(axis=1) - ((centred @ transport) ** 2).sum(axis=1)
    influence = 2 * centred @ difference + samples / (samples - 1) * spread
    return distance, distance + (influence - influence.mean())


def _root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return R with R Rᵀ = `matrix`: by Cholesky decomposition if regular, else by eigenvectors."""
    try:
        return np.asarray(np.linalg.cholesky(matrix), np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        return np.asarray(vectors * np.sqrt(values.clip(min=0)))


def _reference_adds_offset(covariance: NDArray[np.float64], real: Statistics) -> bool:
    """Return whether the reference would add an offset to the diagonals of both covariances.

    This is so if each covariance has a feature that is constant in it but varies in the other one.
    Then SciPy 1.10.1, which the reference pins, finds no square root of the product; otherwise it
    finds one, even with fewer samples than features. With very few samples rounding may decide
    differently.
    """
    constant, constant_real = covariance.diagonal() == 0, real.covariance.diagonal() == 0
    return bool((constant & ~constant_real).any() and (constant_real & ~constant).any())


def _wrong(path: Path, defect: str) -> RunError:
    return scorer_error(
        f"{path}: {defect}; set the scorer's statistics to MLPerf's val2014.npz (in "
        "text_to_image/tools of github.com/mlcommons/inference), or to a file like it",
    )
