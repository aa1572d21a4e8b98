"""Draw click logs from a logistic model that is known: what a tiny DLRM is trained on.

A user-item pair has 13 dense features and 26 sparse ones with one to four lookups each. The
logarithm of its odds to be clicked is a sum of planted effects: of each dense feature, of each row
that is looked up, and of products of both kinds. As the model is known, so is the AUC of the true
probabilities, which no other predictions can expect to exceed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_mlperf.adapters.datasets.criteo import HOTNESS as OFFICIAL_HOTNESS

if TYPE_CHECKING:
    from numpy.typing import NDArray

DENSE, SPARSE = 13, 26
HOTNESS = tuple(min(lookups, 4) for lookups in OFFICIAL_HOTNESS)
"""Lookups of each sparse feature: MLPerf's, but four at most; 64 in all."""

# MLPerf's tables with 200 rows at most.
ROWS = (
    *(200, 200, 200, 200, 200, 3, 200, 200, 63, 200, 200, 200, 10),
    *(200, 200, 155, 4, 200, 14, 200, 200, 200, 200, 200, 108, 36),
)
"""Rows that each sparse feature looks up."""

PRODUCTS = 12
"""Pairs of features whose effects are multiplied, besides being added."""

BIAS = -2.0
"""Sets the share of clicked pairs, about one in four."""


class Pairs(NamedTuple):
    """User-item pairs.

    Attributes:
        dense: Shape (pairs, 13), float32; logarithms of counts, as MLPerf prepares them.
        sparse: For each of 26 features, the rows that are looked up; shape (pairs, lookups), int32.
        log_odds: Of the true chance to be clicked, shape (pairs,).
        clicked: Shape (pairs,), int32, 0 or 1.
    """

    dense: NDArray[np.float32]
    sparse: tuple[NDArray[np.int32], ...]
    log_odds: NDArray[np.float64]
    clicked: NDArray[np.int32]


class Clicks:
    """The logistic model, and pairs drawn from it.

    Numbers come from NumPy's first generator, which never changes (NEP 19), so one seed gives the
    same pairs with every version.
    """

    def __init__(self, seed: int) -> None:
        """Plant effects.

        Args:
            seed: Of effects and pairs.
        """
        self._seed = seed
        drawing = np.random.RandomState(seed)
        self._dense = drawing.normal(0.0, 0.3, DENSE)
        strengths = 0.6 * 0.93 ** drawing.permutation(SPARSE)
        self._rows = [
            drawing.normal(0.0, strength, rows) / lookups**0.5
            for strength, rows, lookups in zip(strengths, ROWS, HOTNESS, strict=True)
        ]
        self._products = [
            (drawing.randint(DENSE), drawing.randint(SPARSE), drawing.normal(0.0, 1.0))
            for _ in range(PRODUCTS)
        ]
        # Few rows are looked up often, as in real logs.
        self._shares = []
        for rows in ROWS:
            shares = 1.0 / (5.0 + drawing.permutation(rows))
            self._shares.append(np.cumsum(shares) / shares.sum())

    def draw(self, pairs: int, part: int) -> Pairs:
        """Draw pairs.

        Args:
            pairs: How many.
            part: Other parts have other pairs; the same part is the same every time.
        """
        drawing = np.random.RandomState([self._seed, part])
        dense = np.log1p(drawing.exponential(3.0, (pairs, DENSE))).astype(np.float32)
        sparse = tuple(
            np.minimum(
                np.searchsorted(shares, drawing.random_sample((pairs, lookups))), rows - 1
            ).astype(np.int32)
            for shares, lookups, rows in zip(self._shares, HOTNESS, ROWS, strict=True)
        )
        log_odds = self.log_odds(dense, sparse)
        clicked = drawing.random_sample(pairs) < 1.0 / (1.0 + np.exp(-log_odds))
        return Pairs(
            dense=dense, sparse=sparse, log_odds=log_odds, clicked=clicked.astype(np.int32)
        )

    def log_odds(
        self, dense: NDArray[np.float32], sparse: tuple[NDArray[np.int32], ...]
    ) -> NDArray[np.float64]:
        """Return the logarithm of each pair's odds to be clicked, shape (pairs,)."""
        # The mean of log(1 + x) is 1.15 and its deviation 0.7, where x is exponential of mean 3.
        centred = (dense.astype(np.float64) - 1.15) / 0.7
        effects = [rows[lookups].sum(1) for rows, lookups in zip(self._rows, sparse, strict=True)]
        found: NDArray[np.float64] = BIAS + centred @ self._dense + np.sum(effects, axis=0)
        for first, second, strength in self._products:
            found += strength * centred[:, first] * effects[second]
        return found
