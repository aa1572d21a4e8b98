"""Score ranked candidates as MLPerf's DLRM v3 benchmark does: entropy, accuracy, GAUC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf import RunError, Scores
from pytest_mlperf.adapters.scorers import ModelFreeScorer, NoOptions, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers.leverage import ratio_scores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_DISTANCE = 1e-12
"""Predictions and the mean label are kept so far from 0 and 1."""

SMOOTH = 1e-9
"""Added to the sum of the requests' AUC, and twice to their number."""

FORM = "float32 numbers: step, query, predictions, labels, weights, and the number of candidates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """One request: what was predicted of its candidates.

    Attributes:
        entropy: Cross entropy of the predictions, weighted sum, bits.
        positive, negative: Weights of the candidates with label 1, and 0.
        right: Weight of those whose prediction, from 0.5 on 1, is the label.
        auc: Area under its own curve; None where there is none.
    """

    entropy: float
    positive: float
    negative: float
    right: float
    auc: float | None


class RankingScorer(ModelFreeScorer[NoOptions]):
    """Compares predictions with the labels that each output has beside them.

    - "normalized_entropy": cross entropy by that of the mean label alone; lower is better.
    - "accuracy": share of candidates, by weight, whose prediction is on the label's side of 0.5.
    - "gauc": mean of the requests' weighted AUC; requests with one kind of label, or whose
      predictions are all the first one's or 0, have none.

    Figures are in float32 and float64 as torchrec 1.3.0 has them, which
    recommendation/dlrm_v3/accuracy.py of https://github.com/mlcommons/inference calls: equal
    predictions rank in their order in the output (with torch only up to 16 candidates: beyond, its
    order is that of its sort), and where no request has an AUC it is 0.5. Sums of weights that are
    no whole numbers may differ in the 7th digit. The reference believes the
    labels in the log; here they must be the data set's, where its references have labels.
    """

    metrics = ("normalized_entropy", "accuracy", "gauc")

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score requests in one pass; return the metrics of the class, 0 and up.

        Outputs are little-endian float32: time step, query, n predictions, n labels 0 or 1, n
        weights, and n. References are None, or tables whose "step", "query" and "labels" must be
        those of the output. A sample's score of the first two metrics is its pseudo-value, score +
        samples x influence.
        """
        import numpy as np

        require_outputs("ranking", outputs, references)
        ranked = [
            _ranked(sample, outputs[sample], references[sample]) for sample in range(len(outputs))
        ]
        entropy, positive, negative, right = np.array(
            [(one.entropy, one.positive, one.negative, one.right) for one in ranked]
        ).T
        if not (weight := float((positive + negative).sum())):
            raise scorer_error(
                f"scorer ranking: the candidates of all {len(ranked)} samples have weight 0, so "
                "nothing is scored; correct the weights",
            )
        mean = min(max(float(positive.sum()) / weight, MIN_DISTANCE), 1 - MIN_DISTANCE)
        alone = -positive * np.log2(mean) - negative * np.log2(1 - mean)
        areas = [one.auc for one in ranked]
        counted = [area for area in areas if area is not None]
        # The mean label has no part in pseudo-values and leverage, being the best one.
        scored = {
            "normalized_entropy": ratio_scores(entropy, alone),
            "accuracy": ratio_scores(right, positive + negative),
        }
        return Scores(
            per_sample={**{name: pseudo for name, (pseudo, _) in scored.items()}, "gauc": areas},
            aggregate={
                "normalized_entropy": float(entropy.sum() / alone.sum()),
                "accuracy": float(right.sum() / weight),
                "gauc": (sum(counted) + SMOOTH) / (len(counted) + 2 * SMOOTH),
            },
            lower=frozenset({"normalized_entropy"}),
            whole=frozenset({"normalized_entropy", "accuracy"}),
            leverage={name: leverage for name, (_, leverage) in scored.items()},
        )


def _ranked(sample: int, output: bytes, reference: Any) -> Ranked:
    import numpy as np

    if len(output) % 4 or len(output) < 12:
        raise _wrong(sample, f"is {len(output)} bytes, which are no row of {FORM}")
    row = np.frombuffer(output, "<f4")
    if not np.isfinite(row).all():
        place = int(np.flatnonzero(~np.isfinite(row))[0])
        raise _wrong(sample, f"has {row[place]} as number {place}, which is not finite")
    many = (len(row) - 3) // 3
    if row[-1] != many or len(row) != 3 + 3 * many or not many:
        raise _wrong(
            sample, f"is {len(row)} numbers and ends in {row[-1]:g}, which is no row of {FORM}"
        )
    predictions, labels, weights = row[2:-1].reshape(3, many)
    if not ((labels == 0) | (labels == 1)).all():
        raise _wrong(sample, "has a label that is neither 0 nor 1")
    if (weights < 0).any():
        raise _wrong(sample, "has a weight below 0")
    _compare(sample, row, labels, reference)
    clipped = predictions.astype(np.float64).clip(MIN_DISTANCE, 1 - MIN_DISTANCE)
    entropy = -weights * labels * np.log2(clipped) - weights * (1 - labels) * np.log2(1 - clipped)
    return Ranked(
        entropy=float(entropy.sum()),
        positive=float((weights * labels).sum()),
        negative=float((weights * (1 - labels)).sum()),
        right=float((weights * ((predictions >= 0.5) == labels)).sum()),
        auc=_auc(predictions, labels, weights),
    )


def _compare(sample: int, row: NDArray[Any], labels: NDArray[Any], reference: Any) -> None:
    import numpy as np

    if reference is None:
        return
    if not isinstance(reference, Mapping):
        raise _wrong(
            sample, f"has a {type(reference).__name__} for a reference, not a table or None"
        )
    answered = {"step": row[:1], "query": row[1:2], "labels": labels}
    for name, numbers in answered.items():
        if name in reference:
            expected = np.asarray(reference[name], np.float32).ravel()
            if not np.array_equal(numbers, expected):
                raise _wrong(
                    sample,
                    f"has another {name} than the data set; each sample must be answered with its "
                    "own candidates, in their order",
                )


def _auc(
    predictions: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32]
) -> float | None:
    import numpy as np

    if ((predictions == predictions[0]) | (predictions == 0)).all():
        return None
    order = np.argsort(predictions, kind="stable")
    labels, weights = labels[order], weights[order]
    positive, negative = weights * labels, weights * (1 - labels)
    if not (positive.any() and negative.any()):
        return None
    lower = np.cumsum(negative, dtype=np.float64).astype(np.float32)
    pairs = positive.sum() * negative.sum() + np.float32(1e-10)
    return float((positive * lower).sum() / pairs)


def _wrong(sample: int, defect: str) -> RunError:
    return scorer_error(f"scorer ranking: the output of sample {sample} {defect}")
